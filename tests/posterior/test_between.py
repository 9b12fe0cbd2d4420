"""The variance between clients: closed forms, what it finds of a known one, and what it changes of a product."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl import posterior
from tfp_bfl.errors import InvalidArgument

RNG = np.random.default_rng(0)


def client(mean, variance):
    return posterior.MeanField((tf.constant(mean, tf.float64),), (tf.constant(variance, tf.float64),))


def test_two_clients_by_hand():
    """Means 0 and 2 in one weight, 1 and 1 in the other: apart 2 and 0, of which .5 is their own."""
    (tau,) = posterior.between_clients_variance([client([0.0, 1.0], [0.5, 0.5]), client([2.0, 1.0], [0.5, 0.5])])
    assert float(tau) == pytest.approx((2.0 + 0.0) / 2 - 0.5)


def test_clients_that_agree_or_stand_alone_have_none():
    agreeing = [client([1.0, 2.0], [0.1, 0.1])] * 3
    assert [float(t) for t in posterior.between_clients_variance(agreeing)] == [0.0]
    assert [float(t) for t in posterior.between_clients_variance(agreeing[:1])] == [0.0]


@pytest.mark.statistical
def test_a_known_variance_is_found_for_each_tensor():
    """Ten clients, 2,000 weights a tensor, tau^2 of 0.5 and 0: sd of the estimates .005 and .001; 4 of them."""
    own, sent = 0.04, []
    for _ in range(10):
        means = [np.sqrt(t + own) * RNG.normal(size=2000) for t in (0.5, 0.0)]
        sent.append(
            posterior.MeanField(tuple(map(tf.constant, means)), (tf.fill([2000], tf.constant(own, tf.float64)),) * 2)
        )
    wide, none = posterior.between_clients_variance(sent)
    assert float(wide) == pytest.approx(0.5, abs=4 * 0.0057)
    assert 0 <= float(none) < 4 * 0.0005


def test_correlations_stay_and_variances_widen():
    q = posterior.LowRank((tf.zeros([3], tf.float64),), (tf.ones([3], tf.float64),), (tf.ones([2, 3], tf.float64),))
    other = q._replace(mean=(tf.fill([3], tf.constant(4.0, tf.float64)),))
    first, _ = posterior.with_random_effects([q, other])
    difference = posterior.covariance(first) - posterior.covariance(q)
    np.testing.assert_allclose(difference, (16 / 2 - 3) * np.eye(3))


def test_a_product_of_clients_that_lie_apart_is_as_wide_as_they_are():
    """K clients with variances far below their distance: tau^2 / K, as of means drawn about one."""
    sent = {str(k): client(10 * RNG.normal(size=500), np.full(500, 1e-6)) for k in range(8)}
    product = posterior.product_of(sent)
    narrow, wide = (posterior.pooled(product, True, between).diagonal[0] for between in (False, True))
    (tau,) = posterior.between_clients_variance(list(sent.values()))
    np.testing.assert_allclose(narrow, 1e-6 / 8)
    np.testing.assert_allclose(wide, (float(tau) + 1e-6) / 8, rtol=1e-6)
    assert float(tau) == pytest.approx(100, rel=0.2)


def test_bad_posteriors_are_refused():
    with pytest.raises(InvalidArgument, match="one at least"):
        posterior.between_clients_variance([])
    with pytest.raises(InvalidArgument):
        posterior.between_clients_variance([client([0.0], [1.0]), client([0.0, 1.0], [1.0, 1.0])])
