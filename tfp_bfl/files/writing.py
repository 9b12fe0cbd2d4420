"""Writing of files as a whole or not at all, with one error for a full disk."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Union

Path = Union[str, "os.PathLike[str]"]
_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_full(error: BaseException) -> bool:
    """Return whether an error says that a disk is full: one of the system, or TensorFlow's, which is no OSError."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    return type(error).__name__ == "ResourceExhaustedError" and any(os.strerror(x) in str(error) for x in _FULL)


@contextlib.contextmanager
def space(path: Path) -> Iterator[None]:
    """Raise an OSError that names `path`, the file or folder that is written, if the disk is full inside the block.

    Raises:
      OSError: the disk is full.
    """
    try:
        yield
    except Exception as error:
        if not is_full(error):
            raise
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path)) from None


@contextlib.contextmanager
def begun(path: Path, remove: bool = False) -> Iterator[None]:
    """Remove what there is of a new file or folder if the block, which writes it, fails.

    Args:
      path: that does not exist, or is an empty folder.
      remove: a folder that was there before, too; else it stays, empty.

    Raises:
      OSError: the disk is full, as of `space`.
    """
    there = os.path.isdir(path) and not remove
    try:
        with space(path):
            yield
    except BaseException:
        target = pathlib.Path(path)
        if target.is_dir():
            for part in target.iterdir() if there else [target]:
                shutil.rmtree(part) if part.is_dir() and not part.is_symlink() else part.unlink()
        else:
            # A path that cannot be made has nothing to remove.
            with contextlib.suppress(OSError, ValueError):
                target.unlink(missing_ok=True)
        raise


def write_whole(path: Path, text: str) -> None:
    """Write a file as a whole or not at all, and wait until it is on the disk."""
    write_bytes(path, text.encode(), wait=True)


def write_bytes(path: Path, content: bytes, wait: bool = False) -> None:
    """Write a file as a whole or not at all.

    Args:
      path: of the file; what is there is replaced.
      content: of it.
      wait: until it is on the disk.

    Raises:
      OSError: it can't be written; a full disk by the name of `path`.
    """
    draft = f"{os.fspath(path)}.draft"
    with space(path), begun(draft), open(draft, "wb") as file:
        file.write(content)
        if wait:
            file.flush()
            os.fsync(file.fileno())
    os.replace(draft, path)
