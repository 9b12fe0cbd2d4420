"""A simulation on TensorFlow Federated: its workers end, how many there are does not matter, and faults are found."""

import numpy as np
import psutil
import pytest

from tests.kit import assert_same, without_times
from tfp_bfl import federated
from tfp_bfl.engines.tff import local_workers

from . import test_faults as faults
from .test_simulation import CLIENTS, build

pytest.importorskip("tensorflow_federated")


@pytest.fixture(scope="module")
def runtime(tff_runtime):
    return tff_runtime


def worker_pids():
    """Without what stands before a worker in its own network, a child of its."""
    return {p.pid for p in psutil.Process().children() if p.status() != psutil.STATUS_ZOMBIE}


def test_a_given_runtime_runs_on(runtime):
    federated.simulate(build(), CLIENTS, 1, runtime=runtime)
    assert runtime.workers[0].is_alive
    assert runtime.workers[0].pid in worker_pids()


def test_no_worker_is_left():
    before = worker_pids()
    during = []
    evaluate = lambda model: during.append(worker_pids() - before) or {}
    federated.simulate(build(), CLIENTS, 1, evaluate=evaluate)
    assert len(during[0]) == 1
    assert worker_pids() == before


@pytest.mark.parametrize(
    "where", ["evaluate", pytest.param("on_round", marks=pytest.mark.deep(after="tests/federated/test_simulation.py"))]
)
def test_no_worker_is_left_after_an_error(where):
    before = worker_pids()
    during = []

    def fail(argument):
        during.append(worker_pids() - before)
        raise RuntimeError("this is expected")

    with pytest.raises(RuntimeError, match="this is expected"):
        federated.simulate(build(), CLIENTS, 1, **{where: fail})
    assert len(during[0]) == 1
    assert worker_pids() == before


@pytest.mark.deep(after="tests/federated/test_engines.py")
@pytest.mark.parametrize(("workers", "concurrency"), [(2, 1), (1, 2)])
def test_number_of_workers_does_not_matter(workers, concurrency):
    """Also none at all, but this process."""
    wanted = federated.simulate(build(), CLIENTS, 2, seed=1, engine="local")
    with local_workers(workers, max_concurrent_calls=concurrency) as other:
        result = federated.simulate(build(), CLIENTS, 2, seed=1, runtime=other)
        assert len(other.workers) == workers
    assert_same(result.state.weights, wanted.state.weights, rtol=1e-5, atol=1e-5)
    for row, same in zip(without_times(result.rounds), without_times(wanted.rounds), strict=True):
        assert set(row) == set(same)
        assert row["num_examples"] == same["num_examples"]
        np.testing.assert_allclose([row["nll"], row["kl"]], [same["nll"], same["kl"]], rtol=1e-4)


@pytest.mark.deep(after="tests/federated/test_faults.py")
def test_clients_that_raise_are_found_and_left_out(runtime):
    """The error comes from another process, and says which client it was only when each is tried alone."""
    row = federated.simulate(faults.build(raising=(0, 6, 7)), faults.CLIENTS, 1, runtime=runtime).rounds[0]
    assert list(row["faulty_clients"]) == ["0", "1", "2", "3", "4", "5", "6", "7"]
    assert row["num_examples"] == 4
