"""The average of the last rounds: its closed form, what it leaves as it is, resuming to the bit, and refusals."""

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import refuses
from tfp_bfl import algorithms, evaluation, export, federated, models
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.federated import Thinning, simulate
from tfp_bfl.federated.averaging import RoundAverage, check_average_rounds
from tfp_bfl.posterior import LowRank, MeanField
from tfp_bfl.weights import ModelWeights, assign_weights, get_weights, predictive_weights

from . import toys
from .toys import CLIENTS

ROUNDS = 5


def weights(mean, variance, point, moving_mean, moving_variance):
    leaf = lambda x: (np.array([x], np.float32),)
    return ModelWeights(
        MeanField(leaf(mean), leaf(variance)), leaf(point), MeanField(leaf(moving_mean), leaf(moving_variance))
    )


HAND = [weights(1, 1, 3, 0, 1), weights(2, 0.5, 6, 4, 2), weights(4, 0.25, 0, 2, 6)]


def test_three_rounds_by_hand():
    """Precisions 1, 2 and 4: mean precision 7/3; precision times mean 1, 4 and 16: mean 21/7 = 3."""
    average = RoundAverage(3, 5, HAND[0])
    for number in (1, 2):
        average.add(number, lambda: pytest.fail("this round is not in the average"))
    assert average.sums == []
    for number, each in zip((3, 4, 5), HAND):
        average.add(number, lambda each=each: each)
    found = average.weights()
    assert [x.dtype for x in tf.nest.flatten(found)] == [np.float32] * 5
    np.testing.assert_allclose(found.posterior.mean[0], [3.0], rtol=1e-7)
    np.testing.assert_allclose(found.posterior.variance[0], [3 / 7], rtol=1e-7)
    np.testing.assert_allclose(found.point[0], [3.0], rtol=1e-7)
    np.testing.assert_allclose(found.moments.mean[0], [2.0], rtol=1e-7)
    np.testing.assert_allclose(found.moments.variance[0], [3.0], rtol=1e-7)


def test_equal_rounds_keep_every_bit():
    """Sums of 7 equal rounds, small variances beside large means among them; a variance of 0 stays a point."""
    same = weights(1e4 + 0.001, 1e-12, 1 / 3, -1e5, 1e-7)
    average = RoundAverage(7, 7, same)
    for number in range(1, 8):
        average.add(number, lambda: same)
    tf.nest.map_structure(np.testing.assert_array_equal, average.weights(), same)
    certain = RoundAverage(2, 2, same)
    for number, mean in ((1, 1.0), (2, 3.0)):
        certain.add(number, lambda mean=mean: weights(mean, 0, 0, 0, 1))
    found = certain.weights().posterior
    np.testing.assert_allclose(found.mean[0], [2.0])
    assert 0 <= found.variance[0][0] < 1e-37


def run(rounds=ROUNDS, folder=None, process=None, **options):
    process = process or toys.process()
    return simulate(process, CLIENTS, rounds, cohort_size=2, engine="local", checkpoint_dir=folder, seed=2, **options)


def test_a_run_ends_with_the_average_beside_its_last_round():
    seen = []

    def evaluate(model):
        seen.append([x.numpy() for x in model.trainable_variables])
        return {"bias": float(seen[-1][1][0])}

    found, plain = run(evaluate=evaluate, average_rounds=3), run()
    *rounds, last = seen
    assert len(rounds) == ROUNDS
    for values, averaged in zip(zip(*rounds[-3:]), last):
        np.testing.assert_allclose(averaged, np.mean(np.float64(values), 0), rtol=1e-7)
    assert np.abs(last[1] - rounds[-1][1]).max() > 1e-3
    assert found.averaged.rounds == 3 and found.averaged.metrics == {"bias": float(last[1][0])}
    assert [row["bias"] for row in found.rounds] == [float(x[1][0]) for x in rounds]
    tf.nest.map_structure(np.testing.assert_array_equal, found.state, plain.state)
    for a, b in zip(found.averaged.weights.point, found.model.trainable_variables):
        np.testing.assert_array_equal(a, b.numpy())


@pytest.mark.parametrize("average_rounds", [None, 1])
def test_one_round_is_the_last(average_rounds):
    found, plain = run(average_rounds=average_rounds), run()
    assert found.averaged is None
    for a, b in zip(found.model.variables, plain.model.variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def interrupted(after, **options):
    """Options of a run that breaks off in the evaluation of the round after that."""

    def evaluate(model):
        assert next(calls) <= after, "this is expected"
        return {}

    calls = iter(range(1, 99))
    return {**options, "evaluate": evaluate}


@pytest.mark.parametrize(("after", "every"), [(2, 1), (3, 1), (4, 1), (4, 3)])
def test_a_run_resumes_to_the_bit(tmp_path, after, every):
    """Before the window of rounds 3 to 5, at its first round, in the middle, and with a checkpoint at the error."""
    options = {"average_rounds": 3, "keep_checkpoints": 1, "checkpoint_every": every}
    whole = run(**options)
    with pytest.raises(AssertionError, match="this is expected"):
        run(folder=tmp_path, **interrupted(after, **options))
    assert sorted(path.name for path in tmp_path.glob("*.sha256")) == [f"round_{after}.sha256"]
    resumed = run(folder=tmp_path, **options)
    again = run(folder=tmp_path, **options)  # Of a complete run.
    for found in (resumed, again):
        tf.nest.map_structure(np.testing.assert_array_equal, found.averaged.weights, whole.averaged.weights)


def test_a_longer_run_goes_on_where_its_window_lies_ahead(tmp_path):
    run(ROUNDS, tmp_path, average_rounds=3)
    refuses(r"holds no sum of the rounds from 5 on: ask for at least 8", run, 7, tmp_path, average_rounds=3)
    found = run(8, tmp_path, average_rounds=3)
    tf.nest.map_structure(
        np.testing.assert_array_equal, found.averaged.weights, run(8, average_rounds=3).averaged.weights
    )
    assert run(8, tmp_path).averaged is None  # Without an average from the checkpoints of a run with one.


def test_variational_posteriors_are_averaged_and_exported(tmp_path):
    """The averaged model equals one assembled by hand from the rounds' weights, in Python and as a SavedModel."""
    model_fn = lambda: models.mlp("flipout", (2,), 2, hidden=(3,), seed=1)
    options = {"local_epochs": 1, "batch_size": 2, "learning_rate": 0.1, "inference": "backprop"}
    process = algorithms.variational(model_fn, "linear_pool", **options)
    rounds = []
    keep = lambda model: rounds.append(get_weights(model)) or {"accuracy": 0.25 * len(rounds)}
    found = run(4, process=process, average_rounds=3, evaluate=keep)
    rounds = [tf.nest.map_structure(lambda x: np.float64(x), w) for w in rounds[1:4]]
    for i, (mean, variance) in enumerate(zip(*found.averaged.weights.posterior)):
        precisions = [1 / w.posterior.variance[i] for w in rounds]
        wanted = sum(p * w.posterior.mean[i] for p, w in zip(precisions, rounds)) / sum(precisions)
        np.testing.assert_allclose(mean, wanted, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(variance, 3 / sum(precisions), rtol=1e-5)
    assert set(found.averaged.metrics) == {"accuracy", *federated.simulation.Spread._fields}
    export.save(found, tmp_path / "saved")
    loaded = export.load(tmp_path / "saved")
    predicted = loaded.predict(toys.FEATURES, num_samples=4, seed=3)["probabilities"]
    by_hand = model_fn()
    assign_weights(by_hand, found.averaged.weights)
    np.testing.assert_allclose(
        predicted, evaluation.predict(by_hand, toys.FEATURES, 4, 3).mean(0), rtol=1e-5, atol=1e-7
    )
    assert export.read_info(tmp_path / "saved").metrics["accuracy"] == found.averaged.metrics["accuracy"] == 1.25


def test_what_has_no_average():
    process = toys.process()
    for value, words in ((0, "must be an integer of at least 1"), (6, "has 5 rounds: give at most that many")):
        refuses(words, check_average_rounds, process, value, 5)
    refuses("samples of a chain", run, average_rounds=2, process=toys.process(thinning=Thinning()))
    refuses("leave stop and draws out", run, average_rounds=2, stop=lambda row: True)
    refuses("a model for each client", run, average_rounds=2, process=toys.langevin_like(step=toys.descend(0.1)))
    with pytest.raises(InvalidArgument, match="covariances between weights"):
        run(average_rounds=2, process=algorithms.fl_swag(toys.model_fn, min_examples=2, local_epochs=4))
    for exact in (algorithms.laplace(toys.model_fn, structure="diagonal"), algorithms.head(toys.model_fn)):
        refuses("each round of this algorithm replaces the posterior", check_average_rounds, exact, 2, 5)
    low_rank = LowRank((np.zeros(1),), (np.ones(1),), (np.ones([2, 1]),))
    refuses("this posterior is a LowRank", RoundAverage, 2, 2, HAND[0]._replace(posterior=low_rank))


def test_fed_ag_averages_the_gaussian_that_predicts():
    """Two clients a round: means and variances over them, averaged as they are."""
    process = algorithms.fed_ag(toys.model_fn, local_epochs=1, batch_size=2, learning_rate=0.1)
    seen = []
    keep = lambda model: seen.append(predictive_weights(model)) or {}
    found = run(3, process=process, average_rounds=2, evaluate=keep)
    a, b = (np.float64(w.posterior.variance[0]) for w in seen[1:3])
    assert a.min() > 0 and b.min() > 0
    np.testing.assert_allclose(found.averaged.weights.posterior.variance[0], (a + b) / 2, rtol=1e-5)
