"""Exact heads of fewer rows than features, and of constant features."""

import numpy as np
import tensorflow as tf

from tfp_bfl.algorithms.heads import classes, ridge

from .test_heads import CLASSES, FEATURES, LABELS, sums_of

RNG = np.random.default_rng(3)


def test_ridge_of_fewer_rows_than_features_has_a_bounded_noise():
    labels = np.arange(12) % CLASSES
    x = np.tile(np.eye(CLASSES)[labels], 10) + 1e-3 * RNG.normal(size=(12, 10 * CLASSES))
    fit = ridge.fit_ridge(sums_of(x, labels))
    np.testing.assert_allclose(fit.noise, ridge.SMALLEST_NOISE_STDDEV**2)
    np.testing.assert_allclose(np.c_[x, np.ones(12)] @ fit.mean, np.eye(CLASSES)[labels], atol=0.02)


def test_weights_of_gaussian_classes_are_centred_over_the_classes_so_that_float32_holds_them():
    x = 5 + np.c_[FEATURES[:6], 1e-4 * RNG.normal(size=(6, 40))]  # Few rows, features that are nearly constant.
    fit = classes.fit_gaussian(sums_of(x, LABELS[:6]))
    whitened = tf.linalg.triangular_solve(fit.factor, tf.transpose(fit.means))
    assert np.max(float(fit.degrees) * np.sum(np.square(whitened), 0)) > 1e7
    drawn = classes.draws(fit, tf.constant([1, 2]), 50).values
    assert max(np.abs(part).max() for part in drawn) < 1e4
    rows, w = np.c_[x, np.ones(6)], classes.plug_in(fit)
    np.testing.assert_allclose(np.float32(rows) @ np.float32(w), rows @ w, atol=1e-3)
    right = np.argmax(classes.log_predictive(fit, x), 1)
    np.testing.assert_array_equal(np.argmax(rows @ w, 1), right)


def test_constant_features_have_no_effect_on_gaussian_classes():
    places = [0, 2, 5, 7]
    padded = np.full((120, 9), 2.0)
    padded[:, places] = FEATURES
    plain, other = (classes.fit_gaussian(sums_of(x[:40], LABELS[:40])) for x in (FEATURES, padded))
    np.testing.assert_allclose(other.log_marginal_likelihood, plain.log_marginal_likelihood, rtol=1e-10)
    found, wanted = (classes.log_predictive(*x) for x in ((other, padded[40:]), (plain, FEATURES[40:])))
    np.testing.assert_allclose(found, wanted, rtol=1e-9)
    w = classes.plug_in(other).numpy()
    np.testing.assert_allclose(w[[*places, 9]], classes.plug_in(plain), rtol=1e-8, atol=1e-9)
    kernel = classes.draws(other, tf.constant([3, 4]), 500).values[0].numpy()
    constant = [1, 3, 4, 6, 8]
    assert np.abs(w[constant]).max() < 1e-9 and np.abs(kernel[:, constant]).max() < 1e-9
    # Error rate: 12 means, each beyond 5 standard errors with probability 6e-7.
    np.testing.assert_array_less(np.abs(kernel.mean(0) - w[:-1])[places], 5 * kernel.std(0)[places] / 500**0.5)
