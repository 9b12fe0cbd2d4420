"""Writing of files as a whole or not at all; errors of TensorFlow's writers are errors of the system, OSError."""

import contextlib
import errno
import fcntl
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import TextIO

Path = str | os.PathLike[str]
_FULL = (errno.ENOSPC, errno.EDQUOT)
# Errors of TensorFlow, which is not imported here, that a writer of files raises.
_OF_WRITERS = {
    "AbortedError": errno.EIO,
    "AlreadyExistsError": errno.EEXIST,
    "DataLossError": errno.EIO,
    "FailedPreconditionError": errno.EIO,
    "NotFoundError": errno.ENOENT,
    "OutOfRangeError": errno.EFBIG,
    "PermissionDeniedError": errno.EACCES,
    "UnavailableError": errno.EIO,
    "UnknownError": errno.EIO,
}


def is_full(error: BaseException) -> bool:
    """Return whether an error says that a disk is full: one of the system, or TensorFlow's, which is no OSError."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    return type(error).__name__ == "ResourceExhaustedError" and any(os.strerror(x) in str(error) for x in _FULL)


def system_error(error: BaseException, before: str = "; ") -> OSError | None:
    """Return an error as an OSError if it is one, or an error of TensorFlow such as "/data/x; Permission denied".

    Args:
      error: any error.
      before: the text before the system's words in an error of TensorFlow.

    Returns:
      The OSError, of TensorFlow's errors without a path; None for other errors.
    """
    if isinstance(error, OSError):
        return error
    if not any(base.__name__ == "OpError" for base in type(error).__mro__):
        return None
    stated = [number for number in errno.errorcode if f"{before}{os.strerror(number)}" in str(error)]
    if not stated:
        return None
    number = max(stated, key=lambda x: len(os.strerror(x)))  # "No such device" begins "No such device or address".
    return OSError(number, os.strerror(number))


@contextlib.contextmanager
def space(path: Path, writes: bool = False) -> Iterator[None]:
    """Raise an OSError that names `path`, the file or folder that is written, if the disk is full inside the block.

    Args:
      path: of the file or folder.
      writes: the block only writes files, so that each error of TensorFlow about files is an OSError: a file that is
        too large, a missing permission, a fault of the disk, a file system that is read-only.

    Raises:
      OSError: the disk is full, or, with `writes`, TensorFlow cannot write.
    """
    try:
        yield
    except Exception as error:
        number = errno.ENOSPC if is_full(error) else _number(error) if writes else None
        if number is None:
            raise
        raise OSError(number, os.strerror(number), os.fspath(path)) from None


def _number(error: Exception) -> int | None:
    """Return the number of the system's error that an error of a writer of TensorFlow states; None for others."""
    if isinstance(error, OSError):
        return None
    stated = system_error(error, before="")
    return stated.errno if stated else _OF_WRITERS.get(type(error).__name__)


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
            # What cannot be removed, such as from a read-only disk, must not hide why it was to be.
            with contextlib.suppress(OSError):
                for part in target.iterdir() if there else [target]:
                    shutil.rmtree(part) if part.is_dir() and not part.is_symlink() else part.unlink()
        else:
            # A path that cannot be made has nothing to remove.
            with contextlib.suppress(OSError, ValueError):
                target.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[TextIO]:
    """Hold the lock of a file, which is made where it is missing, while the block runs; yield the file.

    Args:
      path: of the file. Other processes that lock it wait.
      wait: for another process that holds it.

    Raises:
      BlockingIOError: another process holds it, without `wait`.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield file


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
