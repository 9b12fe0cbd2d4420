"""Sites in natural parameters."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl.algorithms.factors.factor import check_damping, damping_of, natural
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior import MeanField
from tfp_bfl.posterior.vectors import flatten, unflatten

POSTERIOR = MeanField(
    (tf.constant([[1.0, -2.0], [0.5, 3.0]]), tf.constant([4.0])),
    (tf.constant([[0.25, 1.0], [4.0, 0.5]]), tf.constant([2.0])),
)


def test_natural_parameters_in_the_order_of_the_leaves():
    np.testing.assert_array_equal(flatten(POSTERIOR.mean), [1, -2, 0.5, 3, 4])
    site = natural(POSTERIOR)
    np.testing.assert_allclose(site.precision, [4, 1, 0.25, 2, 0.5])
    np.testing.assert_allclose(site.shift, [4, -2, 0.125, 6, 2])


def test_damping_is_one_over_the_clients_unless_it_is_said():
    assert [float(damping_of(None, k)) for k in (0, 1, 4)] == pytest.approx([0.1, 1, 0.25])
    assert float(damping_of(0.5, 4)) == 0.5
    for damping in (0, 1.5, -0.1, float("nan")):
        with pytest.raises(InvalidArgument, match="damping"):
            check_damping(damping)
    for damping in (None, 1, 0.01):
        check_damping(damping)


def test_unflatten_is_the_inverse_of_flatten():
    like = {"a": tf.zeros([2, 3]), "b": (tf.zeros([4]),)}
    vectors = tf.reshape(tf.range(20.0), [2, 10])
    found = unflatten(vectors, like)
    assert found["a"].shape == (2, 2, 3) and found["b"][0].shape == (2, 4)
    np.testing.assert_array_equal(flatten(tf.nest.map_structure(lambda x: x[1], found)), vectors[1])
