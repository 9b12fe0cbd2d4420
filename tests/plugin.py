"""What holds for all tests.

CPU seconds of each, those of its children included: --cpu-times=FILE writes them, --cpu-limit=SECONDS fails a test
of the fast tier above it. Where TensorFlow Federated is not installed, tests marked `tff` are skipped: here, and
nowhere else. Tests in slow.txt are deep: those of more than 0.7 CPU seconds when the fast tier was measured last, and
those that share a fixture with them.
Tests in long.txt are long: other values of a deep test's parameters, and what a shorter deep test covers too.
--part=1/2 runs the first of two parts of the test files.
`tests/seeds.py` seeds the global random generators of every test and fixture.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import math
import os
import pathlib
import resource
import sys
import zlib

import psutil
import pytest

from tfp_bfl.app.one_run import run_folder

pytest_plugins = ["tests.seeds"]
# Tolerances are of float32, not of the TF32 that TensorFlow takes on GPUs (docs/gpu.md).
os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")
SLOW, LONG = (pathlib.Path(__file__).with_name(name) for name in ("slow.txt", "long.txt"))
_KEY = pytest.StashKey[float]()
_FILE = pytest.StashKey()
# A full collection takes half a second: only a process that holds this many bytes has one after each file.
_COLLECT_ABOVE = 1.5e9


def pytest_addoption(parser):
    group = parser.getgroup("CPU seconds")
    group.addoption("--cpu-times", metavar="FILE", help="write the tests and their CPU seconds to FILE, slowest first")
    group.addoption("--cpu-limit", metavar="SECONDS", type=float, help="fail a test that is not deep above SECONDS")
    group.addoption("--part", metavar="K/N", type=_part, help="run part K of N parts of the test files, from 1 on")


def _part(text):
    number, _, parts = text.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r} is not K/N with K from 1 to N, such as 1/2")
    return int(number), int(parts)


def is_in_part(path, part):
    """Return True for test files of part K of N; the path alone decides, so that tests of a file share fixtures."""
    number, parts = part
    return zlib.crc32(path.encode()) % parts == number - 1


@pytest.hookimpl(tryfirst=True)
def pytest_make_parametrize_id(val, argname):
    """Name tests by files' contents by the argument: an archive holds the second in which it was written, and two
    processes that collect the same tests in different seconds would have different names for them.
    """
    return argname if isinstance(val, bytes) and len(val) > 64 else None


def pytest_collection_modifyitems(items, config):
    if part := config.getoption("--part"):
        is_chosen = [is_in_part(item.nodeid.split("::")[0], part) for item in items]
        config.hook.pytest_deselected(items=[item for item, chosen in zip(items, is_chosen) if not chosen])
        items[:] = [item for item, chosen in zip(items, is_chosen) if chosen]
    slow, long = (set(path.read_text(encoding="utf-8").splitlines()) for path in (SLOW, LONG))
    for item in items:
        if item.nodeid in long:
            item.add_marker(pytest.mark.long)
        if item.nodeid in slow and item.get_closest_marker("deep") is None:
            item.add_marker(pytest.mark.deep(after=item.nodeid.split("::")[0]))
    if importlib.util.find_spec("tensorflow_federated") is None:
        for item in items:
            if item.get_closest_marker("tff") or "tff_runtime" in item.fixturenames:
                item.add_marker(pytest.mark.skip(reason="TensorFlow Federated is not installed"))


def pytest_sessionfinish():
    """End the worker of TFF's default context: processes of pytest-xdist end without the functions of atexit."""
    tff = sys.modules.get("tensorflow_federated")
    if tff is not None:
        installation = importlib.import_module("tfp_bfl.engines.tff.installation")
        installation.drop_default_context(tff)


@pytest.fixture(scope="module", autouse=True)
def a_patient_console(request):
    """Let no run state a phase because the machine is slow: refusals are one line however long they take."""
    with pytest.MonkeyPatch.context() as patch:
        if request.module.__name__.rpartition(".")[2] != "test_progress":
            patch.setattr(run_folder, "_LAZY_SECONDS", math.inf)
            patch.setattr(run_folder, "SILENT_SECONDS", math.inf)
        yield


@pytest.fixture(scope="module", autouse=True)
def free_caches_of_the_file(request):
    """Empty the caches that the tests of a file share, such as traced processes, after the last of them."""
    yield
    for value in vars(request.module).values():
        if hasattr(value, "cache_clear") and getattr(value, "__module__", None) == request.module.__name__:
            value.cache_clear()
    if psutil.Process().memory_info().rss > _COLLECT_ABOVE:
        gc.collect()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    item.stash[_KEY] = _cpu_seconds()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if call.when != "teardown" or _KEY not in item.stash:
        return
    seconds = _cpu_seconds() - item.stash[_KEY]
    report.user_properties.append(("cpu_seconds", seconds))
    own, limit = item.get_closest_marker("cpu_seconds"), item.config.getoption("--cpu-limit")
    limit = own.args[0] if own and limit else limit
    if limit and seconds > limit and item.get_closest_marker("deep") is None and report.passed:
        report.outcome = "failed"
        report.longrepr = f"It took {seconds:.1f} CPU seconds of {limit:g}: make it smaller, or mark it deep."


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    path = config.getoption("--cpu-times")
    if path and not hasattr(config, "workerinput"):  # An interrupted run leaves the times of what has run.
        config.stash[_FILE] = open(path, "w", encoding="utf-8", buffering=1)  # noqa: SIM115
        config.pluginmanager.register(_Times(config.stash[_FILE]))


class _Times:
    def __init__(self, file):
        self._file = file

    def pytest_runtest_logreport(self, report):
        seconds = dict(report.user_properties).get("cpu_seconds")
        if seconds is not None:
            _TIMES[report.nodeid] = seconds
            self._file.write(f"{seconds:8.2f} {report.nodeid}\n")


def pytest_terminal_summary(terminalreporter, config):
    path = config.getoption("--cpu-times")
    if path:
        config.stash[_FILE].close()
        slowest = sorted(_TIMES.items(), key=lambda row: -row[1])
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(f"{seconds:8.2f} {test}\n" for test, seconds in slowest)
        terminalreporter.write_line(f"{sum(_TIMES.values()):.0f} CPU seconds in {len(_TIMES)} tests: {path}")


_TIMES: dict = {}


def _cpu_seconds():
    """Of this process and its children, living and ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) + sum(ended[:2])
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            times = child.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total
