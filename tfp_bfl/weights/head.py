"""A model as a feature network and the last layer on it, and outputs that are a Gaussian."""

from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.weights.model_weights import layout


class SplitModel(NamedTuple):
    """Two Keras models over the same variables: inputs -> features [B, F] -> logits [B, C]."""

    features: keras.Model
    head: keras.Model


def split_head(model: keras.Model) -> SplitModel:
    """Split a model into the layers below its last dense layer, and that layer with those after it: logistic
    regression.

    Raises:
      InvalidArgument: the model is not functional or sequential, its last layer with weights is not dense, is called
        more than once, has weights of another one, or has more than a chain of layers after it; or its features are no
        vectors.
    """
    layers = list(getattr(model, "layers", []))
    with_weights = [i for i, layer in enumerate(layers) if layer.weights]
    last = layers[with_weights[-1]] if with_weights else None
    if not isinstance(last, keras.layers.Dense) or len(_calls(model, last)) != 1:
        end = f"ends with {type(last).__name__}" if last else "has no layer with weights"
        raise InvalidArgument(
            "A model is split at its last layer with weights, which must be a keras.layers.Dense that is called "
            f"once in a functional or sequential model: {model.name!r} {end}."
        )
    if not last.trainable:
        raise InvalidArgument(f"The last layer of {model.name!r} is frozen, but it is the one to fit: let it train.")
    # Its call in this model: the same layers may be called in another one too.
    features = _calls(model, last)[0].keras_inputs[0]
    if len(features.shape) != 2:
        raise InvalidArgument(f"The last layer of {model.name!r} must take vectors [B, F], not {features.shape}.")
    inputs = keras.Input(features.shape[1:], dtype=features.dtype)
    # Not Model(features, outputs): in graphs of TensorFlow 1, where TFF traces, a model begins with inputs only.
    before = _calls(model, last)[0].outputs
    logits = last(inputs)
    for layer in layers[with_weights[-1] + 1 :]:
        (call, *_) = _calls(model, layer)
        if call.keras_inputs[0] is not before:
            raise InvalidArgument(f"After the last layer of {model.name!r} there must be one chain of layers.")
        logits, before = layer(logits), call.outputs
    parts = SplitModel(keras.Model(model.inputs, features), keras.Model(inputs, logits))
    own, all_point = layout(parts.head).point, layout(model).point
    if [id(v) for v in own] != [id(v) for v in all_point[len(all_point) - len(own) :]]:
        raise InvalidArgument(f"The weights of the last layer of {model.name!r} must be the last of the model's.")
    return parts


def _calls(model: keras.Model, layer: keras.layers.Layer) -> list[Any]:
    """Return the nodes of a model's graph that call a layer."""
    nodes = getattr(model, "_nodes_by_depth", {})
    return [node for same_depth in nodes.values() for node in same_depth if node.layer is layer]


# Far from what standardised labels have.
MOST_LOG_VARIANCE = 14.0


def mean_and_log_variance(outputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the mean [...] and the log variance [...], within +-MOST_LOG_VARIANCE, of a model's two
    outputs [..., 2].
    """
    return outputs[..., 0], tf.clip_by_value(outputs[..., 1], -MOST_LOG_VARIANCE, MOST_LOG_VARIANCE)
