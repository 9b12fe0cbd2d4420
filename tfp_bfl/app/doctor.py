"""Checks whether this machine can run simulations: one line a check, with what to do where it fails."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from typing import Callable

import psutil
from rich.console import Console

from tfp_bfl.errors import INSTALL_COMMAND, Error, check_python

_STACK = {
    "tensorflow": "2.14",
    "keras": "2.14",
    "tensorflow_probability": "0.22",
    "tensorflow_federated": "0.87",
    "tensorflow_datasets": "4.9",
    "numpy": "1.",
    "jax": "0.4.",
}
_LEAST_GIB = 2


class _Failed(Exception):
    """A check's bad news, with the remedy."""


def examine(console: Console) -> bool:
    """Runs every check, prints a line for each, and returns whether all passed."""
    checks: tuple[tuple[str, Callable[[], str]], ...] = (
        ("Python", _python),
        ("stack", _versions),
        ("worker", _worker),
        ("cores", _cores),
        ("memory", _memory),
    )
    passed = True
    for name, check in checks:
        try:
            sign, text = "[green]ok  [/]", check()
        except (_Failed, Error) as error:
            sign, text, passed = "[red]FAIL[/]", str(error), False
        console.print(f"{sign} {name}: ", end="")
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    return passed


def _python() -> str:
    check_python()
    return platform.python_version()


def _versions() -> str:
    found, wrong = [], []
    for name, wanted in _STACK.items():
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            version = "missing"
        found.append(f"{name} {version}")
        if not version.startswith(wanted):
            wrong.append(f"{name} is {version}, not {wanted.rstrip('.')}")
    if wrong:
        raise _Failed(f"{'; '.join(wrong)}: {INSTALL_COMMAND}")
    return ", ".join(found)


def _worker() -> str:
    from tfp_bfl import federated

    tff = federated.require_tff()

    @tff.tensorflow.computation
    def answer() -> int:
        return 42

    started = time.perf_counter()
    with federated.local_workers() as runtime:
        if int(answer()) != 42:
            raise _Failed(f"it answers wrongly; reinstall: {INSTALL_COMMAND}")
        seconds = time.perf_counter() - started
        pid = runtime.workers[0].pid
    if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        raise _Failed(f"process {pid} did not stop: end it with kill -9 {pid}")
    return f"started, answered after {seconds:.1f} s, and stopped"


def _cores() -> str:
    return f"{len(os.sched_getaffinity(0))} usable; as many clients train at once"


def _memory() -> str:
    available = psutil.virtual_memory().available / 2**30
    if available < _LEAST_GIB:
        raise _Failed(f"{available:.1f} GiB free, but a run with ResNet-20 takes {_LEAST_GIB}: close other programs")
    return f"{available:.1f} GiB free; a run takes about 1 with LeNet, 2 with ResNet-20"
