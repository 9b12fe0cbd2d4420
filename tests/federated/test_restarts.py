"""Workers that die in a round are replaced, and how many there are changes sums by their rounding alone."""

import functools
import logging
import os
import signal
import threading
import time

import numpy as np
import pytest

from tests.kit import assert_same, without_times
from tfp_bfl import algorithms, federated, models, rules
from tfp_bfl.data import Clients, load
from tfp_bfl.engines.tff import local_workers, remote_workers
from tfp_bfl.errors import WorkerError

pytestmark = pytest.mark.deep(after="tests/engines/test_workers.py")

pytest.importorskip("tensorflow_federated")

CLIENTS = Clients(load("breast_cancer"), [np.arange(12 * k, 12 * k + 5 + k) for k in range(6)])


@functools.cache
def build(rule="log_linear_pool", local_epochs=1):
    model_fn = lambda: models.mlp("flipout", hidden=(4,), initial_stddev=0.1)
    return algorithms.variational(model_fn, rules.parse_rule(rule), local_epochs=local_epochs, batch_size=4)


def run(workers=1, concurrency=2, rule="log_linear_pool", rounds=3, local_epochs=1, on_runtime=None, **options):
    with local_workers(workers, max_concurrent_calls=concurrency) as runtime:
        if on_runtime:
            on_runtime(runtime)
        process = build(rule, local_epochs)
        return federated.simulate(process, CLIENTS, rounds, seed=2, dropout=0.2, runtime=runtime, **options)


def kill_soon(runtime, which=-1):
    worker = runtime.workers[which]
    threading.Timer(0.3, os.kill, (worker.pid, signal.SIGKILL)).start()
    return worker


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_is_killed_in_a_round_is_replaced_and_loses_nothing(workers, caplog):
    """Rounds of a second and more, so that the kill comes in the middle of one: the same workers give the same bits."""
    rounds = {"workers": workers, "local_epochs": 300}
    victims, runtimes = [], []

    def on_round(row):
        if row["round"] == 1:
            victims.append(kill_soon(runtimes[0]))

    wanted = run(**rounds)
    result = run(**rounds, on_runtime=runtimes.append, on_round=on_round)
    assert not victims[0].is_alive
    assert sum(row["restarts"] for row in result.rounds) == 1
    assert_same(result.state, wanted.state)
    assert without_times(result.rounds) == without_times(wanted.rounds)
    assert f"The worker process {victims[0].pid} ended by signal SIGKILL" in caplog.text


def test_workers_that_die_again_and_again_end_the_run_with_its_state_saved(tmp_path, caplog):
    stop, killed = threading.Event(), []

    def kill_all(runtime):
        while not stop.wait(0.2):
            pid = runtime.workers[0].pid
            if pid not in killed and (tmp_path / "round_1.sha256").exists():
                killed.append(pid)
                os.kill(pid, signal.SIGKILL)

    start = lambda runtime: threading.Thread(target=kill_all, args=(runtime,)).start()
    try:
        with caplog.at_level(logging.WARNING, "tfp_bfl"), pytest.raises(WorkerError, match="ended by signal SIGKILL"):
            run(rounds=9, local_epochs=300, on_runtime=start, checkpoint_dir=tmp_path, max_restarts=2)
    finally:
        stop.set()
    assert len(killed) == 3 and caplog.text.count("was started anew") == 2
    saved = max(int(path.stem[6:]) for path in tmp_path.glob("*.sha256"))
    rest = run(rounds=saved + 1, local_epochs=300, checkpoint_dir=tmp_path)
    assert_same(rest.state, run(rounds=saved + 1, local_epochs=300).state)


def test_workers_that_are_not_ours_are_not_replaced():
    with local_workers() as runtime, remote_workers([runtime.workers[0].address], connect_seconds=2) as remote:
        assert remote.replace_dead_workers() == 0
        os.kill(runtime.workers[0].pid, signal.SIGKILL)
        time.sleep(0.2)
        with pytest.raises(WorkerError, match="worker"):
            federated.simulate(build(), CLIENTS, 1, runtime=remote)
