"""The server step that keeps each client's posterior, and predicts with their product."""

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.cases import ALL, HEAD, ROWS, SHAPES, assert_identical, client, prior_of, stack, weights
from tfp_bfl import servers
from tfp_bfl.algorithms.swag.product import gaussian_product
from tfp_bfl.algorithms.swag.step import online_product
from tfp_bfl.weights import ModelWeights

every_part = pytest.mark.parametrize("over", [ALL, HEAD], ids=["all weights", "head"])


def step_of(over=ALL, **options):
    exact = {"diagonal_only": False, "between_clients": False}
    return online_product(over, ROWS, frozen_moments=over != ALL, **{**exact, **options})


def after(*rounds, over=ALL, step=None):
    """The step's state after rounds, each of some clients."""
    step = step or step_of(over)
    state = step.initialize(weights())
    for clients in rounds:
        state, _ = step.next(state, weights(), stack(*clients), tf.constant([0, 1]))
    return state


def low_ranks(state):
    """The posteriors of a stack, apart."""
    return [tf.nest.map_structure(lambda x, k=k: x[k], state.posterior) for k in range(len(state.client))]


@every_part
def test_it_begins_without_clients_with_types_for_any_number(over):
    step = step_of(over)
    assert isinstance(step, servers.ServerStep) and step.name == "online_product"
    shapes = SHAPES[-over:]
    with tf.Graph().as_default():
        state = step.initialize(tf.nest.map_structure(tf.constant, weights()))
        assert all(x.shape[0] is None for x in tf.nest.flatten(state))
        assert (state.client.dtype, state.num_examples.dtype) == (tf.int32, tf.int32)
        assert [x.shape[1:] for x in state.posterior.mean] == [x.shape[1:] for x in state.posterior.diagonal]
        assert [tuple(x.shape[1:]) for x in state.posterior.mean] == list(shapes)
        assert [tuple(x.shape[1:]) for x in state.posterior.deviations] == [(ROWS, *shape) for shape in shapes]
        assert [tuple(x.shape[1:]) for x in tf.nest.flatten(state.moments)] == [(4,), (4,)] * (over == ALL)
    assert {len(x) for x in tf.nest.flatten(step.initialize(weights()))} == {0}


@every_part
@pytest.mark.parametrize("compiled", [False, True])
def test_clients_are_kept_in_the_order_of_their_numbers(over, compiled):
    step = step_of(over)
    step = step._replace(next=tf.function(step.next, reduce_retracing=True)) if compiled else step
    one, two, five, nine = (client(n, over) for n in (1, 2, 5, 9))
    state = after([five, one], step=step)
    assert_identical(state, stack(one, five))
    state, same = step.next(state, weights(), stack(nine, two), tf.constant([0, 1]))
    assert_identical(state, stack(one, two, five, nine))
    assert_identical(same, weights())


@pytest.mark.parametrize("again", [[1], [9, 1], [1, 2, 9], [9, 4, 1, 2]])
def test_a_client_that_comes_again_replaces_its_posterior(again):
    old, new = {n: client(n) for n in (1, 2, 9)}, {n: client(n, version=1) for n in again}
    state = after([old[9], old[1], old[2]], list(new.values()))
    assert_identical(state, stack(*(value for _, value in sorted({**old, **new}.items()))))


@every_part
@pytest.mark.parametrize("with_prior", [False, True])
@pytest.mark.parametrize("diagonal_only", [False, True])
def test_it_predicts_with_the_product_of_all_clients_so_far(over, with_prior, diagonal_only):
    prior = prior_of(over) if with_prior else None
    step, state = (
        step_of(over, prior=prior, diagonal_only=diagonal_only),
        after([client(4, over), client(2, over)], over=over),
    )
    predicted = step.predictive(state, weights())
    assert isinstance(predicted, ModelWeights)
    wanted = gaussian_product(low_ranks(state), prior, diagonal_only)
    assert_identical(predicted.posterior, wanted)
    assert_identical(predicted.point, weights().point[: len(SHAPES) - over])
    assert np.all(predicted.moments.mean[0] == weights().moments.mean[0]) == (over == HEAD)


def test_without_clients_the_servers_weights_predict():
    step = step_of()
    assert_identical(step.predictive(step.initialize(weights()), weights()), weights())
