"""The architectures of tfp_bfl.models.lenet and resnet20, with the Flipout layers of `tfp.layers`.

Initial means, priors, initial standard deviations and biases are those of tfp_bfl. What differs is what `tfp.layers`
does otherwise: it holds a standard deviation as a softplus instead of an exp, and sums the KL layer by layer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp

PRIOR_STDDEV = 10.0
INITIAL_STDDEV = 0.003
NUM_CLASSES = 10

_UNTRANSFORMED_STDDEV = math.log(math.expm1(INITIAL_STDDEV))  # softplus makes it INITIAL_STDDEV


def build(model: str, kind: str, kl_weight: float = 1.0) -> tf.keras.Model:
    """Return a Keras model from images in [0, 1] to logits, with the same initial means whenever it is built.

    Args:
      model: "lenet" (28 x 28 x 1, no normalization) or "resnet20" (32 x 32 x 3, batch normalization).
      kind: "flipout" or "deterministic".
      kl_weight: factor of the KL that each Flipout layer adds to `losses`.
    """
    architecture, shape = {"lenet": (_lenet, (28, 28, 1)), "resnet20": (_resnet20, (32, 32, 3))}[model]
    layers = {"flipout": _Flipout(kl_weight), "deterministic": _Deterministic()}[kind]
    images = tf.keras.Input(shape)
    return tf.keras.Model(images, architecture(images, layers), name=f"{model}_{kind}")


def _lenet(images: Any, layers: Any) -> Any:
    x = tf.keras.layers.ReLU()(layers.convolution(6, 5, padding="same")(images))
    x = tf.keras.layers.MaxPooling2D()(x)
    x = tf.keras.layers.ReLU()(layers.convolution(16, 5, padding="valid")(x))
    x = tf.keras.layers.MaxPooling2D()(x)
    x = tf.keras.layers.Flatten()(x)
    x = layers.dense(120, "relu")(x)
    x = layers.dense(84, "relu")(x)
    return layers.dense(NUM_CLASSES)(x)


def _resnet20(images: Any, layers: Any) -> Any:
    def convolution(x: Any, filters: int, strides: int = 1, add: Any = None) -> Any:
        x = layers.convolution(filters, 3, strides=strides, padding="same", use_bias=False)(x)
        x = tf.keras.layers.BatchNormalization(momentum=0.9)(x)
        x = x if add is None else tf.keras.layers.Add()([x, add])
        return tf.keras.layers.ReLU()(x)

    x = convolution(images, 16)
    for filters in (16, 32, 64):
        for block in range(3):
            shrinks = block == 0 and filters > 16
            shortcut = x
            if shrinks:  # option A: every second pixel, zeros for the new channels
                new = x.shape[-1] // 2
                shortcut = tf.pad(x[:, ::2, ::2, :], [[0, 0], [0, 0], [0, 0], [new, new]])
            x = convolution(x, filters, strides=2 if shrinks else 1)
            x = convolution(x, filters, add=shortcut)
    x = tf.keras.layers.GlobalAveragePooling2D()(x)
    return layers.dense(NUM_CLASSES)(x)


class _Deterministic:
    """Point weights."""

    def __init__(self) -> None:
        self._seeds = itertools.count()

    def convolution(self, filters: int, kernel_size: int, **options: Any) -> tf.keras.layers.Layer:
        return tf.keras.layers.Conv2D(filters, kernel_size, kernel_initializer=self._he_normal(), **options)

    def dense(self, units: int, activation: str | None = None) -> tf.keras.layers.Layer:
        return tf.keras.layers.Dense(units, activation, kernel_initializer=self._he_normal())

    def _he_normal(self) -> tf.keras.initializers.Initializer:
        return tf.keras.initializers.HeNormal(seed=next(self._seeds))


class _Flipout(_Deterministic):
    """Gaussian kernels with closed-form KL, point biases."""

    def __init__(self, kl_weight: float) -> None:
        super().__init__()
        self._kl_weight = kl_weight

    def convolution(self, filters: int, kernel_size: int, use_bias: bool = True, **options: Any) -> Any:
        return tfp.layers.Convolution2DFlipout(filters, kernel_size, **options, **self._options(use_bias))

    def dense(self, units: int, activation: str | None = None) -> Any:
        return tfp.layers.DenseFlipout(units, activation, **self._options(use_bias=True))

    def _options(self, use_bias: bool) -> dict[str, Any]:
        return {
            "kernel_posterior_fn": _mean_field(
                loc_initializer=self._he_normal(),
                untransformed_scale_initializer=tf.keras.initializers.Constant(_UNTRANSFORMED_STDDEV),
            ),
            "kernel_prior_fn": _prior,
            "kernel_divergence_fn": lambda posterior, prior, _: (
                self._kl_weight * tfp.distributions.kl_divergence(posterior, prior)
            ),
            "bias_posterior_fn": _mean_field(is_singular=True, loc_initializer="zeros") if use_bias else None,
        }


def _mean_field(**options: Any) -> Callable[..., Any]:
    return tfp.layers.default_mean_field_normal_fn(**options)


def _prior(dtype: Any, shape: Any, *_: Any) -> Any:
    normal = tfp.distributions.Normal(tf.zeros(shape, dtype), tf.constant(PRIOR_STDDEV, dtype))
    return tfp.distributions.Independent(normal, reinterpreted_batch_ndims=len(shape))
