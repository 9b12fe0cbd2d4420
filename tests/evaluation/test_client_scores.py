"""Scores of each client on its own rows, and the test of each client against all others."""

import numpy as np
import pytest
from scipy import stats

from tests.kit import refuses
from tfp_bfl import evaluation
from tfp_bfl.evaluation.sums import client_warnings, scores_of_sums


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
        ends = evaluation.proportion_interval(right[own].sum(), own.sum())
        assert (row["accuracy_low"], row["accuracy_high"]) == ends
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
    assert evaluation.client_scores([1.0], [2.0], ["a"]) == [{"client": "a", "n": 1, "rmse": 1.0}]
    # Of three classes there is no sensitivity.
    rows = evaluation.client_scores(rng.dirichlet(np.ones(3), 20), rng.integers(0, 3, 20), ["a", "b"] * 10)
    assert all("sensitivity" not in row and "coverage" not in row for row in rows)
    refuses("There are 3 clients for 2 rows", evaluation.client_scores, np.full((2, 2), 0.5), [0, 1], ["a", "b", "c"])


def doubled(k, n, others, rest):
    """Fisher's p-value of k of n against others of rest by SciPy, the smaller of both tails twice."""
    table = [[k, n - k], [others, rest - others]]
    return 2 * min(stats.fisher_exact(table, side).pvalue for side in ("less", "greater"))


def test_p_values_are_those_of_scipy_and_a_group_that_differs_is_left_out():
    found = evaluation.different_proportions({"a": (24, 40), "b": (48, 60), "c": (20, 30), "d": (0, 0)})
    wanted = {"a": doubled(24, 40, 68, 90), "b": doubled(48, 60, 44, 70), "c": doubled(20, 30, 72, 100)}
    assert found == pytest.approx({name: min(1, 3 * p) for name, p in wanted.items()})
    found = evaluation.different_proportions({"north": (6, 36), "south": (8, 36), "west": (30, 36)}, 0.001)
    # Without west, which differs, north and south are compared with each other.
    assert found == pytest.approx({"west": 3 * doubled(30, 36, 14, 72), "north": 1, "south": 1})
    found = evaluation.different_proportions({"one": (9, 10), "other": (60, 100)})
    assert max(found.values()) == pytest.approx(doubled(9, 10, 60, 100))


def test_errors_of_numbers_are_compared_at_the_upper_quartile_of_all():
    """Errors 1, 2, 4, ..., 2^11: the three of 12 above 2^8 are large, two of them at a."""
    errors, clients = 2.0 ** np.arange(12), np.array(list("bbbbbbbbbaab"))
    rows = {row["client"]: row for row in evaluation.client_scores(errors, np.zeros(12), clients)}
    assert rows["a"]["large_errors"] == 1 and rows["b"]["large_errors"] == 0.1
    assert rows["a"]["p_value"] == rows["b"]["p_value"] == pytest.approx(doubled(2, 2, 1, 10))


def test_a_client_below_the_others_is_named():
    rng = np.random.default_rng(4)
    right = np.concatenate([np.arange(40) < 22, np.arange(144) < 127])
    clients = ["VA Long Beach"] * 40 + ["Cleveland"] * 144
    rows = evaluation.client_scores(*predicted(rng, right), clients)
    assert rows[0]["client"] == "VA Long Beach" and rows[0]["p_value"] < 1e-4 and len(rows) == 2
    (warning,) = client_warnings(rows)
    assert "VA Long Beach, accuracy 0.550 [0.398, 0.693] of 40 rows, others 0.882" in warning
    assert "Cleveland" not in warning and "Fisher's exact test" in warning
    wide = np.where(np.arange(184) < 40, 5.0, 1.0) * rng.normal(size=184)
    warning, asked = client_warnings(evaluation.client_scores(wide, np.zeros(184), clients))
    assert "VA Long Beach, RMSE" in warning and "errors above the upper quartile" in warning
    assert asked.startswith("VA Long Beach, RMSE") and "columns in other units?" in asked


def scores(sites):
    return scores_of_sums({name: {"correct": k, "count": n, "nll": 0.0} for name, (k, n) in sites.items()})


def warnings_of(**sites):
    """Warnings from sums of sites: name -> (correct, count)."""
    return client_warnings(scores(sites))


def test_a_client_with_swapped_labels_is_asked_about():
    below, asked = warnings_of(north=(36, 38), south=(35, 37), west=(2, 38))
    assert "west, accuracy 0.053" in below and "north" not in below
    assert asked.startswith("west, accuracy 0.053") and "are its labels swapped, or columns in other units?" in asked
    # A model that has learned the swapped labels.
    (asked,) = warnings_of(north=(6, 36), south=(8, 36), west=(30, 36))
    assert asked.startswith("west, accuracy 0.833") and "others 0.194" in asked
    below, asked = warnings_of(north=(6, 36), west=(30, 36))
    assert "north, accuracy" in below and "are the labels of one of both swapped" in asked
    # Few rows, or a model that has learned little.
    assert warnings_of(north=(4, 5), south=(4, 5), west=(1, 5)) == []
    assert warnings_of(north=(60, 100), south=(55, 100), west=(50, 100)) == []
    assert warnings_of(north=(90, 100)) == warnings_of() == []


@pytest.mark.statistical
@pytest.mark.parametrize("sizes", [(2, 200), (200, 2), (10, 10), (40,) * 4, (5,) * 30])
@pytest.mark.parametrize("task", ["classes", "numbers"])
def test_clients_that_do_not_differ_are_rarely_named(task, sizes):
    """At most .05 of federations have a warning, measured .000 to .032; of 400 at most 33 (at .05 exceeded by chance in
    .003)."""
    rng = np.random.default_rng(5)
    clients, total = np.repeat([f"client {k}" for k in range(len(sizes))], sizes), sum(sizes)
    named = 0
    for _ in range(400):
        if task == "classes":
            right = rng.random(total) < 0.85
            rows = scores(
                {name: (right[clients == name].sum(), sum(clients == name)) for name in dict.fromkeys(clients)}
            )
        else:
            rows = evaluation.client_scores(rng.standard_t(4, total), np.zeros(total), clients)
        named += bool(client_warnings(rows))
    assert named <= 33


@pytest.mark.statistical
@pytest.mark.deep(after="tests/evaluation/test_client_scores.py")
@pytest.mark.parametrize(("number", "accuracy"), [(3, 0.9), (12, 0.9), (40, 0.6)])
def test_false_warnings_are_as_rare_as_measured(number, accuracy):
    """Bound warnings of 2,000 federations by 60: more by chance in .0011 if the rate is .02 (measured .003 to .019)."""
    named = 0
    for seed in range(2000):
        rng = np.random.default_rng([seed, number])
        rows = rng.integers(10, 201, number)
        counts = {f"client {k}": pair for k, pair in enumerate(zip(rng.binomial(rows, accuracy), rows))}
        if min(evaluation.different_proportions(counts).values()) <= 0.05:
            named += bool(warnings_of(**counts))
    assert 0 < named <= 60


@pytest.mark.statistical
def test_a_client_as_far_below_as_the_hospital_of_the_example_is_found():
    """A client with 40 rows and an accuracy of .55 beside 144 rows with .88 is named in 90 % of federations at least
    (power .98 by the binomial distribution; of 200 fewer than 180 with probability 1e-8)."""
    rng, named = np.random.default_rng(6), 0
    for _ in range(200):
        counts = rng.binomial([40, 61, 58, 25], [0.55, 0.88, 0.88, 0.88])
        rows = scores(dict(zip("abcd", zip(counts, [40, 61, 58, 25]))))
        named += next(row for row in rows if row["client"] == "a")["p_value"] <= 0.05
    assert named >= 180


def test_class_frequencies_are_laplaces():
    labels = np.array([0, 0, 1, 2])
    found = evaluation.class_frequencies([5, 2, 0], labels)
    p = np.array([6, 3, 1]) / 10
    np.testing.assert_allclose(found.losses, -np.log(p[labels]))
    assert found.metrics == pytest.approx({"accuracy": 0.5, "test_nll": -np.log(p[labels]).mean()})


def test_the_training_mean_is_a_normal_distribution():
    y = np.array([1.0, 4.0, -2.0])
    found = evaluation.training_mean(0.5, 2.0, y)
    np.testing.assert_allclose(found.losses, -stats.norm.logpdf(y, 0.5, 2.0))
    assert found.metrics["rmse"] == pytest.approx(np.sqrt(np.mean((y - 0.5) ** 2)))
    crps = evaluation.mixture_crps(np.full((1, 3), 0.5), np.full((1, 3), 4.0), y)
    assert found.metrics["crps"] == pytest.approx(crps.mean())


def test_a_baseline_is_better_by_more_than_chance():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=400)
    base = lambda name, losses: evaluation.Baseline(name, {"test_nll": losses.mean()}, losses)
    model = 1 + 0.1 * noise
    level, better, best = base("level", 1 + 0.1 * rng.normal(size=400)), base("a", model - 0.2), base("b", model - 0.3)
    assert evaluation.better_baseline(model, [level]) is None
    assert evaluation.better_baseline(model, [better, level, best]) is best
    assert evaluation.better_baseline(model, [base("worse", model + 0.3)]) is None
    assert evaluation.better_baseline(model[:1], [base("one", model[:1] - 0.3)]) is None


@pytest.mark.parametrize("labels", [[], [3], [-1]])
def test_labels_beyond_the_classes_are_refused(labels):
    refuses("lie in", evaluation.class_frequencies, [1, 2, 3], np.array(labels, np.int64))
    refuses("no labels", evaluation.training_mean, 0.0, 1.0, [])
