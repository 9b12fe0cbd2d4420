"""Distances between weights, in coordinates in which all messages of clients can be compared.

Means, point weights and log standard deviations; BatchNorm's moving means and variances in the same two.
"""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import tensorflow as tf

from tfp_bfl.posterior import MeanField
from tfp_bfl.tensors import TensorTree
from tfp_bfl.weights.model_weights import ModelWeights

Point = tuple[tf.Tensor, ...]
# A model's weights, or a posterior alone.
AnyWeights = ModelWeights | MeanField
_Weights = TypeVar("_Weights", ModelWeights, MeanField)


def change_norm(local: _Weights, anchor: _Weights) -> tf.Tensor:
    """Return ||x_k - x_0||, how far a client moved from the anchor in all coordinates together: a scalar, float64.

    x_k are means, log standard deviations and point weights, and BatchNorm's moments in the first two, as one vector.

    Args:
      local: a `MeanField` or `ModelWeights`.
      anchor: what the client started from, of the same structure.
    """
    pairs = zip(tf.nest.flatten(coordinates(local)), tf.nest.flatten(coordinates(anchor)))
    return tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(x - y)) for x, y in pairs]))


def root_mean_square_change(local: TensorTree, anchor: ModelWeights) -> tf.Tensor:
    """Return sqrt(mean_i (x_ki - x_0i)^2) over means and point weights: a scalar float32; 0 of what is no
    `ModelWeights`.
    """
    if not isinstance(local, ModelWeights):
        return tf.zeros([])
    values = lambda weights: tf.nest.flatten((getattr(weights.posterior, "mean", ()), weights.point))
    changes = [tf.cast(x, tf.float32) - tf.cast(y, tf.float32) for x, y in zip(values(local), values(anchor))]
    total = tf.add_n([tf.reduce_sum(tf.square(x)) for x in changes])
    return tf.sqrt(total / tf.cast(tf.add_n([tf.size(x) for x in changes]), tf.float32))


def by_part(pairs: Callable[[MeanField], MeanField], point: Callable[[Point], Point], weights: _Weights) -> _Weights:
    """Return the parts of a model's weights, or a posterior alone, each through its function."""
    if isinstance(weights, ModelWeights):
        return ModelWeights(pairs(weights.posterior), point(weights.point), pairs(weights.moments))
    return pairs(weights)


def coordinates(weights: _Weights) -> _Weights:
    """Return the coordinates in float64, where no square of a finite change overflows."""
    double = lambda structure: tf.nest.map_structure(lambda x: tf.cast(x, tf.float64), structure)

    def log_stddev(variance: tf.Tensor) -> tf.Tensor:
        # A feature that is constant at a client gives BatchNorm a moving variance of zero.
        smallest = np.finfo(variance.dtype.as_numpy_dtype).tiny
        return 0.5 * tf.math.log(tf.cast(tf.maximum(variance, smallest), tf.float64))

    return by_part(lambda q: MeanField(double(q.mean), tf.nest.map_structure(log_stddev, q.variance)), double, weights)


def from_coordinates(coordinates: _Weights) -> _Weights:
    """Invert `coordinates`: weights with variances, in float64."""
    variance = lambda log_stddev: tf.exp(2 * log_stddev)
    return by_part(lambda q: q._replace(variance=tf.nest.map_structure(variance, q.variance)), lambda x: x, coordinates)
