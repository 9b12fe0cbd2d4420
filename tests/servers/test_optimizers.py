"""Optimizers of the server beside those of TensorFlow Federated."""

import inspect

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl import servers
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.servers.optimizers import SERVER_OPTIMIZERS

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
    for a, b in zip(tf.nest.flatten(actual), tf.nest.flatten(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6)


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
    with pytest.raises(InvalidArgument, match=message):
        servers.server_optimizer(name, 0.1, **options)
