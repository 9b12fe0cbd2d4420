"""Bayesian Keras layers: dense and convolution with Flipout or variational dropout, Monte Carlo dropout.

They are ordinary Keras layers: KL through `add_loss`, `fit`, `save`, `summary`. `sampling` decides how they draw noise.
These are layers of Keras 2; `keras_3` has the same layers for models of Keras 3.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tfp_bfl.layers.base import as_floats
from tfp_bfl.layers.dropout import MCDropout
from tfp_bfl.layers.flipout import Conv2DFlipout, DenseFlipout
from tfp_bfl.layers.noise import sampling, without_autograph
from tfp_bfl.layers.variational_dropout import Conv2DVariationalDropout, DenseVariationalDropout

if TYPE_CHECKING:
    from tfp_bfl.layers import keras_3 as keras_3

__all__ = [
    "Conv2DFlipout",
    "Conv2DVariationalDropout",
    "DenseFlipout",
    "DenseVariationalDropout",
    "MCDropout",
    "as_floats",
    "sampling",
    "without_autograph",
]

if not TYPE_CHECKING:  # Type checkers refuse names that are not there.

    def __getattr__(name: str) -> Any:
        if name == "keras_3":  # Imports Keras 3, where it is installed.
            return importlib.import_module("tfp_bfl.layers.keras_3")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
