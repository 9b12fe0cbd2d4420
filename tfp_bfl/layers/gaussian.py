"""The base of dense and convolution layers with Gaussian kernels: shapes, the KL as a loss, and modes of noise.

A batch under one draw of the weights needs no more than a plain layer. For examples that each have a perturbation of
their own there is Flipout (Wen et al. 2018, arXiv:1803.04386): it perturbs the mean's output,

    y_n = W_mean x_n + (D (x_n o a_n)) o b_n + bias,   D = s o eps,  eps ~ N(0, 1),

with one D for the batch and sign vectors a_n, b_n of each example n: its noise has the right distribution, and is
uncorrelated with every other example's.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.layers import noise
from tfp_bfl.layers.base import OfEitherKeras
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
      prior: standard deviation of the normal prior. None for the hierarchical prior N(0, t^2) with a t of its own for
        each weight, at its best: KL = min_t KL[N(mean, s^2) || N(0, t^2)] = 0.5 log(1 + mean^2 / s^2), where t^2 =
        mean^2 + s^2 (Liu et al. 2019).
      min_stddev: the floor of s.
      parametrization: what `scale` is.
      detached: the KL has no gradient in the mean.
    """

    mean: tf.Variable
    scale: tf.Variable
    prior: float | None
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
        if self.prior is None:
            return 0.5 * tf.math.log1p(tf.square(mean) * tf.exp(-2 * log_stddev))
        return gaussian_kl(mean, log_stddev, 0.0, math.log(self.prior))

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


class GaussianLayer(OfEitherKeras):
    """The common part. A subclass adds its weights and their KL, and is `Dense` or `Convolution` and a Keras layer too.

    Args:
      units, activation, use_bias, kernel_initializer: as in `tf.keras.layers.Dense`.
      kl_weight: factor of the KL among Keras' losses.
      noise_dtype: type in which the perturbations of examples are computed.
    """

    # Arguments that `get_config` returns as they are; each class names its own.
    _stated: tuple[str, ...] = ("use_bias", "kl_weight", "noise_dtype")

    def __init__(
        self,
        units: int,
        activation: object,
        use_bias: bool,
        kl_weight: float,
        kernel_initializer: object,
        noise_dtype: str | None,
        **kwargs: object,
    ):
        super().__init__(**kwargs)
        self.units = units
        self.activation = self._keras.activations.get(activation)
        self.use_bias = use_bias
        self.kl_weight = kl_weight
        self.noise_dtype = noise_dtype
        self.kernel_initializer = self._keras.initializers.get(kernel_initializer)

    def _kernel_shape(self, input_shape: tf.TensorShape) -> list[int]:
        raise NotImplementedError

    def _linear(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError

    def _add_weights(self, kernel_shape: list[int]) -> None:
        """Add `kernel_mean`, what decides its spread, and `bias` if there is one."""
        raise NotImplementedError

    @property
    def variational_weights(self) -> list[VariationalWeight]:
        """The layer's variational weights, kernel first; a second one is the bias. None of a frozen layer."""
        raise NotImplementedError

    def kl_divergence(self) -> tf.Tensor:
        """Return KL[q || prior] in nats, summed over the layer's variational weights: a scalar."""
        each = [
            w.kl_divergences(tf.convert_to_tensor(w.mean), tf.convert_to_tensor(w.scale))
            for w in self.variational_weights
        ]
        return tf.add_n([tf.reduce_sum(kl) for kl in each]) if each else tf.zeros([])

    def build(self, input_shape: object) -> None:
        self._add_weights(self._kernel_shape(tf.TensorShape(input_shape)))
        self._add_kl()
        super().build(input_shape)

    @property
    def _bias_mean(self) -> tf.Variable | None:
        return self.bias if self.use_bias else None

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self._outputs(inputs)

    @noise.without_autograph
    def _outputs(self, inputs: tf.Tensor) -> tf.Tensor:
        mode = noise.mode()
        if mode == "mean" or not self.trainable:
            return self.activation(self._mean(inputs))
        of_mode = self._shared if mode == "shared" else self._by_example
        return self.activation(of_mode(inputs, noise.next_seeds(3)))

    def _mean(self, inputs: tf.Tensor) -> tf.Tensor:
        return plus(self._linear(inputs, self.kernel_mean), self._bias_mean)

    def _shared(self, inputs: tf.Tensor, seeds: list[tf.Tensor]) -> tf.Tensor:
        kernel_noise, bias_noise = self._noise(seeds, inputs.dtype)
        bias = self._bias_mean if bias_noise is None else self.bias + bias_noise
        return plus(self._linear(inputs, self.kernel_mean + kernel_noise), bias)

    def _by_example(self, inputs: tf.Tensor, seeds: list[tf.Tensor]) -> tf.Tensor:
        return self._flipout(inputs, *self._noise(seeds, inputs.dtype), seeds[2])

    def _noise(self, seeds: list[tf.Tensor], dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor | None]:
        kernel, *bias = (_noise(weight, seed, dtype) for weight, seed in zip(self.variational_weights, seeds))
        return kernel, bias[0] if bias else None

    def _flipout(self, inputs: tf.Tensor, kernel_noise: tf.Tensor, bias_noise: object, seed: tf.Tensor) -> tf.Tensor:
        if inputs.shape[-1] == 1 and bias_noise is None:
            return self._flipout_of_one_channel(inputs, kernel_noise, seed)
        sign_in, sign_out = _signs(inputs, inputs.shape[-1], self.units, seed)
        dtype = self.noise_dtype or inputs.dtype
        perturbation = self._linear(tf.cast(_signed(inputs, sign_in), dtype), tf.cast(kernel_noise, dtype))
        # The bias's perturbation is left to sign_out alone: its input, the constant 1, needs no sign.
        perturbation = plus(tf.cast(perturbation, inputs.dtype), bias_noise)
        return plus(self._linear(inputs, self.kernel_mean), self._bias_mean) + _signed(perturbation, sign_out)

    def _flipout_of_one_channel(self, inputs: tf.Tensor, kernel_noise: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Return the outputs in one pass of both kernels: a_n is one sign for the example, and b_n absorbs it.

        y_n = [W_mean x_n, D x_n] [I; diag(b_n)], a small matrix for each example
        """
        _, sign_out = _signs(inputs, 0, self.units, seed)
        kernels = tf.concat([tf.convert_to_tensor(self.kernel_mean, inputs.dtype), kernel_noise], -1)
        bias = None
        if self.use_bias:  # Not by tf.pad: oneDNN takes it for the convolution's padding, and ends the process.
            bias = tf.concat([tf.convert_to_tensor(self.bias), tf.zeros([self.units], inputs.dtype)], 0)
        both = plus(self._linear(inputs, kernels), bias)
        sign_out = tf.reshape(sign_out, [-1, self.units])
        one = tf.eye(self.units, batch_shape=[tf.shape(inputs)[0]], dtype=inputs.dtype)
        mix = tf.stop_gradient(tf.concat([one, tf.linalg.diag(sign_out)], 1))
        outputs = tf.reshape(both, [tf.shape(inputs)[0], -1, 2 * self.units]) @ mix
        return tf.reshape(outputs, [*tf.unstack(tf.shape(both))[:-1], self.units])

    def get_config(self) -> dict[str, Any]:
        names = [name for kind in type(self).__mro__ for name in vars(kind).get("_stated", ())]
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in names},
            "activation": self._keras.activations.serialize(self.activation),
            "kernel_initializer": self._keras.initializers.serialize(self.kernel_initializer),
        }


class Dense(GaussianLayer):
    """[B, ..., D] -> [B, ..., units]."""

    _stated: tuple[str, ...] = ("units",)

    def _kernel_shape(self, input_shape: tf.TensorShape) -> list[int]:
        return [input_shape[-1], self.units]

    def _linear(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        if len(inputs.shape) == 2:
            return tf.matmul(inputs, kernel)
        return tf.tensordot(inputs, kernel, 1)


class Convolution(GaussianLayer):
    """[B, H, W, D] -> [B, H', W', filters]."""

    _stated: tuple[str, ...] = ("filters", "kernel_size", "strides", "padding")

    def __init__(self, filters: int, kernel_size: Any, strides: Any = 1, padding: str = "valid", **kwargs: Any):
        super().__init__(filters, **kwargs)
        self.filters = filters
        self.kernel_size = _pair(kernel_size)
        self.strides = _pair(strides)
        self.padding = padding

    def _kernel_shape(self, input_shape: tf.TensorShape) -> list[int]:
        return [*self.kernel_size, input_shape[-1], self.filters]

    def _linear(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        return tf.nn.conv2d(inputs, kernel, self.strides, self.padding.upper())


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _noise(weight: VariationalWeight, seed: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    perturbation = noise.drawn(weight.mean)
    if perturbation is None:
        draws = noise.standard_normal(weight.mean.shape.num_elements(), seed)
        log_stddev = weight.log_stddev
        perturbation = tf.exp(log_stddev) * tf.cast(tf.reshape(draws, weight.mean.shape), log_stddev.dtype)
    return tf.cast(perturbation, dtype)


def _signed(x: tf.Tensor, signs: tf.Tensor) -> tf.Tensor:
    """Return x [B, H, W, C] times signs [B, 1, 1, C]; likewise without the axes between."""
    if len(x.shape) != 4 or x.shape[2] is None:
        return x * signs
    # Broadcasting along rows of W C numbers takes half the time of broadcasting along few channels.
    rows = tf.tile(signs[:, 0], [1, 1, x.shape[2]])
    return tf.reshape(tf.reshape(x, [-1, tf.shape(x)[1], x.shape[2] * x.shape[3]]) * rows, tf.shape(x))


def plus(outputs: tf.Tensor, bias: tf.Tensor | None) -> tf.Tensor:
    """Return outputs with a bias, if there is one."""
    return outputs if bias is None else tf.nn.bias_add(outputs, bias)


def _signs(inputs: tf.Tensor, width: int, units: int, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return random signs for inputs [B, ..., width] and outputs [B, ..., units], constant over the axes between."""
    between = [1] * (len(inputs.shape) - 2)
    signs = noise.random_signs(tf.shape(inputs)[0], width + units, seed, inputs.dtype)
    signs = tf.reshape(signs, [-1, *between, signs.shape[-1]])
    return signs[..., :width], signs[..., width : width + units]
