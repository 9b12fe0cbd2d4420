"""Flipout layers as Keras layers: KL, operations, seeds and the floor."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.layers import Conv2DFlipout, DenseFlipout, sampling

from .helpers import LAYERS, convolution, dense, make

every_layer = pytest.mark.parametrize("kind", ["dense", "convolution"])


@every_layer
@pytest.mark.parametrize("variational_bias", [False, True])
def test_kl_is_that_of_tfp(kind, variational_bias):
    layer, _ = make(kind, variational_bias=variational_bias, prior_stddev=2.5)
    wanted = 0.0
    for w in layer.variational_weights:
        q = tfp.distributions.Normal(tf.cast(w.mean, tf.float64), tf.exp(tf.cast(w.log_stddev, tf.float64)))
        p = tfp.distributions.Normal(tf.constant(0.0, tf.float64), tf.constant(2.5, tf.float64))
        wanted += float(tf.reduce_sum(tfp.distributions.kl_divergence(q, p)))
    assert len(layer.variational_weights) == 1 + variational_bias
    np.testing.assert_allclose(layer.kl_divergence(), wanted, rtol=1e-6)


@every_layer
def test_gradients_of_kl(kind):
    layer, _ = make(kind, variational_bias=True, prior_stddev=2.0)
    weights = layer.variational_weights
    with tf.GradientTape() as tape:
        kl = layer.kl_divergence()
    gradients = tape.gradient(kl, [(w.mean, w.log_stddev) for w in weights])
    for w, (of_mean, of_log_stddev) in zip(weights, gradients):
        np.testing.assert_allclose(of_mean, w.mean.numpy() / 4, rtol=1e-5)
        np.testing.assert_allclose(of_log_stddev, np.exp(2 * w.log_stddev.numpy()) / 4 - 1, rtol=1e-5)


@every_layer
def test_float64_layer_has_a_kl(kind):
    layer, _ = make(kind, dtype="float64", prior_stddev=2.5)
    same, _ = make(kind, prior_stddev=2.5)
    assert layer.kl_divergence().dtype == tf.float64
    np.testing.assert_allclose(layer.kl_divergence(), same.kl_divergence(), rtol=1e-6)


def operations(layer, inputs, mode, seed=(1, 2)):
    @tf.function
    def run(x):
        with sampling(mode, seed):
            return layer(x)

    return [op.type for op in run.get_concrete_function(inputs).graph.get_operations()]


@every_layer
@pytest.mark.parametrize(("mode", "products"), [("flipout", 2), ("shared", 1), ("mean", 1)])
def test_number_of_products_and_random_draws(kind, mode, products):
    layer, inputs = make(kind)
    types = operations(layer, inputs, mode)
    assert types.count("Conv2D" if kind == "convolution" else "MatMul") == products
    draws = [t for t in types if t.startswith(("StatelessRandomNormal", "StatelessRandomUniform"))]
    assert len(draws) == {"mean": 0, "shared": 1, "flipout": 2}[mode]
    assert not [t for t in types if t in ("RandomStandardNormal", "RandomUniform", "RandomUniformInt")]


def test_calls_in_a_block_have_noise_of_their_own():
    layer, inputs = make("dense")
    with sampling("shared", [7, 0]):
        first, second = layer(inputs), layer(inputs)
    with sampling("shared", [7, 0]):
        again = layer(inputs), layer(inputs)
    assert np.abs(first - second).max() > 0.1
    np.testing.assert_array_equal((first, second), again)


def test_calls_under_neighbouring_seeds_share_no_noise():
    """A block's later calls do not repeat the first calls of a block whose seed is a little higher."""
    layer, inputs = make("dense", variational_bias=True)

    def passes(seed):
        with sampling("shared", seed):
            return [layer(inputs).numpy() for _ in range(4)]

    streams = [passes([7, s]) for s in range(8)]
    repeats = [
        (s, i, t, j)
        for (s, a), (t, b) in itertools.combinations(enumerate(streams), 2)
        for (i, x), (j, y) in itertools.product(enumerate(a), enumerate(b))
        if np.array_equal(x, y)
    ]
    assert not repeats


@every_layer
def test_without_a_seed_noise_is_new_each_call_and_follows_the_global_seed(kind):
    layer, inputs = make(kind)
    for wrap in (lambda f: f, tf.function):
        streams = []
        for seed in (5, 5, 6):
            tf.random.set_seed(seed)
            call = wrap(lambda x: layer(x))
            streams.append([call(inputs).numpy() for _ in range(3)])
        np.testing.assert_array_equal(streams[0], streams[1])
        assert np.abs(streams[0][0] - streams[2][0]).max() > 0.1
        assert np.abs(streams[0][0] - streams[0][1]).max() > 0.1


def test_scopes_nest_and_end():
    layer, inputs = make("dense")
    with sampling("mean"):
        mean = layer(inputs)
        with sampling("shared", [1, 2]):
            drawn = layer(inputs)
        np.testing.assert_array_equal(layer(inputs), mean)
    assert np.abs(drawn - mean).max() > 0.1
    with pytest.raises(KeyError), sampling("mean"):
        raise KeyError
    assert np.abs(layer(inputs) - mean).max() > 0.1


@pytest.mark.parametrize("variational_bias", [False, True])
@pytest.mark.parametrize("shape", [(5, 4), (5, 3, 4), (5, 2, 3, 4)])
def test_dense_mean_mode_is_keras_dense(shape, variational_bias):
    layer = dense(activation="relu", variational_bias=variational_bias)
    inputs = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    keras = tf.keras.layers.Dense(3, activation="relu")
    keras.build(shape)
    keras.set_weights([layer.kernel_mean.numpy(), layer.bias.numpy()])
    with sampling("mean"):
        np.testing.assert_array_equal(layer(inputs), keras(inputs))
    for mode in ("flipout", "shared"):
        with sampling(mode, [1, 1]):
            assert layer(inputs).shape == (*shape[:-1], 3)


@pytest.mark.parametrize(("kernel_size", "strides"), [(3, 1), ((2, 3), 2), (1, (1, 2)), ([3, 2], (2, 1))])
@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize("use_bias", [True, False])
def test_convolution_mean_mode_is_keras_convolution(kernel_size, strides, padding, use_bias):
    options = {"kernel_size": kernel_size, "strides": strides, "padding": padding, "use_bias": use_bias}
    layer = convolution(**options)
    keras = tf.keras.layers.Conv2D(2, **options)
    inputs = np.random.default_rng(0).normal(size=(2, 7, 6, 2)).astype(np.float32)
    keras.build(inputs.shape)
    keras.set_weights([layer.kernel_mean.numpy(), *([layer.bias.numpy()] if use_bias else [])])
    wanted = keras(inputs)
    with sampling("mean"):
        np.testing.assert_array_equal(layer(inputs), wanted)
    with sampling("flipout", [1, 1]):
        assert layer(inputs).shape == wanted.shape


@every_layer
def test_floor_holds_and_is_left_again(kind):
    layer, _ = make(kind, min_stddev=0.1, initial_stddev=0.2, variational_bias=True)
    variables = [w.log_stddev for w in layer.variational_weights]
    optimizer = tf.keras.optimizers.SGD(0.3)
    for _ in range(20):
        optimizer.apply_gradients((tf.ones_like(v), v) for v in variables)
    for v in variables:
        np.testing.assert_allclose(tf.exp(v), 0.1, rtol=1e-6)
    with tf.GradientTape() as tape:
        kl = layer.kl_divergence()
    gradients = tape.gradient(kl, variables)
    for gradient in gradients:
        np.testing.assert_allclose(gradient, 0.1**2 - 1, rtol=1e-5)  # (s / prior_stddev)^2 - 1
    optimizer.apply_gradients(zip(gradients, variables))
    assert all((tf.exp(v).numpy() > 0.12).all() for v in variables)


@every_layer
def test_initial_posterior(kind):
    *_, shape = LAYERS[kind]
    layer = (DenseFlipout if kind == "dense" else lambda n, **o: Conv2DFlipout(n, 3, **o))(
        6, initial_stddev=0.03, kernel_initializer="ones", variational_bias=True
    )
    layer.build((None, *shape[1:]))
    kernel, bias = layer.variational_weights
    np.testing.assert_array_equal(kernel.mean, np.ones(kernel.mean.shape))
    np.testing.assert_array_equal(bias.mean, np.zeros(6))
    for w in (kernel, bias):
        np.testing.assert_allclose(tf.exp(w.log_stddev), 0.03, rtol=1e-6)
        assert w.log_stddev.shape == w.mean.shape


def test_no_bias():
    layer, inputs = make("dense", use_bias=False, variational_bias=True)
    assert len(layer.trainable_variables) == 2 and len(layer.variational_weights) == 1
    with sampling("flipout", [1, 2]):
        np.testing.assert_array_equal(layer(0 * inputs), np.zeros((5, 3)))


@pytest.mark.parametrize(
    "options",
    [
        {"prior_stddev": 0.0},
        {"prior_stddev": -1.0},
        {"initial_stddev": 0.0},
        {"min_stddev": 0.0},
        {"min_stddev": 0.1, "initial_stddev": 0.05},
        {"prior_stddev": float("nan")},
        {"initial_stddev": float("nan")},
    ],
)
def test_bad_standard_deviations(options):
    for build in (lambda **o: DenseFlipout(3, **o), lambda **o: Conv2DFlipout(3, 2, **o)):
        with pytest.raises(InvalidArgument, match=r"prior_stddev > 0 and 0 < min_stddev <= initial_stddev"):
            build(**options)


def test_no_such_mode():
    message = "sampling has no mode 'maen': choose one of 'flipout', 'shared', 'mean'"
    with pytest.raises(InvalidArgument, match=message), sampling("maen"):
        pass
    layer, inputs = make("dense")
    assert layer(inputs).shape == (5, 3)  # and no scope is left behind
