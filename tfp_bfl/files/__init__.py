"""Files from elsewhere, opened so that none of them can hang the program or fill its memory."""

import hashlib
import os
import stat
from typing import BinaryIO

from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.files.writing import Path as Path
from tfp_bfl.files.writing import write_whole as write_whole

# Format of a figure -> metadata of the file, without a date: the same figure is the same file.
FIGURES: dict[str, dict[str, None]] = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}


def figure_formats(text: str) -> list[str]:
    """Return the formats in a list such as "pdf,svg"; each must be one of `FIGURES`."""
    forms = [form.strip().lower() for form in text.split(",")]
    for form in forms:
        lookup(FIGURES, form, "format of figures")
    return forms


def figure_format(path: Path) -> str:
    """Return the format that the suffix of a figure's file names, one of `FIGURES`."""
    form = os.path.splitext(path)[1][1:].lower()
    lookup(FIGURES, form, "format of figures")
    return form


def open_regular(path: Path, what: str) -> BinaryIO:
    """Open a regular file for reading; a pipe, a device or a folder is refused.

    Args:
      path: of the file.
      what: what it is called in errors, such as "config".

    Raises:
      InvalidArgument: it can't be opened or is not a regular file.
    """
    try:
        # Not blocking: a named pipe that nobody writes to would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidArgument(f"The {what} {name(path)} can't be read: {error.strerror}.") from None
    except (TypeError, ValueError):
        raise InvalidArgument(f"The {what} {shown(path)} can't be read: that is not a path.") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InvalidArgument(f"The {what} {name(path)} can't be read: it must be a regular file.")
    return open(descriptor, "rb")


def read_regular(path: Path, what: str, most: int) -> bytes:
    """Return the content of a regular file of at most `most` bytes.

    Raises:
      InvalidArgument: as `open_regular`, or the file is larger.
    """
    with open_regular(path, what) as file:
        try:
            content = file.read(most + 1)
        except OSError as error:
            raise InvalidArgument(f"The {what} {name(path)} can't be read: {error.strerror}.") from None
    if len(content) > most:
        raise InvalidArgument(f"The {what} {name(path)} is too large: it may have at most {most} bytes.")
    return content


def digest(path: Path, what: str = "file") -> str:
    """Return the SHA-256 sum of a regular file, as `sha256sum` prints it.

    Raises:
      InvalidArgument: as `open_regular`.
    """
    total = hashlib.sha256()
    with open_regular(path, what) as file:
        while block := file.read(2**20):
            total.update(block)
    return total.hexdigest()


def name(path: object) -> str:
    """Return a path as errors show it: plainly, or quoted where it would break the line."""
    text = str(path)
    return text if text.isprintable() and text else shown(text)
