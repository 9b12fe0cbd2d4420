"""Models that predict otherwise than they were trained: in bfloat16, which takes less time, and without noise."""

from __future__ import annotations

from typing import Any

from tfp_bfl import keras
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.layers import sampling
from tfp_bfl.weights.posterior_model import MemberSampling, WeightSampling

_TWIN, _SILENT = "_tfp_bfl_in_bfloat16", "_tfp_bfl_without_noise"


def in_bfloat16(model: keras.Model) -> keras.Model:
    """Return the model with float32 layers computing in bfloat16 (Keras' mixed_bfloat16); its logits are float32.

    Its variables are its own, float32, and have the model's values at the time of this call. The next call for the same
    model gives the same twin, with new values.

    Args:
      model: a functional or sequential Keras model.

    Raises:
      InvalidArgument: another kind of model, or a layer that can't be made anew from its configuration.
    """
    attributes = vars(model)  # past Keras, which would track it
    if _TWIN not in attributes:
        attributes[_TWIN] = _twin(model)
    for variable, value in zip(attributes[_TWIN].variables, model.variables):
        variable.assign(value)
    return attributes[_TWIN]


def _twin(model: keras.Model) -> keras.Model:
    try:
        body = keras.models.clone_model(model, clone_function=_layer)
    except (NotImplementedError, TypeError, ValueError) as error:
        raise InvalidArgument(
            "To compute in bfloat16 a model must be functional or sequential, of layers that have a configuration, "
            f"but {model.name!r} is not: {str(error).strip().partition(chr(10))[0]}"
        ) from error
    logits = keras.layers.Activation("linear", dtype="float32")(body.outputs[0])
    twin = keras.Model(body.inputs, logits, name=model.name)
    return without_noise(twin) if _SILENT in vars(model) else twin


def without_noise(model: keras.Model) -> keras.Model:
    """Return the model; from now on its calls predict by the means of the weights, and so do those of its bfloat16
    twin.
    """
    attributes = vars(model)
    if _SILENT not in attributes:
        call = model.call

        def by_means(inputs: object, training: object = None, mask: object = None) -> Any:
            with sampling("mean"):
                return call(inputs, training=training, mask=mask)

        model.call = by_means
        attributes[_SILENT] = True
        attributes.pop(_TWIN, None)  # It was made with noise.
    return model


def _layer(layer: keras.layers.Layer) -> keras.layers.Layer:
    if isinstance(layer, (WeightSampling, MemberSampling)):
        return layer.over(in_bfloat16(layer.model))
    config = layer.get_config()
    return type(layer).from_config(
        {**config, "dtype": "mixed_bfloat16"} if config.get("dtype") == "float32" else config
    )
