"""Structures of tensors as named arrays, which is how parties send them, and the way back with every check."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tree

from tfp_bfl.errors import InvalidArgument, shown


def to_arrays(structure: Any) -> dict[str, np.ndarray]:
    """The leaves of a structure, named by the way to them: "weights/posterior/mean/0"."""
    return {_name(path): np.asarray(leaf) for path, leaf in tree.flatten_with_path(structure)}


def from_arrays(arrays: Any, spec: Any) -> Any:
    """The structure of a `spec` with the leaves that `to_arrays` named, whoever has sent them.

    Args:
      arrays: name -> array.
      spec: a structure of `tf.TensorSpec`s; an axis of None may have any size.

    Raises:
      InvalidArgument: a name is missing or unknown, or an array has another shape or type, or is not finite.
    """
    wanted = {_name(path): leaf for path, leaf in tree.flatten_with_path(spec)}
    if not isinstance(arrays, Mapping):
        raise InvalidArgument(f"{shown(arrays)} is no mapping from names to arrays.")
    for names, what in ((wanted.keys() - arrays.keys(), "misses"), (arrays.keys() - wanted.keys(), "has no place for")):
        if names:
            raise InvalidArgument(
                f"The structure {what} {shown(min(names, key=str))}: send what the model's parts are."
            )
    return tree.map_structure_with_path(lambda path, leaf: _checked(_name(path), arrays[_name(path)], leaf), spec)


def digest_of(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 sum of named arrays, with their types and shapes."""
    sha = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        sha.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


def _checked(name: str, array: Any, spec: tf.TensorSpec) -> np.ndarray:
    if not isinstance(array, np.ndarray) or array.dtype != spec.dtype.as_numpy_dtype:
        found = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise InvalidArgument(f"{name} is of type {found}, but must be an array of {spec.dtype.name}.")
    if not spec.shape.is_compatible_with(array.shape):
        raise InvalidArgument(f"{name} has shape {list(array.shape)}, but must have {spec.shape.as_list()}.")
    if spec.dtype.is_floating and not np.isfinite(array).all():
        raise InvalidArgument(f"{name} is not finite.")
    return array


def _name(path: tuple[Any, ...]) -> str:
    return "/".join(map(str, path))
