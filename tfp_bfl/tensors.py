"""Types of what functions take and give, and the compiler that a function is traced for."""

import contextlib
import contextvars
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import numpy as np
import tensorflow as tf

# A number, or a tensor of shape [].
Scalar: TypeAlias = float | tf.Tensor
# An array of numbers, or what becomes one.
Array: TypeAlias = np.ndarray | tf.Tensor
# A structure of tensors, arrays and numbers, as `tf.nest` knows them; NamedTuples are tuples.
TensorTree: TypeAlias = Array | float | tuple["TensorTree", ...] | list["TensorTree"] | Mapping[str, "TensorTree"]

_for_xla: contextvars.ContextVar[tuple[bool, bool]] = contextvars.ContextVar("for_xla", default=(False, False))


def size_of(tensors: object) -> int | None:
    """Return how many numbers a structure holds; None if a shape is not known."""
    sizes = [tf.TensorShape(getattr(x, "shape", None)).num_elements() for x in tf.nest.flatten(tensors)]
    return None if None in sizes else sum(sizes)


@contextlib.contextmanager
def traced_for_xla(xla: bool = True, padded: bool = False) -> Iterator[None]:
    """Mark the functions that are traced inside the block as compiled by XLA, or not.

    XLA must know all shapes beforehand, and has no kernels for some operations. A loop over scalars costs its
    arithmetic alone there, where TensorFlow takes some 10 us for each turn.

    Args:
      xla: whether it does.
      padded: whether clients' examples may end in rows of client -1, which do not count.
    """
    token = _for_xla.set((xla, padded))
    try:
        yield
    finally:
        _for_xla.reset(token)


def is_traced_for_xla() -> bool:
    """Return whether the current trace is for XLA."""
    return _for_xla.get()[0]


def is_padded() -> bool:
    """Return whether clients' examples may end in rows that do not count, in the current trace."""
    return _for_xla.get()[1]
