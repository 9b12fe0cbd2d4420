"""Posteriors as TFP's distributions, against this library's own moments and densities."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl import posterior
from tfp_bfl.errors import InvalidArgument

RNG = np.random.default_rng(0)
SHAPES = {"a": (2, 3), "b": (4,)}


def leaves(*leading):
    return {name: tf.constant(RNG.normal(size=(*leading, *shape)), tf.float32) for name, shape in SHAPES.items()}


def positive():
    return tf.nest.map_structure(lambda x: 0.1 + tf.square(x), leaves())


def test_mean_field():
    q = posterior.MeanField(leaves(), positive())
    d = posterior.to_tfp(q)
    at = leaves()
    np.testing.assert_allclose(d.log_prob([at["a"], at["b"]]), posterior.log_prob(q, at), rtol=1e-5)
    assert [x.shape for x in d.sample(5, seed=(0, 1))] == [(5, 2, 3), (5, 4)]


def test_low_rank():
    q = posterior.LowRank(leaves(), positive(), leaves(2))
    d = posterior.to_tfp(q)
    at = leaves()
    flat = tf.concat([tf.reshape(at["a"], [-1]), at["b"]], 0)
    np.testing.assert_allclose(d.log_prob(flat), posterior.log_prob(q, at), rtol=1e-4)
    np.testing.assert_allclose(d.covariance(), posterior.covariance(q), rtol=1e-4, atol=1e-5)


def test_draws():
    q = posterior.Samples(leaves(6))
    d = posterior.to_tfp(q)
    np.testing.assert_allclose(d.mean()[6:], tf.reduce_mean(q.values["b"], 0), rtol=1e-5)
    assert d.sample(3, seed=(0, 1)).shape == (3, 10)


@pytest.mark.parametrize("q", [None, 3, posterior.MeanField((), ())])
def test_what_is_none_is_refused(q):
    with pytest.raises(InvalidArgument, match=r"q must be|has no weights"):
        posterior.to_tfp(q)
