"""Statistics that clients send beside their weights, pooled as point weights are.

A rule sees them as more point weights, around an anchor of zeros. Its mean is their mean by weight, and whatever guards
point weights guards them: robust aggregation, clipping, privacy, whole numbers for secure sums.
"""

from __future__ import annotations

from typing import Any, cast

import tensorflow as tf

from tfp_bfl.contracts import ClientWork
from tfp_bfl.tensors import TensorTree
from tfp_bfl.weights import ModelWeights
from tfp_bfl.weights.kinds import Given, Sent


def joined(work: ClientWork[Sent], weights: Sent, extra: TensorTree) -> Sent:
    """Return a client's weights with its extra statistics among the point weights."""
    if work.extra is None:
        return weights
    own = cast(Any, weights)  # `ModelWeights`: others have no extra statistics.
    return own._replace(point=(own.point, extra))


def anchored(work: ClientWork[Sent], weights: ModelWeights) -> ModelWeights:
    """Return the server's weights with zeros in the place of extra statistics."""
    if work.extra is None:
        return weights
    return weights._replace(point=(weights.point, tf.nest.map_structure(tf.zeros_like, work.extra(weights))))


def parted(work: ClientWork[Sent], pooled: Given) -> tuple[Given, TensorTree]:
    """Return what a rule pooled as the weights and the extra statistics, () where clients send none."""
    if work.extra is None:
        return pooled, ()
    weights = cast(Any, pooled)
    point, extra = weights.point
    return weights._replace(point=point), extra


def root_mean_square(extra: TensorTree) -> tf.Tensor:
    """Return sqrt(mean_i x_i^2) over all numbers of a structure: a scalar float32, 0 for none."""
    leaves = [tf.reshape(tf.cast(x, tf.float32), [-1]) for x in tf.nest.flatten(extra)]
    if not leaves:
        return tf.zeros([])
    return tf.sqrt(tf.reduce_mean(tf.square(tf.concat(leaves, 0))))
