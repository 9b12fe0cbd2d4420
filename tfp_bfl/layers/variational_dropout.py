"""Variational dropout (Kingma et al. 2015, arXiv:1506.02557) in dense and convolution layers.

Each weight is N(mean, s^2): its noise is that of Gaussian dropout with alpha = s^2 / mean^2, of the rate alpha / (1 +
alpha). The layer holds *logits*, log s^2 or log alpha, within a range: a projection after each optimiser step. With a t
of its own for each weight, the prior N(0, t^2) at its best gives

    KL = sum_k min_t KL[N(mean_k, s_k^2) || N(0, t^2)] = sum_k 0.5 log(1 + mean_k^2 / s_k^2),

exactly (Liu et al. 2019). It falls as s grows: the likelihood alone holds the noise down.

Examples that each have a perturbation of their own get it by local reparametrisation, as the noise of their outputs:

    y = x mean + bias + sqrt(x^2 s^2 + 1e-10) eps,   eps ~ N(0, 1) for each output of each example

has the mean and the variance that y has under drawn weights. Where one image or example has several positions, drawn
weights also correlate these; this noise does not.
"""

import math

import numpy as np
import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.layers import noise
from tfp_bfl.layers.base import Keras2Layer
from tfp_bfl.layers.gaussian import Between, Convolution, Dense, GaussianLayer, Parametrization, VariationalWeight

# By log alpha, s^2 would be zero where a mean is.
MIN_VARIANCE = 1e-8
# Where nothing varies, the root of the variance would have an infinite gradient.
_TINY = 1e-10


def _log_stddev_of_log_alpha(value: tf.Tensor, mean: tf.Tensor) -> tf.Tensor:
    square = tf.square(tf.cast(mean, value.dtype))
    return 0.5 * tf.math.log(tf.maximum(tf.exp(value) * square, MIN_VARIANCE))


def _log_alpha(log_stddev: tf.Tensor, mean: tf.Tensor) -> tf.Tensor:
    smallest = np.finfo(log_stddev.dtype.as_numpy_dtype).tiny
    return 2 * log_stddev - tf.math.log(tf.maximum(tf.square(mean), smallest))


# Default ranges of the logits; log alpha up to 4 allows dropout rates up to .98.
LOGIT_RANGES = {"log_variance": (-17.0, 0.0), "log_alpha": (-8.0, 4.0)}
PARAMETRIZATIONS = {
    "log_variance": Parametrization(lambda value, mean: value / 2, lambda log_stddev, mean: 2 * log_stddev),
    "log_alpha": Parametrization(_log_stddev_of_log_alpha, _log_alpha),
}


def checked_range(parametrization: str, logit_range: tuple[float, float] | None) -> tuple[float, float]:
    """Return the range of logits, by default that of the parametrization."""
    lookup(PARAMETRIZATIONS, parametrization, "parametrization")
    given = LOGIT_RANGES[parametrization] if logit_range is None else logit_range
    try:
        low, high = map(float, given)
    except (TypeError, ValueError):
        low = high = math.nan
    if not -math.inf < low < high < math.inf:
        raise InvalidArgument(f"logit_range must be two finite numbers, the lower first, but is {shown(logit_range)}.")
    return low, high


class VariationalDropout(GaussianLayer):
    """The base of both layers: logits, their range, the KL, and local reparametrisation."""

    _stated: tuple[str, ...] = ("parametrization", "initial_logit", "logit_range", "detached")

    def __init__(
        self,
        units: int,
        activation: object = None,
        use_bias: bool = True,
        parametrization: str = "log_variance",
        initial_logit: float | None = None,
        logit_range: tuple[float, float] | None = None,
        detached: bool = True,
        kl_weight: float = 1.0,
        kernel_initializer: object = "he_normal",
        noise_dtype: str | None = None,
        **kwargs: object,
    ):
        super().__init__(units, activation, use_bias, kl_weight, kernel_initializer, noise_dtype, **kwargs)
        self.parametrization = parametrization
        self.logit_range = checked_range(parametrization, logit_range)
        self.initial_logit = sum(self.logit_range) / 2 if initial_logit is None else initial_logit
        self.detached = detached
        low, high = np.asarray(self.logit_range, np.float32)
        if not low <= np.float32(self.initial_logit) <= high:
            raise InvalidArgument(
                f"initial_logit must lie within logit_range, {self.logit_range}, but is {self.initial_logit:g}: give a "
                "wider range."
            )

    def _add_weights(self, kernel_shape: list[int]) -> None:
        self.kernel_mean = self._add_variable("kernel_mean", kernel_shape, self.kernel_initializer)
        self.kernel_logits = self._add_variable(
            f"kernel_{self.parametrization}",
            kernel_shape,
            self._keras.initializers.Constant(self.initial_logit),
            Between(*self.logit_range),
            autocast=False,  # Rounded to bfloat16, logits would make s wrong by percents.
        )
        if self.use_bias:
            self.bias = self._add_variable("bias", [self.units], "zeros")

    @property
    def variational_weights(self) -> list[VariationalWeight]:
        if not self.trainable:
            return []
        log_variance = self.parametrization == "log_variance"
        return [
            VariationalWeight(
                self.kernel_mean,
                self.kernel_logits,
                prior=None,
                min_stddev=math.exp(self.logit_range[0] / 2) if log_variance else math.sqrt(MIN_VARIANCE),
                parametrization=PARAMETRIZATIONS[self.parametrization],
                detached=self.detached,
            )
        ]

    def _by_example(self, inputs: tf.Tensor, seeds: list[tf.Tensor]) -> tf.Tensor:
        if noise.drawn(self.kernel_mean) is not None:
            return super()._by_example(inputs, seeds)  # Of one perturbation, by Flipout.
        dtype = tf.as_dtype(self.noise_dtype or self.kernel_logits.dtype)  # float16 has no numbers as small as s^2.
        (kernel,) = self.variational_weights
        variance = self._linear(tf.square(tf.cast(inputs, dtype)), tf.cast(tf.exp(2 * kernel.log_stddev), dtype))
        draws = tf.reshape(noise.standard_normal(tf.size(variance), seeds[0]), tf.shape(variance))
        return self._mean(inputs) + tf.cast(tf.sqrt(variance + _TINY) * tf.cast(draws, dtype), inputs.dtype)


@keras.utils.register_keras_serializable("tfp_bfl")
class DenseVariationalDropout(Dense, VariationalDropout, Keras2Layer):
    """A dense layer with variational dropout of its kernel's weights: [B, ..., D] -> [B, ..., units].

    y = x mean + bias + sqrt(x^2 s^2 + 1e-10) eps,   KL = sum_k 0.5 log(1 + mean_k^2 / s_k^2)

    eps ~ N(0, 1) for each output of each example; one draw of the weights for the batch in `sampling("shared")`, no
    noise in `sampling("mean")`. Perturbations that `sampling` holds ready are spread over examples by Flipout.

    Args:
      units: outputs.
      activation, use_bias, kernel_initializer: as in `tf.keras.layers.Dense`; the initializer is of the means.
      parametrization: what the logits are: "log_variance", log s^2; "log_alpha", s^2 = max(alpha mean^2, 1e-8).
      initial_logit: of each weight before training; None for the middle of the range.
      logit_range: lowest and highest logit of training; None for -17 to 0, by log alpha for -8 to 4, which allows
        dropout rates up to 0.98.
      detached: the KL has no gradient in the means, as published.
      kl_weight: factor of the KL that the layer adds to Keras' losses; 1 / N in `fit`, N the training examples.
      noise_dtype: type in which the noise of examples is computed, such as "bfloat16"; None for that of the logits.

    Source: Jeon et al. 2023 (arXiv:2510.20225); Kingma et al. 2015 (arXiv:1506.02557), section 2.3, for the noise; Liu
    et al. 2019, for the prior.
    """


@keras.utils.register_keras_serializable("tfp_bfl")
class Conv2DVariationalDropout(Convolution, VariationalDropout, Keras2Layer):
    """A 2-D convolution with variational dropout of its kernel's weights: [B, H, W, D] -> [B, H', W', filters].

    y = conv(x, mean) + bias + sqrt(conv(x^2, s^2) + 1e-10) eps,   eps like y
    """
