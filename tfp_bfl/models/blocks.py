"""Kinds of models and their layers: deterministic, Monte Carlo dropout, Flipout, or variational dropout.

A builder writes its architecture once, with `Blocks.convolution` and `Blocks.dense`; the kind decides what they are.
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypedDict

from tfp_bfl import keras as keras_2
from tfp_bfl import layers
from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.layers.flipout import FAN_IN

KINDS = {
    "deterministic": "point weights",
    "mc_dropout": "point weights, dropout after each convolution and dense layer, on at prediction",
    "flipout": "Gaussian weights in each convolution and dense layer",
    "variational_dropout": "Gaussian weights with a hierarchical prior, by which noise may grow",
}
# Names of layers, of this library and of Keras.
VARIATIONAL = {
    "flipout": {"conv2d": "Conv2DFlipout", "dense": "DenseFlipout"},
    "variational_dropout": {"conv2d": "Conv2DVariationalDropout", "dense": "DenseVariationalDropout"},
}
_POINT = {"conv2d": "Conv2D", "dense": "Dense"}
PRECISIONS = {
    "float32": "all in float32",
    "bfloat16_noise": "the perturbations of examples in bfloat16, all else in float32",
    "bfloat16": "activations in bfloat16 (Keras' mixed_bfloat16); weights, batch statistics and logits in float32",
}
# Of He et al. 2015, and U(-1 / sqrt(n), 1 / sqrt(n)) for n inputs of a unit, PyTorch's default.
INITIALIZERS: dict[str, Callable[[Any, int], Any]] = {
    "he_normal": lambda of, seed: of.HeNormal(seed=seed),
    "uniform": lambda of, seed: of.VarianceScaling(1 / 3, "fan_in", "uniform", seed=seed),
}
NORMALIZATIONS = {"batch": "batch statistics", "group": "groups of channels", "none": "no normalization"}


class KindOptions(TypedDict, total=False):
    """Options that every builder of models takes: those of `Blocks`, with its defaults."""

    prior_stddev: float | str
    dropout_rate: float
    variational_bias: bool
    initial_stddev: float | None
    min_stddev: float
    variational_layers: str | Sequence[str]
    variational_initializer: str
    parametrization: str
    logit_range: tuple[float, float] | None
    kl_weight: float
    output_dropout: bool
    precision: str
    seed: int
    keras: int


class Blocks:
    """Functions from Keras tensor to Keras tensor, of one kind, with seeded initial weights.

    Args:
      kind, normalization: as the builders take them.
      prior_stddev: of the prior N(0, prior_stddev^2) on every weight of kind "flipout"; "fan_in" for sqrt(2 / inputs
        of a unit), as the initial means have it.
      dropout_rate: for kind "mc_dropout".
      variational_bias: the biases of Flipout layers are Gaussian too.
      initial_stddev: of every variational weight before training; None for 0.003, and for the middle of the range of
        variational dropout, 0.0143. Means start as He et al. 2015.
      min_stddev: the floor of every standard deviation; variational dropout has a range instead.
      variational_layers: those with Gaussian weights, of the kinds that have such: "all", or names. Convolutions are
        called "conv2d", "conv2d_1" and so on in their order, dense layers "dense", "dense_1" and so on.
      variational_initializer: initial means of the layers with Gaussian weights, one of `INITIALIZERS`.
      parametrization, logit_range: of variational dropout, as `tfp_bfl.layers.DenseVariationalDropout` has them.
      kl_weight: factor of the KL in Keras' own losses (`fit`); 1 / N there, N the training examples.
      output_dropout: kind mc_dropout drops logits too, as Fischer et al. 2024 have it.
      precision: "float32", "bfloat16_noise" or "bfloat16"; what the latter two gain: docs/speed.md.
      seed: of the initial weights.
      keras: 2, or 3 for a model of Keras 3 (`layers.keras_3`).

    Attributes:
      keras: that Keras.
    """

    def __init__(
        self,
        kind: str,
        *,
        normalization: str,
        prior_stddev: float | str = FAN_IN,
        dropout_rate: float = 0.2,
        variational_bias: bool = False,
        initial_stddev: float | None = None,
        min_stddev: float = 1e-5,
        variational_layers: str | Sequence[str] = "all",
        variational_initializer: str = "he_normal",
        parametrization: str = "log_variance",
        logit_range: tuple[float, float] | None = None,
        kl_weight: float = 1.0,
        output_dropout: bool = False,
        precision: str = "float32",
        seed: int = 0,
        keras: int = 2,
    ):
        if keras not in (2, 3):
            raise InvalidArgument(f"keras is {shown(keras)}, but must be 2 or 3.")
        self._layers: Any = layers if keras == 2 else layers.keras_3
        self.keras: Any = keras_2 if keras == 2 else layers.keras_3.keras
        lookup(KINDS, kind, "kind of model")
        lookup(NORMALIZATIONS, normalization, "normalization")
        lookup(PRECISIONS, precision, "precision")
        lookup(INITIALIZERS, variational_initializer, "initializer")
        if output_dropout and kind != "mc_dropout":
            raise InvalidArgument(f"output_dropout is of kind 'mc_dropout', and this is {kind!r}: leave it out.")
        if not 0 <= dropout_rate < 1:
            raise InvalidArgument(f"dropout_rate must be at least 0 and below 1, but is {dropout_rate}.")
        self._kind = kind
        self._dropout_rate = dropout_rate
        self._output_dropout = output_dropout
        self._normalization = normalization
        self._policy = "mixed_bfloat16" if precision == "bfloat16" else "float32"
        self._seeds = itertools.count(1_000_003 * seed)
        self._chosen = (variational_layers,) if isinstance(variational_layers, str) else tuple(variational_layers)
        self._names: list[str] = []
        self._variational_initializer = variational_initializer
        self._options: dict[str, Any] = {"kl_weight": kl_weight}
        if kind == "flipout":
            self._options |= {
                "prior_stddev": prior_stddev,
                "variational_bias": variational_bias,
                "initial_stddev": 0.003 if initial_stddev is None else initial_stddev,
                "min_stddev": min_stddev,
                "noise_dtype": "bfloat16" if precision == "bfloat16_noise" else None,
            }
        elif kind == "variational_dropout":
            self._options |= {
                "parametrization": parametrization,
                "initial_logit": _initial_logit(initial_stddev, parametrization),
                "logit_range": logit_range,
                "noise_dtype": None if precision == "float32" else "bfloat16",
            }

    @contextlib.contextmanager
    def precision(self) -> Iterator[None]:
        """Make layers that are built inside the block compute in the builder's precision."""
        policies = self.keras.mixed_precision
        before = policies.global_policy()
        policies.set_global_policy(self._policy)
        try:
            yield
        finally:
            policies.set_global_policy(before)

    def convolution(
        self,
        x: object,
        filters: int,
        kernel_size: int,
        *,
        strides: int = 1,
        padding: str = "same",
        add: object = None,
    ) -> Any:
        """Apply a convolution, normalization, the residual `add` if there is one, ReLU, and dropout if the kind has it.

        A block that adds drops what it adds to, before the sum: the other path would be dropped once a block.
        """
        x = self._layer(
            "conv2d",
            filters,
            kernel_size=kernel_size,
            strides=strides,
            padding=padding,
            use_bias=self._normalization == "none",
        )(x)
        x = self._normalize(x)
        if add is None:
            return self._dropout(self.keras.layers.ReLU()(x))
        return self.keras.layers.ReLU()(self.keras.layers.Add()([self._dropout(x), add]))

    def dense(self, x: object, units: int, activation: object = None) -> Any:
        """Apply a dense layer; dropout after it if the kind has it and it is not the output (which has no activation).

        `activation` is one of Keras' by name, or a layer.
        """
        if isinstance(activation, self.keras.layers.Layer):
            return self._dropout(activation(self.dense(x, units)))
        x = self._layer("dense", units, activation=activation)(x)
        return self._dropout(x) if activation else x

    def logits(self, x: object, num_classes: int) -> Any:
        """Apply the output layer; its result is float32 in every precision."""
        x = self.dense(x, num_classes)
        x = self._dropout(x) if self._output_dropout else x
        for name in self._chosen:
            lookup(dict.fromkeys(["all", *self._names]), name, "layer for variational_layers")
        return x if self._policy == "float32" else self.keras.layers.Activation("linear", dtype="float32")(x)

    def _dropout(self, x: object) -> Any:
        return self._layers.MCDropout(self._dropout_rate)(x) if self._kind == "mc_dropout" else x

    def _layer(self, what: str, units: int, **options: object) -> Any:
        number = sum(name.startswith(what) for name in self._names)
        self._names.append(f"{what}_{number}" if number else what)
        variational = self._kind in VARIATIONAL and bool({"all", self._names[-1]} & set(self._chosen))
        initializer = INITIALIZERS[self._variational_initializer if variational else "he_normal"]
        options["kernel_initializer"] = initializer(self.keras.initializers, next(self._seeds) % (2**31))
        if variational:
            return getattr(self._layers, VARIATIONAL[self._kind][what])(units, **options, **self._options)
        return getattr(self.keras.layers, _POINT[what])(units, **options)

    def _normalize(self, x: Any) -> Any:
        if self._normalization == "batch":
            return self.keras.layers.BatchNormalization(momentum=0.9)(x)
        if self._normalization == "group":
            groups = max(g for g in range(1, 9) if x.shape[-1] % g == 0)
            return self.keras.layers.GroupNormalization(groups)(x)
        return x


def _initial_logit(initial_stddev: float | None, parametrization: str) -> float | None:
    if initial_stddev is None:
        return None
    if parametrization == "log_alpha":
        raise InvalidArgument(
            "With parametrization 'log_alpha' standard deviations begin in proportion to the means, so that "
            "initial_stddev must be left out: logit_range decides it."
        )
    if not initial_stddev > 0:
        raise InvalidArgument(f"initial_stddev must be above 0, but is {initial_stddev}.")
    return 2 * math.log(initial_stddev)


def check_image_shape(model: str, input_shape: Sequence[int], num_classes: int, smallest: int) -> tuple[int, ...]:
    """Return the shape as a tuple, if `model` can take images of it."""
    shape = tuple(-1 if n is None else int(n) for n in input_shape)
    if len(shape) != 3 or min(shape[:2]) < smallest or shape[2] < 1:
        raise InvalidArgument(
            f"{model} takes images [height, width, channels] of at least {smallest} x {smallest} pixels, "
            f"but the examples have shape {list(shape)}: for tables use the model mlp."
        )
    check_classes(num_classes)
    return shape


def check_classes(num_classes: int) -> None:
    """Raise InvalidArgument for fewer than two classes."""
    if num_classes < 2:
        raise InvalidArgument(f"num_classes must be at least 2, but is {num_classes}.")
