"""Sites that begin at the server's first posterior do so in whatever graph an engine builds."""

import numpy as np
import tensorflow as tf

from tfp_bfl import models
from tfp_bfl.algorithms.factors.work import factors
from tfp_bfl.weights import get_weights


def test_a_first_site_is_made_in_another_graph():
    """TensorFlow Federated builds one of its own, which captures no tensor from outside."""
    model = models.mlp(kind="flipout", input_shape=(2,), num_classes=2, hidden=(3,))
    memory = factors(model).memory
    weights = tf.nest.map_structure(np.asarray, get_weights(model))
    expected = memory(weights, 0.5)
    with tf.Graph().as_default():
        site = memory(weights, 0.5)
        found = tf.compat.v1.Session().run(site)
    tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)
