"""Moments of mixtures by hand: N(0, 1) with weight 1 and N(3, 4) with weight 2 have mean 2 and variance 5."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl.posterior import MeanField, mixtures

MEANS, VARIANCES, WEIGHTS = [0.0, 3.0], [1.0, 4.0], [1.0, 2.0]


def part(k):
    return MeanField((tf.constant([MEANS[k]]),), (tf.constant([VARIANCES[k]]),))


def assert_by_hand(q):
    np.testing.assert_allclose(q.mean[0], [2.0], rtol=1e-6)
    np.testing.assert_allclose(q.variance[0], [5.0], rtol=1e-6)
    assert q.mean[0].dtype == tf.float32


@pytest.mark.parametrize("centre", [0.0, -7.0])
def test_sums_of_parts(centre):
    anchor = MeanField((tf.constant([centre]),), (tf.constant([1.0]),))
    sums = [mixtures.summarise(part(k), anchor, tf.constant(WEIGHTS[k])) for k in range(2)]
    assert_by_hand(mixtures.moments(tf.nest.map_structure(tf.add, *sums), anchor))


def test_points_that_agree_have_no_variance():
    """The sums are not exact: 143 d / 143 differs from d by rounding, and so do the squares."""
    generator = np.random.default_rng(0)
    anchor = MeanField((tf.constant(generator.normal(size=1000), tf.float32),), (tf.zeros(1000),))
    mean = anchor.mean[0] + tf.constant(0.01 * generator.normal(size=1000), tf.float32)
    for sizes in ((143.0,), (143.0, 150.0, 144.0)):
        sums = [mixtures.summarise(MeanField((mean,), (tf.zeros(1000),)), anchor, tf.constant(n)) for n in sizes]
        variance = mixtures.moments(tf.nest.map_structure(lambda *x: tf.add_n(x), *sums), anchor).variance[0]
        assert np.all(variance >= 0) and np.max(variance) < 1e-12


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_a_stack(scale):
    stacked = tf.nest.map_structure(lambda *x: tf.stack(x), part(0), part(1))
    assert_by_hand(mixtures.mixture(stacked, [scale * w for w in WEIGHTS]))
