"""Who reaches a worker: its owner alone, where the system allows it a network of its own; and what is left of it."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("tensorflow_federated")

from tests.engines.test_workers import client_data, script, total
from tfp_bfl.engines.tff import workers
from tfp_bfl.engines.tff.context import local_workers, remote_workers
from tfp_bfl.engines.tff.workers import Worker

ROOT = Path(__file__).parents[2]
STRANGER = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
CALL = """
import socket, sys
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[1])
    print("connected")
except OSError as error:
    print(type(error).__name__)
"""
# A namespace of users in which there may be no further network.
REFUSED = ["unshare", "--map-root-user", "sh", "-c", 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"', "sh"]
PROGRAM = """
import logging
from tfp_bfl.engines.tff.workers import Worker
logging.basicConfig(format="%(message)s")
for _ in range(2):
    worker = Worker.start(1)
    print(worker.address)
    worker.stop()
"""


@pytest.fixture(scope="module")
def worker():
    worker = Worker.start(1)
    yield worker
    worker.stop()


@pytest.fixture
def path(worker):
    if workers._is_refused:
        pytest.skip("no network namespaces here")
    return Path(worker.address.removeprefix("unix:"))


def own_listeners(pid):
    """Ports at which processes of a worker listen in the network that this test is in."""
    family = {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}
    found = psutil.net_connections("inet")
    return [x.laddr.port for x in found if x.pid in family and x.status == psutil.CONN_LISTEN]


def relay_of(pid):
    (relay,) = psutil.Process(pid).children()
    return relay


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    assert condition()


def test_no_port_of_the_machine_leads_to_it(worker, path):
    assert own_listeners(worker.pid) == []
    assert os.readlink(f"/proc/{worker.pid}/ns/net") != os.readlink("/proc/self/ns/net")
    open_to_all = Worker.start(1, own_network=False)
    try:
        assert own_listeners(open_to_all.pid) == [int(open_to_all.address.split(":")[1])]
    finally:
        open_to_all.stop()


def test_its_owner_alone_can_call_it(path):
    assert path.parent.stat().st_mode & 0o777 == 0o700 and path.parent.stat().st_uid == os.getuid()
    python = shutil.which("python3", path="/usr/bin")  # Others may have no way to the one that runs the tests.
    if os.getuid() or not shutil.which("setpriv") or not python:
        pytest.skip("not allowed to be another user")
    call = lambda *user: subprocess.run([*user, python, "-c", CALL, str(path)], capture_output=True, text=True)
    assert call().stdout == "connected\n"
    assert call(*STRANGER).stdout == "PermissionError\n"


def test_another_program_of_the_owner_can(worker, path):
    with remote_workers([worker.address]):
        assert total(1.0, client_data(5)) == 20


def test_what_the_caller_opened_is_gone_at_the_end(path):
    with local_workers() as runtime:
        (worker,) = runtime.workers
        processes = [worker.pid, *(child.pid for child in psutil.Process(worker.pid).children())]
        address = worker.address
    assert not Path(address.removeprefix("unix:")).parent.exists()
    wait_until(lambda: not any(map(psutil.pid_exists, processes)))


@pytest.mark.parametrize("victim", ["worker", "relay"])
def test_neither_the_worker_nor_what_stands_before_it_outlives_the_other_unnoticed(path, victim):
    with local_workers(heartbeat_seconds=1) as runtime:
        (worker,) = runtime.workers
        relay = relay_of(worker.pid)
        os.kill(worker.pid if victim == "worker" else relay.pid, signal.SIGKILL)
        wait_until(lambda: not worker.is_alive)
        assert runtime.replace_dead_workers() == 1
        assert total(1.0, client_data(5)) == 20
    wait_until(lambda: not relay.is_running())


@pytest.mark.deep(after="tests/engines/test_door.py")
def test_a_program_that_is_killed_leaves_nothing(path, tmp_path):
    code = "import time\nfrom tfp_bfl.engines.tff.workers import Worker\n"
    code += "w = Worker.start(1)\nprint(w.pid, w.address, flush=True)\ntime.sleep(600)\n"
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid, address = program.stdout.readline().split()
    processes = [int(pid), relay_of(int(pid)).pid]
    program.kill()
    program.wait()
    program.stdout.close()
    wait_until(lambda: not any(map(psutil.pid_exists, processes)))
    wait_until(lambda: not Path(address.removeprefix("unix:")).parent.exists())


@pytest.mark.deep(after="tests/engines/test_door.py")
def test_where_there_is_none_one_line_says_who_can_use_it(worker, path):
    if subprocess.run([*REFUSED, "true"], capture_output=True).returncode:
        pytest.skip("no namespace to forbid it in")
    done = subprocess.run([*REFUSED, sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=ROOT)
    first, second = done.stdout.splitlines()
    assert first.startswith("127.0.0.1:") and second.startswith("127.0.0.1:")
    assert done.stderr.count("Workers listen on every network interface, and whoever reaches their ports") == 1
    assert "No space left on device" in done.stderr and "docs/security.md" in done.stderr


def test_a_program_that_ends_with_the_status_of_a_refusal_is_not_started_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "_is_refused", True)
    with pytest.raises(workers.WorkerError, match="ended with status 97"):
        Worker.start(1, binary=script(tmp_path / "fails", "exit 97\n"))


def test_a_folder_of_a_long_name_does_not_hold_the_socket(tmp_path, monkeypatch):
    long = tmp_path / ("a" * 100)
    long.mkdir()
    monkeypatch.setattr(workers.tempfile, "tempdir", str(long))
    folder = Path(workers._make_folder())
    folder.rmdir()
    assert len(str(folder)) < 100 and not list(long.iterdir())
