"""The network of a published benchmark, as a function of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorflow as tf


def four_layers(input_shape: tuple[int, ...], num_classes: int) -> tf.keras.Model:
    """Build two 5 x 5 convolutions of 32 and 64 channels, each with pooling, and dense layers of 512 and of classes.

    Source: the 4-layer CNN of the PFLlib benchmark (arXiv:2312.04992): 582,026 weights for images of 28 x 28.
    """
    import tensorflow as tf

    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input(input_shape),
            layers.Conv2D(32, 5, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 5, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(512, activation="relu"),
            layers.Dense(num_classes),
        ]
    )
