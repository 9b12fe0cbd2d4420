"""Named arrays in a file as NumPy's `savez` writes it."""

import contextlib
import io
import math
import zipfile
from collections.abc import Iterator, Mapping
from typing import NamedTuple

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
    """Return the arrays of a file that `write_arrays` wrote; nothing is unpickled.

    Args:
      path: of the file.
      what: what it is called in errors.
      most: bytes that it may have, packed and unpacked.
      compressed: whether it may be as `np.savez_compressed` writes it.

    Raises:
      InvalidArgument: it can't be read, is larger, or is no such file.
    """
    return dict(stored_arrays(read_regular(path, what, most), f"{what} {name(path)}", most, compressed))


def to_bytes(arrays: Mapping[str, np.ndarray], compressed: bool = False) -> bytes:
    """Return the content of a file as `write_arrays` writes it."""
    content = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(content, **arrays)  # type: ignore[arg-type]
    return content.getvalue()


class Form(NamedTuple):
    """The type and shape of an array, known before it is unpacked."""

    dtype: np.dtype
    shape: tuple[int, ...]


class Stored(Mapping[str, np.ndarray]):
    """Arrays in the content of a file, each unpacked when it is asked for.

    Names and sizes are known from the archive's directory; `form` reads the header of an array and nothing else.

    Args:
      archive: that holds them.
      entries: name -> its entry.
      what: it is called in errors.
    """

    def __init__(self, archive: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo], what: str):
        self._archive, self._entries, self._what = archive, dict(entries), what

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __getitem__(self, key: str) -> np.ndarray:
        self.form(key)
        with _damage(self._what), self._archive.open(self._entries[key]) as file:
            array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
            if file.read(1):
                raise ValueError
            return array

    def form(self, key: str) -> Form:
        """Return type and shape of an array, without unpacking it.

        Raises:
          InvalidArgument: they do not fit the size that the directory states, or the header is damaged.
        """
        entry = self._entries[key]
        with _damage(self._what), self._archive.open(entry) as file:
            read = _HEADERS[np.lib.format.read_magic(file)]
            shape, _, dtype = read(file)
            if dtype.hasobject:
                raise InvalidArgument(
                    f"The array {shown(key)} of the {self._what} holds Python objects: save it as text or numbers."
                )
            if file.tell() + math.prod(shape) * dtype.itemsize != entry.file_size:
                raise ValueError
            return Form(dtype, shape)


_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@contextlib.contextmanager
def _damage(what: str) -> Iterator[None]:
    try:
        yield
    except (InvalidArgument, ImportError):
        raise
    # NumPy and zipfile raise errors of many types for broken files.
    except Exception:
        raise InvalidArgument(f"The {what} is not a file of arrays, or is damaged.") from None


def stored_arrays(content: bytes, what: str, most: int, compressed: bool = False) -> Stored:
    """Return the arrays in a file's content, of which nothing is unpacked yet; the time is linear in their number.

    Args:
      content: of the file.
      what: it is called in errors.
      most: bytes that it may have, packed and unpacked.
      compressed: whether it may be as `np.savez_compressed` writes it.

    Raises:
      InvalidArgument: it is larger than `most` bytes, or no such content.
    """
    with _damage(what):
        if len(content) > most:
            raise InvalidArgument(f"The {what} is too large: it may have at most {most} bytes.")
        archive = zipfile.ZipFile(io.BytesIO(content))
        every = archive.infolist()
        methods = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED} if compressed else {zipfile.ZIP_STORED}
        entries = {entry.filename.removesuffix(".npy"): entry for entry in every}
        if len(entries) < len(every) or any(entry.compress_type not in methods for entry in every):
            raise ValueError
        # Of a member zipfile unpacks no more than this.
        if sum(entry.file_size for entry in every) > most:
            raise InvalidArgument(f"The {what} is too large: unpacked it may have at most {most} bytes.")
        return Stored(archive, entries, what)
