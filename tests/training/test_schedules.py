"""Schedules against their values by hand."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import refuses
from tfp_bfl import clients, models
from tfp_bfl.data import ClientExamples
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.training import cosine_decay, exponential_decay, inverse_decay, linear_decay, sigmoid_warm_up
from tfp_bfl.training.schedules import falling
from tfp_bfl.training.updates import rate_of
from tfp_bfl.weights import Population, ServerMessage, get_weights


def test_exponential_decay_after_silent_rounds():
    rate = exponential_decay(1e-3, 0.04, 50)
    for number, wanted in ((0, 1e-3), (50, 1e-3), (51, 1e-3 * np.exp(-0.04)), (100, 1e-3 * np.exp(-2))):
        np.testing.assert_allclose(rate(tf.constant(number)), wanted, rtol=1e-6)
    np.testing.assert_allclose(exponential_decay(0.5, 0.0, 0)(tf.constant(999)), 0.5)
    for arguments in ({"learning_rate": 0.0}, {"decay": -0.1}, {"silent_rounds": -1}, {"learning_rate": float("nan")}):
        refuses(f"{next(iter(arguments))} is .*, but must be", exponential_decay, **arguments)


def test_cosine_decay_over_known_rounds():
    """0.1 to 0.01 along a half cosine over 40 rounds."""
    rate = cosine_decay(0.1, 40)
    found = [float(rate(tf.constant(r))) for r in (0, 10, 20, 40, 50)]
    np.testing.assert_allclose(found, [0.1, 0.01 + 0.09 * (1 + np.sqrt(0.5)) / 2, 0.055, 0.01, 0.01], rtol=1e-5)
    for wrong in ({"learning_rate": 0.0}, {"rounds": 0}, {"last": 1.5}, {"last": -0.1}):
        with pytest.raises(InvalidArgument, match=f"{next(iter(wrong))} is .*, but must be"):
            cosine_decay(**{"learning_rate": 0.1, "rounds": 40, **wrong})


def test_linear_decay_over_known_rounds():
    rate = linear_decay(0.1, 40)
    np.testing.assert_allclose(
        [rate(tf.constant(r)) for r in (0, 10, 39, 40, 50)], [0.1, 0.075, 0.0025, 0, 0], atol=1e-8
    )
    for wrong in ({"learning_rate": 0.0}, {"rounds": None}):
        with pytest.raises(InvalidArgument, match=f"{next(iter(wrong))} is .*, but must be"):
            linear_decay(**{"learning_rate": 0.1, "rounds": 40, **wrong})


def test_inverse_decay_is_the_default_of_client_work():
    """Half the rate after 100 rounds: at the default rate of SGD a weight then moves half as far in a step."""
    rate = inverse_decay(0.1)
    np.testing.assert_allclose([float(rate(tf.constant(r))) for r in (0, 100, 300)], [0.1, 0.05, 0.025], rtol=1e-6)
    for wrong in ({"learning_rate": -1.0}, {"half_rounds": 0.0}):
        refuses(f"{next(iter(wrong))} is .*, but must be", inverse_decay, **{"learning_rate": 0.1, **wrong})
    model_fn = functools.partial(models.mlp, "deterministic", (3,), 2, hidden=(), seed=0)
    work = clients.variational(model_fn, local_epochs=1, optimizer_fn="sgd")()
    examples = ClientExamples(tf.zeros([4], tf.int32), tf.ones([4, 3]), tf.constant([0, 1, 0, 0]))
    weights = get_weights(model_fn())
    moved = lambda r: (
        work(ServerMessage(weights, tf.constant(r)), examples, tf.constant([0, 1])).weights.point[0] - weights.point[0]
    )
    np.testing.assert_allclose(moved(100), 0.5 * moved(0), rtol=1e-3, atol=1e-8)


@pytest.mark.parametrize(("power", "least", "shares"), [(1, 0, [1, 0.5, 0, 0]), (2, 3e-3, [1, 0.25, 3e-3, 3e-3])])
def test_falling_over_the_rounds_that_the_run_says(power, least, shares):
    """Where nobody has said, as `inverse_decay`."""
    rate = falling(0.1, power, least)
    found = [rate_of(rate, tf.constant(r), tf.constant(40)) for r in (0, 20, 40, 50)]
    np.testing.assert_allclose(found, 0.1 * np.array(shares), rtol=1e-6, atol=1e-9)
    unknown = [
        rate_of(rate, tf.constant(r), *rounds) for r in (0, 100, 300) for rounds in ((), (0,), (tf.constant(0),))
    ]
    np.testing.assert_allclose(unknown, np.repeat([0.1, 0.05, 0.025], 3), rtol=1e-6)
    refuses("learning_rate is 0", falling, 0.0)


def test_client_work_falls_with_the_rounds_of_its_message():
    """At the first of 40 rounds a weight moves by a step at the whole rate, in the middle of them by half of it."""
    model_fn = functools.partial(models.mlp, "deterministic", (3,), 2, hidden=(), seed=0)
    work = clients.variational(model_fn, local_epochs=1, optimizer_fn="sgd", learning_rate=falling(0.1))()
    examples = ClientExamples(tf.zeros([4], tf.int32), tf.ones([4, 3]), tf.constant([0, 1, 0, 0]))
    weights = get_weights(model_fn())

    def moved(done, rounds):
        message = ServerMessage(weights, tf.constant(done), federation=Population(rounds=tf.constant(rounds)))
        return work(message, examples, tf.constant([0, 1])).weights.point[0] - weights.point[0]

    for done, rounds, share in ((20, 40, 0.5), (40, 40, 0), (100, 0, 0.5)):
        np.testing.assert_allclose(moved(done, rounds), share * moved(0, 40), rtol=1e-3, atol=1e-8)


def test_sigmoid_warm_up_is_the_published_one():
    weight = sigmoid_warm_up(10.0, 20)
    found = [weight(tf.constant(r)) for r in (0, 1, 2, 3, 10, 20, 21, 999)]
    np.testing.assert_allclose(found, [0.0247, 0.0450, 0.0816, 0.1477, 5.0, 9.9753, 10.0, 10.0], rtol=2e-3)


@pytest.mark.parametrize("options", [{"weight": 0.0}, {"num_rounds": 0}])
def test_warm_up_of_nothing_is_refused(options):
    refuses(next(iter(options)), sigmoid_warm_up, **options)
