"""Clients' factors after a run: divided out, multiplied in, kept in a file."""

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import assert_same, refuses
from tfp_bfl.algorithms.factors.factor import Factor, check_damping, damping_of, natural
from tfp_bfl.algorithms.held import Held, factors_of
from tfp_bfl.contracts import Memory, ServerState
from tfp_bfl.posterior import MeanField
from tfp_bfl.posterior.vectors import flatten, unflatten
from tfp_bfl.weights import ModelWeights

RNG = np.random.default_rng(0)
SIZES = [7, 11, 5]
MEANS, PRECISIONS = RNG.normal(size=[3, 5]), RNG.uniform(1, 50, size=[3, 5])
PRIOR = 4.0


def posterior(clients):
    """N(0, 1 / 4) times the clients' factors, as a model of two leaves has it."""
    precision = PRIOR + PRECISIONS[clients].sum(0)
    mean = (PRECISIONS[clients] * MEANS[clients]).sum(0) / precision
    shaped = lambda flat: (np.float32(flat[:2]), np.float32(flat[2:]).reshape(3, 1))
    return MeanField(shaped(mean), shaped(1 / precision))


def run_of(precisions):
    """The last state of a run whose clients have such sites, and their numbers of examples."""
    moments = MeanField((np.zeros(1, np.float32),), (np.ones(1, np.float32),))
    weights = ModelWeights(posterior([0, 1, 2]), (np.float32([0.5]),), moments)
    rows = Factor(np.float32(precisions), np.float32(precisions * MEANS))
    memory = Memory(np.arange(3, dtype=np.int32), rows)
    return ServerState(np.int32(9), np.int32(0), weights, (), memory), SIZES


@pytest.fixture(scope="module")
def state():
    return factors_of(*run_of(PRECISIONS))


def scaled(state, by):
    """The state with sites of other precisions."""
    site = lambda t: Factor(by * t.precision, by * t.shift)
    return state._replace(rows={name: row._replace(site=site(row.site)) for name, row in state.rows.items()})


def assert_posterior(state, wanted):
    for found, part in zip(state.pool().posterior, wanted):
        assert_same(found, part, rtol=1e-5, atol=1e-5)


def test_state_of_a_run(state):
    assert {name: int(row.num_examples) for name, row in state.rows.items()} == dict(zip("012", SIZES))
    assert_posterior(state, posterior([0, 1, 2]))


@pytest.mark.parametrize("gone", [[1], [0, 2], [0, 1, 2]])
def test_what_is_left_are_the_others_factors(state, gone):
    left = state.remove(*map(str, gone))
    assert_posterior(left, posterior([k for k in range(3) if k not in gone]))
    assert list(left.rows) == [str(k) for k in range(3) if k not in gone]
    assert left.weights.point is state.weights.point


def test_who_comes_back_is_as_if_never_gone(state):
    back = state.remove("1").join(state, ["1"])
    assert_posterior(back, posterior([0, 1, 2]))
    assert list(back.rows) == ["0", "2", "1"] and int(back.rows["1"].num_examples) == 11


def test_a_replaced_client_counts_once(state):
    replaced = state.join(scaled(state, 2), ["2"], replace=True)
    precision = PRIOR + PRECISIONS[:2].sum(0) + 2 * PRECISIONS[2]
    found = np.concatenate([np.ravel(v) for v in replaced.pool().posterior.variance])
    np.testing.assert_allclose(1 / found, precision, rtol=1e-5)


def test_refusals(state):
    smaller = state._replace(weights=state.weights._replace(point=()))
    refuses("other shapes", state.remove("0").join, smaller, ["0"])
    heavy = factors_of(*run_of(100 * PRECISIONS))
    refuses("no factor of the posterior", heavy.remove, "0")


@pytest.mark.parametrize("gone", [(), ("0", "1", "2")])
def test_a_file_holds_it_all(state, tmp_path, gone):
    state = state.remove(*gone)
    state.save(tmp_path / "clients.npz")
    again = Held.load(tmp_path / "clients.npz")
    assert list(again.rows) == list(state.rows) and again.weights.posterior == MeanField((), ())
    assert_posterior(again, state.pool().posterior)
    tf.nest.map_structure(np.testing.assert_array_equal, again.rows, state.rows)


@pytest.mark.parametrize(
    "damage",
    [
        lambda arrays: arrays.pop("rows/1/site/shift"),
        lambda arrays: arrays.update({"rows/1/site/precision": -arrays["rows/1/site/precision"]}),
        lambda arrays: arrays.update({"rows/1/site/precision": arrays["rows/1/site/precision"][:2]}),
        lambda arrays: arrays.update({"settings/precision/0": -np.full(2, 1e9)}),
        lambda arrays: arrays.update({"settings/shift/0": np.zeros(3)}),
        lambda arrays: arrays.update({"settings/shift/7": np.zeros(2)}),
    ],
)
def test_damaged_files_are_refused(state, tmp_path, damage):
    path = tmp_path / "clients.npz"
    state.save(path)
    arrays = dict(np.load(path))
    damage(arrays)
    np.savez(path, **arrays)
    refuses("is not a file of clients", Held.load, path)


POSTERIOR = MeanField(
    (tf.constant([[1.0, -2.0], [0.5, 3.0]]), tf.constant([4.0])),
    (tf.constant([[0.25, 1.0], [4.0, 0.5]]), tf.constant([2.0])),
)


def test_natural_parameters_in_the_order_of_the_leaves():
    np.testing.assert_array_equal(flatten(POSTERIOR.mean), [1, -2, 0.5, 3, 4])
    site = natural(POSTERIOR)
    np.testing.assert_allclose(site.precision, [4, 1, 0.25, 2, 0.5])
    np.testing.assert_allclose(site.shift, [4, -2, 0.125, 6, 2])


def test_damping_is_one_over_the_clients_unless_it_is_said():
    assert [float(damping_of(None, k)) for k in (0, 1, 4)] == pytest.approx([0.1, 1, 0.25])
    assert float(damping_of(0.5, 4)) == 0.5
    for damping in (0, 1.5, -0.1, float("nan")):
        refuses("damping", check_damping, damping)
    for damping in (None, 1, 0.01):
        check_damping(damping)


def test_unflatten_is_the_inverse_of_flatten():
    like = {"a": tf.zeros([2, 3]), "b": (tf.zeros([4]),)}
    vectors = tf.reshape(tf.range(20.0), [2, 10])
    found = unflatten(vectors, like)
    assert found["a"].shape == (2, 2, 3) and found["b"][0].shape == (2, 4)
    np.testing.assert_array_equal(flatten(tf.nest.map_structure(lambda x: x[1], found)), vectors[1])
