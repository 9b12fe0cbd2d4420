"""What a program asks of the machine, on systems without Linux's calls."""

import os
import pathlib
import resource
import subprocess
import sys

import psutil

from tfp_bfl import machine


def test_cores_without_an_affinity_are_all(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert machine.num_cores() == os.cpu_count()


def test_peak_memory_is_in_mib_on_both_systems(monkeypatch):
    peak = 3 * 2**20
    usage = resource.struct_rusage((0, 0, peak, *[0] * 13))
    monkeypatch.setattr(resource, "getrusage", lambda who: usage)
    monkeypatch.setattr(sys, "platform", "linux")
    assert machine.peak_memory() == 3 * 2**10
    monkeypatch.setattr(sys, "platform", "darwin")
    assert machine.peak_memory() == 3
    monkeypatch.setattr(pathlib.Path, "read_text", lambda path: "")  # No /proc.
    assert machine.recent_peak_memory() == 3


def test_a_process_ends_with_its_parent_without_prctl():
    child = "import os, time; from tfp_bfl import machine; machine.ctypes.CDLL = lambda name: object()\n"
    child += "machine.end_with(os.getppid()); print(os.getpid(), flush=True); time.sleep(600)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        pid = int(process.stdout.readline())
        process.kill()
        process.wait()
        psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=60)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
