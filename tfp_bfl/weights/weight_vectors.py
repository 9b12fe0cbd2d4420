"""A model as a function of two vectors, so that gradients go through steps of training."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.posterior import MeanField, flatten
from tfp_bfl.weights.functional_call import variational_call
from tfp_bfl.weights.model_weights import ModelWeights, layout

# log s of weights that a client does without: they have no noise either.
_NO_NOISE = -30.0


class Vectors(NamedTuple):
    """The trained vectors.

    Fields:
      values: means of the variational weights, then point weights: [D + P].
      scales: what the layers hold of the standard deviations (`VariationalWeight.scale`): [D].
    """

    values: tf.Tensor
    scales: tf.Tensor


class WeightVectors:
    """The functions of a model's weights as two vectors; the model's own variables are neither read nor written.

    Args:
      model: a Keras model without BatchNorm.
    """

    def __init__(self, model: keras.Model):
        self._model = model
        self._variational = layout(model).variational
        self._point = layout(model).point
        leaves = [*(w.mean for w in self._variational), *self._point]
        self._shapes = [v.shape for v in leaves]
        self._sizes = [v.shape.num_elements() for v in leaves]

    @property
    def num_variational(self) -> int:
        """D."""
        return sum(self._sizes[: len(self._variational)])

    def load(self, weights: ModelWeights) -> Vectors:
        """Return the vectors of weights, with standard deviations that the layers allow."""
        logs = [0.5 * tf.math.log(v) for v in weights.posterior.variance]
        own = zip(self._variational, logs, weights.posterior.mean)
        scales = [w.parametrization.inverse(log_stddev, mean) for w, log_stddev, mean in own]
        return self.projected(Vectors(flatten((weights.posterior.mean, weights.point)), flatten(tuple(scales))))

    def store(self, vectors: Vectors, moments: MeanField) -> ModelWeights:
        """Return the weights of the vectors; variances are exp(2 log s)."""
        means, scales, point = self._parts(vectors)
        own = zip(self._variational, means, scales)
        variances = [tf.exp(2 * w.parametrization.log_stddev(x, m)) for w, m, x in own]
        return ModelWeights(MeanField(tuple(means), tuple(variances)), tuple(point), moments)

    def gaussian(self, vectors: Vectors) -> tuple[tf.Tensor, tf.Tensor]:
        """Return means [D] and logarithms of the standard deviations [D]."""
        means, scales, _ = self._parts(vectors)
        log_stddevs = [w.parametrization.log_stddev(x, m) for w, m, x in zip(self._variational, means, scales)]
        return flatten(tuple(means)), flatten(tuple(log_stddevs))

    def call(self, features: tf.Tensor, vectors: Vectors, mask: tf.Tensor | None = None) -> tf.Tensor:
        """Return logits [B, C]; weights with `mask` [D] 0 are 0 without noise, and get no gradient."""
        if mask is not None:
            kept = tf.concat([mask, tf.ones_like(vectors.values[self.num_variational :])], 0)
            vectors = Vectors(kept * vectors.values, tf.where(mask > 0, vectors.scales, _NO_NOISE))
        means, scales, point = self._parts(vectors)
        return variational_call(self._model, means, scales, point, features)

    def kl_divergence(self, vectors: Vectors, mask: tf.Tensor | None = None) -> tf.Tensor:
        """Return KL[q || prior] in nats, of the weights with `mask` [D] 1."""
        means, scales, _ = self._parts(vectors)
        each = flatten([w.kl_divergences(m, x) for w, m, x in zip(self._variational, means, scales)])
        return tf.reduce_sum(each if mask is None else mask * each)

    def projected(self, vectors: Vectors) -> Vectors:
        """Return the nearest vectors that the layers allow."""
        _, scales, _ = self._parts(vectors)
        allowed = [w.scale.constraint(x) for w, x in zip(self._variational, scales)]
        return vectors._replace(scales=flatten(tuple(allowed))) if allowed else vectors

    def _parts(self, vectors: Vectors) -> tuple[list[tf.Tensor], list[tf.Tensor], list[tf.Tensor]]:
        """Return means, scales and point weights in their shapes."""
        number = len(self._variational)
        shape = lambda flat, sizes: [
            tf.reshape(x, shape) for x, shape in zip(tf.split(flat, sizes), self._shapes[: len(sizes)])
        ]
        values = shape(vectors.values, self._sizes)
        scales = shape(vectors.scales, self._sizes[:number]) if number else []
        return values[:number], scales, values[number:]
