"""Precisions that follow the data from the first estimate on, against their equations in numpy."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.training.test_natural import BATCH, NUM_MEANS, SGD, SIZE, batch_of, precision_of, softmax_regression
from tfp_bfl import clients
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.training.natural import DRAW_EVERY, FADING, ByCurvature
from tfp_bfl.training.schedules import falling
from tfp_bfl.training.updates import Target
from tfp_bfl.weights import FlatWeights, get_weights

# 0.02^-2 = 2500, and the precision of the prior 4.
FIRST, OF_PRIOR = 0.02, 1 / 0.5**2
DECAY = 0.9


def made(round=0, rounds=0, precision=None, rate=0.1):
    model = softmax_regression()
    weights = FlatWeights(model)
    weights.load(get_weights(model))
    if precision is not None:
        weights.set_precision(tf.constant(precision, tf.float32))
    update = ByCurvature(weights, SGD, rate, decay=DECAY, first_stddev=FIRST)
    update.start(tf.constant(round), rounds)
    return weights, update


def step(weights, update, number, least=0.0):
    """Take a step, and return the estimate 1 / t^2 + n h that it would have."""
    batch = batch_of(weights, number)
    update.step(batch, Target(weights.prior, tf.constant(SIZE), least))
    return OF_PRIOR + SIZE * BATCH * np.float64(batch.in_noise_of_drawn_labels()) ** 2


def narrowing(round):
    return FADING**round / FIRST**2


def test_the_first_estimate_takes_the_place_of_the_start():
    """Whatever that is; later ones are the mean of all so far, and between them nothing changes."""
    for start in (None, np.full(NUM_MEANS, 9.0), np.full(NUM_MEANS, 1e5)):
        weights, update = made(precision=start)
        found = []
        for number in range(2 * DRAW_EVERY + 2):
            estimate = step(weights, update, number)
            found += [estimate] if number % DRAW_EVERY == 0 else []
            # In float32 beside 1e5.
            np.testing.assert_allclose(precision_of(weights) - narrowing(0), np.mean(found, 0), rtol=1e-4, atol=0.05)
        assert len(found) == 3 and np.ptp(found, 0).min() > 1


@pytest.mark.parametrize("round", [1, 2, 7])
def test_a_round_goes_on_from_what_was_sent_with_one_estimate_of_each_round_before(round):
    """q is what was sent without the noise's part of the round before; c_r fades."""
    q = np.linspace(30.0, 300.0, NUM_MEANS)
    weights, update = made(round, precision=q + narrowing(round - 1))
    for estimates, number in enumerate((0, DRAW_EVERY, 2 * DRAW_EVERY), round):
        gain = max(1 / (estimates + 1), (1 - DECAY))
        q = q + gain * (step(weights, update, number) - q)
        np.testing.assert_allclose(precision_of(weights), q + narrowing(round), rtol=2e-4)


@pytest.mark.parametrize(
    ("round", "gain"), [(20, 0.1 * 0.5), (30, 1 / 31), (0, 1.0)], ids=["share of the rate", "mean", "first"]
)
def test_the_gain_falls_with_the_share_of_the_first_rate_that_is_left(round, gain):
    """In round 20 of 40 half of the rate is left, and in round 30 less than a mean of 31 estimates takes."""
    q = np.linspace(30.0, 300.0, NUM_MEANS)
    weights, update = made(round, 40, precision=q + narrowing(max(round - 1, 0)), rate=falling(0.3))
    wanted = q + gain * (step(weights, update, 0) - q) + narrowing(round)
    np.testing.assert_allclose(precision_of(weights), wanted, rtol=2e-4)


def test_precisions_are_at_least_those_of_the_prior():
    """Take the prior's precision where what was sent is less than the noise's part of it; the bound of the target holds
    whatever the estimate.
    """
    weights, update = made(3, precision=np.full(NUM_MEANS, 10.0))
    estimate = step(weights, update, 0)
    wanted = OF_PRIOR + (estimate - OF_PRIOR) / 4 + narrowing(3)
    np.testing.assert_allclose(precision_of(weights), wanted, rtol=1e-5)
    weights, update = made(200, precision=np.full(NUM_MEANS, 10.0))
    step(weights, update, 0, least=1e6)
    np.testing.assert_allclose(precision_of(weights), 1e6, rtol=1e-5)


def test_it_is_of_curvature_alone():
    recipe = functools.partial(clients.variational, softmax_regression, first_stddev=FIRST)
    recipe()
    for inference in ("backprop", "natural", "ivon"):
        with pytest.raises(InvalidArgument, match="first_stddev"):
            recipe(inference=inference)
