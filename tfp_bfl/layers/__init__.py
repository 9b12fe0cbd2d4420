"""Bayesian Keras layers: Flipout dense and convolution, Monte Carlo dropout.

They are ordinary Keras layers: KL through `add_loss`, `fit`, `save`, `summary`. `sampling` decides how they draw noise.
"""

from tfp_bfl.layers.dropout import MCDropout
from tfp_bfl.layers.flipout import Conv2DFlipout, DenseFlipout
from tfp_bfl.layers.noise import sampling, without_autograph

__all__ = ["Conv2DFlipout", "DenseFlipout", "MCDropout", "sampling", "without_autograph"]
