"""Workers: the right numbers, errors that say why, and no process left behind after any way of ending."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import tensorflow as tf

from tfp_bfl.engines.tff import installation, workers
from tfp_bfl.engines.tff.context import local_workers, remote_workers
from tfp_bfl.engines.tff.workers import Worker
from tfp_bfl.errors import InvalidArgument, MissingDependency, WorkerError

tff = pytest.importorskip("tensorflow_federated")

ROOT = Path(__file__).parents[2]


@tff.tensorflow.computation(tff.SequenceType(np.float32), np.float32)
def scaled_sum(dataset, factor):
    return factor * dataset.reduce(np.float32(0), lambda a, b: a + b)


@tff.federated_computation(
    tff.FederatedType(np.float32, tff.SERVER), tff.FederatedType(tff.SequenceType(np.float32), tff.CLIENTS)
)
def total(factor, datasets):
    factors = tff.federated_broadcast(factor)
    return tff.federated_sum(tff.federated_map(scaled_sum, (datasets, factors)))


@tff.tensorflow.computation(np.int64)
def count(n):
    return tf.while_loop(lambda i: i < n, lambda i: (i + 1,), (tf.constant(0, tf.int64),))[0]


@tff.federated_computation(tff.FederatedType(np.int64, tff.CLIENTS))
def count_all(n):
    return tff.federated_sum(tff.federated_map(count, n))


@tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
def sum_of_differences_from_mean(x):
    mean = tff.federated_broadcast(tff.federated_mean(x))
    difference = tff.tensorflow.computation(lambda a, b: a - b, (np.float32, np.float32))
    return tff.federated_sum(tff.federated_map(difference, (x, mean)))


def client_data(num_clients):
    return [tf.data.Dataset.range(i + 1).map(lambda v: tf.cast(v, tf.float32)) for i in range(num_clients)]


def runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def assert_ends(pid, seconds=300):
    deadline = time.monotonic() + seconds
    while runs(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not runs(pid)


def script(path, text):
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def test_two_blocks_one_after_the_other():
    pids = []
    for num_clients, expected in ((4, 2 * (0 + 1 + 3 + 6)), (2, 2 * 1)):
        with local_workers() as runtime:
            (worker,) = runtime.workers
            pids.append(worker.pid)
            assert total(2.0, client_data(num_clients)) == expected
            assert count(5) == 5  # Without clients.
            assert 10e6 < worker.memory_bytes() <= worker.peak_memory_bytes() < 2e9
        assert not runs(worker.pid)
    assert len(set(pids)) == 2


def test_exception_inside_ends_the_worker_and_passes_on():
    with pytest.raises(KeyError, match="mine"), local_workers() as runtime:
        raise KeyError("mine")
    assert not runs(runtime.workers[0].pid)


def test_error_in_a_computation_leaves_the_worker_usable():
    @tff.tensorflow.computation(np.int32)
    def check(x):
        with tf.control_dependencies([tf.debugging.assert_positive(x, "not positive")]):
            return tf.identity(x)

    with local_workers():
        with pytest.raises(Exception, match="not positive"):
            check(-1)
        assert check(1) == 1


def test_several_workers_give_what_one_gives():
    with local_workers(2) as runtime:
        assert len({worker.pid for worker in runtime.workers}) == 2
        for num_clients, expected in ((5, 20), (1, 0), (0, 0)):
            assert total(1.0, client_data(num_clients)) == expected
        assert count(5) == 5
        with pytest.raises(InvalidArgument, match="aggregates more than once"):
            sum_of_differences_from_mean([1.0, 2.0])
        with pytest.raises(InvalidArgument, match="addresses"), remote_workers("localhost:1"):
            pass
        # The same processes, as workers that run elsewhere; leaving does not end them.
        with remote_workers([worker.address for worker in runtime.workers]):
            assert total(1.0, client_data(5)) == 20
        assert all(worker.is_alive for worker in runtime.workers)
        assert total(1.0, client_data(5)) == 20


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_worker_that_dies_in_a_computation_is_an_error_at_once(num_workers, capfd):
    with local_workers(num_workers) as runtime:
        count_all([1, 1])
        victim = runtime.workers[-1].pid
        timer = threading.Timer(0.5, os.kill, (victim, signal.SIGKILL))
        timer.start()
        with pytest.raises(WorkerError, match=f"{victim} ended by signal SIGKILL; if the machine's memory"):
            count_all([10**15, 10**15])  # It would take days.
    assert "Traceback" not in capfd.readouterr().err


def test_stop_twice():
    worker = Worker.start(1)
    assert worker.is_alive
    worker.stop()
    worker.stop()
    assert not worker.is_alive
    assert not runs(worker.pid)
    with pytest.raises(WorkerError, match="has ended"):
        worker.memory_bytes()


def test_never_ready(tmp_path):
    pid_file = tmp_path / "pid"
    binary = script(tmp_path / "sleeps", f"echo $$ > {pid_file}\necho still loading\nsleep 1000\n")
    with pytest.raises(WorkerError, match=r"startup_seconds=1(.|\n)*still loading"):
        Worker.start(1, startup_seconds=1, binary=binary)
    assert_ends(int(pid_file.read_text()))


def test_ends_at_once(tmp_path):
    binary = script(tmp_path / "fails", "echo no such library >&2\nexit 7\n")
    with pytest.raises(WorkerError, match=r"status 7(.|\n)*no such library"):
        Worker.start(1, startup_seconds=10**6, binary=binary)
    with pytest.raises(WorkerError, match=r"No program .*absent can run here"):
        Worker.start(1, binary=str(tmp_path / "absent"))


@pytest.mark.parametrize(("calls", "given", "heaps"), [(1, None, 4), (4, None, 8), (4, "3", 3)])
def test_threads_heaps_and_flags_reach_the_worker(tmp_path, monkeypatch, calls, given, heaps):
    """Two heaps for each call at once, and four at least, unless the user has said how many."""
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "5")
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    if given is not None:
        monkeypatch.setenv("MALLOC_ARENA_MAX", given)
    said = 'echo "$2" $TF_NUM_INTRAOP_THREADS $TF_NUM_INTEROP_THREADS $MALLOC_ARENA_MAX\nexit 7\n'
    with pytest.raises(WorkerError, match=f"--max_concurrent_computation_calls={calls} 3 5 {heaps}(?!\\d)"):
        Worker.start(calls, intra_op_threads=3, binary=script(tmp_path / "prints", said))


def test_port_taken_is_not_fatal(monkeypatch):
    reserve = workers._reserve_port
    ports = []
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()

        def reserve_badly():
            reservation = taken.dup() if len(ports) < 2 else reserve()
            ports.append(reservation.getsockname()[1])
            return reservation

        monkeypatch.setattr(workers, "_reserve_port", reserve_badly)
        worker = Worker.start(1, own_network=False)
    assert len(ports) == 3
    assert worker.address == f"127.0.0.1:{ports[-1]}"
    worker.stop()


def test_a_reserved_port_is_given_to_nobody_else():
    with workers._reserve_port() as reservation, socket.socket() as other, pytest.raises(OSError):
        other.bind(("", reservation.getsockname()[1]))


def test_remote_worker_that_is_not_there():
    with workers._reserve_port() as reservation:
        address = f"127.0.0.1:{reservation.getsockname()[1]}"
        refused = pytest.raises(WorkerError, match=f"No worker answered at {address}")
        with refused, remote_workers([address], connect_seconds=0.5):
            pass


@pytest.mark.parametrize("arguments", [{"num_workers": 0}, {"max_concurrent_calls": -1}])
def test_counts_must_be_positive(arguments):
    with pytest.raises(InvalidArgument, match="at least 1"), local_workers(**arguments):
        pass


def test_missing_tff_says_how_to_install(monkeypatch):
    require_tff = installation.require_tff.__wrapped__
    monkeypatch.setitem(sys.modules, "tensorflow_federated", None)
    with pytest.raises(MissingDependency, match=r"not installed: .*'local', or, with Python 3.11, .*\.lock"):
        require_tff()


def start_program(how):
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("exits.py")), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )


EXITS = [  # How the program ends, the signal that it gets, its status, what it may print at its end.
    ("return", None, 0, None),
    ("unclosed", None, 0, None),
    ("exception", None, 1, "ValueError: this is expected"),
    ("sys.exit", None, 3, None),
    ("busy", signal.SIGINT, -signal.SIGINT, "KeyboardInterrupt"),
    ("busy", signal.SIGTERM, -signal.SIGTERM, None),
    ("busy", signal.SIGKILL, -signal.SIGKILL, None),
]


@pytest.mark.parametrize("how, number, status, said", EXITS)
@pytest.mark.deep(after="tests/engines/test_workers.py")
def test_no_worker_outlives_its_program(how, number, status, said):
    program = start_program(how)
    try:
        line = program.stdout.readline()
        assert line.startswith("worker "), program.stderr.read()
        pid = int(line.split()[1])
        if number is not None:
            assert program.stdout.readline() == "ready\n"
            assert runs(pid)
            # To the whole group, as a terminal sends Ctrl-C.
            os.killpg(program.pid, number)
        # Returns once nobody holds the pipes: a worker that had inherited them would keep them open.
        _, errors = program.communicate()
    finally:
        if program.poll() is None:
            program.kill()
    assert program.returncode == status, errors
    assert_ends(pid)
    if said is None:
        assert "Traceback" not in errors
        assert "Exception ignored" not in errors
    else:
        assert said in errors
        assert errors.count("Traceback") == 1
