"""The Kronecker posterior as a dense covariance and as a distribution of TensorFlow Probability."""

import numpy as np
import pytest
from scipy import stats

import tfp_bfl as bfl
from tests.kit import refuses
from tfp_bfl.posterior.kronecker import Kronecker


@pytest.fixture
def q():
    rng = np.random.default_rng(0)
    rows, columns = rng.normal(size=[4, 4]), rng.normal(size=[3, 3])
    stddev = rng.uniform(0.5, 2, size=[4, 3])
    return Kronecker((rng.normal(size=[3, 3]), rng.normal(size=[3])), rows, columns, stddev)


def dense(q):
    """Return the mean and the covariance over the rows of [F + 1, C] one after another, in NumPy."""
    turned = np.kron(q.rows, q.columns) * q.stddev.ravel()
    return np.concatenate([x.ravel() for x in q.mean]), turned @ turned.T


def test_the_covariance_is_that_of_its_factors_and_holds_the_marginals(q):
    found = np.array(bfl.posterior.covariance(q))
    np.testing.assert_allclose(found, dense(q)[1], rtol=1e-12)
    kernel, bias = bfl.posterior.marginals(q).variance
    np.testing.assert_allclose(np.diag(found), [*np.ravel(kernel), *np.ravel(bias)], rtol=1e-12)


def test_its_distribution_has_the_density_of_scipy(q):
    found, reference = bfl.posterior.to_tfp(q), stats.multivariate_normal(*dense(q))
    points = reference.rvs(5, random_state=1)
    np.testing.assert_allclose(found.log_prob(points), reference.logpdf(points), rtol=1e-10)
    np.testing.assert_allclose(found.covariance(), dense(q)[1], rtol=1e-10)


def test_its_draws_have_its_covariance(q):
    """Compare 20,000 draws: each entry is within 6 standard errors: error rate below 1e-6 over 144 entries."""
    drawn = np.array(bfl.posterior.to_tfp(q).sample(20_000, seed=3))
    mean, covariance = dense(q)
    error = np.sqrt((covariance**2 + np.outer(np.diag(covariance), np.diag(covariance))) / len(drawn))
    assert np.max(np.abs(np.cov(drawn.T) - covariance) / error) < 6
    assert np.max(np.abs(drawn.mean(0) - mean) / np.sqrt(np.diag(covariance) / len(drawn))) < 6


def test_a_dense_covariance_of_too_many_weights_is_refused(q):
    large = Kronecker((np.zeros([999, 6]), np.zeros(6)), np.eye(1000), np.eye(6), np.ones([1000, 6]))
    refuses("takes at most 5000 weights, but q has 6000", bfl.posterior.covariance, large)
    assert np.isfinite(float(bfl.posterior.to_tfp(large).log_prob(np.zeros(6000))))
