"""Bayesian ADMM's server against its equations in float64 numpy."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl.algorithms.factors.step import dual
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights import ModelWeights, Population

SHAPES = ((4, 3), (3,))
SEED = tf.constant([1, 2])


def random_posterior(number, low=0.5, high=2.0):
    rng = np.random.default_rng(number)
    draw = lambda make: tuple(np.float32(make(shape)) for shape in SHAPES)
    return MeanField(draw(rng.standard_normal), draw(lambda shape: rng.uniform(low, high, shape)))


def weights(posterior, point=0.0):
    constants = tf.nest.map_structure(tf.constant, posterior)
    return ModelWeights(constants, (tf.fill([2], point),), MeanField((), ()))


def natural(posterior):
    """[2, D]: precisions and shifts."""
    mean, variance = (np.concatenate([np.ravel(np.float64(x)) for x in part]) for part in posterior)
    return np.stack([1 / variance, mean / variance])


def from_natural(flat):
    ends = np.cumsum([np.prod(shape) for shape in SHAPES])[:-1]
    shaped = lambda x: tuple(np.float32(p).reshape(s) for p, s in zip(np.split(x, ends), SHAPES))
    return MeanField(shaped(flat[1] / flat[0]), shaped(1 / flat[0]))


def a_round(step, state, own, sent, num_clients):
    """The server's next state and weights, of clients in the round whose natural parameters are `sent`."""
    pooled = weights(from_natural(np.mean([natural(q) for q in sent], 0)), point=7.0)
    state = step.meet(state, Population(tf.constant(num_clients), tf.constant(9)), tf.constant(len(sent)))
    return step.next(state, own, pooled, SEED)


def product_of(state):
    return np.stack([np.concatenate([np.ravel(x) for x in part]) for part in (state.precision, state.shift)])


@pytest.mark.parametrize(("step_size", "damping"), [(1.0, 1.0), (0.2, 0.5), (3.0, 0.1)])
@pytest.mark.parametrize("present", [[0, 1, 2], [1], [0, 2]], ids=["all", "one", "two"])
def test_two_rounds_are_those_of_the_equations(step_size, damping, present):
    """Sites in numpy: those of absent clients stay, and an absent client counts in the mean with the server's q."""
    step, num_clients = dual(step_size, damping), 3
    prior, start = natural(random_posterior(0, 4.0, 5.0)), random_posterior(1)
    sites = [(natural(start) - prior) / num_clients] * num_clients
    share = 1 / (1 + num_clients * step_size)
    own, state = weights(start), step.initialize(weights(start))
    q = natural(start)
    for number in (1, 2):
        # No wider than q, so that no precision of the new one falls below zero.
        sent = {k: from_natural(q + natural(random_posterior(10 * number + k))) for k in present}
        state, own = a_round(step, state, own, list(sent.values()), num_clients)
        local = [natural(sent[k]) if k in sent else q for k in range(num_clients)]
        sites = [t + damping * step_size * (found - q) for t, found in zip(sites, local)]
        q = (1 - share) * np.mean(local, 0) + share * (prior + np.sum(sites, 0))
        np.testing.assert_allclose(product_of(state), prior + np.sum(sites, 0), rtol=2e-5, atol=1e-5)
        np.testing.assert_allclose(natural(own.posterior), q, rtol=2e-5, atol=1e-5)
        np.testing.assert_array_equal(own.point[0], [7.0, 7.0])
        assert (state.num_clients, state.num_present) == (num_clients, len(present))


@pytest.mark.parametrize("step_size", [0.3, 1.0])
def test_one_client_alone_with_whole_steps_is_the_server(step_size):
    """K = 1: q <- ((1 - a) + a rho) natural(q_1) + a (1 - rho) natural(q), which for rho = 1 is natural(q_1)."""
    step = dual(step_size)
    start, found = random_posterior(1), random_posterior(2)
    state, own = a_round(step, step.initialize(weights(start)), weights(start), [found], 1)
    share = 1 / (1 + step_size)
    wanted = (1 - share + share * step_size) * natural(found) + share * (1 - step_size) * natural(start)
    np.testing.assert_allclose(natural(own.posterior), wanted, rtol=1e-5)
    if step_size == 1:
        np.testing.assert_allclose(natural(own.posterior), natural(found), rtol=1e-5)
        np.testing.assert_allclose(product_of(state), natural(found), rtol=1e-5)


@pytest.mark.parametrize("present", [1, 4])
def test_where_nobody_moves_nothing_changes(present):
    step = dual(0.5, 0.5)
    start = random_posterior(3)
    own, state = weights(start), step.initialize(weights(start))
    for _ in range(3):
        state, own = a_round(step, state, own, [own.posterior] * present, 4)
    np.testing.assert_allclose(natural(own.posterior), natural(start), rtol=1e-5)
    np.testing.assert_allclose(product_of(state), natural(start), rtol=1e-5)


def test_at_rest_the_server_has_the_product_of_the_sites():
    """A product that q differs from is what q moves to, by a = 1 / (1 + K rho) a round."""
    step, start, product = dual(0.5), random_posterior(4), natural(random_posterior(5))
    precision, shift = (from_natural(np.stack([x, x])).variance for x in (1 / product))
    state = step.initialize(weights(start))._replace(precision=precision, shift=shift)
    own = weights(start)
    for rounds in range(1, 4):
        state, own = a_round(step, state, own, [own.posterior] * 4, 4)
        left = (1 - 1 / 3) ** rounds
        np.testing.assert_allclose(natural(own.posterior), left * natural(start) + (1 - left) * product, rtol=1e-4)


def test_empty_sites_begin_at_the_prior():
    """Nobody moves: q goes from the first posterior to the prior, by 1 / (1 + K rho) in the first round."""
    prior, start = random_posterior(5), random_posterior(4)
    step, own = dual(0.5, product=prior), weights(start)
    state, own = a_round(step, step.initialize(own), own, [own.posterior] * 4, 4)
    np.testing.assert_allclose(product_of(state), natural(prior), rtol=1e-5)
    np.testing.assert_allclose(natural(own.posterior), 2 / 3 * natural(start) + 1 / 3 * natural(prior), rtol=1e-5)


def test_the_state_keeps_its_structure_in_a_graph():
    step, own = dual(), weights(random_posterior(1))
    state = step.initialize(own)
    compiled = step._replace(next=tf.function(step.next, autograph=False))
    new, moved = a_round(compiled, state, own, [random_posterior(2)], 2)
    tf.nest.assert_same_structure((new, moved), (state, own))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"step_size": 0.0}, "step_size is 0.0, but must be"),
        ({"step_size": float("nan")}, "step_size is nan, but must be"),
        ({"damping": 0.0}, "damping is 0.0, but must be"),
        ({"damping": 1.1}, "damping is 1.1, but must be above 0 and at most 1"),
        ({"damping": -0.5}, "damping is -0.5, but must be"),
    ],
)
def test_numbers_out_of_range(given, message):
    with pytest.raises(InvalidArgument, match=message):
        dual(**given)


def test_name_says_the_step_size():
    assert dual(0.25).name == "dual (step size 0.25)"
