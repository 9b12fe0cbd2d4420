"""The networks of the study, as Keras has them."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

import tfp_bfl as bfl

layers = tf.keras.layers


def mnist_network(num_classes: int, seed: int) -> tf.keras.Model:
    """Build two 5 x 5 convolutions with 16 and 32 filters, each pooled, and a dense layer: 28,938 weights for ten
    classes.
    """
    return tf.keras.Sequential(
        [
            tf.keras.Input((28, 28, 1)),
            *_convolution(16, 5, seed),
            layers.MaxPooling2D(),
            *_convolution(32, 5, seed + 1),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(num_classes, kernel_initializer=tf.keras.initializers.GlorotUniform(seed + 2)),
        ],
        name="mnist_network",
    )


def character_network(num_classes: int, seed: int) -> tf.keras.Model:
    """Build two 3 x 3 convolutions with 32 and 64 filters, pooled, and dense layers of 128 and C, with dropout in
    training: 1,199,882 weights for ten classes.
    """
    return tf.keras.Sequential(
        [
            tf.keras.Input((28, 28, 1)),
            *_convolution(32, 3, seed, "valid"),
            *_convolution(64, 3, seed + 1, "valid"),
            layers.MaxPooling2D(),
            bfl.layers.MCDropout(0.25, at_prediction=False),
            layers.Flatten(),
            layers.Dense(128, "relu", kernel_initializer=tf.keras.initializers.GlorotUniform(seed + 2)),
            bfl.layers.MCDropout(0.5, at_prediction=False),
            layers.Dense(num_classes, kernel_initializer=tf.keras.initializers.GlorotUniform(seed + 3)),
        ],
        name="character_network",
    )


def image_network(num_classes: int, seed: int) -> tf.keras.Model:
    """Return ResNet-20 with group normalisation, which suits small clients (the paper has ResNet-18)."""
    return bfl.models.resnet20("deterministic", (32, 32, 3), num_classes, normalization="group", seed=seed)


NETWORKS: dict[str, Callable[[int, int], tf.keras.Model]] = {
    network.__name__: network for network in (mnist_network, character_network, image_network)
}


def _convolution(filters: int, size: int, seed: int, padding: str = "same") -> list[tf.keras.layers.Layer]:
    initial = tf.keras.initializers.GlorotUniform(seed)
    return [layers.Conv2D(filters, size, padding=padding, activation="relu", kernel_initializer=initial)]
