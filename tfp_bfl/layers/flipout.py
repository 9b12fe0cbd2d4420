"""Flipout (Wen et al. 2018, arXiv:1803.04386) for dense and convolution layers, with mean-field Gaussian posteriors.

Each weight is N(mean, s^2) with prior N(0, prior_stddev^2); the estimator is in `tfp_bfl.layers.gaussian`. The layer
holds log s. KL's gradient in log s is (s / prior_stddev)^2 - 1: it does not vanish as s gets small, and a floor on s is
a projection after each optimiser step, which leaves it alive.
"""

import math
from typing import Any

import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.errors import InvalidArgument, check_range, shown
from tfp_bfl.layers.base import Keras2Layer
from tfp_bfl.layers.gaussian import Between, Convolution, Dense, GaussianLayer, VariationalWeight

# As a prior's standard deviation: sqrt(2 / inputs of a unit), that of the means before training (He et al. 2015).
FAN_IN = "fan_in"


class Flipout(GaussianLayer):
    """The base of both layers: variables with floors and their priors."""

    _stated: tuple[str, ...] = ("variational_bias", "initial_stddev", "min_stddev")

    def __init__(
        self,
        units: int,
        activation: object = None,
        use_bias: bool = True,
        variational_bias: bool = False,
        prior_stddev: float | str = 1.0,
        initial_stddev: float = 0.003,
        min_stddev: float = 1e-5,
        kl_weight: float = 1.0,
        kernel_initializer: object = "he_normal",
        noise_dtype: str | None = None,
        **kwargs: object,
    ):
        super().__init__(units, activation, use_bias, kl_weight, kernel_initializer, noise_dtype, **kwargs)
        self._by_fan_in = prior_stddev == FAN_IN
        self.prior_stddev = math.nan if isinstance(prior_stddev, str) else float(prior_stddev)
        if not ((self._by_fan_in or self.prior_stddev > 0) and 0 < min_stddev <= initial_stddev):
            raise InvalidArgument(
                "A Flipout layer needs prior_stddev > 0 and 0 < min_stddev <= initial_stddev, but got prior_stddev="
                f"{shown(prior_stddev)}, min_stddev={min_stddev}, initial_stddev={initial_stddev}; prior_stddev may "
                f"also be {FAN_IN!r}."
            )
        given = {"prior_stddev": self.prior_stddev, "min_stddev": min_stddev, "initial_stddev": initial_stddev}
        for option, stddev in given.items():
            if not math.isnan(stddev):
                check_range(stddev, option)
        self.variational_bias = variational_bias
        self.initial_stddev = initial_stddev
        self.min_stddev = min_stddev

    def _add_weights(self, kernel_shape: list[int]) -> None:
        if self._by_fan_in:
            self.prior_stddev = math.sqrt(2 / math.prod(kernel_shape[:-1]))
        self.kernel_mean, self.kernel_log_stddev = self._variational("kernel", kernel_shape, self.kernel_initializer)
        if self._bias_varies:
            self.bias, self.bias_log_stddev = self._variational("bias", [self.units], "zeros")
        elif self.use_bias:
            self.bias = self._add_variable("bias", [self.units], "zeros")

    def _variational(self, name: str, shape: list[int], initializer: object) -> tuple[tf.Variable, tf.Variable]:
        mean = self._add_variable(f"{name}_mean", shape, initializer)
        log_stddev = self._add_variable(
            f"{name}_log_stddev",
            shape,
            self._keras.initializers.Constant(math.log(self.initial_stddev)),
            Between(math.log(self.min_stddev)),
            autocast=False,  # Rounded to bfloat16, log s would make s wrong by percents.
        )
        return mean, log_stddev

    @property
    def _bias_varies(self) -> bool:
        return self.use_bias and self.variational_bias

    @property
    def variational_weights(self) -> list[VariationalWeight]:
        pairs = [(self.kernel_mean, self.kernel_log_stddev)] if self.trainable else []
        if pairs and self._bias_varies:
            pairs.append((self.bias, self.bias_log_stddev))
        return [VariationalWeight(*pair, self.prior_stddev, self.min_stddev) for pair in pairs]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "prior_stddev": FAN_IN if self._by_fan_in else self.prior_stddev}


@keras.utils.register_keras_serializable("tfp_bfl")
class DenseFlipout(Dense, Flipout, Keras2Layer):
    """A dense layer with a mean-field Gaussian kernel, perturbed by Flipout: [B, ..., D] -> [B, ..., units].

    Args:
      units: outputs.
      activation, use_bias, kernel_initializer: as in `tf.keras.layers.Dense`; the initializer is of the means.
      variational_bias: the bias is Gaussian too, instead of a point.
      prior_stddev: of the prior N(0, prior_stddev^2) on each variational weight; "fan_in" for sqrt(2 / inputs of a
        unit), by which outputs have the size of inputs, as under the initial means (He et al. 2015).
      initial_stddev: of the posterior before training.
      min_stddev: the floor of every standard deviation.
      kl_weight: factor of the KL that the layer adds to Keras' losses; 1 / N in `fit`, N the training examples.
      noise_dtype: type in which Flipout's perturbation is computed, such as "bfloat16"; None for the layer's own.
    """


@keras.utils.register_keras_serializable("tfp_bfl")
class Conv2DFlipout(Convolution, Flipout, Keras2Layer):
    """A 2-D convolution with a mean-field Gaussian kernel and Flipout: [B, H, W, D] -> [B, H', W', filters]."""
