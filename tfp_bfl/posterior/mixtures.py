"""Moments of a mixture of Gaussians, weight by weight: sum_k b_k N(m_k, s_k^2) with b_k = w_k / sum_j w_j.

mean = sum_k b_k m_k,   variance = sum_k b_k (s_k^2 + m_k^2) - mean^2

the law of total variance: of posteriors the linear pool, of BatchNorm's statistics those of all the data together. The
subtraction cancels where all means lie far from the centre, beside their spread: sums are float64.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl.posterior.mean_field import MeanField
from tfp_bfl.tensors import Array, Scalar


class MixtureSums(NamedTuple):
    """Sums over the parts k, with d_k = m_k - centre.

    Fields:
      weight: sum_k w_k.
      first: sum_k w_k d_k, float64.
      second: sum_k w_k (s_k^2 + d_k^2), float64.
    """

    weight: tf.Tensor
    first: Any
    second: Any


def summarise(q: MeanField, centre: MeanField, weight: tf.Tensor) -> MixtureSums:
    """Return the sums of one part."""
    shift = _each(lambda m, a: _double(m) - _double(a), q.mean, centre.mean)
    second = _each(lambda v, d: _double(weight) * (_double(v) + tf.square(d)), q.variance, shift)
    return MixtureSums(weight, _each(lambda d: _double(weight) * d, shift), second)


def moments(total: MixtureSums, centre: MeanField) -> MeanField:
    """Return the moments from the sums over all parts, in the types of the centre."""
    weight = _double(total.weight)

    def mean(a: tf.Tensor, first: tf.Tensor) -> tf.Tensor:
        return tf.cast(_double(a) + first / weight, a.dtype)

    def variance(a: tf.Tensor, second: tf.Tensor, first: tf.Tensor) -> tf.Tensor:
        # Where all parts are points and agree, rounding alone decides the sign.
        return tf.cast(tf.maximum(second / weight - tf.square(first / weight), 0.0), a.dtype)

    return MeanField(_each(mean, centre.mean, total.first), _each(variance, centre.variance, total.second, total.first))


def mixture(stacked: MeanField, importance: Array | Sequence[float]) -> MeanField:
    """Return the moments of a stack of parts.

    Args:
      stacked: leaves [K, ...].
      importance: w [K], of any scale.

    Returns:
      Leaves [...].
    """
    centre = _each(lambda x: x[0], stacked)
    weights = tf.cast(importance, tf.float64)
    shift = _each(lambda m, a: _double(m) - _double(a), stacked.mean, centre.mean)
    total = lambda x: tf.tensordot(weights, x, 1)
    second = _each(lambda v, d: total(_double(v) + tf.square(d)), stacked.variance, shift)
    return moments(MixtureSums(tf.reduce_sum(weights), _each(total, shift), second), centre)


def _double(x: Scalar) -> tf.Tensor:
    return tf.cast(x, tf.float64)


_each = tf.nest.map_structure
