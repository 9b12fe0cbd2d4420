"""Named arrays, the form of messages: from structures of tensors and back with all checks; the answers of sites."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import tree

from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.files.arrays import Stored

if TYPE_CHECKING:
    import tensorflow as tf

T = TypeVar("T")
Who = TypeVar("Who", int, str)
Arrays = Mapping[str, np.ndarray]
# What a site answers: arrays, or the reason why it sends none.
Answer = Arrays | str
NO_ANSWER = "it did not answer in time"


class ByRound(Protocol[T]):
    """Hold what a site keeps of its rounds, by the number of rounds done, such as a dictionary."""

    def __contains__(self, number: object, /) -> bool: ...
    def __getitem__(self, number: int, /) -> T: ...
    def __setitem__(self, number: int, kept: T, /) -> None: ...


def in_order(
    answers: Iterable[tuple[Who, Any]], asked: Iterable[Who], read: Callable[[Who, Any], T], reasons: dict[Who, str]
) -> Iterator[tuple[Who, T]]:
    """Yield each site and what it answers, in the order of the sites, as soon as no earlier one is waited for.

    An answer that is text is the reason of a site that sends none; one of a site that was not asked, or has answered
    before, does not count. `read`, (site, answer) -> its content, raises `InvalidArgument` for an answer that can't be
    used; `reasons` receives the reasons of the sites without one that can.
    """
    waiting, came = sorted(asked), dict[Who, T]()
    silent = set(waiting)
    for site, answer in answers:
        if site not in silent:
            continue
        silent.remove(site)
        try:
            if isinstance(answer, str):
                raise InvalidArgument(answer)
            came[site] = read(site, answer)
        except InvalidArgument as error:
            reasons[site] = str(error)
        while waiting and waiting[0] not in silent:
            if (first := waiting.pop(0)) in came:
                yield first, came.pop(first)
    reasons.update(dict.fromkeys(sorted(silent), NO_ANSWER))
    for site in sorted(came):
        yield site, came.pop(site)


def to_arrays(structure: object) -> dict[str, np.ndarray]:
    """Return the leaves of a structure, named by their paths, such as "weights/posterior/mean/0"."""
    return {_name(path): np.asarray(leaf) for path, leaf in tree.flatten_with_path(structure)}


def from_arrays(arrays: object, spec: object) -> Any:
    """Return the structure of a `spec` with leaves from arrays that `to_arrays` named; the sender need not be trusted.

    Args:
      arrays: name -> array. `files.arrays.Stored` is unpacked only after all names, types and shapes are checked.
      spec: a structure of `tf.TensorSpec`s; an axis of None may have any size.

    Raises:
      InvalidArgument: a name is missing or unknown, or an array has the wrong shape or type, or is not finite.
    """
    wanted = {_name(path): leaf for path, leaf in tree.flatten_with_path(spec)}
    if not isinstance(arrays, Mapping):
        raise InvalidArgument(f"{shown(arrays)} is no mapping from names to arrays.")
    for names, what in ((wanted.keys() - arrays.keys(), "misses"), (arrays.keys() - wanted.keys(), "has no place for")):
        if names:
            raise InvalidArgument(
                f"The structure {what} {shown(min(names, key=str))}: send exactly the parts of the model."
            )
    if isinstance(arrays, Stored):  # All types and shapes, before anything is unpacked.
        for name, leaf in wanted.items():
            _check_form(name, arrays.form(name), leaf)
    return tree.map_structure_with_path(lambda path, leaf: _checked(_name(path), arrays[_name(path)], leaf), spec)


def digest_of(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 sum of named arrays, with their types and shapes."""
    sha = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        sha.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


def _check_form(name: str, form: Any, spec: tf.TensorSpec) -> None:
    if form.dtype != spec.dtype.as_numpy_dtype:
        raise InvalidArgument(f"{name} is of type {form.dtype}, but must be an array of {spec.dtype.name}.")
    if not spec.shape.is_compatible_with(form.shape):
        raise InvalidArgument(f"{name} has shape {list(form.shape)}, but must have {spec.shape.as_list()}.")


def _checked(name: str, array: object, spec: tf.TensorSpec) -> np.ndarray:
    if not isinstance(array, np.ndarray):
        raise InvalidArgument(f"{name} is of type {type(array).__name__}, but must be an array of {spec.dtype.name}.")
    _check_form(name, array, spec)
    if spec.dtype.is_floating and not np.isfinite(array).all():
        raise InvalidArgument(f"{name} is not finite.")
    return array


def _name(path: tuple[Any, ...]) -> str:
    return "/".join(map(str, path))
