"""Federated SGLD's server: its noise."""

import numpy as np
import pytest
import tensorflow as tf

from tests import kit
from tests.algorithms.cases import assert_identical, client
from tfp_bfl import servers
from tfp_bfl.algorithms.chains.step import descend, langevin
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.federated import server_optimizer
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights import ModelWeights

NONE = MeanField((), ())


def weights(value, size=3):
    moments = MeanField((tf.fill([2], value),), (tf.fill([2], 1.0),))
    return ModelWeights(NONE, (tf.fill([size, 2], value), tf.fill([2], -value)), moments)


def after_a_round(inner, step_size=1e-12):
    """The weights after a round that pooled 1."""
    step = langevin(inner, step_size)
    return step.next(step.initialize(weights(0.0)), weights(0.0), weights(1.0), tf.constant([5, 1]))[1]


@pytest.mark.statistical
@pytest.mark.parametrize("step_size", [0.02, 0.5])
def test_noise_has_variance_2_eta(step_size):
    """40,002 draws: mean and variance within 4.5 standard errors, which a fresh seed fails with probability 1.4e-5."""
    step = langevin(servers.replace(), step_size)
    old, pooled = weights(0.0, 20000), weights(1.0, 20000)
    _, new = step.next(step.initialize(old), old, pooled, tf.constant([3, 4]))
    noise = np.concatenate([np.ravel(a - b) for a, b in zip(new.point, pooled.point)]).astype(np.float64)
    n, variance = noise.size, 2 * step_size
    assert abs(noise.mean()) < 4.5 * np.sqrt(variance / n)
    assert abs(noise.var() / variance - 1) < 4.5 * np.sqrt(2 / n)
    assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 4.5 / np.sqrt(n)
    assert_identical(new.moments, pooled.moments)


def test_noise_is_a_function_of_the_seed():
    step = langevin(servers.replace(), 0.1)
    draw = lambda *seed: step.next(step.initialize(weights(0.0)), weights(0.0), weights(1.0), tf.constant(seed))[1]
    assert_identical(draw(1, 2), draw(1, 2))
    first, other = draw(1, 2).point, draw(1, 3).point
    assert all(np.all(a != b) for a, b in zip(first, other))
    assert np.all(first[0][0] - 1 != first[1] + 1)  # Each leaf has its own.


def test_noise_comes_after_the_servers_optimizer():
    own = after_a_round(servers.optimize(server_optimizer("sgd", 0.5)))
    np.testing.assert_allclose(own.point[0], 0.5, atol=1e-4)


def test_what_the_inner_step_sends_and_takes_stays():
    inner = servers.replace()._replace(send=lambda state, weights: weights.point[1], takes="other")
    step = langevin(inner, 0.1)
    np.testing.assert_array_equal(step.send((), weights(2.0)), weights(2.0).point[1])
    assert step.takes == "other"


@pytest.mark.parametrize("step_size", [0.0, float("nan")])
def test_bad_step_sizes(step_size):
    kit.refuses(f"step_size is {step_size}", langevin, servers.replace(), step_size)


def test_models_with_variational_layers_are_refused():
    variational = weights(0.0)._replace(posterior=MeanField(client(1).posterior.mean, client(1).posterior.diagonal))
    kit.refuses("SGLD finds a posterior over point weights", langevin(servers.replace(), 0.1).initialize, variational)


NOTHING = MeanField((), ())
WEIGHTS = ModelWeights(NOTHING, (tf.constant([[1.0, 2.0]]), tf.constant([3.0])), NOTHING)
TOTAL = tf.constant([1.0, -1.0, 2.0])


def step_of(present, state=None, **options):
    step = descend(0.1, **options)
    state = step.meet(state or step.initialize(WEIGHTS), kit.sized(6, 60, present))
    state, moved = step.next(state, WEIGHTS, TOTAL, None)
    return state, np.concatenate([np.ravel(x) for x in moved.point])


@pytest.mark.parametrize(
    ("present", "participation", "factor"), [(6, 1.0, 1), (2, 1.0, 3), (6, 0.5, 2), (2, 0.5, 6), (0, 0.5, 12)]
)
def test_the_factor_is_of_cohorts_and_of_coins(present, participation, factor):
    """b / (a p), and of nobody what is divided by one."""
    _, found = step_of(present, participation=participation)
    np.testing.assert_allclose(found, [1 - 0.1 * factor, 2 + 0.1 * factor, 3 - 0.2 * factor], rtol=1e-6)


def test_the_prior_is_about_zero_or_the_mode():
    _, found = step_of(6, prior_precision=4)
    np.testing.assert_allclose(found, [1 - 0.1 * 5, 2 - 0.1 * 7, 3 - 0.1 * 14], rtol=1e-6)
    _, found = step_of(6, prior_precision=4, fixed_point=(np.float32([[1, 0]]), np.float32([1])))
    np.testing.assert_allclose(found, [1 - 0.1 * 1, 2 - 0.1 * 7, 3 - 0.1 * 10], rtol=1e-6)


def test_memories_follow_what_was_sent_and_not_what_it_is_scaled_by():
    state, first = step_of(2, memory_rate=0.5)
    np.testing.assert_allclose(first, [0.7, 2.3, 2.4], rtol=1e-6)
    np.testing.assert_allclose(state.memory, [0.5, -0.5, 1], rtol=1e-6)
    state, second = step_of(2, state, memory_rate=0.5)
    np.testing.assert_allclose(second, [0.65, 2.35, 2.3], rtol=1e-6)
    np.testing.assert_allclose(state.memory, [1, -1, 2], rtol=1e-6)


def test_the_anchor_is_the_weights_at_which_its_round_begins():
    step = descend(0.1, refresh_every=2)
    state, weights, sent = step.initialize(WEIGHTS), WEIGHTS, []
    for _ in range(4):
        sent.append((step.send(state, weights), weights))
        state, weights = step.next(step.meet(state, kit.sized(6, 60, 6)), weights, TOTAL, None)
    assert [int(t.number) for t, _ in sent] == [0, 0, 1, 1]
    for (anchor, _), at in zip(sent, (0, 0, 2, 2)):
        tf.nest.map_structure(np.testing.assert_array_equal, anchor.point, sent[at][1].point)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"step_size": 0.0}, "step_size is 0.0"),
        ({"participation": 0.0}, "participation is 0.0"),
        ({"participation": 2.0}, "participation is 2, but must be at most 1: it is a probability"),
        ({"memory_rate": -1.0}, "memory_rate is -1.0"),
        ({"refresh_every": 0}, "refresh_every is 0"),
    ],
)
def test_numbers_out_of_range(given, message):
    kit.refuses(message, descend, **{"step_size": 0.1, **given})


def test_a_model_with_a_posterior_of_its_own():
    with pytest.raises(InvalidArgument, match="A Langevin chain finds a posterior over point weights"):
        descend(0.1).initialize(ModelWeights(MeanField((tf.zeros(2),), (tf.ones(2),)), (), NOTHING))
