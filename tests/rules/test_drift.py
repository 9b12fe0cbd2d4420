"""Rules as the round uses them, centred on the broadcast posterior, when all clients move away from it alike."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl import rules
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior import MeanField


@pytest.mark.parametrize("stddev", [1e-3, 1e-4, 1e-5])
def test_linear_pool_keeps_its_digits_where_the_drift_dwarfs_the_stddev(stddev):
    rng = np.random.default_rng(0)
    anchor = rng.normal(0.5, 0.1, 2000).astype(np.float32)
    means = (anchor + rng.normal(0, 0.02, 2000) + stddev * rng.normal(size=(3, 2000))).astype(np.float32)
    variances = (stddev**2 * rng.uniform(0.5, 2, (3, 2000))).astype(np.float32)
    weights = np.array([1.0, 2.0, 3.0])
    rule = rules.linear_pool()
    start = MeanField(tf.constant(anchor), tf.fill([2000], np.float32(stddev**2)))
    parts = [
        rule.summarise(MeanField(m, v), start, tf.constant(w, tf.float32)) for m, v, w in zip(means, variances, weights)
    ]
    pooled = rule.pool(functools.reduce(rule.merge, parts), start).weights
    share = weights / weights.sum()
    mean = share @ means.astype(np.float64)
    variance = share @ (variances + (means - mean) ** 2)
    np.testing.assert_allclose(pooled.variance, variance, rtol=1e-5)
    np.testing.assert_allclose(pooled.mean, mean, rtol=1e-6)


@pytest.mark.parametrize("wrong", [rules.conflation, 3, None])
def test_what_is_not_a_rule_is_refused(wrong):
    stacked = MeanField(tf.zeros([2, 3]), tf.ones([2, 3]))
    for use in (lambda: rules.aggregate(wrong, stacked), lambda: rules.whole_model(wrong)):
        with pytest.raises(InvalidArgument, match="rule must be a Rule"):
            use()
