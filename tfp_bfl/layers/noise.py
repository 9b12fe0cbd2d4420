"""Where stochastic layers get their noise from: an explicit stateless seed, or Keras' global generator without one."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl.errors import InvalidArgument

MODES = ("flipout", "shared", "mean")


class _Scope(NamedTuple):
    mode: str
    seed: tf.Tensor | None
    calls: Iterator[int]


class _Scopes(threading.local):
    def __init__(self) -> None:
        self.stack: list[_Scope] = []


_scopes = _Scopes()


@contextlib.contextmanager
def sampling(mode: str = "flipout", seed: Any = None) -> Iterator[None]:
    """Sets how the layers called inside the block draw their noise.

        with bfl.layers.sampling("shared", seed=[7, 0]):
            logits = model(images)

    Args:
      mode: "flipout": a perturbation of its own for each example (two convolutions); "shared": one weight sample for
        the whole batch (one convolution, for prediction); "mean": the posterior's mean, and no dropout.
      seed: [2] integers or a tensor. The same seed gives the same noise; each layer call in the block draws from its
        own substream. None: from TensorFlow's global generator (`tf.random.set_seed`), anew each call.

    Raises:
      InvalidArgument: there is no such mode.
    """
    if mode not in MODES:
        raise InvalidArgument(f"sampling has no mode {mode!r}: choose one of {', '.join(map(repr, MODES))}.")
    seed = None if seed is None else tf.cast(tf.convert_to_tensor(seed), tf.int32)
    _scopes.stack.append(_Scope(mode, seed, itertools.count()))
    try:
        yield
    finally:
        _scopes.stack.pop()


def mode() -> str:
    """The mode of the innermost `sampling` block; "flipout" outside any."""
    return _scopes.stack[-1].mode if _scopes.stack else "flipout"


def next_seeds(number: int) -> list[tf.Tensor]:
    """`number` fresh seeds, each [2] int32, for one layer call."""
    scope = _scopes.stack[-1] if _scopes.stack else None
    if scope is None or scope.seed is None:
        drawn = tf.random.uniform([number, 2], maxval=tf.int32.max, dtype=tf.int32)
        return tf.unstack(drawn)
    return [scope.seed + _offset(next(scope.calls)) for _ in range(number)]


def _offset(call: int) -> tf.Tensor:
    # Far apart in the first number, so that streams under neighbouring seeds never meet; Philox does the mixing.
    golden = call * 0x9E3779B9 % 2**32
    return tf.constant([golden - 2**32 if golden >= 2**31 else golden, call], tf.int32)
