"""Flipout (Wen et al. 2018, arXiv:1803.04386) for dense and convolution layers, with mean-field Gaussian posteriors.

Each weight is N(mean, s^2) with prior N(0, prior_stddev^2). A pass perturbs the mean's output,

    y_n = W_mean x_n + (D (x_n o a_n)) o b_n + bias,   D = s o eps,  eps ~ N(0, 1),

with one D for the batch and sign vectors a_n, b_n of each example n: its noise has the right distribution, and is
uncorrelated with every other example's. The layer holds log s. KL's gradient in log s is (s / prior_stddev)^2 - 1: it
does not vanish as s gets small, and a floor on s is a projection after each optimiser step, which leaves it alive.
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.layers import noise
from tfp_bfl.layers.variational_weight import Between, VariationalWeight
from tfp_bfl.posterior import gaussian_kl

# As a prior's standard deviation: sqrt(2 / inputs of a unit), that of the means before training (He et al. 2015).
FAN_IN = "fan_in"


class _Flipout(tf.keras.layers.Layer):
    """What the two layers share: variables, KL, and noise. A subclass gives `_kernel_shape` and `_linear`."""

    def __init__(
        self,
        units: int,
        activation: Any = None,
        use_bias: bool = True,
        variational_bias: bool = False,
        prior_stddev: float | str = 1.0,
        initial_stddev: float = 0.003,
        min_stddev: float = 1e-5,
        kl_weight: float = 1.0,
        kernel_initializer: Any = "he_normal",
        noise_dtype: str | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self._by_fan_in = prior_stddev == FAN_IN
        self.prior_stddev = math.nan if isinstance(prior_stddev, str) else float(prior_stddev)
        if not ((self._by_fan_in or self.prior_stddev > 0) and 0 < min_stddev <= initial_stddev):
            raise InvalidArgument(
                "A Flipout layer needs prior_stddev > 0 and 0 < min_stddev <= initial_stddev, but got prior_stddev="
                f"{shown(prior_stddev)}, min_stddev={min_stddev}, initial_stddev={initial_stddev}; prior_stddev may "
                f"also be {FAN_IN!r}."
            )
        self.units = units
        self.activation = tf.keras.activations.get(activation)
        self.use_bias = use_bias
        self.variational_bias = variational_bias
        self.initial_stddev = initial_stddev
        self.min_stddev = min_stddev
        self.kl_weight = kl_weight
        self.noise_dtype = noise_dtype
        self.kernel_initializer = tf.keras.initializers.get(kernel_initializer)

    def _kernel_shape(self, input_shape: tf.TensorShape) -> list[int]:
        raise NotImplementedError

    def _linear(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError

    def build(self, input_shape: Any) -> None:
        shape = self._kernel_shape(tf.TensorShape(input_shape))
        if self._by_fan_in:
            self.prior_stddev = math.sqrt(2 / math.prod(shape[:-1]))
        self.kernel_mean, self.kernel_log_stddev = self._variational("kernel", shape, self.kernel_initializer)
        if self._bias_varies:
            self.bias, self.bias_log_stddev = self._variational("bias", [self.units], "zeros")
        elif self.use_bias:
            self.bias = self.add_weight("bias", [self.units], initializer="zeros")
        self.add_loss(lambda: self.kl_weight * self.kl_divergence())
        super().build(input_shape)

    def _variational(self, name: str, shape: list[int], initializer: Any) -> tuple[tf.Variable, tf.Variable]:
        mean = self.add_weight(f"{name}_mean", shape, initializer=initializer)
        log_stddev = self.add_weight(
            f"{name}_log_stddev",
            shape,
            initializer=tf.keras.initializers.Constant(math.log(self.initial_stddev)),
            constraint=Between(math.log(self.min_stddev)),
            experimental_autocast=False,  # Rounded to bfloat16, log s would make s wrong by percents.
        )
        return mean, log_stddev

    @property
    def _bias_varies(self) -> bool:
        return self.use_bias and self.variational_bias

    @property
    def _bias_mean(self) -> tf.Variable | None:
        return self.bias if self.use_bias else None

    @property
    def variational_weights(self) -> list[VariationalWeight]:
        """The layer's variational weights, kernel first."""
        pairs = [(self.kernel_mean, self.kernel_log_stddev)]
        if self._bias_varies:
            pairs.append((self.bias, self.bias_log_stddev))
        return [VariationalWeight(*pair, self.prior_stddev, self.min_stddev) for pair in pairs]

    def kl_divergence(self) -> tf.Tensor:
        """KL[q || prior] in nats, summed over the layer's variational weights: a scalar."""
        prior = math.log(self.prior_stddev)
        return tf.add_n(
            [tf.reduce_sum(gaussian_kl(w.mean, w.log_stddev, 0.0, prior)) for w in self.variational_weights]
        )

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self._outputs(inputs)

    @noise.without_autograph
    def _outputs(self, inputs: tf.Tensor) -> tf.Tensor:
        mode = noise.mode()
        if mode == "mean":
            return self.activation(_plus(self._linear(inputs, self.kernel_mean), self._bias_mean))
        seeds = noise.next_seeds(3)
        kernel_noise = _noise(self.kernel_mean, self.kernel_log_stddev, seeds[0], inputs.dtype)
        bias_noise = None
        if self._bias_varies:
            bias_noise = _noise(self.bias, self.bias_log_stddev, seeds[1], inputs.dtype)
        if mode == "shared":
            bias = self._bias_mean if bias_noise is None else self.bias + bias_noise
            outputs = _plus(self._linear(inputs, self.kernel_mean + kernel_noise), bias)
        else:
            outputs = self._flipout(inputs, kernel_noise, bias_noise, seeds[2])
        return self.activation(outputs)

    def _flipout(self, inputs: tf.Tensor, kernel_noise: tf.Tensor, bias_noise: Any, seed: tf.Tensor) -> tf.Tensor:
        if inputs.shape[-1] == 1 and bias_noise is None:
            return self._flipout_of_one_channel(inputs, kernel_noise, seed)
        sign_in, sign_out = _signs(inputs, inputs.shape[-1], self.units, seed)
        dtype = self.noise_dtype or inputs.dtype
        perturbation = self._linear(tf.cast(_signed(inputs, sign_in), dtype), tf.cast(kernel_noise, dtype))
        # The bias's perturbation is left to sign_out alone: its input, the constant 1, needs no sign.
        perturbation = _plus(tf.cast(perturbation, inputs.dtype), bias_noise)
        return _plus(self._linear(inputs, self.kernel_mean), self._bias_mean) + _signed(perturbation, sign_out)

    def _flipout_of_one_channel(self, inputs: tf.Tensor, kernel_noise: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """a_n is one sign for the whole example here: b_n absorbs it, and both kernels fit into one pass.

        y_n = [W_mean x_n, D x_n] [I; diag(b_n)], a small matrix for each example
        """
        _, sign_out = _signs(inputs, 0, self.units, seed)
        kernels = tf.concat([tf.convert_to_tensor(self.kernel_mean, inputs.dtype), kernel_noise], -1)
        bias = None
        if self.use_bias:  # Not by tf.pad: oneDNN takes it for the convolution's padding, and ends the process.
            bias = tf.concat([tf.convert_to_tensor(self.bias), tf.zeros([self.units], inputs.dtype)], 0)
        both = _plus(self._linear(inputs, kernels), bias)
        sign_out = tf.reshape(sign_out, [-1, self.units])
        one = tf.eye(self.units, batch_shape=[tf.shape(inputs)[0]], dtype=inputs.dtype)
        mix = tf.stop_gradient(tf.concat([one, tf.linalg.diag(sign_out)], 1))
        outputs = tf.reshape(both, [tf.shape(inputs)[0], -1, 2 * self.units]) @ mix
        return tf.reshape(outputs, [*tf.unstack(tf.shape(both))[:-1], self.units])

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "activation": tf.keras.activations.serialize(self.activation),
            "use_bias": self.use_bias,
            "variational_bias": self.variational_bias,
            "prior_stddev": FAN_IN if self._by_fan_in else self.prior_stddev,
            "initial_stddev": self.initial_stddev,
            "min_stddev": self.min_stddev,
            "kl_weight": self.kl_weight,
            "noise_dtype": self.noise_dtype,
            "kernel_initializer": tf.keras.initializers.serialize(self.kernel_initializer),
        }


@tf.keras.utils.register_keras_serializable("tfp_bfl")
class DenseFlipout(_Flipout):
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

    Raises:
      InvalidArgument: a standard deviation is not positive, or the initial one is below the floor.
    """

    def _kernel_shape(self, input_shape: tf.TensorShape) -> list[int]:
        return [input_shape[-1], self.units]

    def _linear(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        if len(inputs.shape) == 2:
            return tf.matmul(inputs, kernel)
        return tf.tensordot(inputs, kernel, 1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units}


@tf.keras.utils.register_keras_serializable("tfp_bfl")
class Conv2DFlipout(_Flipout):
    """A 2-D convolution with a mean-field Gaussian kernel, perturbed by Flipout: [B, H, W, D] -> [B, H', W', filters].

    Args:
      filters, kernel_size, strides, padding: as in `tf.keras.layers.Conv2D`.
      **kwargs: as `DenseFlipout`.

    Raises:
      InvalidArgument: a standard deviation is not positive, or the initial one is below the floor.
    """

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

    def get_config(self) -> dict[str, Any]:
        own = {"filters": self.filters, "kernel_size": self.kernel_size, "strides": self.strides}
        return {**super().get_config(), **own, "padding": self.padding}


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _noise(mean: tf.Variable, log_stddev: tf.Tensor, seed: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    perturbation = noise.drawn(mean)
    if perturbation is None:
        draws = noise.standard_normal(mean.shape.num_elements(), seed)
        perturbation = tf.exp(log_stddev) * tf.cast(tf.reshape(draws, mean.shape), log_stddev.dtype)
    return tf.cast(perturbation, dtype)


def _signed(x: tf.Tensor, signs: tf.Tensor) -> tf.Tensor:
    """x [B, H, W, C] times signs [B, 1, 1, C]; likewise without the axes between."""
    if len(x.shape) != 4 or x.shape[2] is None:
        return x * signs
    # Broadcasting along rows of W C numbers takes half the time of broadcasting along few channels.
    rows = tf.tile(signs[:, 0], [1, 1, x.shape[2]])
    return tf.reshape(tf.reshape(x, [-1, tf.shape(x)[1], x.shape[2] * x.shape[3]]) * rows, tf.shape(x))


def _plus(outputs: tf.Tensor, bias: tf.Tensor | None) -> tf.Tensor:
    return outputs if bias is None else tf.nn.bias_add(outputs, bias)


def _signs(inputs: tf.Tensor, width: int, units: int, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Random signs for inputs [B, ..., width] and outputs [B, ..., units], constant over the axes between."""
    between = [1] * (len(inputs.shape) - 2)
    signs = noise.random_signs(tf.shape(inputs)[0], width + units, seed, inputs.dtype)
    signs = tf.reshape(signs, [-1, *between, signs.shape[-1]])
    return signs[..., :width], signs[..., width : width + units]
