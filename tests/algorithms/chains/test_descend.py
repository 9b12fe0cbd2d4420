"""A step by the clients' gradients: its factor, its prior, its memories and its anchor."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl.algorithms.chains.step import descend
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights import ModelWeights, Population

NOTHING = MeanField((), ())
WEIGHTS = ModelWeights(NOTHING, (tf.constant([[1.0, 2.0]]), tf.constant([3.0])), NOTHING)
TOTAL = tf.constant([1.0, -1.0, 2.0])


def step_of(present, state=None, **options):
    step = descend(0.1, **options)
    state = step.meet(state or step.initialize(WEIGHTS), Population(6, 60), tf.constant(present))
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
    _, found = step_of(6, prior_stddev=0.5)
    np.testing.assert_allclose(found, [1 - 0.1 * 5, 2 - 0.1 * 7, 3 - 0.1 * 14], rtol=1e-6)
    _, found = step_of(6, prior_stddev=0.5, fixed_point=(np.float32([[1, 0]]), np.float32([1])))
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
    state, weights, told = step.initialize(WEIGHTS), WEIGHTS, []
    for _ in range(4):
        told.append((step.tell(state, weights), weights))
        state, weights = step.next(step.meet(state, Population(6, 60), tf.constant(6)), weights, TOTAL, None)
    assert [int(t.number) for t, _ in told] == [0, 0, 1, 1]
    for (anchor, _), at in zip(told, (0, 0, 2, 2)):
        tf.nest.map_structure(np.testing.assert_array_equal, anchor.point, told[at][1].point)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"step_size": 0.0}, "step_size is 0.0"),
        ({"prior_stddev": 0.0}, "prior_stddev is 0.0"),
        ({"participation": 0.0}, "participation is 0.0"),
        ({"participation": 2.0}, "participation is 2, but must be at most 1: it is a probability"),
        ({"memory_rate": -1.0}, "memory_rate is -1.0"),
        ({"refresh_every": 0}, "refresh_every is 0"),
    ],
)
def test_numbers_out_of_range(given, message):
    with pytest.raises(InvalidArgument, match=message):
        descend(**{"step_size": 0.1, **given})


def test_a_model_with_a_posterior_of_its_own():
    with pytest.raises(InvalidArgument, match="A Langevin chain finds a posterior over point weights"):
        descend(0.1).initialize(ModelWeights(MeanField((tf.zeros(2),), (tf.ones(2),)), (), NOTHING))
