"""Laplace's approximation against closed forms: conjugate regression, dense matrices, and maxima of the evidence."""

import numpy as np
import pytest

from tests.kit import assert_same, refuses
from tfp_bfl.algorithms.laplace.posterior import laplace
from tfp_bfl.posterior import LowRank, MeanField, covariance

N, D, NOISE = 40, 5, 0.7


def regression(seed=0):
    """Features, labels, the least-squares fit, H, gradient and NLL there."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, D)) * [1.0, 2.0, 0.5, 1.0, 3.0]
    y = x @ rng.normal(size=D) + NOISE * rng.normal(size=N)
    w = np.linalg.lstsq(x, y, rcond=None)[0]
    nll = np.sum((y - x @ w) ** 2) / (2 * NOISE**2) + N * np.log(NOISE * np.sqrt(2 * np.pi))
    return x, y, w, x.T @ x / NOISE**2, nll


def leaves(w):
    return w[:3].reshape(3, 1), w[3:]


def zeros():
    return leaves(np.zeros(D))


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_a_full_curvature_gives_the_dense_gaussian(temperature):
    _, _, w, h, nll = regression()
    found = laplace(leaves(w), h, zeros(), nll, prior_stddev=0.8, temperature=temperature)
    at_one = np.linalg.inv(h + np.eye(D) / 0.8**2)
    assert isinstance(found.posterior, LowRank)
    np.testing.assert_allclose(covariance(found.posterior), temperature * at_one, rtol=1e-5, atol=1e-8)
    for mean, part in zip(found.posterior.mean, leaves(w)):
        np.testing.assert_array_equal(mean, np.float32(part))
    assert found.effective_parameters == pytest.approx(np.trace(h @ at_one), rel=1e-10)


def test_a_diagonal_gives_the_mean_field_gaussian():
    _, _, w, h, nll = regression()
    found = laplace(leaves(w), leaves(np.diag(h)), zeros(), nll, prior_stddev=0.8)
    assert isinstance(found.posterior, MeanField)
    assert_same(found.posterior.variance, leaves(1 / (np.diag(h) + 1 / 0.8**2)), rtol=1e-6)


def test_the_evidence_is_that_of_the_integral():
    """At the mode of the posterior itself a Gaussian's log Z is exact: log p(y) = log N(y; 0, t^2 X X^T + s^2 I)."""
    x, y, _, h, _ = regression()
    stddev = 0.8
    w = np.linalg.solve(h + np.eye(D) / stddev**2, x.T @ y / NOISE**2)
    nll = np.sum((y - x @ w) ** 2) / (2 * NOISE**2) + N * np.log(NOISE * np.sqrt(2 * np.pi))
    found = laplace(leaves(w), h, zeros(), nll, prior_stddev=stddev).log_marginal_likelihood
    marginal = stddev**2 * x @ x.T + NOISE**2 * np.eye(N)
    _, log_det = np.linalg.slogdet(marginal)
    wanted = -0.5 * (N * np.log(2 * np.pi) + log_det + y @ np.linalg.solve(marginal, y))
    assert found == pytest.approx(wanted, rel=1e-10)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_the_fitted_prior_has_the_largest_evidence(full, temperature):
    _, _, w, h, nll = regression()
    curvature = h if full else leaves(np.diag(h))
    at = lambda stddev: laplace(leaves(w), curvature, zeros(), nll, prior_stddev=stddev, temperature=temperature)
    fitted = at(None)
    (stddev,) = fitted.prior_stddev
    assert fitted[1:] == laplace(leaves(w), curvature, zeros(), nll)[1:]  # T scales the covariance alone.
    evidence = fitted.log_marginal_likelihood
    assert evidence == pytest.approx(at(float(stddev)).log_marginal_likelihood, rel=1e-12)
    for factor in (0.1, 0.5, 0.98, 1.02, 2, 10):
        assert at(float(stddev * factor)).log_marginal_likelihood < evidence
    # MacKay's fixed point: a ||w||^2 is the number of parameters that the data determine.
    assert fitted.effective_parameters == pytest.approx(w @ w / stddev**2, rel=1e-8)


def test_a_prior_for_each_group_is_that_of_the_group_alone():
    _, _, w, h, nll = regression()
    parts, curvature = leaves(w), leaves(np.diag(h))
    both = laplace(parts, curvature, zeros(), nll, groups=(0, 1))
    for g in (0, 1):
        alone = laplace(parts[g : g + 1], curvature[g : g + 1], zeros()[g : g + 1], nll)
        assert both.prior_stddev[g] == pytest.approx(alone.prior_stddev[0], rel=1e-10)
        np.testing.assert_allclose(both.posterior.variance[g], alone.posterior.variance[0], rtol=1e-6)
    one = laplace(parts, curvature, zeros(), nll)
    assert both.log_marginal_likelihood > one.log_marginal_likelihood
    refuses("is for a diagonal curvature", laplace, parts, h, zeros(), nll, groups=(0, 1))


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_distance_is_how_far_the_mode_of_the_likelihood_lies_off(temperature):
    _, _, w, h, nll = regression()
    step = np.random.default_rng(1).normal(size=D)
    found = laplace(leaves(w + step), h, leaves(h @ step), nll, prior_stddev=1e3, temperature=temperature)
    assert found.distance == pytest.approx(np.sqrt(step @ h @ step / D), rel=1e-4)
    assert laplace(leaves(w), h, zeros(), nll).distance == 0


def test_weights_that_the_data_leave_alone_have_the_prior():
    found = laplace(leaves(np.ones(D)), leaves(np.zeros(D)), zeros(), 1.0, prior_stddev=2.0)
    assert all(np.all(x == 4) for x in found.posterior.variance) and found.effective_parameters == 0


@pytest.mark.parametrize(("options", "words"), [({"temperature": 0}, "temperature"), ({"prior_stddev": -1}, "prior_s")])
def test_numbers_out_of_range_are_refused(options, words):
    refuses(words, laplace, zeros(), zeros(), zeros(), 1.0, **options)
