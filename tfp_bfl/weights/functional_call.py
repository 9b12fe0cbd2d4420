"""Keras models as functions of their weights: the model's own variables are neither read nor written."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights.frozen import frozen_layers, read_type
from tfp_bfl.weights.model_weights import Layout, checked_value, layout


def functional_call(
    model: keras.Model, point: Sequence[tf.Tensor], features: tf.Tensor, moments: MeanField | None = None
) -> tf.Tensor:
    """Return the model's output at other weights than its own, differentiable in them.

    Args:
      model: a Keras model.
      point: values for the last of the model's point weights (`weights.layout`), as many as these are: tensors [...].
      features: [B, ...].
      moments: values for BatchNorm's moving means and variances, through which no gradient goes; None for the model's
        own.

    Returns:
      What the model returns when it does not train: logits [B, C].

    Raises:
      InvalidArgument: more values than point weights, another number of moments, values of other shapes or types, or a
        layer that does not hold its weights as attributes.
    """
    places = layout(model)
    return _called(model, places, _last(places.point, point), list(point), features, moments)


def variational_call(
    model: keras.Model,
    means: Sequence[tf.Tensor],
    scales: Sequence[tf.Tensor],
    point: Sequence[tf.Tensor],
    features: tf.Tensor,
    moments: MeanField | None = None,
) -> tf.Tensor:
    """Return the model's output at other variational weights and point weights, in the mode of
    `tfp_bfl.layers.sampling`.

    Args:
      model, features: as `functional_call`.
      means, scales: values for the variables of the variational weights (`weights.layout`).
      point: values for all point weights.
      moments: values for BatchNorm's moving means and variances; None for the model's own.

    Returns:
      Logits [B, C], differentiable in all values.
    """
    places = layout(model)
    variables = [*(w.mean for w in places.variational), *(w.scale for w in places.variational), *places.point]
    return _called(model, places, variables, [*means, *scales, *point], features, moments)


def _called(
    model: keras.Model,
    places: Layout,
    variables: list[tf.Variable],
    values: list[tf.Tensor],
    features: tf.Tensor,
    moments: MeanField | None,
) -> tf.Tensor:
    if moments is not None:
        number = len(places.moving_mean)
        if not len(moments.mean) == len(moments.variance) == number:
            raise InvalidArgument(
                f"There are {len(moments.mean)} means and {len(moments.variance)} variances, but the model has "
                f"{number} layers with BatchNorm's statistics: it needs one of each a layer."
            )
        variables = [*variables, *places.moving_mean, *places.moving_variance]
        values = [*values, *moments.mean, *moments.variance]
    with _substituted(model, variables, values):
        return model(features, training=False)


def batch_moments(model: keras.Model, point: Sequence[tf.Tensor], features: tf.Tensor) -> MeanField:
    """Return the statistics that BatchNorm's layers see in a batch at other weights than the model's own.

    mean_l = mean_b x_lb,   variance_l = mean_b (x_lb - mean_l)^2

    x_l is the input of layer l when the layers before it have normalised by the batch too. Moving statistics estimate
    this at the weights of the last steps; a draw from a posterior has others (Maddox et al. 2019, arXiv:1902.02476,
    section 3.2).

    Returns:
      Tuples of means and variances in the order of `weights.get_weights(model).moments`.
    """
    return batch_normalized_call(model, point, features)[1]


def batch_normalized_call(
    model: keras.Model, point: Sequence[tf.Tensor], features: tf.Tensor
) -> tuple[tf.Tensor, MeanField]:
    """Return the model's output where BatchNorm normalises by the batch, as in training, and the batch's statistics.

    Differentiable in the weights, through the statistics too.

    Returns:
      Logits [B, C], and what `batch_moments` returns.

    Raises:
      InvalidArgument: as `functional_call`, or a normalization over another axis than the last.
    """
    places = layout(model)
    still = {id(layer) for layer in frozen_layers(model)}
    layers = [x for x in model._flatten_layers() if isinstance(x, keras.layers.BatchNormalization)]
    layers = [x for x in layers if id(x) not in still]
    statistics: dict[int, tuple[tf.Tensor, tf.Tensor]] = {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(_substituted(model, _last(places.point, point), list(point)))
        for layer in layers:
            stack.enter_context(_attribute(layer, "call", _normalize_by_batch(layer, statistics)))
        # Not training=True, in which a layer would update its own variables.
        outputs = model(features, training=False)
    moments = [statistics[id(layer)] for layer in layers]
    return outputs, MeanField(tuple(mean for mean, _ in moments), tuple(variance for _, variance in moments))


def _normalize_by_batch(layer: keras.layers.BatchNormalization, statistics: dict[int, Any]) -> Callable[..., tf.Tensor]:
    def call(inputs: tf.Tensor, training: object = None, mask: object = None) -> tf.Tensor:
        del training, mask
        if list(layer.axis) != [inputs.shape.rank - 1]:
            raise InvalidArgument(f"The layer {layer.name!r} must normalise over the last axis, not {layer.axis}.")
        x = tf.cast(inputs, tf.float32)
        mean, variance = tf.nn.moments(x, list(range(inputs.shape.rank - 1)))
        statistics[id(layer)] = mean, variance
        return tf.cast(
            tf.nn.batch_normalization(x, mean, variance, layer.beta, layer.gamma, layer.epsilon), inputs.dtype
        )

    return call


def _last(variables: list[tf.Variable], values: Sequence[tf.Tensor]) -> list[tf.Variable]:
    if len(values) > len(variables):
        raise InvalidArgument(f"There are {len(values)} values, but the model has {len(variables)} point weights.")
    return variables[len(variables) - len(values) :]


@contextlib.contextmanager
def _substituted(model: keras.Model, variables: Sequence[tf.Variable], values: Sequence[tf.Tensor]) -> Iterator[None]:
    """Replace the layers' variables by the values inside the block."""
    places: dict[int, list[tuple[Any, str]]] = {}
    for layer in model._flatten_layers():
        for name, held in vars(layer).items():
            if isinstance(held, tf.Variable):
                places.setdefault(id(held), []).append((layer, name))
    with contextlib.ExitStack() as stack:
        for variable, value in zip(variables, values):
            if id(variable) not in places:
                raise InvalidArgument(
                    f"The weight {variable.name} is no attribute of its layer: use layers that hold each of theirs so."
                )
            value = tf.convert_to_tensor(value, None if tf.is_tensor(value) else variable.dtype)
            value = checked_value(variable, value)
            # Several where layers share a weight.
            for layer, name in places[id(variable)]:
                # Keras casts its variables for layers that compute in another type, and not their values.
                stack.enter_context(_attribute(layer, name, tf.cast(value, read_type(layer, variable))))
        yield


@contextlib.contextmanager
def _attribute(layer: keras.layers.Layer, name: str, value: object) -> Iterator[None]:
    # In the layer's dictionary, past Keras, which would track what is set.
    attributes = vars(layer)
    before = attributes.get(name)
    attributes[name] = value
    try:
        yield
    finally:
        if before is None:
            del attributes[name]
        else:
            attributes[name] = before
