"""The variance between clients: closed forms, what it finds of a known one, and what it changes of a product."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tfp_bfl import posterior
from tfp_bfl.algorithms.swag.product import between_clients_variance, gaussian_product, with_random_effects
from tfp_bfl.errors import InvalidArgument

RNG = np.random.default_rng(0)


def client(mean, variance):
    return posterior.MeanField((tf.constant(mean, tf.float64),), (tf.constant(variance, tf.float64),))


def test_two_clients_by_hand():
    """Means 0 and 2 in one weight, 1 and 1 in the other: apart 2 and 0, of which .5 is their own."""
    (tau,) = between_clients_variance([client([0.0, 1.0], [0.2, 0.5]), client([2.0, 1.0], [0.8, 0.5])])
    np.testing.assert_allclose(tau, [2.0 - 0.5, 0.0])


def test_clients_that_agree_or_stand_alone_have_none():
    agreeing = [client([1.0, 2.0], [0.1, 0.1])] * 3
    for sent in (agreeing, agreeing[:1]):
        np.testing.assert_array_equal(between_clients_variance(sent), [[0.0, 0.0]])


@pytest.mark.statistical
def test_a_known_variance_is_found_in_the_mean():
    """Ten clients, 2,000 weights a tensor. tau^2 of .5: (t + v) chi^2_9 / 9 - v, hardly ever below 0. tau^2 of 0: the
    mean of the positive part of v (chi^2_9 / 9 - 1), .18 v."""
    own, sent = 0.04, []
    for _ in range(10):
        means = [np.sqrt(t + own) * RNG.normal(size=2000) for t in (0.5, 0.0)]
        sent.append(
            posterior.MeanField(tuple(map(tf.constant, means)), (tf.fill([2000], tf.constant(own, tf.float64)),) * 2)
        )
    wide, none = between_clients_variance(sent)
    assert float(tf.reduce_mean(wide)) == pytest.approx(0.5, abs=4 * 0.0057)
    positive = own * np.maximum(stats.chi2(9).ppf((np.arange(10_000) + 0.5) / 10_000) / 9 - 1, 0).mean()
    assert float(tf.reduce_mean(none)) == pytest.approx(positive, abs=4 * own * 0.3 / np.sqrt(2000))


def test_what_some_weights_leave_open_does_not_hide_that_clients_differ_in_others():
    """Variances of 100 in one weight beside a distance of 4 in the other, whose variances are .01."""
    (tau,) = between_clients_variance([client([0.0, 1.0], [100.0, 0.01]), client([1.0, 5.0], [100.0, 0.01])])
    np.testing.assert_allclose(tau, [0.0, 8.0 - 0.01])


def test_correlations_stay_and_variances_widen():
    q = posterior.LowRank((tf.zeros([3], tf.float64),), (tf.ones([3], tf.float64),), (tf.ones([2, 3], tf.float64),))
    other = q._replace(mean=(tf.fill([3], tf.constant(4.0, tf.float64)),))
    first, _ = with_random_effects([q, other])
    difference = posterior.covariance(first) - posterior.covariance(q)
    np.testing.assert_allclose(difference, (16 / 2 - 3) * np.eye(3), atol=1e-12)


def test_a_product_of_clients_that_lie_apart_is_as_wide_as_they_are():
    """K clients with variances far below their distance: tau^2 / K, as of means drawn about one."""
    sent = [client(10 * RNG.normal(size=500), np.full(500, 1e-6)) for _ in range(8)]
    narrow, wide = (gaussian_product(sent, None, True, between).diagonal[0] for between in (False, True))
    (tau,) = between_clients_variance(sent)
    np.testing.assert_allclose(narrow, 1e-6 / 8)
    np.testing.assert_allclose(wide, (tau + 1e-6) / 8, rtol=1e-6)
    assert float(tf.reduce_mean(tau)) == pytest.approx(100, rel=0.2)


def test_bad_posteriors_are_refused():
    with pytest.raises(InvalidArgument, match="one at least"):
        between_clients_variance([])
    with pytest.raises(InvalidArgument):
        between_clients_variance([client([0.0], [1.0]), client([0.0, 1.0], [1.0, 1.0])])
