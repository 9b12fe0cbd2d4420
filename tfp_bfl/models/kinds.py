"""What a kind of model means for its layers: deterministic, Monte Carlo dropout, or Flipout.

A builder writes its architecture once, with `Blocks.convolution` and `Blocks.dense`; the kind decides what they are.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfp_bfl.errors import InvalidArgument, lookup
from tfp_bfl.layers import Conv2DFlipout, DenseFlipout, MCDropout

KINDS = {
    "deterministic": "point weights",
    "mc_dropout": "point weights, dropout after each convolution and dense layer, on at prediction",
    "flipout": "Gaussian weights in each convolution and dense layer",
}
PRECISIONS = {
    "float32": "all in float32",
    "bfloat16_noise": "Flipout's perturbation in bfloat16, all else in float32",
    "bfloat16": "activations in bfloat16 (Keras' mixed_bfloat16); weights, batch statistics and logits in float32",
}
NORMALIZATIONS = {"batch": "batch statistics", "group": "groups of channels", "none": "no normalization"}


class Blocks:
    """Functions from Keras tensor to Keras tensor, of one kind, with seeded initial weights.

    Args:
      kind, prior_stddev, dropout_rate, normalization: as the builders take them.
      variational_bias: the biases of Flipout layers are Gaussian too.
      initial_stddev: of every variational weight before training. Means start as He et al. 2015.
      min_stddev: the floor of every standard deviation.
      kl_weight: factor of the KL in Keras' own losses (`fit`); 1 / N there, N the training examples.
      precision: "float32", "bfloat16_noise" or "bfloat16"; what the latter two gain: docs/speed.md.
      seed: of the initial weights.
    """

    def __init__(
        self,
        kind: str,
        *,
        prior_stddev: float | str,
        dropout_rate: float,
        normalization: str,
        variational_bias: bool = False,
        initial_stddev: float = 0.003,
        min_stddev: float = 1e-5,
        kl_weight: float = 1.0,
        precision: str = "float32",
        seed: int = 0,
    ):
        lookup(KINDS, kind, "kind of model")
        lookup(NORMALIZATIONS, normalization, "normalization")
        lookup(PRECISIONS, precision, "precision")
        if not 0 <= dropout_rate < 1:
            raise InvalidArgument(f"dropout_rate must be at least 0 and below 1, but is {dropout_rate}.")
        self._kind = kind
        self._dropout_rate = dropout_rate
        self._normalization = normalization
        self._policy = "mixed_bfloat16" if precision == "bfloat16" else "float32"
        self._seeds = itertools.count(1_000_003 * seed)
        self._flipout = {
            "prior_stddev": prior_stddev,
            "variational_bias": variational_bias,
            "initial_stddev": initial_stddev,
            "min_stddev": min_stddev,
            "kl_weight": kl_weight,
            "noise_dtype": "bfloat16" if precision == "bfloat16_noise" else None,
        }

    @contextlib.contextmanager
    def precision(self) -> Iterator[None]:
        """Layers made in this block compute in the builder's precision."""
        before = tf.keras.mixed_precision.global_policy()
        tf.keras.mixed_precision.set_global_policy(self._policy)
        try:
            yield
        finally:
            tf.keras.mixed_precision.set_global_policy(before)

    def convolution(
        self,
        x: Any,
        filters: int,
        kernel_size: int,
        *,
        strides: int = 1,
        padding: str = "same",
        add: Any = None,
    ) -> Any:
        """Convolution, normalization, the residual `add` if there is one, ReLU, and dropout if the kind has it."""
        x = self._layer(tf.keras.layers.Conv2D, Conv2DFlipout)(
            filters,
            kernel_size,
            strides=strides,
            padding=padding,
            use_bias=self._normalization == "none",
            kernel_initializer=self._he_normal(),
            **self._options,
        )(x)
        x = self._normalize(x)
        x = x if add is None else tf.keras.layers.Add()([x, add])
        return self._dropout(tf.keras.layers.ReLU()(x))

    def dense(self, x: Any, units: int, activation: str | None = None) -> Any:
        """Dense layer; dropout after it if the kind has it and it is not the output (which has no activation)."""
        x = self._layer(tf.keras.layers.Dense, DenseFlipout)(
            units, activation=activation, kernel_initializer=self._he_normal(), **self._options
        )(x)
        return self._dropout(x) if activation else x

    def logits(self, x: Any, num_classes: int) -> Any:
        """The output layer; its result is float32 in every precision."""
        x = self.dense(x, num_classes)
        return x if self._policy == "float32" else tf.keras.layers.Activation("linear", dtype="float32")(x)

    def _dropout(self, x: Any) -> Any:
        return MCDropout(self._dropout_rate)(x) if self._kind == "mc_dropout" else x

    @property
    def _options(self) -> dict[str, Any]:
        return self._flipout if self._kind == "flipout" else {}

    def _layer(self, point: Any, flipout: Any) -> Any:
        return flipout if self._kind == "flipout" else point

    def _he_normal(self) -> Any:
        return tf.keras.initializers.HeNormal(seed=next(self._seeds) % (2**31))

    def _normalize(self, x: Any) -> Any:
        if self._normalization == "batch":
            return tf.keras.layers.BatchNormalization(momentum=0.9)(x)
        if self._normalization == "group":
            groups = max(g for g in range(1, 9) if x.shape[-1] % g == 0)
            return tf.keras.layers.GroupNormalization(groups)(x)
        return x


def check_image_shape(model: str, input_shape: Sequence[int], num_classes: int, smallest: int) -> tuple[int, ...]:
    """The shape as a tuple, if `model` can take images of it.

    Raises:
      InvalidArgument: not [height, width, channels], smaller than `smallest` a side, or fewer than two classes.
    """
    shape = tuple(-1 if n is None else int(n) for n in input_shape)
    if len(shape) != 3 or min(shape[:2]) < smallest or shape[2] < 1:
        raise InvalidArgument(
            f"{model} takes images [height, width, channels] of at least {smallest} x {smallest} pixels, "
            f"but the examples have shape {list(shape)}: for tables use the model mlp."
        )
    check_classes(num_classes)
    return shape


def check_classes(num_classes: int) -> None:
    """Raises InvalidArgument for fewer than two classes."""
    if num_classes < 2:
        raise InvalidArgument(f"num_classes must be at least 2, but is {num_classes}.")
