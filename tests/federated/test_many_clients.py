"""Runs over many clients: popular ones come more often, data are read when a client is drawn, cohorts are scored."""

import functools

import numpy as np
import pytest

from tfp_bfl import algorithms, federated, models
from tfp_bfl.data import Clients, answering, cohort, load
from tfp_bfl.errors import InvalidArgument

SOURCE = load("breast_cancer")
# Of 1 to 20 examples, so that the number of a round's examples says whose round it was.
SIZES = np.arange(1, 21)
CLIENTS = Clients(SOURCE, np.split(np.arange(SIZES.sum()), np.cumsum(SIZES)[:-1]))
POPULARITY, ROUNDS = 0.3, 60


@functools.cache
def process():
    return algorithms.fed_opt(functools.partial(models.mlp, "deterministic", hidden=(3,)), local_epochs=1)


@pytest.fixture
def simulate(runtime):
    return functools.partial(federated.simulate, process(), runtime=runtime)


@pytest.mark.deep(after="tests/data/test_clients.py")
def test_popular_clients_come_more_often(simulate):
    """One client a round. Of 20 equally likely ones none has more than a fifth of 60 rounds (seeded: all is fixed)."""
    counts = {}
    for popularity in (None, POPULARITY):
        rows = simulate(CLIENTS, ROUNDS, cohort_size=1, seed=1, popularity=popularity).rounds
        who = [row["num_examples"] - 1 for row in rows]
        assert who == [cohort(20, 1, t, 1, popularity=popularity)[0] for t in range(1, ROUNDS + 1)]
        counts[popularity] = [np.bincount(half, minlength=20) for half in np.split(np.array(who), 2)]
    even, uneven = (np.sum(counts[popularity], 0) for popularity in (None, POPULARITY))
    assert even.max() <= ROUNDS / 5 < uneven.max()
    assert np.count_nonzero(uneven) < np.count_nonzero(even)
    # The popular ones are the same throughout the run.
    first, second = counts[POPULARITY]
    assert second[np.argsort(-first)[:5]].sum() > ROUNDS / 4


def test_a_run_goes_on_with_its_own_popularity_only(simulate, tmp_path):
    start = functools.partial(simulate, CLIENTS, cohort_size=2, seed=1)
    options = {"popularity": POPULARITY, "checkpoint_dir": tmp_path / "run"}
    start(2, **options)
    for other in (None, 1.0):
        with pytest.raises(InvalidArgument, match=r"of a run that differs in sampling, .*popularity 0\.3.* choose"):
            start(4, **{**options, "popularity": other})
    rows = [start(4, popularity=POPULARITY).rounds, start(4, **options).rounds]
    assert [r["nll"] for r in rows[0]] == [r["nll"] for r in rows[1]]


def test_a_round_is_scored_on_the_data_of_those_who_answered(simulate):
    score = lambda model, features, labels: {"examples": len(features), "sum": float(np.sum(features))}
    options = {"cohort_size": 6, "seed": 3, "dropout": 0.5, "evaluate_cohort": score}
    rows = simulate(CLIENTS, 4, **options).rounds
    seldom = simulate(CLIENTS, 3, **options, evaluate_every=2).rounds
    assert [row["round"] for row in seldom if "cohort_examples" in row] == [2, 3]
    for number, row in enumerate(rows, 1):
        present = answering(cohort(20, 6, number, 3, row["retries"]), 0.5, number, 3, row["retries"])
        own = np.concatenate([CLIENTS.indices[k] for k in present])
        assert row["num_dropped"] == 6 - len(present)
        assert (row["cohort_examples"], row["num_examples"]) == (len(own), len(own))
        np.testing.assert_allclose(row["cohort_sum"], SOURCE.features[own].sum(), rtol=1e-4)
    assert len({row["num_dropped"] for row in rows}) > 1
