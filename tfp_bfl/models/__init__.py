"""Keras model builders, each in four kinds; and frozen networks that compute features of images and texts.

A new model is one function of `architectures` and one entry in `MODELS`.
"""

from collections.abc import Callable

from tfp_bfl import keras
from tfp_bfl.data.texts import text_features
from tfp_bfl.models.architectures import conv_net, density, lenet, linear, mlp, resnet20
from tfp_bfl.models.backbones import features
from tfp_bfl.models.blocks import KINDS, PRECISIONS
from tfp_bfl.models.conversion import deterministic, in_bfloat16, kind_of, mc_dropout
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
    "features",
    "from_keras_3",
    "in_bfloat16",
    "kind_of",
    "mc_dropout",
    "text_features",
    *MODELS,
]
