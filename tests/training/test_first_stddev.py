"""Precisions that follow the data from the first estimate on, against their equations in numpy."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import refuses
from tests.training.test_natural import BATCH, NUM_MEANS, SGD, SIZE, batch_of, precision_of, softmax_regression
from tfp_bfl import clients
from tfp_bfl.tensors import traced_for_xla
from tfp_bfl.training.natural import DECAY, DRAW_EVERY, ByCurvature, share_of_estimates
from tfp_bfl.training.schedules import falling
from tfp_bfl.training.updates import Target, rate_of
from tfp_bfl.weights import FlatWeights, get_weights

# 0.02^-2 = 2500, and the precision of the prior 4.
FIRST, OF_PRIOR = 0.02, 1 / 0.5**2


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


def test_the_first_estimate_takes_the_place_of_the_start():
    """Whatever that is; later ones are the mean of all so far, and between them nothing changes."""
    for start in (None, np.full(NUM_MEANS, 9.0), np.full(NUM_MEANS, 1e5)):
        weights, update = made(precision=start)
        found = []
        for number in range(2 * DRAW_EVERY + 2):
            estimate = step(weights, update, number)
            found += [estimate] if number % DRAW_EVERY == 0 else []
            # In float32 beside 1e5.
            np.testing.assert_allclose(precision_of(weights), np.mean(found, 0), rtol=1e-4, atol=0.05)
        assert len(found) == 3 and np.ptp(found, 0).min() > 1


@pytest.mark.parametrize("round", [1, 2, 7])
def test_a_round_goes_on_from_what_was_sent_with_one_estimate_of_each_round_before(round):
    q = np.linspace(30.0, 300.0, NUM_MEANS)
    weights, update = made(round, precision=q)
    for estimates, number in enumerate((0, DRAW_EVERY, 2 * DRAW_EVERY), round):
        gain = max(1 / (estimates + 1), (1 - DECAY))
        q = q + gain * (step(weights, update, number) - q)
        np.testing.assert_allclose(precision_of(weights), q, rtol=2e-4)


@pytest.mark.parametrize(
    ("round", "gain"), [(20, 0.1 * 0.5), (30, 1 / 31), (0, 1.0)], ids=["share of the rate", "mean", "first"]
)
def test_the_gain_falls_with_the_share_of_the_first_rate_that_is_left(round, gain):
    """In round 20 of 40 half of the rate is left, and in round 30 less than a mean of 31 estimates takes."""
    q = np.linspace(30.0, 300.0, NUM_MEANS)
    weights, update = made(round, 40, precision=q, rate=falling(0.3))
    wanted = q + gain * (step(weights, update, 0) - q)
    np.testing.assert_allclose(precision_of(weights), wanted, rtol=2e-4)


def test_the_bound_of_the_target_holds_whatever_the_estimate():
    weights, update = made(3, precision=np.full(NUM_MEANS, 10.0))
    step(weights, update, 0, least=1e6)
    np.testing.assert_allclose(precision_of(weights), 1e6, rtol=1e-5)


@pytest.mark.parametrize(("round", "share"), [(0, 1.0), (20, 0.5), (30, 0.5 * (1 - 0.5**0.5)), (40, 0.0)])
def test_the_noise_alone_is_narrower_by_what_falls_as_the_square_of_the_rate(round, share):
    """Compare with noise of the precision q + f^2 / s_0^2, in rounds of 40; q is what is sent."""
    q = np.linspace(30.0, 300.0, NUM_MEANS)
    weights, _ = made(round, 40, precision=q, rate=falling(0.3))
    seed = tf.constant([1, 2])
    draw, plain = weights.draw(seed), made(precision=q)[0]
    plain.narrowing = None
    np.testing.assert_allclose(draw.stddev, q**-0.5, rtol=1e-5)
    wanted = plain.draw(seed).noise * np.sqrt(q / (q + (share / FIRST) ** 2))
    np.testing.assert_allclose(draw.noise, wanted, rtol=1e-4)
    np.testing.assert_allclose(precision_of(weights), q, rtol=1e-5)


@pytest.mark.parametrize("steps", [1, DRAW_EVERY, DRAW_EVERY + 1, 3 * DRAW_EVERY])
@pytest.mark.parametrize(("round", "rounds"), [(0, 0), (3, 0), (20, 40), (35, 40)])
def test_the_share_of_the_estimates_is_what_is_left_of_the_precision_of_the_start(round, rounds, steps):
    """By two starts whose precisions differ by 1e4: after the round they differ by 1e4 (1 - share)."""
    rate = falling(0.3)
    found = []
    for start in (1e5, 1.1e5):
        weights, update = made(round, rounds, precision=np.full(NUM_MEANS, start), rate=rate)
        for number in range(steps):
            step(weights, update, number)
        found.append(precision_of(weights))
    rate_share = rate_of(rate, tf.constant(round), rounds) / 0.3
    left = 1 - float(share_of_estimates(tf.constant(round), tf.constant(float(steps)), rate_share))
    np.testing.assert_allclose(found[1] - found[0], 1e4 * left, rtol=5e-3, atol=0.5)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.01, 0.0])
@pytest.mark.parametrize("round", [0, 3, 9, 10, 25])
def test_xla_computes_the_share_without_a_range(round, share):
    with traced_for_xla():
        compiled = tf.function(share_of_estimates, jit_compile=True, autograph=False)
        for steps in (0.0, 1.0, 30.0, 700.0):
            given = tf.constant(round), tf.constant(steps), tf.constant(share)
            found = compiled(*given)
            with traced_for_xla(False):
                np.testing.assert_allclose(found, share_of_estimates(*given), atol=1e-6)


def test_it_is_of_curvature_alone():
    recipe = functools.partial(clients.variational, softmax_regression, first_stddev=FIRST)
    recipe()
    for inference in ("backprop", "natural", "ivon"):
        refuses("first_stddev", recipe, inference=inference)
