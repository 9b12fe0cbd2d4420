"""The driver: seeds, cohorts, evaluation, metrics as plain numbers, checkpoints, collapse, and workers that end."""

import functools
import itertools
import json
import logging

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tests.federated.toys import spoilt
from tests.kit import assert_same, refuses, without_times
from tfp_bfl import algorithms, federated, models, rules
from tfp_bfl.data import Clients, Source, cohort, load
from tfp_bfl.weights import get_weights

SOURCE = load("breast_cancer")
SIZES = (9, 20, 14, 5, 11)
ENDS = np.cumsum(SIZES)
INDICES = [np.arange(end - size, end) for size, end in zip(SIZES, ENDS)]
CLIENTS = Clients(SOURCE, INDICES)


def model_fn(kind="flipout", initial_stddev=0.1, **options):
    return models.mlp(kind, hidden=(), initial_stddev=initial_stddev, **options)


@functools.cache
def build(kind="flipout", rule="naive_weighted_average", **options):
    make = functools.partial(model_fn, kind, **options)
    return algorithms.variational(make, rules.parse_rule(rule), local_epochs=1, batch_size=8, learning_rate=0.01)


@pytest.fixture
def simulate(runtime):
    return functools.partial(federated.simulate, build(), CLIENTS, runtime=runtime)


def with_nan(*spoiled):
    features = SOURCE.features.copy()
    for k in spoiled:
        features[INDICES[k][0], 3] = np.nan
    return Clients(spoilt(SOURCE, features), INDICES)


def differ(a, b):
    return max(np.abs(x - y).max() for x, y in zip(tf.nest.flatten(a), tf.nest.flatten(b), strict=True)) > 1e-4


def test_seed_decides_everything(simulate):
    """All clients take part, so that the cohort is the same."""
    first, again, other = (simulate(3, seed=seed) for seed in (4, 4, 5))
    assert_same(first.state, again.state)
    assert_same(get_weights(first.model), first.state.weights, rtol=1e-5)
    assert (first.state.seed, first.state.round) == (4, 3)
    assert without_times(first.rounds) == without_times(again.rounds)
    assert differ(first.state.weights, other.state.weights)


def test_cohorts_are_those_of_the_data_package(runtime):
    """Three of the clients are faulty, so that the rows name those of them that took part."""
    spoiled = (0, 2, 4)
    seen = []
    result = federated.simulate(
        build(), with_nan(*spoiled), 4, cohort_size=4, seed=2, on_round=seen.append, runtime=runtime
    )
    for number, row in enumerate(result.rounds, start=1):
        chosen = cohort(5, 4, number, seed=2)
        assert sorted(map(int, row["faulty_clients"])) == sorted(set(spoiled) & set(chosen.tolist()))
        assert (row["num_clients"], row["num_faulty"]) == (4, len(row["faulty_clients"]))
        assert row["num_examples"] == sum(SIZES[k] for k in chosen if k not in spoiled)
    assert len({tuple(row["faulty_clients"]) for row in seen}) > 1


@pytest.mark.parametrize(
    ("rounds", "every", "evaluated"), [(5, 2, [2, 4, 5]), (4, 2, [2, 4]), (3, 1, [1, 2, 3]), (2, 10, [2])]
)
def test_rounds_that_are_evaluated(simulate, rounds, every, evaluated):
    calls = []

    def evaluate(model):
        calls.append(get_weights(model))
        return {"calls": len(calls)}

    result = simulate(rounds, evaluate=evaluate, evaluate_every=every)
    assert [row["round"] for row in result.rounds if "calls" in row] == evaluated
    assert len(calls) == len(evaluated)
    assert_same(calls[-1], result.state.weights, rtol=1e-5)
    assert all(differ(a, b) for a, b in itertools.pairwise(calls))


@pytest.mark.parametrize("kind", ["flipout", "deterministic"])
def test_rows_are_plain_numbers(kind, runtime):
    test = load("breast_cancer", split="test")
    evaluate = bfl.evaluation.evaluator(test.features[:20], test.labels[:20], num_samples=2)
    rows = []
    result = federated.simulate(
        build(kind), with_nan(1), 2, evaluate=evaluate, on_round=lambda row: rows.append(dict(row)), runtime=runtime
    )
    assert rows == result.rounds
    for number, row in enumerate(rows, start=1):
        assert json.loads(json.dumps(row, allow_nan=False)) == row
        assert row.pop("faulty_clients") == {"1": "not finite"}
        assert all(type(value) in (int, float) for value in row.values()), row
        assert row["round"] == number
        assert 0 <= row["train_seconds"] <= row["seconds"]
        assert {"nll", "kl", "tempered_elbo", "accuracy", "test_nll"} <= set(row)
        assert ("stddev_median" in row) is (kind == "flipout")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds is 0, but must be an integer of at least 1"),
        ({"rounds": 1, "evaluate_every": 0}, "evaluate_every is 0, but must be an integer of at least 1"),
        ({"rounds": 1, "cohort_size": 6}, "cohort_size is 6, but must be at most the number of clients, 5"),
        ({"rounds": 1, "cohort_size": 0}, "cohort_size is 0"),
        ({"rounds": 1, "seed": -1}, "seed is -1"),
        ({"rounds": 1, "dropout": 1.0}, "dropout is 1.0, but must be at least 0 and below 1"),
        ({"rounds": 1, "dropout": -0.1}, "dropout is -0.1"),
        ({"rounds": 1, "dropout": float("nan")}, "dropout is nan"),
        ({"rounds": 1, "max_retries": -1}, "max_retries is -1"),
        ({"rounds": 1, "max_restarts": 1.5}, "max_restarts is 1.5"),
        ({"rounds": 1, "checkpoint_every": 0}, "checkpoint_every is 0"),
        ({"rounds": 1, "keep_checkpoints": 0}, "keep_checkpoints is 0"),
    ],
)
def test_bad_arguments(simulate, tmp_path, options, message):
    refuses(message, simulate, **options, checkpoint_dir=tmp_path / "states")
    assert not (tmp_path / "states").exists()


@pytest.mark.parametrize(
    ("features", "classes", "message"),
    [
        (np.zeros([3, 29]), ("no", "yes"), r"shape \[30\] and type float32, but the clients' have shape \[29\]"),
        (np.zeros([3, 5, 6]), ("no", "yes"), r"shape \[5, 6\]"),
        (np.zeros([4, 30]), tuple("abcd"), "classes|labels"),
    ],
)
def test_clients_that_do_not_fit_the_model(runtime, features, classes, message):
    labels = np.arange(len(features), dtype=np.int32) % len(classes)
    source = Source("made", "train", features.astype(np.float32), labels, classes)
    refuses(message, federated.simulate, build(), Clients(source, [np.arange(len(features))]), 1, runtime=runtime)


@pytest.mark.parametrize("rule", ["conflation", "naive_weighted_average"])
def test_collapse_is_reported_once(rule, runtime, caplog):
    """Conflation divides the variance by K = 5 each round: sd is below 5 % of the first, 0.1, in round 4."""
    with caplog.at_level(logging.WARNING, logger="tfp_bfl"):
        result = federated.simulate(build(rule=rule), CLIENTS, 7, runtime=runtime)
    below = [row["round"] for row in result.rounds if row["stddev_median"] < 0.05 * 0.1]
    warnings = [record.getMessage() for record in caplog.records if "collapsed" in record.getMessage()]
    if rule == "conflation":
        assert below == [4, 5, 6, 7] and result.collapsed == 4
        assert warnings == [federated.collapse_warning(4)]
        assert "5%" in warnings[0] and "round 4" in warnings[0]
    else:
        assert not below and result.collapsed is None and not warnings


def test_collapse_to_the_floor_is_reported(runtime):
    """The first round's sd is not yet 20 times the floor, so that no later one can be below 5 % of it."""
    process = build(rule="conflation", initial_stddev=3e-4)
    result = federated.simulate(process, CLIENTS, 5, runtime=runtime)
    assert result.rounds[-1]["share_at_floor"] == 1
    assert result.collapsed is not None


@pytest.mark.deep(after="tests/federated/test_simulation.py")
def test_a_posterior_that_begins_at_its_floor_has_not_collapsed(runtime, caplog):
    process = build(rule="conflation", initial_stddev=0.01, min_stddev=0.01)
    result = federated.simulate(process, CLIENTS, 3, runtime=runtime)
    assert result.rounds[-1]["share_at_floor"] > 0.5
    assert result.collapsed is None and "collapsed" not in caplog.text


def test_model_without_a_posterior_cannot_collapse(runtime):
    assert federated.simulate(build("deterministic"), CLIENTS, 2, runtime=runtime).collapsed is None
