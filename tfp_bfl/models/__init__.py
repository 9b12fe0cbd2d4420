"""Keras model builders, each in four kinds; and, for this release, the names of `tfp_bfl.weights`.

A new model is one function of `architectures` and one entry in `MODELS`.
"""

from collections.abc import Callable

from tfp_bfl import keras
from tfp_bfl.models.architectures import conv_net, density, lenet, linear, mlp, resnet20
from tfp_bfl.models.blocks import KINDS, PRECISIONS
from tfp_bfl.models.conversion import deterministic, in_bfloat16, kind_of, mc_dropout, without_noise
from tfp_bfl.models.keras_3 import copy_to_keras_3, from_keras_3
from tfp_bfl.models.model_fn import as_model_fn

MODELS: dict[str, Callable[..., keras.Model]] = {
    builder.__name__: builder for builder in (lenet, resnet20, mlp, conv_net, linear)
}

__all__ = [
    "KINDS",
    "MODELS",
    "PRECISIONS",
    "as_model_fn",
    "copy_to_keras_3",
    "density",
    "deterministic",
    "from_keras_3",
    "in_bfloat16",
    "kind_of",
    "mc_dropout",
    "without_noise",
    *MODELS,
]
