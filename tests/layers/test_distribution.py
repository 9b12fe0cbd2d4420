"""The outputs' distribution: against the analytic moments, and against the layers of TensorFlow Probability."""

import numpy as np
import pytest

from .helpers import (
    assert_same_moments,
    assert_within_errors,
    convolution,
    convolution_covariance,
    copies,
    dense,
    dense_covariance,
    draws_of_tfp,
    flat,
    layer_draws,
    mean_of,
    outer,
)

RNG = np.random.default_rng(0)
ROW = RNG.normal(size=4)
OTHER_ROW = ROW + RNG.normal(size=4)
IMAGE = RNG.normal(size=(3, 4, 2))

deep = pytest.mark.deep(after="tests/layers/test_flipout.py")
bias_varies = pytest.mark.parametrize("variational_bias", [False, True], ids=["point bias", "variational bias"])
both_modes = pytest.mark.parametrize("mode", ["flipout", "shared"])


@pytest.mark.statistical
@bias_varies
@both_modes
def test_dense_moments(variational_bias, mode):
    """Means and covariances of 3 units from 8 x 4,000 draws within 5 standard errors: an error rate below 1e-5."""
    layer = dense(variational_bias=variational_bias)
    noise = flat(layer_draws(layer, copies(ROW), 4000, mode)) - mean_of(layer, ROW[None])
    assert_within_errors(noise.mean(1), 0)
    assert_within_errors(outer(noise).mean(1), dense_covariance(layer, ROW, ROW))


@pytest.mark.statistical
@bias_varies
@both_modes
@pytest.mark.parametrize(("strides", "padding"), [pytest.param(1, "valid", marks=deep), ((1, 2), "same")])
def test_convolution_moments(variational_bias, mode, strides, padding):
    """Means and covariances of up to 12 outputs from 8 x 3,000 draws within 5 standard errors: below 1e-4."""
    layer = convolution(variational_bias=variational_bias, strides=strides, padding=padding)
    noise = flat(layer_draws(layer, copies(IMAGE), 3000, mode) - mean_of(layer, IMAGE[None]))
    assert_within_errors(noise.mean(1), 0)
    assert_within_errors(outer(noise).mean(1), convolution_covariance(layer, IMAGE))


@pytest.mark.statistical
@both_modes
def test_positions_of_a_dense_layer_share_their_weights(mode):
    """One example of two rows, [2, 4]: covariance x1^T diag(s^2) x2 between rows, also in Flipout; below 1e-5."""
    layer = dense()
    rows = np.stack([ROW, OTHER_ROW])
    noise = layer_draws(layer, copies(rows), 3000, mode) - mean_of(layer, rows[None])
    between = noise[:, :, 0, :, None] * noise[:, :, 1, None, :]
    assert_within_errors(between.mean(1), dense_covariance(layer, ROW, OTHER_ROW))


@pytest.mark.statistical
@bias_varies
@both_modes
def test_examples_of_a_batch(variational_bias, mode):
    """Uncorrelated in Flipout, correlated by the weights that they share in "shared"; 5 standard errors: below 1e-5."""
    layer = dense(variational_bias=variational_bias)
    rows = np.stack([ROW, OTHER_ROW])
    noise = layer_draws(layer, rows, 8000, mode) - mean_of(layer, rows)
    shared = dense_covariance(layer, ROW, OTHER_ROW)
    assert np.abs(np.diag(shared)).min() > 0.1
    between = noise[:, 0, :, None] * noise[:, 1, None, :]
    assert_within_errors(between, 0 if mode == "flipout" else shared)


@pytest.mark.statistical
@pytest.mark.deep(after="tests/layers/test_flipout.py")
def test_images_of_a_batch():
    """Two copies of one image are uncorrelated in Flipout; 144 pairs of outputs, 5 standard errors: below 1e-4."""
    layer = convolution(variational_bias=True)
    noise = flat(layer_draws(layer, copies(IMAGE)[:2], 5000) - mean_of(layer, IMAGE[None]))
    assert_within_errors(noise[:, 0, :, None] * noise[:, 1, None, :], 0)


@pytest.mark.statistical
def test_flipout_flips_inputs_and_outputs():
    """Needs both signs, though means and covariances do with one; 5 standard errors: below 1e-5.

    Without signs of the outputs, the products of two units' noise are alike in two copies of an example:
    E[y1_j y1_k y2_j y2_k] is sum_i s_ij^2 s_ik^2 x_i^4, not 0. Without signs of the inputs, copies have the same
    magnitude.
    """
    layer = dense()
    noise = layer_draws(layer, copies(ROW)[:2], 8000) - mean_of(layer, ROW[None])
    first, second = noise[:, 0], noise[:, 1]
    for j, k in ((0, 1), (0, 2), (1, 2)):
        assert_within_errors(first[:, j] * first[:, k] * second[:, j] * second[:, k], 0)
    assert np.mean(np.isclose(np.abs(first), np.abs(second), rtol=1e-3)) < 0.3


@pytest.mark.statistical
@bias_varies
@pytest.mark.parametrize("kind", ["dense", pytest.param("convolution", marks=deep)])
def test_same_mean_and_covariance_as_tensorflow_probability(kind, variational_bias):
    """Two samples of 8 x 3,000 draws differ by less than 5 standard errors of the difference: below 1e-4."""
    build, inputs = (dense, copies(ROW)) if kind == "dense" else (convolution, copies(IMAGE))
    ours = build(variational_bias=variational_bias)
    a, b = (flat(function(ours, inputs, 3000)) for function in (layer_draws, draws_of_tfp))
    assert_same_moments(a, b)
    assert a.std((0, 1)).min() > 0.3  # there is something to compare
