"""Scores of each client on its own rows, and the test of each client against all others."""

import numpy as np
import pytest
from scipy import stats

from tfp_bfl import evaluation
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.evaluation.client_scores import client_warnings, scores_of_sums


def predicted(rng, right):
    """Probabilities and labels of two classes, right where `right` says so."""
    labels = rng.integers(0, 2, len(right))
    chosen = np.where(right, labels, 1 - labels)
    sure = rng.uniform(0.55, 0.95, len(right)).astype(np.float32)
    return np.where(chosen[:, None] == [0, 1], sure[:, None], 1 - sure[:, None]), labels


def test_each_client_has_the_scores_of_its_rows():
    rng = np.random.default_rng(0)
    clients = np.array(["Basel"] * 30 + ["Ulm"] * 20 + ["Aachen"] * 50, object)
    order = rng.permutation(100)
    clients, right = clients[order], (rng.random(100) < 0.8)
    probabilities, labels = predicted(rng, right)
    covered = rng.random(100) < 0.9
    rows = evaluation.client_scores(probabilities, labels, clients, covered=covered, names=["Bonn", "Ulm"])
    assert [row["accuracy"] for row in rows[:-1]] == sorted(row["accuracy"] for row in rows[:-1])
    assert rows[-1] == {"client": "Bonn", "n": 0}
    assert {row["client"]: row["n"] for row in rows} == {"Basel": 30, "Ulm": 20, "Aachen": 50, "Bonn": 0}
    for row in rows[:-1]:
        own = clients == row["client"]
        scores = evaluation.class_scores(probabilities[own], labels[own])
        assert row["accuracy"] == right[own].mean()
        assert (row["accuracy_low"], row["accuracy_high"]) == evaluation.proportion_interval(
            right[own].sum(), own.sum()
        )
        for name in ("sensitivity", "specificity"):
            assert tuple(row[f"{name}{end}"] for end in ("", "_low", "_high")) == getattr(scores, name)
        assert row["coverage"] == covered[own].mean()
        nll = float(evaluation.negative_log_likelihood(probabilities[own], labels[own]))
        assert row["test_nll"] == pytest.approx(nll, rel=1e-5)


def test_numbers_have_an_rmse_with_a_t_interval():
    rng = np.random.default_rng(1)
    clients, labels, noise = np.repeat(["a", "b"], [12, 40]), rng.normal(size=52), rng.normal(size=52)
    losses = rng.normal(size=52)
    rows = evaluation.client_scores(labels + noise, labels, clients, losses=losses)
    for row in rows:
        own = clients == row["client"]
        square = noise[own] ** 2
        low, high = stats.t.interval(0.95, own.sum() - 1, square.mean(), stats.sem(square))
        assert row["rmse"] == pytest.approx(square.mean() ** 0.5)
        assert (row["rmse_low"], row["rmse_high"]) == pytest.approx((max(low, 0) ** 0.5, high**0.5))
        assert row["test_nll"] == pytest.approx(losses[own].mean()) and "accuracy" not in row
    assert rows[0]["rmse"] > rows[1]["rmse"]
    (one,) = evaluation.client_scores([1.0], [2.0], ["a"])
    assert one == {"client": "a", "n": 1, "rmse": 1.0}


def test_three_classes_have_no_sensitivity():
    rng = np.random.default_rng(2)
    rows = evaluation.client_scores(rng.dirichlet(np.ones(3), 20), rng.integers(0, 3, 20), ["a", "b"] * 10)
    assert all("sensitivity" not in row and "coverage" not in row for row in rows)


def test_the_tests_are_those_of_scipy_with_holms_correction():
    rng = np.random.default_rng(3)
    clients, right = np.repeat(["a", "b", "c"], [40, 60, 30]), np.repeat([0.6, 0.8, 0.5], [40, 60, 30])
    probabilities, labels = predicted(rng, hits := rng.random(130) < right)
    found = {row["client"]: row["p_value"] for row in evaluation.client_scores(probabilities, labels, clients)}
    raw = {}
    for name in "abc":
        own = clients == name
        table = [[hits[own].sum(), (~hits[own]).sum()], [hits[~own].sum(), (~hits[~own]).sum()]]
        raw[name] = stats.fisher_exact(table, "less").pvalue
    ordered = sorted(raw, key=raw.get)
    steps = [raw[name] * (3 - k) for k, name in enumerate(ordered)]
    assert [found[name] for name in ordered] == pytest.approx(np.minimum(np.maximum.accumulate(steps), 1))
    errors = np.round(rng.normal(size=130), 1)  # With ties.
    rows = evaluation.client_scores(errors, np.zeros(130), np.where(clients == "a", "a", "others"))
    size = np.abs(errors)
    wanted = [
        stats.mannwhitneyu(size[own], size[~own], alternative="greater", method="asymptotic").pvalue
        for own in (clients == "a", clients != "a")
    ]
    assert min(row["p_value"] for row in rows) == pytest.approx(min(1, 2 * min(wanted)))


def test_a_client_below_the_others_is_named():
    rng = np.random.default_rng(4)
    right = np.concatenate([np.arange(40) < 22, np.arange(144) < 127])
    clients = ["VA Long Beach"] * 40 + ["Cleveland"] * 144
    rows = evaluation.client_scores(*predicted(rng, right), clients)
    assert rows[0]["client"] == "VA Long Beach" and rows[0]["p_value"] < 1e-4
    (warning,) = client_warnings(rows)
    assert "VA Long Beach, accuracy 0.550 [0.398, 0.693] of 40 rows, others 0.882" in warning
    assert "Cleveland" not in warning and "Fisher's exact test" in warning
    wide = np.where(np.arange(184) < 40, 5.0, 1.0) * rng.normal(size=184)
    (warning,) = client_warnings(evaluation.client_scores(wide, np.zeros(184), clients))
    assert "VA Long Beach, RMSE" in warning and "rank-sum test" in warning


@pytest.mark.statistical
@pytest.mark.parametrize("sizes", [(2, 200), (200, 2), (10, 10), (40,) * 4, (5,) * 30])
@pytest.mark.parametrize("task", ["classes", "numbers"])
def test_clients_that_do_not_differ_are_rarely_named(task, sizes):
    """At most .05 of federations have a warning; of 400 at most 33 (error rate .003 at a rate of exactly .05)."""
    rng = np.random.default_rng(5)
    clients, total = np.repeat([f"client {k}" for k in range(len(sizes))], sizes), sum(sizes)
    named = 0
    for _ in range(400):
        if task == "classes":
            right, number = rng.random(total) < 0.85, np.ones(total)
            sums = {
                name: {"count": number[clients == name].sum(), "correct": right[clients == name].sum(), "nll": 0.0}
                for name in dict.fromkeys(clients)
            }
            rows = scores_of_sums(sums)
        else:
            rows = evaluation.client_scores(rng.standard_t(4, total), np.zeros(total), clients)
        named += bool(client_warnings(rows))
    assert named <= 33


@pytest.mark.statistical
def test_a_client_as_far_below_as_the_hospital_of_the_example_is_found():
    """A client with 40 rows and an accuracy of .55 beside 144 rows with .88 is named in 90 % of federations at least
    (power .98 by the binomial distribution; of 200 fewer than 180 with probability 1e-8)."""
    rng, named = np.random.default_rng(6), 0
    for _ in range(200):
        counts = rng.binomial([40, 61, 58, 25], [0.55, 0.88, 0.88, 0.88])
        sums = {
            f"{k}": {"count": n, "correct": c, "nll": 0.0} for k, (n, c) in enumerate(zip([40, 61, 58, 25], counts))
        }
        rows = scores_of_sums(sums)
        named += next(row for row in rows if row["client"] == "0")["p_value"] <= 0.05
    assert named >= 180


def test_arguments_that_do_not_fit_are_one_sentence():
    with pytest.raises(InvalidArgument, match="There are 3 clients for 2 rows"):
        evaluation.client_scores(np.full((2, 2), 0.5), [0, 1], ["a", "b", "c"])
