"""Statistics that clients send beside their weights, pooled as point weights are.

A rule sees them as more point weights, around an anchor of zeros. Its mean is their mean by weight, and whatever guards
point weights guards them: robust aggregation, clipping, privacy, whole numbers for secure sums.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfp_bfl.contracts import MEAN, ClientWork
from tfp_bfl.weights import ModelWeights


def joined(work: ClientWork, weights: ModelWeights, extra: Any, weight: tf.Tensor) -> ModelWeights:
    """Return a client's weights with its extra statistics among the point weights.

    Args:
      work: whose `extra_pool` says how they are pooled. For the sum they are divided by the client's weight, with which
        the rule multiplies them.
      weights: that the client sends.
      extra: its statistics, in the structure of `work.extra(weights)`.
      weight: of the client, a scalar.
    """
    if work.extra is None:
        return weights
    if work.extra_pool != MEAN:
        extra = tf.nest.map_structure(lambda x: tf.math.divide_no_nan(x, tf.cast(weight, x.dtype)), extra)
    return weights._replace(point=(weights.point, extra))


def anchored(work: ClientWork, weights: ModelWeights) -> ModelWeights:
    """Return the server's weights with zeros in the place of extra statistics."""
    if work.extra is None:
        return weights
    return weights._replace(point=(weights.point, tf.nest.map_structure(tf.zeros_like, work.extra(weights))))


def parted(work: ClientWork, pooled: Any, total_weight: tf.Tensor) -> tuple[Any, Any]:
    """Return what a rule pooled as the weights and the extra statistics, () where clients send none.

    Args:
      work, pooled: of the round.
      total_weight: the sum of the clients' weights, a scalar.
    """
    if work.extra is None:
        return pooled, ()
    point, extra = pooled.point
    if work.extra_pool != MEAN:
        extra = tf.nest.map_structure(lambda x: x * tf.cast(total_weight, x.dtype), extra)
    return pooled._replace(point=point), extra


def root_mean_square(extra: Any) -> tf.Tensor:
    """Return sqrt(mean_i x_i^2) over all numbers of a structure: a scalar float32, 0 for none."""
    leaves = [tf.reshape(tf.cast(x, tf.float32), [-1]) for x in tf.nest.flatten(extra)]
    if not leaves:
        return tf.zeros([])
    return tf.sqrt(tf.reduce_mean(tf.square(tf.concat(leaves, 0))))
