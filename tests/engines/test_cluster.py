"""What a cluster's tasks do, without a cluster: the same bits, and what is said of machines that can't take part."""

import sys
import types

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.method import CLIENTS, begin
from tests.algorithms.methods import METHODS
from tests.algorithms.test_contract import ALIKE, TRIED
from tests.engines.ray_stand_in import NEVER, Exceptions, stand_in
from tfp_bfl import data, federated
from tfp_bfl.engines.ray import cluster, ray_runtime
from tfp_bfl.engines.ray import runtime as ray_tasks
from tfp_bfl.errors import ComputationError, InvalidArgument, MissingDependency, WorkerError

deep = pytest.mark.deep(after="tests/algorithms/test_contract.py")
TELLING = "conflation, flipout"
OTHERS = [name for name in TRIED if name not in ALIKE and name != TELLING]


@pytest.fixture
def runtime(monkeypatch):
    return stand_in(monkeypatch)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return data.write_clients(CLIENTS, tmp_path_factory.mktemp("files") / "clients")


def bits(structure):
    return [np.asarray(x).tobytes() for x in tf.nest.flatten(structure)]


@pytest.mark.parametrize("name", [TELLING, *(pytest.param(name, marks=deep) for name in OTHERS)])
def test_tasks_give_the_bits_of_this_process(name, files, runtime):
    process = METHODS[name]().build()
    process.local.concurrent_calls = 2
    first = begin(process)
    here = process.local.next(first, CLIENTS.shards(range(3), 2))
    there = cluster.RayEngine(process.round, runtime).next(first, files.references(range(3), 2))
    assert bits(there.state) == bits(here.state) and bits(there.metrics) == bits(here.metrics)


@pytest.fixture(scope="module")
def process():
    return METHODS[TELLING]().build()


def test_a_run(process, files, runtime):
    wanted = federated.simulate(process, CLIENTS, 2, cohort_size=2, engine="local").state
    found = federated.simulate(process, files, 2, cohort_size=2, engine="ray", runtime=runtime).state
    np.testing.assert_allclose(found.weights.posterior.mean[0], wanted.weights.posterior.mean[0], rtol=1e-5, atol=1e-6)


def test_clients_in_memory_are_refused(process, runtime):
    with pytest.raises(InvalidArgument, match=r"these clients are in memory: give it data\.write_clients"):
        federated.simulate(process, CLIENTS, 2, engine="ray", runtime=runtime)


def test_a_machine_that_sees_other_clients(process, files, runtime):
    engine = cluster.RayEngine(process.round, runtime)
    elsewhere = [data.Reference(str(files.folder), "of others", (0, 1))]
    with pytest.raises(InvalidArgument, match=r"machine 10\.0\.0\.7 of the cluster does not see the clients: .* other"):
        engine.next(begin(process), elsewhere)
    with pytest.raises(InvalidArgument, match="does not see the clients: /nowhere holds no clients here"):
        engine.next(begin(process), [data.Reference("/nowhere", files.digest, (0, 1))])


def test_a_machine_of_another_version(process, files, runtime, monkeypatch):
    monkeypatch.setattr(cluster, "examine", lambda reference: ("tfp_bfl 0.0.1, tensorflow 2.9", ""))
    with pytest.raises(InvalidArgument, match=r"has tfp_bfl 0\.0\.1, tensorflow 2\.9, but this program tfp_bfl"):
        cluster.RayEngine(process.round, runtime).next(begin(process), files.references(range(3), 2))


def test_no_machine_is_left(process, files, runtime):
    engine = cluster.RayEngine(process.round, runtime)
    runtime.ray.machines, runtime.ray.answers = [], False
    with pytest.raises(WorkerError, match="The cluster has had no machine for 0 s: start one with ray start"):
        engine.next(begin(process), files.references(range(3), 2))


def test_a_machine_that_is_cut_off(process, files, runtime, monkeypatch):
    """Its task never answers, and is done again elsewhere; so is one of which Ray says that it is lost."""
    wanted = cluster.RayEngine(process.round, runtime).next(begin(process), files.references(range(3), 2))
    monkeypatch.setattr(ray_tasks, "_RAYS_OWN_SECONDS", 0.0)
    ray, other = runtime.ray, {**runtime.ray.machines[0], "NodeID": "b"}
    engine = cluster.RayEngine(process.round, runtime)
    engine._seen.add(files.digest)
    states = iter([[*ray.machines, other]])
    monkeypatch.setattr(ray, "nodes", lambda: next(states, ray.machines))
    ray.calls, ray.lost = 0, {1: NEVER}
    assert bits(engine.next(begin(process), files.references(range(3), 2)).state) == bits(wanted.state)
    assert ray.calls == 3


def test_a_task_that_is_lost_each_time(process, files, runtime):
    engine = cluster.RayEngine(process.round, runtime)
    engine._seen.add(files.digest)
    runtime.ray.calls, runtime.ray.lost = 0, {1: Exceptions.RayError("the process ended")}
    with pytest.raises(WorkerError, match=r"was lost 20 times \(RayError\): the process ended"):
        engine.next(begin(process), files.references(range(3), 2))


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (ComputationError("of a client"), ComputationError, "of a client"),
        (ZeroDivisionError("by zero\nmore"), WorkerError, "A task of the cluster failed: by zero$"),
    ],
)
def test_what_a_task_raises(process, files, runtime, monkeypatch, error, kind, words):
    def fails(*given):
        raise error

    monkeypatch.setattr(cluster, "work_on", fails)
    with pytest.raises(kind, match=words):
        cluster.RayEngine(process.round, runtime).next(begin(process), files.references(range(3), 2))


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependency, match=r"needs the package ray.*pip install 'ray"):
        federated.check_engine("ray")


@pytest.mark.parametrize(
    ("given", "words"),
    [({"num_workers": 0}, "num_workers is 0"), ({"threads": 0}, "threads is 0"), ({"patience": 0}, "patience is 0")],
)
def test_numbers_of_a_runtime(given, words):
    with pytest.raises(InvalidArgument, match=words), ray_runtime(**given):
        pass


def test_a_cluster_that_does_not_answer(monkeypatch):
    ray = types.SimpleNamespace(is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "ray", ray)
    words = r"No Ray cluster can be joined at 127\.0\.0\.1:9 \(ConnectionRefusedError"
    with pytest.raises(WorkerError, match=words), ray_runtime("127.0.0.1:9"):
        pass
