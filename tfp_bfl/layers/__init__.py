"""Bayesian Keras layers: dense and convolution with Flipout or variational dropout, Monte Carlo dropout.

They are ordinary Keras layers: KL through `add_loss`, `fit`, `save`, `summary`. `sampling` decides how they draw noise.
These are layers of Keras 2; `keras_3` has the same layers for models of Keras 3.
"""

from tfp_bfl.faces import Later
from tfp_bfl.layers.dropout import MCDropout
from tfp_bfl.layers.flipout import Conv2DFlipout, DenseFlipout
from tfp_bfl.layers.inputs import as_floats
from tfp_bfl.layers.noise import sampling, without_autograph
from tfp_bfl.layers.variational_dropout import Conv2DVariationalDropout, DenseVariationalDropout

keras_3 = Later("tfp_bfl.layers.keras_3")

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
