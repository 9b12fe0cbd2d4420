"""Many rounds in one graph are the rounds of `simulate`."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests import kit
from tests.federated import toys
from tests.federated.toys import CLIENTS, UNEQUAL
from tfp_bfl import evaluation, servers
from tfp_bfl.algorithms.chains.driver import simulate_chains
from tfp_bfl.errors import Diverged, InvalidArgument
from tfp_bfl.federated import Thinning, simulate
from tfp_bfl.weights import predictive_model

assert_same = functools.partial(kit.assert_same, rtol=1e-05, atol=1e-06)

more = pytest.mark.deep(after="tests/algorithms/chains/test_chains.py")


def rounds_of(process, rounds, clients=CLIENTS, **options):
    """The server's weights after each round of `simulate`, and its rows."""
    states = []
    engine = process.local
    original = engine.next
    engine.next = lambda *args: states.append(original(*args)) or states[-1]
    try:
        result = simulate(process, clients, rounds, engine="local", **options)
    finally:
        del engine.next
    return [output.state.weights for output in states], result


@pytest.mark.parametrize("xla", [False, pytest.param(True, marks=more)])
def test_chains_are_runs_of_simulate_with_their_seeds(xla):
    process = toys.process(seed=3)
    chains = simulate_chains(process, CLIENTS, 5, num_chains=2, cohort_size=2, metrics=["num_examples"], xla=xla)
    assert chains.rounds.tolist() == [1, 2, 3, 4, 5]
    assert chains.metrics["num_examples"].tolist() == [[6] * 5] * 2
    for m in range(2):
        weights, result = rounds_of(process, 5, cohort_size=2, seed=3 + m)
        # XLA makes other noise from the same seeds; the cohorts, on which the bias depends, are the same.
        told = (lambda weights: weights.point[1]) if xla else (lambda weights: weights)
        for i, wanted in enumerate(weights):
            assert_same(told(tf.nest.map_structure(lambda x, m=m, i=i: x[m, i], chains.draws)), told(wanted))
        assert_same(told(tf.nest.map_structure(lambda x, m=m: x[m], chains.state.weights)), told(result.state.weights))
    kernels = chains.draws.point[0]
    assert np.abs(kernels[0] - kernels[1]).max() > 1e-3 and 1e-3 < kernels.std() < 0.1


@pytest.mark.deep(after="tests/algorithms/chains/test_chains.py")
def test_clients_of_unequal_size():
    process = toys.process(seed=3)
    wanted = simulate(process, UNEQUAL, 3, engine="local").state
    assert_same(tf.nest.map_structure(lambda x: x[0], simulate_chains(process, UNEQUAL, 3).state), wanted)
    with pytest.raises(InvalidArgument, match=r"XLA needs clients of one size, but they have 1 to 5 examples"):
        simulate_chains(process, UNEQUAL, 3, xla=True)


@functools.cache
def ten_rounds():
    return simulate_chains(toys.process(seed=3), CLIENTS, 10)


@pytest.mark.parametrize(
    "thinning",
    [
        Thinning(2, 3),
        *(pytest.param(t, marks=more) for t in (Thinning(0, 4), Thinning(5), Thinning(9), Thinning(3, 2))),
    ],
)
def test_thinned_rounds_over_several_calls(monkeypatch, thinning):
    """Ten rounds in calls of four, three chunks: the kept rounds are those of all."""
    everything = ten_rounds()
    monkeypatch.setattr("tfp_bfl.algorithms.chains.driver.ROUNDS_AT_ONCE", 4)
    kept = simulate_chains(toys.process(seed=3), CLIENTS, 10, thinning=thinning)
    wanted = np.arange(thinning.burn_in + 1, 11, thinning.every)
    assert kept.rounds.tolist() == wanted.tolist()
    assert_same(kept.draws, tf.nest.map_structure(lambda x: x[:, wanted - 1], everything.draws))


def test_starts_of_their_own():
    process = toys.process(seed=3)
    state = process.local.initialize()
    biases = np.array([[0, 0], [4, 8]], np.float32)
    start = state.weights._replace(point=(state.weights.point[0], biases))
    start = tf.nest.map_structure(lambda x, like: np.broadcast_to(x, (2, *like.shape)), start, state.weights)
    chains = simulate_chains(process, CLIENTS, 1, num_chains=2, start=start)
    means = np.array([1.5, 11.5])
    np.testing.assert_allclose(chains.draws.point[1][:, 0], biases + 0.5 * (means - biases), rtol=1e-6)


@pytest.mark.parametrize("xla", [False, pytest.param(True, marks=more)])
def test_memory_tell_and_counts(xla):
    counting = toys.process(toys.counting, memory=lambda weights, share: tf.constant(0.0))
    wanted = simulate(counting, CLIENTS, 6, cohort_size=1, seed=2, engine="local").state
    assert_same(
        tf.nest.map_structure(
            lambda x: x[0], simulate_chains(counting, CLIENTS, 6, cohort_size=1, seed=2, xla=xla).state
        ),
        wanted,
    )
    forces = toys.langevin_like(step=toys.descend(0.05))
    chains = simulate_chains(forces, CLIENTS, 2, metrics=["bits"], xla=xla)
    assert chains.metrics["bits"].tolist() == [[256, 256]]
    assert_same(chains.state.weights.point[1][0], simulate(forces, CLIENTS, 2, engine="local").state.weights.point[1])


def test_a_chain_that_diverges_stops_with_the_state_before():
    process = toys.langevin_like(step=toys.descend(1e3))
    with pytest.raises(Diverged, match=r"chain 0 are not finite, or beyond 1e\+06, after round 2, .*descend") as caught:
        simulate_chains(process, CLIENTS, 9)
    assert caught.value.state.round == 1 and np.all(np.isfinite(caught.value.state.weights.point[1]))


def test_draws_are_written_once_and_predict_together(monkeypatch, tmp_path):
    monkeypatch.setattr("tfp_bfl.algorithms.chains.driver.ROUNDS_AT_ONCE", 4)
    options = {"num_chains": 2, "thinning": Thinning(3, 2), "draws_dir": tmp_path / "draws"}
    chains = simulate_chains(toys.process(seed=3), CLIENTS, 10, **options)
    files = [np.load(tmp_path / "draws" / f"draws_{n}.npz") for n in (4, 8, 10)]
    assert [f["rounds"].tolist() for f in files] == [[4], [6, 8], [10]]
    for i, leaf in enumerate(chains.draws.point):
        np.testing.assert_array_equal(np.concatenate([f[str(i)] for f in files], 1), leaf)
    predictive = chains.predictive()
    assert [x.shape for x in predictive.posterior.values] == [(8, 2, 2), (8, 2)] and predictive.point == ()
    np.testing.assert_array_equal(predictive.posterior.values[1][4], chains.draws.point[1][1, 0])
    model = predictive_model(toys.model_fn(), predictive)
    assert 0 < evaluation.evaluate(model, toys.FEATURES, toys.LABELS).metrics["test_nll"] < 20
    with pytest.raises(InvalidArgument, match="which is there already: give a new folder"):
        simulate_chains(toys.process(seed=3), CLIENTS, 2, draws_dir=tmp_path / "draws")


@pytest.mark.parametrize("xla", [False, pytest.param(True, marks=more)])
def test_a_chain_stops_where_a_client_is_faulty(xla):
    """From round 3 on the sums of client 2 are no numbers: a chain without it is of another posterior."""

    def spoilt(message, examples, seed):
        result = toys.towards(message, examples, seed)
        bad = (message.round >= 2) & tf.equal(examples.client[0], 2)
        point = tuple(tf.where(bad, np.nan, x) for x in result.weights.point)
        return result._replace(weights=result.weights._replace(point=point))

    process = toys.process(spoilt)
    with pytest.raises(Diverged, match=r"client 2 sends in round 3 of chain 0 is faulty \(not finite\).*the") as caught:
        simulate_chains(process, CLIENTS, 9, xla=xla)
    assert caught.value.state.round == 2
    assert np.all(np.isfinite(caught.value.state.weights.point[1]))


def test_refusals():
    with pytest.raises(InvalidArgument, match="The round has no metric 'bytes': it has clients, kl, nll, "):
        simulate_chains(toys.process(seed=3), CLIENTS, 2, metrics=["bytes"])
    kit.refuses("num_chains is 0", simulate_chains, toys.process(seed=3), CLIENTS, 2, num_chains=0)
    growing = servers.replace()._replace(
        initialize=lambda weights: tf.raw_ops.PlaceholderWithDefault(input=tf.zeros([0]), shape=[None]), name="growing"
    )
    with pytest.raises(InvalidArgument, match="The server step growing keeps what grows from round to round"):
        simulate_chains(toys.process(step=growing), CLIENTS, 2)
