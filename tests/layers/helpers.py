"""Layers with a known posterior, and moments of many draws of their outputs with standard errors."""

import numpy as np
import tensorflow as tf

from tfp_bfl.layers import Conv2DFlipout, DenseFlipout, sampling


def set_posterior(layer, seed=0, stddev=0.5):
    """Random means, and standard deviations between `stddev` and twice that, for each of the layer's weights."""
    rng = np.random.default_rng(seed)
    for w in layer.variational_weights:
        w.mean.assign(rng.normal(size=w.mean.shape))
        w.assign_log_stddev(tf.cast(np.log(stddev * rng.uniform(1, 2, w.mean.shape)), w.mean.dtype))
    if layer.use_bias and len(layer.variational_weights) == 1:
        layer.bias.assign(rng.normal(size=layer.bias.shape))
    return layer


def dense(units=3, width=4, kind=DenseFlipout, **options):
    layer = kind(units, **options)
    layer.build((None, width))
    return set_posterior(layer)


def convolution(filters=2, channels=2, kind=Conv2DFlipout, **options):
    layer = kind(filters, options.pop("kernel_size", (2, 3)), **options)
    layer.build((None, None, None, channels))
    return set_posterior(layer)


def draws(function, inputs, number):
    """`number` independent passes over the same inputs: [number, *outputs]. `function` takes inputs and a seed."""

    @tf.function
    def run():
        one = lambda i: function(inputs, tf.stack([i, 0]))
        return tf.map_fn(one, tf.range(number), fn_output_signature=inputs.dtype, parallel_iterations=1)

    return run().numpy().astype(np.float64)


def layer_draws(layer, inputs, number, mode="flipout"):
    def one(inputs, seed):
        with sampling(mode, seed):
            return layer(inputs)

    return draws(one, tf.constant(inputs, tf.float32), number)


def mean_and_error(values):
    """Over the leading axis of independent values: the mean and its standard error."""
    return values.mean(0), values.std(0) / np.sqrt(len(values))


def assert_within_errors(values, wanted, bound=5.0, floor=1e-6):
    mean, error = mean_and_error(values)
    worst = np.max(np.abs(mean - wanted) / (error + floor))
    assert worst < bound, f"{worst:.1f} standard errors away"


def outer(values):
    """[..., D] -> [..., D, D]."""
    return values[..., :, None] * values[..., None, :]


def stddevs(layer):
    return [np.exp(w.log_stddev.numpy().astype(np.float64)) for w in layer.variational_weights]


def dense_covariance(layer, x1, x2):
    """Cov[x1 W + b, x2 W + b] over units, [units, units]: diagonal, x1^T diag(s^2) x2 for each unit."""
    kernel, *bias = stddevs(layer)
    per_unit = np.einsum("i,iu,i->u", x1, kernel**2, x2)
    return np.diag(per_unit + (bias[0] ** 2 if bias else 0))


def convolution_covariance(layer, x):
    """Cov of the outputs of one image [H, W, D], flattened: [P F, P F], P positions and F filters."""
    kernel, *bias = stddevs(layer)
    height, width = layer.kernel_size
    strides = [1, *layer.strides, 1]
    patches = tf.image.extract_patches(x[None], [1, height, width, 1], strides, [1] * 4, layer.padding.upper())
    patches = patches.numpy().reshape(-1, height * width * x.shape[-1])
    variance = kernel.reshape(-1, layer.filters) ** 2
    per_filter = np.einsum("pi,if,qi->fpq", patches, variance, patches)
    if bias:
        per_filter += bias[0][:, None, None] ** 2
    covariance = np.einsum("fpq,fg->pfqg", per_filter, np.eye(layer.filters))
    size = len(patches) * layer.filters
    return covariance.reshape(size, size)
