"""Sums in fixed point, as secure aggregation adds them, beside sums of floating-point numbers."""

import numpy as np
import pytest

from tests.glm.test_hierarchical import federation
from tests.kit import refuses
from tfp_bfl import glm
from tfp_bfl.glm.sums import MOST_CLIENTS, RESOLUTION, decode, encode
from tfp_bfl.sites.masks import add_mask


def survival(clients=4):
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(30, 2)), np.stack([rng.exponential(size=30), np.ones(30)], 1)) for _ in range(clients)]


def case(family, scale):
    """Clients whose first column is in another unit, and options."""
    clients = survival() if family == "cox" else federation(family, clients=8)
    clients = [(features * [scale, 1.0], outcome) for features, outcome in clients]
    return clients, {"stratified": True} if family == "cox" else {}


@pytest.mark.parametrize("scale", [1.0, 1e5, 1e-4])
@pytest.mark.parametrize("family", ["gaussian", "bernoulli", "poisson", "cox"])
def test_the_posterior_is_that_of_exact_sums(family, scale):
    """Mean within 1e-9 posterior standard deviations, standard deviations within 1e-9 of themselves."""
    clients, options = case(family, scale)
    exact, secure = (glm.fit(clients, family, secure_sums=x, **options) for x in (False, True))
    np.testing.assert_allclose((secure.mean - exact.mean) / exact.stddev, 0, atol=1e-9)
    np.testing.assert_allclose(secure.stddev, exact.stddev, rtol=1e-9)
    assert (secure.count, secure.messages, secure.warnings) == (exact.count, exact.messages, exact.warnings)


@pytest.mark.parametrize("family", ["gaussian", "bernoulli"])
def test_random_effects_are_those_of_exact_sums(family):
    clients = federation(family, clients=12)
    exact, secure = (glm.fit_hierarchical(clients, family, secure_sums=x) for x in (False, True))
    np.testing.assert_allclose((secure.posterior.mean - exact.posterior.mean) / exact.posterior.stddev, 0, atol=1e-8)
    np.testing.assert_allclose(secure.posterior.stddev, exact.posterior.stddev, rtol=1e-8)
    np.testing.assert_allclose(secure.between_stddev, exact.between_stddev, rtol=1e-8)


def test_sums_are_within_the_resolution_and_masks_cancel():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(50, 30)) * 10.0 ** rng.integers(-12, 15, 30)
    encoded = [encode(one) for one in values]
    for seed in range(40):
        add_mask([encoded[seed]], bytes([seed]) * 32, 1)
        add_mask([encoded[seed + 1]], bytes([seed]) * 32, -1)
    total = decode(np.sum(encoded, 0))
    exact = [float(sum(int(np.rint(np.ldexp(x, 60))) for x in column) / 2**60) for column in values.T]
    np.testing.assert_array_equal(total, exact)
    np.testing.assert_allclose(total, values.sum(0), rtol=1e-12, atol=50 * RESOLUTION)
    # The most negative sum of the most clients does not wrap.
    assert decode(encode(np.array([-1e20])) * MOST_CLIENTS)[0] == -1e20 * MOST_CLIENTS


@pytest.mark.parametrize("family", ["gaussian", "bernoulli", "cox"])
@pytest.mark.parametrize(
    ("scale", "message"),
    [(1e-10, "too small for"), (1e-9, "Column 'x1' .*too small"), (1.0, ""), (1e9, ""), (1e12, "very large values")],
)
def test_columns_are_within_the_range_of_fixed_point(family, scale, message):
    clients, options = case(family, scale)
    exact = glm.fit(clients, family, **options)
    if message:
        refuses(message, glm.fit, clients, family, secure_sums=True, **options)
    else:
        secure = glm.fit(clients, family, secure_sums=True, **options)
        np.testing.assert_allclose((secure.mean - exact.mean) / exact.stddev, 0, atol=1e-9)


@pytest.mark.parametrize(
    ("fit", "scale", "message"),
    [
        (glm.fit, 1e-9, "The outcome .* too small for secure sums"),
        (glm.fit_hierarchical, 1e7, "divided by the outcome's residual sd .* too small for secure sums"),
    ],
)
def test_outcomes_are_within_the_range_of_fixed_point(fit, scale, message):
    clients = [(features, scale * outcome) for features, outcome in federation("gaussian", clients=8)]
    fit(clients)
    refuses(message, fit, clients, secure_sums=True)


def test_a_column_of_zeros_has_its_prior():
    clients = [(features * [0.0, 1.0], outcome) for features, outcome in federation("bernoulli", clients=8)]
    exact, secure = (glm.fit(clients, "bernoulli", prior_stddev=2.0, secure_sums=x) for x in (False, True))
    np.testing.assert_allclose(secure.stddev, exact.stddev, rtol=1e-9)


@pytest.mark.parametrize("value", [np.inf, np.nan, 1e21])
def test_a_number_that_is_too_large_is_no_sum(value):
    assert np.all(np.isnan(decode(encode(np.array([1.0, value])) + encode(np.array([1.0, 2.0])))))


@pytest.mark.parametrize(
    ("family", "scale", "message"),
    [("bernoulli", 1e12, "rescale columns of very large values"), ("cox", 1.0, "secure sums give stratified")],
)
def test_bad_input_is_one_sentence(family, scale, message):
    clients = survival() if family == "cox" else federation(family, clients=4)
    refuses(message, glm.fit, [(features * scale, outcome) for features, outcome in clients], family, secure_sums=True)
