"""Named arrays in a file as NumPy's `savez` writes it."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.files import Path, name, read_regular
from tfp_bfl.files.writing import write_bytes


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], compressed: bool = False) -> None:
    """Write the arrays; the file is there whole or not at all.

    Args:
      path: of the file.
      arrays: by name.
      compressed: as `np.savez_compressed` writes them.
    """
    write_bytes(path, to_bytes(arrays, compressed))


def read_arrays(path: Path, what: str, most: int, compressed: bool = False) -> dict[str, np.ndarray]:
    """The arrays of a file that `write_arrays` wrote; nothing is unpickled.

    Args:
      path: of the file.
      what: what it is called in errors.
      most: bytes that it may have, packed and unpacked.
      compressed: whether it may be as `np.savez_compressed` writes it.

    Raises:
      InvalidArgument: it can't be read, is larger, or is no such file.
    """
    return arrays_of(read_regular(path, what, most), f"{what} {name(path)}", most, compressed)


def to_bytes(arrays: Mapping[str, np.ndarray], compressed: bool = False) -> bytes:
    """The content of a file as `write_arrays` writes it."""
    content = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(content, **arrays)  # type: ignore[arg-type]
    return content.getvalue()


def arrays_of(content: bytes, what: str, most: int, compressed: bool = False) -> dict[str, np.ndarray]:
    """The arrays in a file's content, as `read_arrays` reads them.

    Raises:
      InvalidArgument: it is larger than `most` bytes, or no such content.
    """
    try:
        if len(content) > most:
            raise InvalidArgument(f"The {what} is too large: it may have at most {most} bytes.")
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            methods = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED} if compressed else {zipfile.ZIP_STORED}
            if any(entry.compress_type not in methods for entry in archive.infolist()):
                raise ValueError
            # Of a member zipfile unpacks no more than this.
            if sum(entry.file_size for entry in archive.infolist()) > most:
                raise InvalidArgument(f"The {what} is too large: unpacked it may have at most {most} bytes.")
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            found = {key: _member(arrays, key, what) for key in arrays.files}
        if not all(isinstance(x, np.ndarray) for x in found.values()):
            raise ValueError
        return found
    except (InvalidArgument, ImportError):
        raise
    # NumPy and zipfile raise errors of many types for broken files.
    except Exception:
        raise InvalidArgument(f"The {what} is not a file of arrays, or is damaged.") from None


def _member(arrays: Any, key: str, what: str) -> Any:
    try:
        return arrays[key]
    except ValueError as error:
        if "Object arrays" in str(error):
            raise InvalidArgument(
                f"The array {shown(key)} of the {what} holds Python objects: save it as text or numbers."
            ) from None
        raise
