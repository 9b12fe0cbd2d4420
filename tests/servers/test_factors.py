"""Clients' factors after a run: divided out, multiplied in, kept in a file."""

import numpy as np
import pytest

from tfp_bfl.contracts import Memory, ServerState
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.models import ModelWeights
from tfp_bfl.posterior import MeanField, Site
from tfp_bfl.servers import factors

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


@pytest.fixture(scope="module")
def state():
    moments = MeanField((np.zeros(1, np.float32),), (np.ones(1, np.float32),))
    weights = ModelWeights(posterior([0, 1, 2]), (np.float32([0.5]),), moments)
    rows = Site(np.float32(PRECISIONS), np.float32(PRECISIONS * MEANS))
    memory = Memory(np.arange(3, dtype=np.int32), rows)
    return factors.from_state(ServerState(np.int32(9), np.int32(0), weights, (), memory), SIZES)


def assert_posterior(state, wanted):
    for found, part in zip(factors.pool(state).posterior, wanted):
        for a, b in zip(found, part, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_state_of_a_run(state):
    assert state.names == ("0", "1", "2") and state.num_examples == tuple(SIZES)
    assert_posterior(state, posterior([0, 1, 2]))


@pytest.mark.parametrize("gone", [[1], [0, 2], [0, 1, 2]])
def test_what_is_left_are_the_others_factors(state, gone):
    left = factors.remove(state, *map(str, gone))
    assert_posterior(left, posterior([k for k in range(3) if k not in gone]))
    assert left.names == tuple(str(k) for k in range(3) if k not in gone)
    assert left.weights.point is state.weights.point


def test_who_comes_back_is_as_if_never_gone(state):
    back = factors.join(factors.remove(state, "1"), state, ["1"])
    assert_posterior(back, posterior([0, 1, 2]))
    assert back.names == ("0", "2", "1") and back.num_examples == (7, 5, 11)


def test_a_replaced_client_counts_once(state):
    doubled = state._replace(sites=tuple(Site(2 * t.precision, 2 * t.shift) for t in state.sites))
    replaced = factors.join(state, doubled, ["2"], replace=True)
    precision = PRIOR + PRECISIONS[:2].sum(0) + 2 * PRECISIONS[2]
    found = np.concatenate([np.ravel(v) for v in factors.pool(replaced).posterior.variance])
    np.testing.assert_allclose(1 / found, precision, rtol=1e-5)


def test_refusals(state):
    with pytest.raises(InvalidArgument, match="There is no client '7': the clients are '0', '1', '2'"):
        factors.remove(state, "7")
    with pytest.raises(InvalidArgument, match="There is a client '0' already"):
        factors.join(state, state)
    with pytest.raises(InvalidArgument, match="no client '8' to take: the others are '0', '1', '2'"):
        factors.join(state, state, ["8"])
    smaller = state._replace(weights=state.weights._replace(point=()))
    with pytest.raises(InvalidArgument, match="other shapes"):
        factors.join(state, smaller)
    heavy = state._replace(sites=tuple(Site(100 * t.precision, t.shift) for t in state.sites))
    with pytest.raises(InvalidArgument, match="no factor of the posterior"):
        factors.remove(heavy, "0")


def test_a_file_of_one_tensor_and_a_client_who_knows_nothing(tmp_path):
    q = MeanField((np.float32([1.0, 2.0]),), (np.float32([0.25, 0.25]),))
    weights = ModelWeights(q, (), MeanField((), ()))
    sites = (Site(np.zeros(2, np.float32), np.zeros(2, np.float32)),)
    factors.save(factors.Factors(("a",), (3,), sites, weights), tmp_path / "sites.npz")
    again = factors.load(tmp_path / "sites.npz")
    np.testing.assert_array_equal(again.sites[0].precision, 0)
    np.testing.assert_array_equal(again.weights.posterior.mean[0], q.mean[0])


@pytest.mark.parametrize("gone", [(), ("0", "1", "2")])
def test_a_file_holds_it_all(state, tmp_path, gone):
    state = factors.remove(state, *gone)
    factors.save(state, tmp_path / "sites.npz")
    again = factors.load(tmp_path / "sites.npz")
    assert again.names == state.names and again.num_examples == state.num_examples
    assert_posterior(again, factors.pool(state).posterior)
    for a, b in zip(again.sites, state.sites, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "damage",
    [
        lambda arrays: arrays.pop("names"),
        lambda arrays: arrays.update(precision=-arrays["precision"]),
        lambda arrays: arrays.update(shift=arrays["shift"] * np.nan),
        lambda arrays: arrays.update(precision=arrays["precision"][:2]),
        lambda arrays: arrays.update(names=np.array(["0", "0", "1"])),
        lambda arrays: arrays.update({"variance/0": np.zeros(2, np.float32)}),
        lambda arrays: arrays.update({"mean/7": np.zeros(2, np.float32)}),
    ],
)
def test_damaged_files_are_refused(state, tmp_path, damage):
    path = tmp_path / "sites.npz"
    factors.save(state, path)
    arrays = dict(np.load(path))
    damage(arrays)
    np.savez(path, **arrays)
    with pytest.raises(InvalidArgument, match="is not a file of sites"):
        factors.load(path)
