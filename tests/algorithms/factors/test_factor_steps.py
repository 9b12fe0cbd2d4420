"""One step of a client with a site, against the equations of IVON-ADMM written out in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.factors.test_factor_work import NOISE, NUM_WEIGHTS, PRIOR_PRECISION, model_fn, random_table
from tests.kit import refuses
from tfp_bfl.algorithms.factors.factor import Factor
from tfp_bfl.algorithms.factors.work import FLOOR, MovingFactor, factors
from tfp_bfl.layers.noise import standard_normal
from tfp_bfl.weights import Population, ServerMessage, get_weights

NUM_EXAMPLES, TEMPERATURE, RATE, DECAY, DAMPING = 12, 0.5, 0.3, 0.9, 0.4
SEED = np.int32([3, 1])
IVON = {
    "inference": "ivon",
    "local_epochs": 1,
    "decay": DECAY,
    "learning_rate": RATE,
    "temperature": TEMPERATURE,
    "damping": DAMPING,
    "likelihood": f"gaussian:{NOISE}",
    "batch_size": NUM_EXAMPLES,
    "send_site": False,
}
PRECISION = 1 / 0.3**2


def site_of(large):
    """Return a site; a large one leaves the local prior a negative precision where rho is 0.2."""
    share = np.linspace(0.3, 0.9, NUM_WEIGHTS) if large else np.linspace(0.02, 0.15, NUM_WEIGHTS)
    precision = share * (PRECISION - PRIOR_PRECISION)
    return precision, precision * np.linspace(0.5, 1.5, NUM_WEIGHTS)


def by_hand(rho, site, momentum=0.0, steps=0):
    """Return mean and precision of q_k, the new site and the momentum after one step, in float64.

    n = N_k / (T rho),   eps of the library's own draw,   w = m + s eps
    g = grad of the mean NLL at w,   h = g eps / s
    local prior: precision S = 1 / s^2 - t_p / rho, gradient of its negative logarithm at m: (t_s - t_p m) / rho
    P' = P + (1 - b) (S + n h - P) + ((1 - b) (S + n h - P))^2 / (2 P)
    v = .9 v + .1 g,   m' = m - rate (n v / (1 - .9^steps) + (t_s - t_p m) / rho) / P'
    t <- t + damping rho (natural(q_k) - natural(q))
    """
    examples = random_table(0, NUM_EXAMPLES)
    x, y = np.float64(examples.features), np.float64(examples.labels)
    mean, stddev, size = np.ones(NUM_WEIGHTS), PRECISION**-0.5, NUM_EXAMPLES / (TEMPERATURE * rho)
    fold = tf.random.experimental.stateless_fold_in
    eps = standard_normal(NUM_WEIGHTS, fold(fold(tf.constant(SEED), 0), 0)).numpy()
    gradient = x.T @ (x @ (mean + stddev * eps) - y) / NOISE**2 / NUM_EXAMPLES
    local = PRECISION - site[0] / rho
    gap = (1 - DECAY) * (local + size * gradient * eps / stddev - PRECISION)
    found = PRECISION + gap + gap**2 / (2 * PRECISION)
    found = np.maximum(found, np.maximum(local, FLOOR * PRIOR_PRECISION))
    velocity = 0.9 * momentum + 0.1 * gradient
    pull = (site[1] - site[0] * mean) / rho
    moved = mean - RATE * (size * velocity / (1 - 0.9 ** (steps + 1)) + pull) / found
    gain = found - PRECISION, found * moved - PRECISION * mean
    return moved, found, [t + DAMPING * rho * g for t, g in zip(site, gain)], velocity


def run(rho, memory, **options):
    work = factors(model_fn, step_size=rho, **{**IVON, **options})()
    message = ServerMessage(get_weights(model_fn()), tf.constant(0), memory=tf.nest.map_structure(tf.constant, memory))
    message = message._replace(federation=Population(tf.constant(3), tf.constant(40)))
    examples = tf.nest.map_structure(tf.constant, random_table(0, NUM_EXAMPLES))
    return work(message, examples, tf.constant(SEED))


def assert_near(actual, wanted):
    np.testing.assert_allclose(np.ravel(np.float64(actual)), np.ravel(wanted), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("large", [False, True], ids=["small site", "large site"])
@pytest.mark.parametrize("rho", [1.0, 0.2])
def test_a_step_is_that_of_the_equations(rho, large):
    """To 1e-5, also where the local prior of rho = 0.2 has a negative precision."""
    site = site_of(large)
    assert (np.min(PRECISION - site[0] / rho) < 0) == (large and rho < 1)
    mean, precision, kept, _ = by_hand(rho, site)
    result = run(rho, Factor(*np.float32(site)))
    posterior = result.weights.posterior
    assert_near(posterior.mean[0], mean)
    assert_near(1 / np.ravel(np.float64(posterior.variance[0])) / precision, np.ones(NUM_WEIGHTS))
    for actual, wanted in zip(result.memory, kept):
        assert_near(actual / np.abs(wanted), np.sign(wanted))
    assert int(result.counts["weights_at_floor"]) == np.sum(precision <= FLOOR * PRIOR_PRECISION)


def test_momentum_of_earlier_rounds():
    site, momentum, steps = site_of(False), np.linspace(-2, 2, NUM_WEIGHTS), 7
    memory = MovingFactor(*np.float32(site), np.float32(momentum), np.int32(steps))
    mean, _, _, velocity = by_hand(1.0, site, momentum, steps)
    result = run(1.0, memory, keep_momentum=True)
    assert_near(result.weights.posterior.mean[0], mean)
    assert_near(result.memory.momentum, velocity)
    assert int(result.memory.steps) == steps + 1
    without = run(1.0, Factor(*np.float32(site)))
    assert np.abs(without.weights.posterior.mean[0] - mean[:, np.newaxis]).max() > 1e-2


@pytest.mark.parametrize("inference", ["curvature", "backprop"])
def test_only_natural_gradients_have_a_momentum_to_keep(inference):
    refuses("keep_momentum needs inference", factors, model_fn, inference=inference, keep_momentum=True)
