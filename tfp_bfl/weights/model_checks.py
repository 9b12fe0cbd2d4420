"""Checks of user-supplied Keras models: their form, what their layers draw and lose, and that they return logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.layers import sampling
from tfp_bfl.weights.random_operations import unseeded_operation

_PROBES = 8
# Inputs of this standard deviation take what is not bounded beyond 1.
_WIDE = 100.0
_ROUNDING = 1e-3


def check_form(model: object) -> None:
    """Check that a model has one input and one output, is functional or Sequential, and holds float32 weights.

    Args:
      model: a Keras model.

    Raises:
      InvalidArgument: it has another form.
    """
    if not isinstance(model, keras.Model):
        raise InvalidArgument(f"The function of the model returns {shown(model)}, but must return a Keras model.")
    if not model._is_graph_network:
        raise InvalidArgument(
            f"The model {model.name!r} ({type(model).__name__}) is subclassed, or has no input shape: build it as a "
            "functional model, or as a Sequential one with an input shape."
        )
    for what, tensors in (("inputs", model.inputs), ("outputs", model.outputs)):
        if len(tensors) != 1:
            raise InvalidArgument(
                f"The model {model.name!r} has {len(tensors)} {what}, but must have one: concatenate them into one "
                "array."
            )
    for layer in model._flatten_layers(include_self=False):
        for dtype in {*(v.dtype for v in layer.weights), tf.as_dtype(layer.compute_dtype or "float32")}:
            if dtype in (tf.float64, tf.float16):
                raise InvalidArgument(
                    f"The layer {layer.name!r} of the model {model.name!r} is of type {dtype.name}, but must be "
                    "float32, or mixed_bfloat16: leave its dtype out."
                )


def check_layers(model: keras.Model) -> None:
    """Check that local training takes account of all that the model's layers do.

    The model is traced once in training and in prediction: noise of `tfp_bfl.layers`, and of any stateless operation,
    passes. Layers of Keras with noise pass where their rates are 0, as those of LSTM, GRU and attention are by default.

    Args:
      model: a Keras model.

    Raises:
      InvalidArgument: a layer adds losses that are not the KL of this library's layers, or draws noise that no seed
        reaches.
    """
    for layer in model._flatten_layers(include_self=False):
        kind = type(layer)
        if "tensorflow_probability" in kind.__module__ or (layer.losses and not _holds_variational(layer)):
            raise InvalidArgument(
                f"The layer {layer.name!r} ({kind.__name__}) has losses of its own, which local training would leave "
                "out: use the layers of tfp_bfl.layers, without regularizers."
            )
    drawn = unseeded_operation(model)
    if drawn is not None:
        what = f"layer {drawn.layer.name!r} ({type(drawn.layer).__name__})" if drawn.layer else f"model {model.name!r}"
        raise InvalidArgument(
            f"The {what} draws noise that the run's seed does not reach: set its dropout to 0, or use "
            f"tfp_bfl.layers.MCDropout or tf.random.stateless operations in place of {drawn.operation}."
        )


def check_logits(model: keras.Model, of_classes: bool = True) -> None:
    """Check that a model returns logits, of which losses and predictions take the softmax themselves.

    The last layer is checked by its type, and the outputs for random inputs by their values.

    Args:
      model: a Keras model of one input and one output.
      of_classes: the labels are classes, so that a sigmoid at the end is an error too.

    Raises:
      InvalidArgument: the outputs are probabilities.
    """
    last: Any = model.layers[-1] if model.layers else None
    while isinstance(last, keras.Model) and last.layers:
        last = last.layers[-1]
    softmax = keras.activations.softmax
    if isinstance(last, keras.layers.Softmax) or getattr(last, "activation", None) is softmax:
        raise InvalidArgument(
            f"The last layer, {last.name!r}, gives probabilities, but must give logits: leave its softmax out."
        )
    if not tf.executing_eagerly():
        return
    outputs = [x for x in (_outputs(model, scale) for scale in (1.0, _WIDE)) if x is not None]
    inside = [bool(((x >= 0) & (x <= 1)).all()) for x in outputs]
    if outputs and all(inside) and all(np.allclose(x.sum(-1), 1, atol=_ROUNDING) for x in outputs):
        raise InvalidArgument(
            f"The outputs of the model {model.name!r} sum to 1: they are probabilities, but must be logits; leave the "
            "softmax at its end out."
        )
    if of_classes and len(outputs) == 2 and all(inside) and outputs[1].std() > _ROUNDING:
        raise InvalidArgument(
            f"The outputs of the model {model.name!r} all lie between 0 and 1, as those of a sigmoid do, but must be "
            "logits: leave the activation at its end out."
        )


def _outputs(model: keras.Model, scale: float) -> Any:
    """Return outputs for random inputs, float32 [8, C]; None where the model does not take such numbers."""
    rng = np.random.default_rng(0)
    shape = [_PROBES, *(n or _PROBES for n in model.input_shape[1:])]
    inputs = rng.random(shape) if scale == 1 else rng.normal(0, scale, shape)
    try:
        with sampling("mean"):
            return tf.cast(model(inputs.astype(np.float32), training=False), tf.float32).numpy()
    except (tf.errors.OpError, ValueError, TypeError):  # Such as an embedding, of numbers that are no words.
        return None


def _holds_variational(layer: keras.layers.Layer) -> bool:
    return any(getattr(part, "variational_weights", []) for part in layer._flatten_layers())
