"""Cores, memory, and the end of a process with its parent, on Linux and macOS."""

import ctypes
import os
import pathlib
import resource
import signal
import sys
import threading
import time

_PARENT_DEATH = 1
_SECONDS = 1.0


def num_cores() -> int:
    """Return the number of cores that this process may use: of macOS all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def peak_memory() -> float:
    """Return the peak of this process's memory since it began, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)  # Bytes there, KiB elsewhere.


def recent_peak_memory(reset: bool = False) -> float:
    """Return the peak of this process's memory in MiB; with `reset` the memory in use, where the peak begins anew.

    Where the system has no /proc, the peak since the process began.
    """
    try:
        if reset:
            pathlib.Path("/proc/self/clear_refs").write_text("5")
        lines = pathlib.Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**10
    except (OSError, StopIteration):
        return peak_memory()


def end_with(parent: int) -> None:
    """End this process by SIGKILL when its parent, of this process id, ends; without prctl within a second."""
    if hasattr(libc := ctypes.CDLL(None), "prctl"):
        libc.prctl(_PARENT_DEATH, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
