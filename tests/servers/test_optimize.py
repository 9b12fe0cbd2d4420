"""The server's own optimizer on the pooled change: against `replace`, by hand, and what it leaves alone."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl import servers
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.federated import server_optimizer
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights import ModelWeights

SEED = tf.constant([0, 1])


def weights(value):
    leaf = lambda x: (tf.fill([2, 3], float(x)), tf.fill([3], 10.0 + x))
    return ModelWeights(MeanField(leaf(value), leaf(value + 50)), leaf(value + 20), MeanField(leaf(7 * value), leaf(2)))


def after(optimizer, *pooled, start=0.0):
    """The server's weights after rounds that pooled these."""
    step = servers.optimize(optimizer)
    own = weights(start)
    state = step.initialize(own)
    for value in pooled:
        new_state, own = step.next(state, own, weights(value), SEED)
        tf.nest.assert_same_structure(new_state, state)
        state = new_state
    return own


def trained(w):
    return tf.nest.flatten((w.posterior.mean, w.point))


def assert_close(actual, wanted):
    tf.nest.assert_same_structure(actual, wanted)
    for a, b in zip(tf.nest.flatten(actual), tf.nest.flatten(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_sgd_of_rate_1_is_replace():
    assert_close(after(server_optimizer("sgd", 1.0), 3.0, -2.0, 5.0), weights(5.0))


def test_sgd_of_half_the_rate_goes_half_way_but_takes_variances_and_statistics_as_they_are():
    actual = after(server_optimizer("sgd", 0.5), 4.0)
    assert_close(trained(actual), trained(weights(2.0)))
    assert_close(actual.posterior.variance, weights(4.0).posterior.variance)
    assert_close(actual.moments, weights(4.0).moments)


def test_momentum_over_two_rounds():
    """v_1 = -4, w_1 = 0 + 0.5 * 4 = 2; gradient 2 - 6 = -4, v_2 = 0.9 * -4 - 4 = -7.6, w_2 = 2 + 0.5 * 7.6 = 5.8."""
    optimizer = server_optimizer("sgd", 0.5, momentum=0.9)
    assert_close(trained(after(optimizer, 4.0)), trained(weights(2.0)))
    assert_close(trained(after(optimizer, 4.0, 6.0)), trained(weights(5.8)))


def test_adam_moves_by_its_rate_in_the_first_round():
    """m / (sqrt(v) + epsilon) is 1 after the correction of both for their start."""
    adam = server_optimizer("adam", 0.1, epsilon=1e-9)
    for actual, wanted in zip(trained(after(adam, 4.0)), trained(weights(0.1)), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4)
    far = after(adam, *[4.0] * 80)
    assert all(np.all(np.abs(a - b) < 1.5) for a, b in zip(trained(far), trained(weights(4.0)), strict=True))


@pytest.mark.parametrize("name", ["yogi", "adagrad"])
def test_others_move_towards_what_was_pooled(name):
    for actual, old, new in zip(*map(trained, (after(server_optimizer(name, 0.1), 4.0), weights(0), weights(4)))):
        assert np.all(actual > old) and np.all(actual < new)


def test_in_a_graph():
    step = servers.optimize(server_optimizer("sgd", 0.5, momentum=0.9))
    state = step.initialize(weights(0.0))
    assert all(isinstance(x, tf.Tensor) for x in tf.nest.flatten(state))
    _, own = tf.function(step.next)(state, weights(0.0), weights(4.0), SEED)
    assert_close(trained(own), trained(weights(2.0)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: servers.optimize("adam"), "optimizer must have initialize and next.*is 'adam'"),
        (lambda: servers.optimize(tf.keras.optimizers.SGD()), "optimizer must have initialize and next"),
        (lambda: server_optimizer("sdg", 1.0), "server optimizer"),
        (lambda: server_optimizer("sgd", 0.0), "learning_rate is 0.0"),
        (lambda: server_optimizer("sgd", float("nan")), "learning_rate is nan"),
        (lambda: server_optimizer("sgd", 1.0, beta_1=0.9), "no option of the server optimizer sgd 'beta_1'"),
        (lambda: server_optimizer("adam", 1.0, beta_1=2.0), "beta_1 is 2.0, but must be at least 0 and below 1"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(InvalidArgument, match=message):
        make()
