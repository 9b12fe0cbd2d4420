"""Optimizers of the server beside those of TensorFlow Federated."""

import inspect

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import assert_same, refuses
from tfp_bfl import servers
from tfp_bfl.federated import server_optimizer
from tfp_bfl.posterior import MeanField
from tfp_bfl.servers.optimizers import SERVER_OPTIMIZERS
from tfp_bfl.training import linear_decay
from tfp_bfl.weights import ModelWeights

OPTIONS = {
    "sgd": [{}, {"momentum": 0.9}],
    "adam": [{}, {"beta_1": 0.5, "beta_2": 0.9, "epsilon": 1e-2}],
    "yogi": [{}, {"beta_1": 0.5, "beta_2": 0.9, "initial_preconditioner_value": 0.1}],
    "adagrad": [{}, {"initial_preconditioner_value": 0.5, "epsilon": 0.1}],
}
CASES = [(name, options) for name, several in OPTIONS.items() for options in several]
SPECS = (tf.TensorSpec([3, 2]), {"b": tf.TensorSpec([2])})


def path(optimizer, rounds=12, specs=SPECS):
    """The weights after each round of random gradients."""
    rng = np.random.default_rng(0)
    draw = lambda: tf.nest.map_structure(lambda s: tf.constant(rng.normal(size=s.shape), s.dtype), specs)
    weights, states, ways = draw(), [optimizer.initialize(specs)], []
    step = tf.function(optimizer.next)
    for _ in range(rounds):
        state, weights = step(states[-1], weights, draw())
        tf.nest.assert_same_structure(state, states[0])
        states.append(state)
        ways.append(weights)
    return ways


@pytest.mark.parametrize(
    ("name", "options"),
    [case if case[1] else pytest.param(*case, marks=pytest.mark.deep(after="test_optimizers.py")) for case in CASES],
)
def test_as_those_of_tff(name, options):
    tff = pytest.importorskip("tensorflow_federated")
    build = getattr(tff.learning.optimizers, f"build_{'sgdm' if name == 'sgd' else name}")
    actual, wanted = (
        path(optimizer) for optimizer in (servers.server_optimizer(name, 0.3, **options), build(0.3, **options))
    )
    assert_same(actual, wanted, rtol=2e-6, atol=2e-6)


def test_options_and_their_defaults_are_those_of_tff():
    tff = pytest.importorskip("tensorflow_federated")
    for name, entry in SERVER_OPTIMIZERS.items():
        build = getattr(tff.learning.optimizers, f"build_{'sgdm' if name == 'sgd' else name}")
        defaults = lambda function: {k: x.default or 0.0 for k, x in inspect.signature(function).parameters.items()}
        drop = lambda table: {k: x for k, x in table.items() if k != "learning_rate"}
        assert drop(defaults(entry.make)) == drop(defaults(build))


def test_those_of_tff_are_taken_too():
    tff = pytest.importorskip("tensorflow_federated")
    step = servers.optimize(tff.learning.optimizers.build_adam(0.25))
    assert step.name == "optimize (adam, learning rate 0.25)"


@pytest.mark.parametrize("name", SERVER_OPTIMIZERS)
def test_no_weights(name):
    """Models of variational layers without a bias have no point weights."""
    assert tf.nest.flatten(path(servers.server_optimizer(name), 2, specs=())) == []


def test_each_has_a_rate_of_its_own():
    for name, entry in SERVER_OPTIMIZERS.items():
        assert servers.server_optimizer(name).learning_rate == entry.learning_rate


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sgd", {"momentum": 1.0}, "momentum is 1.0, but must be at least 0 and below 1"),
        ("sgd", {"momentum": -0.1}, "momentum is -0.1, but must be a finite number of at least 0"),
        ("adam", {"beta_2": 1.5}, "beta_2 is 1.5"),
        ("yogi", {"epsilon": -1}, "epsilon is -1"),
        ("adagrad", {"initial_preconditioner_value": -1}, "initial_preconditioner_value is -1"),
        ("adagrad", {"beta_1": 0.5}, "no option of the server optimizer adagrad 'beta_1'"),
        ("adam", {"learning_rat": 0.5}, "no option of the server optimizer adam 'learning_rat'"),
    ],
)
def test_bad_options(name, options, message):
    refuses(message, servers.server_optimizer, name, 0.1, **options)


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
    assert_same(actual, wanted, rtol=1e-6)


def test_replace_returns_the_pooled_weights():
    step, pooled = servers.replace(), weights(2.0)
    state, new = step.next(step.initialize(weights(1.0)), weights(1.0), pooled, SEED)
    assert state == () and all(a is b for a, b in zip(*map(tf.nest.flatten, (new, pooled)), strict=True))


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
    assert_same(trained(after(adam, 4.0)), trained(weights(0.1)), rtol=1e-4)
    far = after(adam, *[4.0] * 80)
    assert all(np.all(np.abs(a - b) < 1.5) for a, b in zip(trained(far), trained(weights(4.0)), strict=True))


@pytest.mark.parametrize("name", SERVER_OPTIMIZERS)
def test_one_rests_at_what_was_pooled_and_steps_by_a_schedule_as_by_its_numbers(name):
    assert_close(after(server_optimizer(name), 3.0, 3.0, start=3.0), weights(3.0))
    by_number, by_round = (path(server_optimizer(name, rate)) for rate in (0.3, lambda r: 0.3))
    assert_same(by_number, by_round, rtol=2e-6, atol=2e-6)


def test_a_rate_falls_with_the_rounds():
    """0.5, 0.25 and 0: w = 0 + 0.5 * 4, 2 + 0.25 * 2, and there it stays."""
    for pooled, wanted in (([4.0], 2.0), ([4.0] * 2, 2.5), ([4.0] * 3, 2.5)):
        assert_close(trained(after(server_optimizer("sgd", linear_decay(0.5, 2)), *pooled)), trained(weights(wanted)))


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
    refuses(message, make)
