"""The Gaussian weights of a layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.posterior import gaussian_kl


class Parametrization(NamedTuple):
    """The mapping from a variable to a weight's standard deviation s.

    Fields:
      log_stddev: (the variable's value, the weight's mean) -> log s.
      inverse: (log s, the weight's mean) -> the variable's value.
    """

    log_stddev: Callable[[Any, Any], Any]
    inverse: Callable[[Any, Any], Any]


LOG_STDDEV = Parametrization(lambda value, mean: value, lambda log_stddev, mean: log_stddev)


class VariationalWeight(NamedTuple):
    """A layer's variational weight N(mean, s^2).

    Fields:
      mean: its variable.
      scale: the variable that decides s. Its constraint keeps s where the layer allows it.
      prior_stddev: of the prior N(0, prior_stddev^2). None for the hierarchical prior N(0, t^2) with a t of its own for
        each weight, at its best: KL = min_t KL[N(mean, s^2) || N(0, t^2)] = 0.5 log(1 + mean^2 / s^2), where t^2 =
        mean^2 + s^2 (Liu et al. 2019).
      min_stddev: the floor of s.
      parametrization: what `scale` is.
      detached: the KL has no gradient in the mean.
    """

    mean: tf.Variable
    scale: tf.Variable
    prior_stddev: float | None
    min_stddev: float
    parametrization: Parametrization = LOG_STDDEV
    detached: bool = False

    @property
    def log_stddev(self) -> Any:
        """log s; the variable itself where that is what the layer holds."""
        return self.parametrization.log_stddev(self.scale, self.mean)

    def kl_divergences(self, mean: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
        """Return KL[N(mean, s^2) || prior] of each weight, nats, at these values of the two variables."""
        mean = tf.stop_gradient(mean) if self.detached else mean
        log_stddev = self.parametrization.log_stddev(scale, mean)
        if self.prior_stddev is None:
            return 0.5 * tf.math.log1p(tf.square(mean) * tf.exp(-2 * log_stddev))
        return gaussian_kl(mean, log_stddev, 0.0, math.log(self.prior_stddev))

    def projected(self, log_stddev: tf.Tensor, mean: tf.Tensor) -> tf.Tensor:
        """Return the nearest log s that the layer allows beside this mean."""
        return self.parametrization.log_stddev(self._value(log_stddev, mean), mean)

    def assign_log_stddev(self, log_stddev: tf.Tensor) -> None:
        """Set s, or the nearest that the layer allows beside the present mean."""
        self.scale.assign(self._value(log_stddev, tf.convert_to_tensor(self.mean)))

    def _value(self, log_stddev: tf.Tensor, mean: tf.Tensor) -> tf.Tensor:
        return self.scale.constraint(self.parametrization.inverse(log_stddev, mean))


@keras.utils.register_keras_serializable("tfp_bfl")
class Between(keras.constraints.Constraint):
    """Keeps a variable between two numbers, by projection; None where there is no upper one."""

    def __init__(self, minimum: float, maximum: float | None = None):
        self.minimum = minimum
        self.maximum = maximum

    def __call__(self, w: tf.Tensor) -> tf.Tensor:
        w = tf.maximum(w, tf.cast(self.minimum, w.dtype))
        return w if self.maximum is None else tf.minimum(w, tf.cast(self.maximum, w.dtype))

    def get_config(self) -> dict[str, float | None]:
        return {"minimum": self.minimum, "maximum": self.maximum}
