"""Flipout over one input channel, which takes a way of its own: against the general way and TFP's layers."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl.layers import sampling

from .helpers import (
    assert_same_moments,
    assert_within_errors,
    check_gradients,
    convolution,
    convolution_covariance,
    copies,
    dense,
    dense_covariance,
    draws_of_tfp,
    flat,
    layer_draws,
    outer,
)

RNG = np.random.default_rng(0)
COPIES = 8
IMAGE = RNG.normal(size=(4, 5, 1))
NUMBER = np.array([0.8])
# The layer, one example, and the layer's linear map.
CASES = {
    "convolution": (lambda **o: convolution(3, 1, **o), IMAGE, lambda x, w: tf.nn.conv2d(x, w, 1, "VALID")),
    "strides": (
        lambda **o: convolution(3, 1, strides=2, padding="same", **o),
        IMAGE,
        lambda x, w: tf.nn.conv2d(x, w, 2, "SAME"),
    ),
    "dense": (lambda **o: dense(3, 1, **o), NUMBER, tf.matmul),
    "dense of rows": (lambda **o: dense(3, 1, **o), RNG.normal(size=(2, 1)), lambda x, w: tf.tensordot(x, w, 1)),
}
deep = pytest.mark.deep(after="tests/layers/test_flipout.py")
slow_convolution = pytest.mark.parametrize("case", [pytest.param("convolution", marks=deep), "dense"])
every_case = pytest.mark.parametrize("case", CASES)
every_bias = pytest.mark.parametrize("use_bias", [True, False], ids=["bias", "no bias"])


def batch(case, size=COPIES):
    return RNG.normal(size=(size, *CASES[case][1].shape)).astype(np.float32)


def run(layer, inputs, mode, seed=(1, 2), perturbation=None):
    held = {} if perturbation is None else {layer.kernel_mean.ref(): tf.constant(perturbation)}
    with sampling(mode, seed, held):
        return layer(tf.constant(inputs)).numpy()


@every_case
@every_bias
def test_output_is_the_means_plus_a_signed_perturbation(case, use_bias):
    """y_n = W_mean x_n + bias + (D x_n) o b_n with two linear maps; b_n is one sign for an example's unit."""
    build, _, linear = CASES[case]
    layer, inputs = build(use_bias=use_bias), batch(case, 40)
    perturbation = RNG.normal(size=layer.kernel_mean.shape).astype(np.float32)
    mean = linear(inputs, layer.kernel_mean) + (layer.bias if use_bias else 0)
    perturbed = linear(inputs, perturbation).numpy()
    noise = run(layer, inputs, "flipout", perturbation=perturbation) - mean.numpy()
    between = tuple(range(1, noise.ndim - 1))
    sign = np.sign(np.sum(noise * perturbed, axis=between, keepdims=True))
    np.testing.assert_allclose(noise, sign * perturbed, atol=2e-5)
    assert set(np.unique(sign)) == {-1, 1}
    sign = sign.reshape(40, 3)
    assert len(np.unique(sign, axis=0)) == 8  # all combinations of three units: P(one is missing) < 0.04, seed fixed


@every_case
def test_one_pass_over_the_inputs(case):
    layer, inputs = CASES[case][0](), batch(case)
    function = tf.function(lambda x: run_symbolic(layer, x))
    types = [op.type for op in function.get_concrete_function(inputs).graph.get_operations()]
    assert types.count("Conv2D") + types.count("MatMul") == 1


def run_symbolic(layer, x):
    with sampling("flipout", (1, 2)):
        return layer(x)


@pytest.mark.statistical
@every_bias
@pytest.mark.parametrize("case", ["convolution", pytest.param("strides", marks=deep), "dense"])
def test_moments(case, use_bias):
    """Means and covariances of up to 18 outputs from 8 x 2,000 draws within 5 standard errors: below 1e-3 in all."""
    build, example, _ = CASES[case]
    layer = build(use_bias=use_bias)
    noise = flat(layer_draws(layer, copies(example), 2000) - run(layer, copies(example)[:1], "mean"))
    if case == "dense":
        covariance = dense_covariance(layer, example, example)
    elif case == "convolution":
        covariance = convolution_covariance(layer, example)
    else:
        covariance = padded_covariance(layer, example)
    assert_within_errors(noise.mean(1), 0)
    assert_within_errors(outer(noise).mean(1), covariance)


def padded_covariance(layer, example):
    """That of a "same" convolution with stride 2, from the linear map itself: J diag(s^2) J^T."""
    kernel = tf.zeros_like(layer.kernel_mean)
    with tf.GradientTape() as tape:
        tape.watch(kernel)
        outputs = tf.reshape(tf.nn.conv2d(np.float32(example[None]), kernel, 2, "SAME"), [-1])
    jacobian = tape.jacobian(outputs, kernel).numpy().reshape(len(outputs), -1).astype(np.float64)
    return jacobian * np.exp(2 * layer.kernel_log_stddev.numpy().ravel()) @ jacobian.T


@pytest.mark.statistical
@slow_convolution
def test_examples_are_uncorrelated_but_share_their_draw(case):
    """Products of two copies' noise have mean 0, its magnitudes are equal: 5 standard errors, below 1e-3 in all."""
    build, example, _ = CASES[case]
    layer = build()
    noise = flat(layer_draws(layer, copies(example)[:2], 4000) - run(layer, copies(example)[:1], "mean"))
    first, second = noise[:, 0], noise[:, 1]
    assert_within_errors(first[:, :, None] * second[:, None, :], 0)
    np.testing.assert_allclose(np.abs(first), np.abs(second), atol=1e-5)
    # b_n differs from unit to unit: the product of two units' noise has the other sign in half of the copies.
    assert_within_errors(first[:, 0] * first[:, 1] * second[:, 0] * second[:, 1], 0)


@pytest.mark.statistical
@slow_convolution
def test_same_distribution_as_the_general_way(case):
    """A second channel of zeros takes the general way; 8 x 1,500 draws each, 5 standard errors: below 1e-3 in all."""
    build, example, _ = CASES[case]
    one = build()
    two = dense(3, 2) if case == "dense" else convolution(3, 2)
    for mine, other in ((one.kernel_mean, two.kernel_mean), (one.kernel_log_stddev, two.kernel_log_stddev)):
        other.assign(tf.concat([mine, other[..., 1:, :]], -2))
    two.bias.assign(one.bias)
    padded = np.concatenate([example, np.zeros_like(example)], -1)
    a, b = (flat(layer_draws(layer, copies(x), 1500)) for layer, x in ((one, example), (two, padded)))
    assert_same_moments(a, b)


@pytest.mark.statistical
@slow_convolution
def test_same_distribution_as_tensorflow_probability(case):
    """Means and covariances of 8 x 1,500 draws each, 5 standard errors of the difference: below 1e-3 in all."""
    build, example, _ = CASES[case]
    a, b = (flat(function(build(), copies(example), 1500)) for function in (layer_draws, draws_of_tfp))
    assert_same_moments(a, b)
    assert a.std((0, 1)).min() > 0.1  # there is something to compare


@every_case
@every_bias
def test_gradients_without_noise_are_those_of_the_plain_layer(case, use_bias):
    build, _, _ = CASES[case]
    layer, inputs = build(use_bias=use_bias, activation="tanh"), tf.constant(batch(case))
    none = {layer.kernel_mean.ref(): tf.zeros_like(layer.kernel_mean)}
    variables = [layer.kernel_mean, *([layer.bias] if use_bias else [])]
    gradients = {}
    for mode in ("mean", "flipout"):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            with sampling(mode, (1, 2), none):
                outputs = layer(inputs)
            loss = tf.reduce_sum(
                outputs * tf.cos(tf.reshape(tf.range(tf.size(outputs), dtype=tf.float32), outputs.shape))
            )
        gradients[mode] = [outputs, *tape.gradient(loss, [*variables, inputs])]
    for ours, plain in zip(gradients["flipout"], gradients["mean"]):
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)
        assert np.abs(plain).max() > 0.05


@every_case
def test_gradients_against_central_differences(case):
    """With noise, in float64: of means, log s, bias and inputs."""
    layer = CASES[case][0](dtype="float64", activation="tanh")
    variables = [layer.kernel_mean, layer.kernel_log_stddev, layer.bias]
    check_gradients(layer, batch(case, 3).astype(np.float64), variables, "flipout", places=12)


@every_case
@every_bias
def test_unknown_batch_size(case, use_bias):
    """In a graph: there oneDNN fuses a padded bias into a "valid" convolution, which ends the process (TF 2.14)."""
    layer, shape = CASES[case][0](use_bias=use_bias), CASES[case][1].shape
    function = tf.function(lambda x: run_symbolic(layer, x), input_signature=[tf.TensorSpec([None, *shape])])
    known = layer(np.zeros([1, *shape], np.float32)).shape[1:]
    for size in (1, 2, 7):
        inputs = batch(case, size)
        outputs = function(inputs)
        assert outputs.shape == (size, *known)
        np.testing.assert_allclose(outputs, run(layer, inputs, "flipout"), rtol=1e-5, atol=1e-5)
    keras = tf.keras.Input(shape)
    assert layer(keras).shape.as_list() == [None, *known]


def test_unknown_size_of_the_image():
    layer = CASES["strides"][0]()
    function = tf.function(lambda x: run_symbolic(layer, x), input_signature=[tf.TensorSpec([None, None, None, 1])])
    for shape in ((2, 4, 5, 1), (1, 9, 6, 1)):
        inputs = RNG.normal(size=shape).astype(np.float32)
        np.testing.assert_allclose(function(inputs), run(layer, inputs, "flipout"), rtol=1e-5, atol=1e-5)
