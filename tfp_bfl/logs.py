"""Loggers of this library and of others, and what TensorFlow's libraries write to standard error by themselves."""

import contextlib
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

from tfp_bfl.files.writing import Path

# Waits for a line of its parent. If the parent dies before, it prints the caught lines except those of information.
_GUARD = """read -r done || grep -Ev '^(I[0-9]|WARNING: All log messages)' "$0" >&2; rm -f "$0" """
_native: list[str] = []


@contextlib.contextmanager
def quiet(name: str) -> Iterator[None]:
    """Keep back the warnings of a logger: whoever calls this states them, or what follows from them, in another way."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def catch_native_lines() -> None:
    """Catch what TensorFlow's libraries write to standard error while they are imported, for `write_native_lines`.

    A command calls this; for a program that imports the library nothing is redirected. TensorFlow 2.21 writes these
    lines before it reads TF_CPP_MIN_LOG_LEVEL. They are shown if the import fails, and where that variable is below 3.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3") == "3":
        sys.meta_path.insert(0, _NativeFinder())


def write_native_lines(path: Path) -> None:
    """Append the caught lines to a file; without any there is none."""
    if _native:
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(_native)


class _NativeFinder(MetaPathFinder):
    """Finds TensorFlow, which is then imported by `_NativeLoader`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname) if fullname == "tensorflow" else None
        if spec and spec.origin and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _NativeLoader(fullname, spec.origin)
        return spec


class _NativeLoader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):  # Without a folder for temporary files, or with no standard error.
                stack.enter_context(_caught())
            super().exec_module(module)


@contextlib.contextmanager
def _caught() -> Iterator[None]:
    """Redirect descriptor 2 to a file inside the block; Python's own standard error stays where it was."""
    real = os.dup(2)
    descriptor, path = tempfile.mkstemp(prefix="tfp_bfl_", suffix=".log")
    guard = subprocess.Popen(["sh", "-c", _GUARD, path], stdin=subprocess.PIPE, start_new_session=True)
    # Not closed: handlers of loggers that are made inside the block hold it.
    former, own = sys.stderr, os.fdopen(real, "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    sys.stderr = own
    os.dup2(descriptor, 2)
    failed = True
    try:
        yield
        failed = False
    finally:
        os.dup2(real, 2)
        os.lseek(descriptor, 0, os.SEEK_SET)
        if sys.stderr is own:
            sys.stderr = former
        with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
            _native.extend(file)
        guard.communicate(b"done\n")
        if failed:
            own.writelines(_native)
