"""Models that draw weights at each call: from a posterior over their point weights, or of one of several members."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl import keras, posterior
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.layers import as_floats, noise
from tfp_bfl.posterior import LowRank, MeanField, Samples
from tfp_bfl.posterior.kronecker import Kronecker
from tfp_bfl.weights.functional_call import batch_moments, functional_call, variational_call
from tfp_bfl.weights.model_weights import ModelWeights, assign_weights, get_weights, layout

_IMAGES = 4
# By which resizing may leave the range of pixels.
_ROUNDING = 0.01
# Methods of Keras that accept arrays of examples.
_OF_KERAS = ("predict", "predict_on_batch", "evaluate")

Posterior = MeanField | LowRank | Kronecker | Samples


class WeightSampling(keras.layers.Layer):
    """Calls a model with weights drawn from a posterior, where `tfp_bfl.layers.sampling` asks for it.

    f(x; w), w ~ q: one draw for the whole batch. In mode "mean" the model as it is.

    Args:
      model: a Keras model without variational layers.
      q: over the last of the model's point weights, as many as it has leaves: a tuple of them.
      batch_norm_examples: [N, ...]; for each draw BatchNorm takes its statistics from these instead of the model's own.
    """

    def __init__(self, model: keras.Model, q: Posterior, batch_norm_examples: object = None, **kwargs: object):
        super().__init__(**kwargs)
        self.model = model
        leaves = [tf.convert_to_tensor(x) for x in tf.nest.flatten(q)]
        self._leaves = [tf.Variable(x, trainable=False, dtype=x.dtype) for x in leaves]
        self._pack = lambda leaves: tf.nest.pack_sequence_as(q, leaves)
        self._examples = None
        if batch_norm_examples is not None and layout(model).moving_mean:
            examples = as_floats(batch_norm_examples)
            self._examples = tf.Variable(examples, trainable=False)

    @property
    def posterior(self) -> Posterior:
        """q."""
        return self._pack([tf.convert_to_tensor(x) for x in self._leaves])

    def over(self, model: keras.Model) -> WeightSampling:
        """Return a copy of this layer that calls another model of the same weights."""
        return WeightSampling(model, self.posterior, self._examples, name=self.name)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        weights: Any = ()
        if noise.mode() != "mean":
            (seed,) = noise.next_seeds(1)
            weights = tf.nest.flatten(posterior.sample(self.posterior, seed))
        moments = None
        if self._examples is not None:
            moments = batch_moments(self.model, weights, tf.convert_to_tensor(self._examples))
        return functional_call(self.model, weights, inputs, moments)

    def linearised(self, inputs: tf.Tensor) -> tf.Tensor:
        """Compute outputs [B, C] that are linear in the weights, for a sample w as `call` draws it.

        f(x; m) + J(x) (w - m),   J = d f / d w at the posterior's mean m

        With Gaussian q these are N(f(x; m), J Sigma J^T) exactly. BatchNorm takes the model's own statistics.

        Source: Immer et al. 2021 (arXiv:2008.08400), eq. 8.
        """
        mean = tf.nest.flatten(posterior.marginals(self.posterior).mean)
        (seed,) = noise.next_seeds(1)
        drawn = tf.nest.flatten(posterior.sample(self.posterior, seed))
        with tf.autodiff.ForwardAccumulator(mean, [w - m for w, m in zip(drawn, mean)]) as accumulator:
            outputs = functional_call(self.model, mean, inputs)
        return outputs + accumulator.jvp(outputs, tf.UnconnectedGradients.ZERO)


def predictive_model(model: keras.Model, weights: ModelWeights, batch_norm_examples: object = None) -> keras.Model:
    """Return the Keras model with these weights; its predictions are samples if there is a posterior over them.

    A posterior over the layers' own variational weights goes into the layers. One over point weights (a `LowRank` or
    `Samples`, or any over a model without variational layers) is drawn from at each call, in the same `sampling`
    blocks, so that evaluation and export take both alike.

    Args:
      model: a Keras model; its weights are overwritten.
      weights: as `assign_weights` takes them.
      batch_norm_examples: [N, ...], for a model with BatchNorm: its statistics are computed anew on these for each
        draw. They become part of the model, and of what is exported. None: the statistics of `weights` for all draws.

    Raises:
      InvalidArgument: weights that do not fit the model.

    Source: Maddox et al. 2019 (arXiv:1902.02476), algorithm 1, Bayesian model averaging.
    """
    assign_weights(model, weights)
    if layout(model).variational or not tf.nest.flatten(weights.posterior):
        return model
    inputs = keras.Input(model.input_shape[1:], dtype=model.inputs[0].dtype)
    sampled = WeightSampling(model, weights.posterior, batch_norm_examples)(inputs)
    return keras.Model(inputs, sampled, name=model.name)


def scaling_bytes(model: keras.Model) -> keras.Model:
    """Let a model of images scale bytes, in its calls and in Keras' methods, as predictions of this library do.

    Training images are bytes, scaled to [0, 1], or floats in [0, 1]: arrays of other floats are refused, as are other
    whole numbers and one image without a batch. The elements of a `tf.data.Dataset` are not looked at.

    Args:
      model: of one input; models of tables are left as they are.

    Returns:
      The same model.
    """
    if len(model.input_shape) == _IMAGES and "call" not in vars(model):  # Else it does so already.
        call, shape = model.call, model.input_shape

        def scaled(inputs: object, training: object = None, mask: object = None) -> Any:
            inputs = _one_input(inputs)
            if tf.executing_eagerly():
                _check_pixels(inputs, shape)
            return call(as_floats(_as_batch(inputs, shape)), training=training, mask=mask)

        model.call = scaled
        for name in _OF_KERAS:
            setattr(model, name, _checking(getattr(model, name), shape))
    return model


def _checking(method: Callable[..., Any], shape: Sequence[int | None]) -> Callable[..., Any]:
    """Return a method of Keras that checks arrays of images: its own graph would end in a message of TensorFlow."""

    @functools.wraps(method)
    def checked(x: object = None, *args: object, **kwargs: object) -> Any:
        images = _one_input(x)
        if isinstance(images, (np.ndarray, tf.Tensor)):
            _check_pixels(images, shape)
        return method(x, *args, **kwargs)

    return checked


def _one_input(inputs: object) -> Any:
    """Return the input of a model of one, which Keras takes in a list or a dictionary, too."""
    if isinstance(inputs, (list, tuple)) and len(inputs) == 1:
        return inputs[0]
    return next(iter(inputs.values())) if isinstance(inputs, dict) and len(inputs) == 1 else inputs


def _check_pixels(images: object, shape: Sequence[int | None]) -> None:
    """Raise InvalidArgument unless images are a batch of bytes, or of floats in [0, 1]."""
    _as_batch(images, shape)
    values = np.asarray(images)
    if values.dtype.kind != "f":
        as_floats(values[:0])
    elif values.size and not np.all(np.abs(values - 0.5) <= 0.5 + _ROUNDING):
        raise InvalidArgument(
            f"images are floats from {values.min():g} to {values.max():g}, but the model was trained on pixels from 0 "
            "to 1: give uint8, or divide pixels from 0 to 255 by 255."
        )


def _as_batch(inputs: Any, shape: Sequence[int | None]) -> Any:
    """Return a batch of images as it is."""
    rank = inputs.shape.rank if hasattr(inputs.shape, "rank") else len(inputs.shape)
    if rank is None:
        return tf.ensure_shape(inputs, shape)
    if rank != len(shape):
        raise InvalidArgument(
            f"The model takes a batch of images {list(shape)}, and here is {list(inputs.shape)}: give one image as "
            "image[None]."
        )
    return inputs


def weight_sampling(model: keras.Model) -> WeightSampling | None:
    """Return the layer that samples weights, of a model of `predictive_model`; None where there is none."""
    return next((layer for layer in model.layers if isinstance(layer, WeightSampling)), None)


def predictive_weights(model: keras.Model) -> ModelWeights:
    """Return the weights that a model predicts with, its posterior among them: what `predictive_model` was given."""
    sampling = weight_sampling(model)
    if sampling is None:
        return get_weights(model)
    weights, q = get_weights(sampling.model), sampling.posterior
    below = len(weights.point) - len(tf.nest.flatten(posterior.marginals(q).mean))
    return weights._replace(posterior=q, point=weights.point[:below])


def predictive_spec(model: keras.Model, names: Iterable[str]) -> ModelWeights:
    """Return the arguments of `predictive_model` for a model, as `tf.TensorSpec`s.

    Args:
      model: a Keras model.
      names: of the leaves, such as "posterior/deviations/0", which determine for a model without variational
        layers the kind of posterior, and the number of its last point weights.
    """
    spec = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), get_weights(model))
    fields = [name.split("/")[1] for name in names if name.startswith("posterior/")]
    if spec.posterior.mean or not fields:
        return spec
    below = max(0, len(spec.point) - fields.count(fields[0]))
    leaves = spec.point[below:]
    rows = tuple(tf.TensorSpec([None, *x.shape], x.dtype) for x in leaves)
    matrix = tf.TensorSpec([None, None])
    kinds = {"values": Samples(rows), "deviations": LowRank(leaves, leaves, rows)}
    kinds["columns"] = Kronecker(leaves, matrix, matrix, matrix)
    q = next((kind for field, kind in kinds.items() if field in fields), MeanField(leaves, leaves))
    return spec._replace(posterior=q, point=spec.point[:below])


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
    """Return M of what `ensemble_model` built; 1 for any other model.

    Example:
      >>> bfl.weights.num_members(bfl.models.mlp("deterministic", input_shape=(4,), num_classes=2))
      1
    """
    return next((layer.num_members for layer in model.layers if isinstance(layer, MemberSampling)), 1)
