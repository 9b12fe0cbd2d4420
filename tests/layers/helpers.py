"""Layers with a known posterior, their gradients, and moments of many draws of their outputs with standard errors."""

import itertools

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_bfl.layers import Conv2DFlipout, Conv2DVariationalDropout, DenseFlipout, DenseVariationalDropout, sampling

MODES = ["flipout", "shared", "mean"]
STEP = 1e-5


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


LAYERS = {
    "dense": (dense, DenseFlipout, (5, 4)),
    "convolution": (convolution, Conv2DFlipout, (3, 4, 5, 2)),
    "dense dropout": (dense, DenseVariationalDropout, (5, 4)),
    "convolution dropout": (convolution, Conv2DVariationalDropout, (3, 4, 5, 2)),
}


def make(name, **options):
    """A layer, and inputs of its type."""
    build, kind, shape = LAYERS[name]
    dtype = "float64" if options.get("dtype") == "float64" else "float32"
    return build(kind=kind, **options), tf.constant(np.random.default_rng(1).normal(size=shape), dtype)


def copies(x, number=8):
    return np.repeat(x[None], number, 0).astype(np.float32)


def flat(values):
    """[N, B, ...] -> [N, B, D]: the outputs of an example in one axis."""
    return values.reshape(*values.shape[:2], -1)


def mean_of(layer, inputs):
    with sampling("mean"):
        return layer(tf.constant(inputs, tf.float32)).numpy().astype(np.float64)


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


def assert_same_moments(a, b):
    """Means and covariances of two samples [N, B, D] differ by less than 5 standard errors of the difference."""
    centre = a.mean((0, 1))
    for moment in (lambda y: y.mean(1), lambda y: outer(y - centre).mean(1)):
        (mean_a, error_a), (mean_b, error_b) = mean_and_error(moment(a)), mean_and_error(moment(b))
        assert (np.abs(mean_a - mean_b) < 5 * np.hypot(error_a, error_b) + 1e-6).all()


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


def draws_of_tfp(layer, inputs, number):
    """Draws of the same layer of TensorFlow Probability, whose posteriors have the values of ours."""

    def fixed(weight):
        normal = tfp.distributions.Normal(tf.constant(weight.mean), tf.exp(weight.log_stddev))
        return lambda *args: tfp.distributions.Independent(normal, len(weight.mean.shape))

    kernel, *bias = layer.variational_weights
    point = tfp.distributions.Deterministic(tf.constant(layer.bias))
    theirs = {
        "kernel_posterior_fn": fixed(kernel),
        "bias_posterior_fn": fixed(bias[0]) if bias else lambda *args: tfp.distributions.Independent(point, 1),
        "kernel_divergence_fn": None,
        "bias_divergence_fn": None,
    }
    if isinstance(layer, DenseFlipout):
        theirs = tfp.layers.DenseFlipout(layer.units, **theirs)
    else:
        theirs = tfp.layers.Convolution2DFlipout(layer.filters, layer.kernel_size, **theirs)
    tf.random.set_seed(3)
    theirs(inputs)
    return draws(lambda x, seed: theirs(x), tf.constant(inputs), number)


def check_gradients(layer, inputs, variables, mode, places=24):
    """Check gradients of a sum of the outputs, each with another slope, at some places of each variable, in float64."""
    inputs = tf.Variable(inputs)

    @tf.function
    def loss():
        with sampling(mode, seed=[3, 5]):
            outputs = layer(inputs)
        slopes = tf.cos(tf.cast(tf.range(tf.size(outputs)), tf.float64))
        return tf.reduce_sum(tf.reshape(outputs, [-1]) * slopes)

    variables = [*variables, inputs]
    with tf.GradientTape() as tape:
        value = loss()
    gradients = tape.gradient(value, variables, unconnected_gradients="zero")
    for variable, gradient in zip(variables, gradients):
        start = variable.numpy()
        for place in list(itertools.product(*map(range, start.shape)))[:places]:
            ends = []
            for sign in (1, -1):
                moved = start.copy()
                moved[place] += sign * STEP
                variable.assign(moved)
                ends.append(loss().numpy())
            variable.assign(start)
            np.testing.assert_allclose(gradient.numpy()[place], (ends[0] - ends[1]) / (2 * STEP), rtol=1e-6, atol=1e-7)
