"""Each rule against numbers worked out by hand, and against what its equation stands for."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_bfl import rules
from tfp_bfl.posterior import MeanField

from .reference import random_case
from .test_contract import fold, summaries

# Two clients, N(1, 1) and N(4, 2), with weights 1 and 3: b = (1/4, 3/4). The anchor is N(2, 4).
STACKED = MeanField(np.array([[1.0], [4.0]]), np.array([[1.0], [2.0]]))
WEIGHTS = np.array([1.0, 3.0])
ANCHOR = MeanField(np.array([2.0]), np.array([4.0]))

BY_HAND = {
    # mean 1/4 + 12/4 = 13/4; variance 1/4 + 6/4 = 7/4
    "naive_weighted_average": (13 / 4, 7 / 4),
    # variance 1/16 x 1 + 9/16 x 2 = 19/16
    "weighted_sum": (13 / 4, 19 / 16),
    # variance 1/4 (1 + 1) + 3/4 (2 + 16) - 169/16 = 14 - 169/16 = 55/16
    "linear_pool": (13 / 4, 55 / 16),
    # precision 1 + 1/2 = 3/2; mean 2/3 (1 + 4/2) = 2
    "conflation": (2.0, 2 / 3),
    # sum w / v = 1 + 3/2 = 5/2, w_max 3: variance 6/5; mean (1 + 12/2) / (5/2) = 14/5
    "weighted_conflation": (14 / 5, 6 / 5),
    # precision 1 + 1/2 - 1/4 = 5/4; mean 4/5 (1 + 4/2 - 2/4) = 2
    "distributed_weight_consolidation": (2.0, 4 / 5),
    # precision 1/4 + 3/8 = 5/8; mean 8/5 (1/4 + 3/2) = 14/5
    "log_linear_pool": (14 / 5, 8 / 5),
    # mean 1/4 + 3/4 x 4 = 13/4; precision 1/4 + 3/8 = 5/8
    "mean_precision_average": (13 / 4, 8 / 5),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_by_hand(name):
    pooled = rules.aggregate(rules.parse_rule(name), STACKED, WEIGHTS, ANCHOR)
    np.testing.assert_allclose([pooled.mean, pooled.variance], np.reshape(BY_HAND[name], [2, 1]), rtol=1e-14)


def test_conflation_is_weighted_conflation_with_equal_weights():
    stacked, _, _ = random_case(7, dtype=np.float32)
    plain = rules.aggregate(rules.conflation(), stacked)
    weighted = rules.aggregate(rules.weighted_conflation(), stacked)
    np.testing.assert_array_equal(plain.mean, weighted.mean)
    np.testing.assert_array_equal(plain.variance, weighted.variance)
    thirds = rules.aggregate(rules.weighted_conflation(), stacked, np.full(7, 0.3))
    np.testing.assert_allclose(plain.variance, thirds.variance, rtol=1e-6)


def _log_density(x, mean, variance):
    return -0.5 * (np.log(2 * np.pi * variance) + (x - mean) ** 2 / variance)


@pytest.mark.parametrize(("name", "powers"), [("log_linear_pool", WEIGHTS / 4), ("conflation", np.ones(2))])
def test_product_rules_multiply_densities(name, powers):
    """The pooled density on a grid is prod_k p_k^power, normalised by its sum over the grid."""
    grid = np.linspace(-10, 15, 5001)
    pooled = rules.aggregate(rules.parse_rule(name), STACKED, WEIGHTS)
    product = np.exp(sum(p * _log_density(grid, *q) for p, q in zip(powers, np.concatenate(STACKED, 1))))
    product /= product.sum() * (grid[1] - grid[0])
    actual = np.exp(_log_density(grid, pooled.mean.numpy(), pooled.variance.numpy()))
    np.testing.assert_allclose(actual, product, rtol=1e-8, atol=1e-12)


def test_linear_pool_has_the_moments_of_the_mixture():
    stacked, weights, _ = random_case(5)
    mixture = tfp.distributions.MixtureSameFamily(
        tfp.distributions.Categorical(probs=weights / weights.sum()),
        tfp.distributions.Normal(stacked.mean.T, np.sqrt(stacked.variance.T)),
    )
    pooled = rules.aggregate(rules.linear_pool(), stacked, weights)
    np.testing.assert_allclose(pooled.mean, mixture.mean(), rtol=1e-10)
    np.testing.assert_allclose(pooled.variance, mixture.variance(), rtol=1e-10)


def test_weighted_sum_is_the_distribution_of_the_weighted_sum():
    """By linearity: the variance of b^T W for W ~ N(m, diag v) is that of tfp's multivariate normal, mapped."""
    stacked, weights, _ = random_case(5, size=1)
    b = weights / weights.sum()
    joint = tfp.distributions.MultivariateNormalDiag(stacked.mean[:, 0], np.sqrt(stacked.variance[:, 0]))
    pooled = rules.aggregate(rules.weighted_sum(), stacked, weights)
    np.testing.assert_allclose(pooled.mean, [b @ joint.mean().numpy()], rtol=1e-12)
    np.testing.assert_allclose(pooled.variance, [b @ joint.covariance().numpy() @ b], rtol=1e-12)


def _consolidate(stacked, anchor):
    rule, anchor, parts = summaries("distributed_weight_consolidation", stacked, np.float32([1, 1]), anchor)
    return rule.pool(fold(rule, parts), anchor)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_consolidation_keeps_the_anchor_where_the_precision_is_not_positive(dtype):
    # Precisions of two clients minus the anchor's 1: 1/2 + 1/2 - 1 = 0, 1/4 + 1/4 - 1 < 0, 2 + 1 - 1 = 2.
    stacked = MeanField(
        np.array([[7.0, 7.0, 1.0], [9.0, 9.0, 4.0]], dtype), np.array([[2.0, 4.0, 0.5], [2.0, 4.0, 1.0]], dtype)
    )
    anchor = MeanField(np.array([0.5, -0.5, 2.0], dtype), np.ones(3, dtype))
    pooled, metrics = _consolidate(stacked, anchor)
    # The third: mean (1 x 2 + 4 x 1 - 2 x 1) / 2 = 2, variance 1/2.
    np.testing.assert_array_equal(pooled.mean, np.array([0.5, -0.5, 2.0], dtype))
    np.testing.assert_array_equal(pooled.variance, np.array([1.0, 1.0, 0.5], dtype))
    assert metrics.keys() == {"kept_weights"} and metrics["kept_weights"].numpy() == 2
    assert metrics["kept_weights"].dtype == tf.int64
    plain = rules.aggregate(rules.distributed_weight_consolidation(), stacked, anchor=anchor)
    np.testing.assert_array_equal(plain.mean, pooled.mean)
    np.testing.assert_array_equal(plain.variance, pooled.variance)


def test_consolidation_reports_no_kept_weights_when_all_are_sound():
    _, metrics = _consolidate(STACKED, ANCHOR)
    assert metrics["kept_weights"].numpy() == 0


def test_consolidation_keeps_its_digits_where_precisions_cancel():
    """100 float32 clients as sure as the anchor up to 1e-4: 1 / v ~ 1e8 each, summed and subtracted."""
    rng = np.random.default_rng(0)
    anchor = MeanField(np.full(20, 0.5, np.float32), np.full(20, 1e-8, np.float32))
    variance = (1e-8 * (1 - 1e-4 * rng.uniform(0, 1, (100, 20)))).astype(np.float32)
    stacked = MeanField((0.5 + 1e-6 * rng.normal(size=(100, 20))).astype(np.float32), variance)
    pooled = rules.aggregate(rules.distributed_weight_consolidation(), stacked, anchor=anchor)
    v, v0 = variance.astype(np.float64), anchor.variance.astype(np.float64)
    np.testing.assert_allclose(pooled.variance, 1 / ((1 / v).sum(0) - 99 / v0), rtol=1e-6)
