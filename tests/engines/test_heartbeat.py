"""Workers that stop without ending: detected, reported and replaced, or named if they were started elsewhere."""

import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

from tfp_bfl import federated
from tfp_bfl.engines.tff import local_workers, remote_workers
from tfp_bfl.errors import InvalidArgument, WorkerError

pytestmark = pytest.mark.deep(after="tests/engines/test_workers.py")

pytest.importorskip("tensorflow_federated")

from tests.federated.test_restarts import CLIENTS, build  # noqa: E402
from tests.kit import assert_same, without_times  # noqa: E402
from tfp_bfl.engines.tff.workers import Worker  # noqa: E402


def simulate(runtime, local_epochs=1, **options):
    return federated.simulate(build(local_epochs=local_epochs), CLIENTS, 3, seed=2, runtime=runtime, **options)


@pytest.mark.parametrize("after", [pytest.param(None, marks=pytest.mark.long), 0.3])
def test_a_frozen_worker_is_replaced_and_nothing_is_lost(after, caplog):
    """Stopped between rounds, and in the midst of one of a second or more: the bits are those of a run undisturbed."""
    epochs = 1 if after is None else 300
    with local_workers(max_concurrent_calls=2) as runtime:
        wanted = simulate(runtime, epochs)
    with local_workers(max_concurrent_calls=2, heartbeat_seconds=2) as runtime:
        victim = runtime.workers[0]

        def freeze(row):
            if row["round"] == 1:
                stop = (victim.pid, signal.SIGSTOP)
                threading.Timer(after, os.kill, stop).start() if after else os.kill(*stop)

        with caplog.at_level(logging.WARNING, logger="tfp_bfl"):
            result = simulate(runtime, epochs, on_round=freeze)
        assert not victim.is_alive
    first, *later = (row["restarts"] for row in result.rounds)
    assert first == 0 and sum(later) == 1  # In which of them is the machine's.
    assert_same(result.state, wanted.state)
    assert without_times(result.rounds) == without_times(wanted.rounds)
    assert f"The worker {victim.address} has not answered for 2 s and is given up" in caplog.text
    assert "did not answer for 2 s (stopped, swapped out or hung) and was ended" in caplog.text


def test_a_busy_worker_is_left_alone():
    """Rounds that take several times as long as a worker may be silent, on all of its threads."""
    with local_workers(max_concurrent_calls=2, heartbeat_seconds=0.5) as runtime:
        result = simulate(runtime, 600)
    assert [row["restarts"] for row in result.rounds] == [0, 0, 0]
    assert max(row["train_seconds"] for row in result.rounds) > 1


def test_a_frozen_worker_elsewhere_ends_the_run_with_its_name(tmp_path):
    worker = Worker.start(2)
    try:
        with remote_workers([worker.address], 2, heartbeat_seconds=2) as runtime:
            started = []

            def freeze(row):
                started.append(time.monotonic())
                os.kill(worker.pid, signal.SIGSTOP)

            with pytest.raises(WorkerError, match=f"worker at {worker.address} did not answer for 2 s"):
                simulate(runtime, on_round=freeze, checkpoint_dir=tmp_path)
            assert time.monotonic() - started[0] < 30
    finally:
        os.kill(worker.pid, signal.SIGCONT)
        worker.stop()
    assert (tmp_path / "round_1.sha256").exists()


def test_a_cut_link_ends_the_run_with_the_workers_name(tmp_path):
    namespace = ["unshare", "--map-root-user", "--net"]
    if not shutil.which("unshare") or not shutil.which("ip") or subprocess.run([*namespace, "true"]).returncode:
        pytest.skip("no network namespaces here")
    command = [*namespace, sys.executable, "-m", "tests.federated.cut", str(tmp_path / "states")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    (line,) = done.stdout.splitlines()
    assert "The worker at 10.9.9.1:" in line and "did not answer for 3 s: its machine is stopped or cut off" in line
    assert int(line.split()[1]) < 60 and (tmp_path / "states" / "round_1.sha256").exists()


@pytest.mark.parametrize("seconds", [0, -1.0, float("inf")])
def test_silence_must_be_a_number_of_seconds(seconds):
    with pytest.raises(InvalidArgument, match="heartbeat_seconds is"), local_workers(heartbeat_seconds=seconds):
        pass
