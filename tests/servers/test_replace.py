"""The server step that takes what the rule pooled."""

import tensorflow as tf

from tfp_bfl import servers
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights import ModelWeights


def weights(value):
    leaf = (tf.fill([2], value),)
    return ModelWeights(MeanField(leaf, leaf), leaf, MeanField((), ()))


def test_replace_has_no_state_and_returns_the_pooled_weights():
    step = servers.replace()
    assert isinstance(step, servers.ServerStep)
    old, pooled = weights(1.0), weights(2.0)
    state = step.initialize(old)
    assert tf.nest.flatten(state) == []
    new_state, new = step.next(state, old, pooled, tf.constant([0, 1]))
    tf.nest.assert_same_structure(new_state, state)
    tf.nest.assert_same_structure(new, pooled)
    for a, b in zip(tf.nest.flatten(new), tf.nest.flatten(pooled), strict=True):
        assert a is b
