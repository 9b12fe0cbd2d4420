"""What local training aims at, for every way to count the prior and every weighting of the server."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl import weighting
from tfp_bfl.training.updates import KLS, target_of
from tfp_bfl.weights import Population
from tfp_bfl.weights.flat import Prior

PRIOR = Prior(
    tf.constant([0.5, -1.0, 0.0]),
    tf.constant([4.0, 0.25, 0.0]),
    tf.constant([-0.5 * np.log(4.0), np.log(2.0)], tf.float32),
)
OWN, CLIENTS, ALL = 20.0, 8, 200
SIZES = {"total": ALL, "client": OWN, "product": OWN}


def target(kl, weights="train_size", temperature=1.0, federation=None):
    federation = Population(tf.constant(CLIENTS), tf.constant(ALL)) if federation is None else federation
    return target_of(kl, weights, temperature, PRIOR, federation, tf.constant(OWN))


@pytest.mark.parametrize("kl", KLS)
@pytest.mark.parametrize("weights", weighting.ALL_WEIGHTINGS)
@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_effective_number_of_examples(kl, weights, temperature):
    """N_k / b_k: of equal weights that is K N_k, of weights by size N, and of others, known too late, N."""
    wanted = CLIENTS * OWN if (kl, weights) == ("total", "equal") else SIZES[kl]
    np.testing.assert_allclose(target(kl, weights, temperature).size, wanted / temperature, rtol=1e-6)


@pytest.mark.parametrize("kl", KLS)
@pytest.mark.parametrize("weights", weighting.ALL_WEIGHTINGS)
def test_prior_is_the_layers_own_or_its_root(kl, weights):
    """N(m, t^2)^(1 / K) is N(m, K t^2); the flat prior of point weights stays flat."""
    prior = target(kl, weights).prior
    share = 1 / CLIENTS if kl == "product" else 1
    np.testing.assert_array_equal(prior.mean, PRIOR.mean)
    np.testing.assert_allclose(prior.precision, PRIOR.precision * share, rtol=1e-6)
    np.testing.assert_allclose(prior.log_stddev, -0.5 * np.log(prior.precision[:2]), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kl", KLS)
@pytest.mark.parametrize("weights", weighting.ALL_WEIGHTINGS)
def test_a_client_without_a_federation_in_the_message_is_alone(kl, weights):
    for federation in (Population(), Population(tf.constant(0), tf.constant(0)), Population(1, int(OWN))):
        alone = target(kl, weights, federation=federation)
        np.testing.assert_array_equal(alone.size, OWN)
        for x, wanted in zip(alone.prior, PRIOR):
            np.testing.assert_allclose(x, wanted, rtol=1e-6)


def test_a_federation_is_no_smaller_than_its_client():
    np.testing.assert_array_equal(target("total", federation=Population(2, 3)).size, OWN)


@pytest.mark.parametrize("weights", ["equal", "train_size"])
def test_the_log_linear_pool_of_the_optima_is_the_posterior(weights):
    """Gaussian likelihoods of one weight: optima prior likelihood_k^(n / N_k), pooled in natural parameters."""
    sizes, precision, shift = np.array([5.0, 20.0, 75.0]), np.array([2.0, 30.0, 7.0]), np.array([1.0, -3.0, 4.0])
    shares = np.ones(3) / 3 if weights == "equal" else sizes / sizes.sum()
    federation = Population(3, int(sizes.sum()))
    powers = [
        float(target_of("total", weights, 1.0, PRIOR, federation, tf.constant(n, tf.float32)).size) / n for n in sizes
    ]
    pooled = [np.sum(shares * (start + powers * own)) for start, own in ((0.25, precision), (-0.25, shift))]
    np.testing.assert_allclose(pooled, [0.25 + precision.sum(), -0.25 + shift.sum()], rtol=1e-5)


def test_the_product_of_the_optima_counts_the_prior_once():
    optima = [target("product").prior.precision[:2] + own for own in ([3.0, 1.0], [0.5, 2.0])]
    times = CLIENTS // 2
    np.testing.assert_allclose(times * sum(optima), PRIOR.precision[:2] + times * np.array([3.5, 3.0]), rtol=1e-6)
