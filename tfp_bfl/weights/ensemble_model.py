"""A Keras model of several members: each weight sample belongs to one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl import keras, posterior
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.layers import noise
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights.functional_call import variational_call
from tfp_bfl.weights.model_weights import ModelWeights, assign_weights, layout

# Floor of the probabilities, of which the logits are the logarithms.
_LEAST = 1e-37


class Stacked(NamedTuple):
    """Hold the values of a model's variables for M members, leaves [M, ...].

    Fields:
      means, scales: of the variational weights (`weights.layout`).
      point: all point weights; where a posterior lies beside the model, its means.
      moving_mean, moving_variance: BatchNorm's statistics.
      beside: posteriors over the last point weights; () without any.
    """

    means: Any
    scales: Any
    point: Any
    moving_mean: Any
    moving_variance: Any
    beside: Any


class MemberSampling(keras.layers.Layer):
    """Call a model with the weights of one member of an ensemble, where `tfp_bfl.layers.sampling` asks for a sample.

        f(x; w),   w ~ q_m,   m = seed[1] mod M

    The seed of the `sampling` block selects the member, so that `evaluation.sample_seeds` gives each member equally
    many samples; without a seed m is uniform. In mode "mean" all members predict, each at the mean of its posterior:
    softmax of the output is the mean of the members' probabilities. For regression the output holds the mean and the
    log variance of the mixture of the members' Gaussians.

    Args:
      model: a Keras model.
      values: of the members.
      regression: the model's outputs are mean and log variance [B, 2] instead of logits.
    """

    def __init__(self, model: keras.Model, values: Stacked, regression: bool = False, **kwargs: object):
        super().__init__(**kwargs)
        self.model = model
        self.regression = regression
        leaves = [tf.convert_to_tensor(x) for x in tf.nest.flatten(values)]
        self.num_members = int(leaves[0].shape[0])
        self._leaves = [tf.Variable(x, trainable=False, dtype=x.dtype) for x in leaves]
        self._pack = lambda leaves: tf.nest.pack_sequence_as(values, leaves)

    def over(self, model: keras.Model) -> MemberSampling:
        """Return a copy of this layer that calls another model with the same variables."""
        values = self._pack([tf.convert_to_tensor(x) for x in self._leaves])
        return MemberSampling(model, values, self.regression, name=self.name)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        if noise.mode() == "mean":
            outputs = tf.stack([self._member(inputs, tf.constant(m), at_mean=True) for m in range(self.num_members)])
            return _mixture(outputs) if self.regression else _mean_logits(outputs)
        seed = noise.current_seed()
        drawn = noise.unseeded([], self.num_members) if seed is None else tf.math.floormod(seed[1], self.num_members)
        return self._member(inputs, drawn)

    def _member(self, inputs: tf.Tensor, number: tf.Tensor, at_mean: bool = False) -> tf.Tensor:
        values = self._pack([tf.gather(tf.convert_to_tensor(x), number) for x in self._leaves])
        point = tuple(values.point)
        if values.beside and not at_mean:
            (seed,) = noise.next_seeds(1)
            drawn = tf.nest.flatten(posterior.sample(values.beside, seed))
            point = (*point[: len(point) - len(drawn)], *drawn)
        moments = MeanField(values.moving_mean, values.moving_variance)
        return variational_call(self.model, values.means, values.scales, point, inputs, moments)


def _mean_logits(outputs: tf.Tensor) -> tf.Tensor:
    """Return log((1 / M) sum_m softmax(outputs_m)): [M, B, C] -> [B, C]."""
    probabilities = tf.reduce_mean(tf.nn.softmax(outputs), 0)
    return tf.math.log(tf.maximum(probabilities, probabilities.dtype.as_numpy_dtype(_LEAST)))


def _mixture(outputs: tf.Tensor) -> tf.Tensor:
    """Return the mean and the log variance of a mixture of Gaussians: [M, B, 2] -> [B, 2]."""
    means, variances = outputs[..., 0], tf.exp(outputs[..., 1])
    variance = tf.reduce_mean(variances, 0) + tf.math.reduce_variance(means, 0)
    return tf.stack([tf.reduce_mean(means, 0), tf.math.log(variance)], -1)


def ensemble_model(model: keras.Model, members: Sequence[ModelWeights], regression: bool = False) -> keras.Model:
    """Build one Keras model from the weights of M members.

    p(y | x) = (1 / M) sum_m E_{w ~ q_m} p(y | x, w)

    Args:
      model: a Keras model of the members' architecture; its own weights are overwritten.
      members: weights of each, as `predictive_model` takes them.
      regression: as of `MemberSampling`.

    Returns:
      A model with weight samples from the members in turn: S samples are S / M of each, if M divides S.

    Raises:
      InvalidArgument: fewer than two members, weights that do not fit the model, or posteriors of different forms.

    Source: Lakshminarayanan et al. 2017 (arXiv:1612.01474), section 2.4.
    """
    if len(members) < 2:
        raise InvalidArgument(f"There are {len(members)} members, but an ensemble has at least 2.")
    every = []
    for weights in members:
        assign_weights(model, weights)
        places = layout(model)
        read = lambda group: tuple(tf.convert_to_tensor(x) for x in group)
        has_beside = not places.variational and tf.nest.flatten(weights.posterior)
        every.append(
            Stacked(
                read(w.mean for w in places.variational),
                read(w.scale for w in places.variational),
                read(places.point),
                read(places.moving_mean),
                read(places.moving_variance),
                weights.posterior if has_beside else (),
            )
        )
    try:
        stacked = tf.nest.map_structure(lambda *x: tf.stack(x), *every)
    except (TypeError, ValueError, tf.errors.InvalidArgumentError):
        raise InvalidArgument(
            "The members have posteriors of different forms: build all members by one algorithm."
        ) from None
    inputs = keras.Input(model.input_shape[1:], dtype=model.inputs[0].dtype)
    return keras.Model(inputs, MemberSampling(model, stacked, regression)(inputs), name=model.name)


def num_members(model: keras.Model) -> int:
    """Return M of what `ensemble_model` built; 1 for any other model."""
    return next((layer.num_members for layer in model.layers if isinstance(layer, MemberSampling)), 1)
