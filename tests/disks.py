"""A disk of few bytes, to fill."""

import contextlib
import pathlib
import subprocess
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def small_disk(folder: pathlib.Path, size: int) -> Iterator[pathlib.Path]:
    """Mount a disk of `size` bytes at `folder`; a test of someone who may not is skipped."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a disk needs an administrator")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def enlarge(folder: pathlib.Path, size: int) -> None:
    """Give the disk at `folder` more room."""
    subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)
