"""Variances in 8 bits each: levels of the logarithm of their ratio to those that both sides know.

y = log (precision / known precision), or that of variances;   h = max |y| / 127 in each tensor
Q = known e^(h l),   l = floor(y / h) + 1{u < chance},   chance = (e^(y - h floor(y / h)) - 1) / (e^h - 1)

so that E Q = known e^y: without bias in the precision, or in the variance, whichever a rule averages. With f the
fraction of y / h, the variance of Q / E Q is (1 - e^(-f h)) (e^((1 - f) h) - 1), at most 4 sinh(h / 4)^2: a standard
deviation of h / 2. What has not changed is sent as it is. Ours; the rounding is that of QSGD (arXiv:1610.02132).
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.tensors import TensorTree

_MOST = 127
# Of the logarithm of a variance in y, by what is to be without bias.
_SIGNS = {"precision": -1.0, "variance": 1.0}


class LogLevels(NamedTuple):
    """Variances of several tensors: h of each tensor [T] float32, and l of all weights [D] int8."""

    steps: Any
    levels: Any


def are_coarse(variance_bits: int | None) -> bool:
    """Return whether variances take 8 bits; 32, or None, are float32. Other numbers raise InvalidArgument."""
    if variance_bits not in (None, 8, 32):
        raise InvalidArgument(f"variance_bits is {variance_bits!r}, but must be 8 or 32.")
    return variance_bits == 8


def round_variances(
    variances: Sequence[tf.Tensor], known: Sequence[tf.Tensor], unbiased_in: str, seed: tf.Tensor
) -> LogLevels:
    """Round variances without bias in the "precision" or the "variance"; those of both sides have equal shapes."""
    uniform = tf.random.stateless_uniform([sum(_sizes(known))], seed)
    steps, levels = [], []
    for v, k, u in zip(variances, known, tf.split(uniform, _sizes(known))):
        y = _SIGNS[unbiased_in] * tf.reshape(tf.math.log(v / k), [-1])
        step = tf.reduce_max(tf.abs(y)) / _MOST
        down = tf.floor(tf.math.divide_no_nan(y, step))
        chance = tf.math.divide_no_nan(tf.math.expm1(y - down * step), tf.math.expm1(step))
        steps.append(step)
        levels.append(tf.clip_by_value(down + tf.cast(u < chance, y.dtype), -_MOST, _MOST))
    return LogLevels(tf.stack(steps), tf.cast(tf.concat(levels, 0), tf.int8))


def restore_variances(code: LogLevels, known: Sequence[tf.Tensor], unbiased_in: str) -> tuple[tf.Tensor, ...]:
    """Return the variances that a code stands for, in the shapes of the known ones."""
    parts = tf.split(tf.cast(code.levels, tf.float32), _sizes(known))
    sign = _SIGNS[unbiased_in]
    return tuple(
        k * tf.reshape(tf.exp(sign * step * part), k.shape)
        for k, step, part in zip(known, tf.unstack(code.steps), parts)
    )


def num_bits(known: Sequence[TensorTree]) -> int:
    """Return 8 times the bytes of `encode`."""
    return 32 * len(known) + 8 * sum(_sizes(known))


def encode(code: LogLevels) -> bytes:
    """Return the steps, then the levels, as bytes."""
    return np.asarray(code.steps, "<f4").tobytes() + np.asarray(code.levels, np.int8).tobytes()


def decode(code: bytes, known: Sequence[Any]) -> tuple[LogLevels, bytes]:
    """Return the levels at the start of a code, and what follows them."""
    middle, end = 4 * len(known), num_bits(known) // 8
    if len(code) < end:
        raise InvalidArgument(f"The code has {len(code)} bytes, but its variances take {end}: it ends too early.")
    steps, levels = np.frombuffer(code[:middle], "<f4"), np.frombuffer(code[middle:end], np.int8)
    return LogLevels(steps.astype(np.float32), levels), code[end:]


def _sizes(known: Sequence[Any]) -> list[int]:
    return [math.prod(x.shape) for x in known]
