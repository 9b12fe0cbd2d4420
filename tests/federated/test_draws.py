"""The draws of a chain: which are kept, written once, found again, and what predicts with them."""

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import refuses
from tfp_bfl.algorithms.chains.driver import simulate_chains
from tfp_bfl.federated import Thinning, simulate
from tfp_bfl.federated.draws import Draws
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights import ModelWeights

from . import toys
from .toys import CLIENTS


def weights(value):
    return ModelWeights(MeanField((), ()), (np.full([2], value, np.float32),), MeanField((), ()))


@pytest.mark.parametrize(
    ("thinning", "kept"),
    [(Thinning(), [1, 2, 3, 4, 5, 6]), (Thinning(2, 3), [3, 6]), (Thinning(1, 2, 2), [4, 6]), (Thinning(6), [])],
)
def test_which_rounds_are_kept(thinning, kept):
    draws = Draws(thinning)
    for number in range(1, 7):
        draws.add(number, weights(number))
    if not kept:
        assert draws.samples() is None
        assert draws.predictive(weights(0)).posterior == MeanField((), ())
        return
    assert draws.samples().values[0][:, 0].tolist() == kept
    predictive = draws.predictive(weights(0))
    assert predictive.point == () and predictive.posterior.values[0].shape == (len(kept), 2)


def run(process, rounds, folder=None):
    return simulate(process, CLIENTS, rounds, engine="local", checkpoint_dir=folder, seed=2)


def test_a_resumed_chain_has_the_draws_of_one_that_never_stopped(tmp_path):
    process = toys.process(thinning=Thinning(1, 2))
    whole = run(process, 7).draws
    assert whole.values[1].shape == (3, 2)
    run(process, 4, tmp_path)
    first = (tmp_path / "draws" / "draw_2.npz").stat()
    resumed = run(process, 7, tmp_path).draws
    tf.nest.map_structure(np.testing.assert_array_equal, resumed, whole)
    assert sorted(path.name for path in (tmp_path / "draws").iterdir()) == [f"draw_{n}.npz" for n in (2, 4, 6)]
    assert (tmp_path / "draws" / "draw_2.npz").stat() == first  # written once


def test_a_longer_burn_in_of_a_resumed_chain_drops_the_draws_before(tmp_path):
    run(toys.process(thinning=Thinning()), 3, tmp_path)
    draws = run(toys.process(thinning=Thinning(2)), 5, tmp_path).draws
    whole = run(toys.process(thinning=Thinning(2)), 5).draws
    tf.nest.map_structure(np.testing.assert_array_equal, draws, whole)


def test_a_round_with_a_failed_evaluation_is_no_second_draw(tmp_path):
    """Its draw is written before the evaluation, and the checkpoint of the error is of the round before."""
    process = toys.process(thinning=Thinning())
    given = {"engine": "local", "seed": 2, "checkpoint_dir": tmp_path, "checkpoint_every": 5, "evaluate_every": 3}

    def fails(model):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        simulate(process, CLIENTS, 5, evaluate=fails, **given)
    draws = simulate(process, CLIENTS, 5, **given).draws
    tf.nest.map_structure(np.testing.assert_array_equal, draws, run(process, 5).draws)


def test_a_run_no_longer_than_its_burn_in_is_refused():
    message = "burn_in_rounds is 4, but the run has 4 rounds"
    refuses(message, simulate, toys.process(), CLIENTS, 4, draws=Thinning(4), engine="local")
    chains = simulate_chains(toys.process(), CLIENTS, 4, thinning=Thinning(4))  # Such as for what comes before.
    refuses("No round of the chain was kept", chains.predictive)
    refuses("every is 0", simulate_chains, toys.process(), CLIENTS, 4, thinning=Thinning(0, 0))


def test_the_last_draws_of_each_chain_predict():
    chains = simulate_chains(toys.process(), CLIENTS, 4, num_chains=2, thinning=Thinning(most=2))
    assert chains.draws.point[1].shape[:2] == (2, 4)
    np.testing.assert_array_equal(chains.predictive().posterior.values[1], chains.draws.point[1][:, 2:].reshape(4, -1))


def test_the_model_predicts_with_the_draws():
    result = run(toys.process(thinning=Thinning(0, 1, 2)), 3)
    (sampled,) = [layer for layer in result.model.layers if hasattr(layer, "posterior")]
    np.testing.assert_allclose(sampled.posterior.values[1], result.draws.values[1])
    assert run(toys.process(), 1).draws is None


def test_a_damaged_draw_is_refused(tmp_path):
    process = toys.process(thinning=Thinning())
    run(process, 2, tmp_path)
    (tmp_path / "draws" / "draw_1.npz").write_bytes(b"no arrays")
    refuses(r"draw_1\.npz is missing or damaged", run, process, 3, tmp_path)


@pytest.mark.parametrize(("field", "value"), [("burn_in", -1), ("every", 0), ("most", 0)])
def test_bad_thinning(field, value):
    refuses(f"is {value}, but must be an integer of at least", Draws, Thinning()._replace(**{field: value}))
