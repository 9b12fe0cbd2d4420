"""Weights in the format that PyTorch wrote before version 1.6, pickles and raw numbers in a .pth file, read by NumPy.

The file holds a pickle of {name: tensor}, a pickle of the names of its storages, and the numbers of each storage after
their count. A tensor is a view of a storage: offset, size and strides, in numbers.
"""

import collections
import hashlib
import io
import math
import pickle
from typing import Any, NamedTuple

import numpy as np

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files import Path, name, read_regular

MOST_BYTES = 2**28
_MAGIC = 0x1950A86A20F9469CFC6C
_TYPES = {"FloatStorage": np.dtype("<f4"), "DoubleStorage": np.dtype("<f8"), "LongStorage": np.dtype("<i8")}


class _View(NamedTuple):
    storage: str
    dtype: np.dtype
    offset: int
    size: tuple[int, ...]
    strides: tuple[int, ...]


def _view(storage: Any, offset: int, size: Any, strides: Any, *_: object) -> _View:
    return _View(str(storage[2]), storage[1], int(offset), tuple(map(int, size)), tuple(map(int, strides)))


class _Unpickler(pickle.Unpickler):
    """An unpickler of three kinds of names, none of which runs code of the file."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _view
        if module == "torch" and name in _TYPES:
            return _TYPES[name]
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no file of weights needs")

    def persistent_load(self, pid: Any) -> Any:
        return pid


def read_torch_weights(path: Path, sha256: str | None = None) -> dict[str, np.ndarray]:
    """Read the weights of a .pth file by name; nothing of the file is executed.

    Args:
      path: of the file, at most 256 MiB.
      sha256: SHA-256 sum that the file must have; None for any.

    Raises:
      InvalidArgument: the file can't be read, has another SHA-256 sum, or holds something other than named arrays.
    """
    content = read_regular(path, "file of weights", MOST_BYTES)
    found = hashlib.sha256(content).hexdigest()
    if sha256 is not None and found != sha256:
        raise InvalidArgument(
            f"The file of weights {name(path)} has the SHA-256 sum {found[:16]}..., but must have {sha256[:16]}...: "
            "install its package again."
        )
    try:
        return _parsed(io.BytesIO(content))
    except Exception as error:  # A damaged pickle raises errors of many types.
        reason = str(error) if isinstance(error, pickle.UnpicklingError) else "it is damaged or of another format"
        raise InvalidArgument(f"The file of weights {name(path)} can't be read: {reason}.") from None


def _parsed(file: io.BytesIO) -> dict[str, np.ndarray]:
    magic, _, _, views, keys = (_Unpickler(file).load() for _ in range(5))
    types = {view.storage: view.dtype for view in views.values()}
    if magic != _MAGIC or {*types} != {*keys}:
        raise ValueError
    storages = {}
    for key in keys:
        number = int(np.frombuffer(file.read(8), "<i8")[0])
        content = file.read(number * types[key].itemsize)
        storages[key] = np.frombuffer(content, types[key], number)
    return {str(key): _array(storages[view.storage], view) for key, view in views.items()}


def _array(storage: np.ndarray, view: _View) -> np.ndarray:
    """Copy the numbers of a view, which must lie within its storage."""
    last = view.offset + sum((n - 1) * stride for n, stride in zip(view.size, view.strides, strict=True))
    if min((view.offset, *view.size, *view.strides)) < 0 or math.prod(view.size) > len(storage) or last >= len(storage):
        raise ValueError
    strides = [stride * storage.itemsize for stride in view.strides]
    return np.lib.stride_tricks.as_strided(storage[view.offset :], view.size, strides).copy()
