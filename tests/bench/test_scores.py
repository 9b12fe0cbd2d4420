"""Scores of predictions against plain loops, what is held out, and the controls of each."""

import numpy as np
import pytest

import tfp_bfl as bfl
from tests.kit import refuses
from tfp_bfl.app.one_run import client_scores
from tfp_bfl.app.one_run.client_scores import RowsByClient
from tfp_bfl.app.one_run.pipeline import Predicted
from tfp_bfl.bench import scores
from tfp_bfl.bench.scores import set_aside


def predicted(number, seed, clients=4, classes=3, right=0.7):
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=number)
    logits = rng.normal(size=(number, classes))
    logits[np.arange(number), labels] += np.where(rng.random(number) < right, 2.0, 0.0)
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    entropy = -(probabilities * np.log(probabilities)).sum(-1)
    arrays = {"probabilities": probabilities.astype(np.float32), "entropy": entropy, "epistemic": rng.random(number)}
    return Predicted(labels, np.sort(rng.integers(clients, size=number)), arrays, {})


def test_scores_of_classes_against_loops():
    test, held = predicted(400, 1), predicted(300, 2)
    found = scores.of_classes(test, held)
    p, y = test.arrays["probabilities"].astype(np.float64), test.labels
    assert found["accuracy"] == np.mean([p[i].argmax() == y[i] for i in range(400)])
    np.testing.assert_allclose(found["test_nll"], -np.mean([np.log(p[i, y[i]]) for i in range(400)]), rtol=1e-5)
    brier = np.mean([sum((p[i, c] - (y[i] == c)) ** 2 for c in range(3)) for i in range(400)])
    np.testing.assert_allclose(found["brier"], brier, rtol=1e-5)
    of_clients = [np.mean(p[test.owners == k].argmax(-1) == y[test.owners == k]) for k in range(4)]
    assert found["least_accuracy"] == min(of_clients)
    # The limit: the ceil((n + 1) .9)-th largest probability of the label among held-out rows.
    own = np.sort(held.arrays["probabilities"][np.arange(300), held.labels])[::-1]
    limit = own[int(np.ceil(301 * 0.9)) - 1]
    sets = (test.arrays["probabilities"] >= limit) | np.eye(3, dtype=bool)[p.argmax(-1)]
    assert found["coverage"] == np.mean([sets[i, y[i]] for i in range(400)])
    np.testing.assert_allclose(found["set_size"], sets.sum(-1).mean())
    wrong = p.argmax(-1) != y
    pairs = [(a > b) + (a == b) / 2 for a in test.arrays["entropy"][wrong] for b in test.arrays["entropy"][~wrong]]
    np.testing.assert_allclose(found["error_auroc"], np.mean(pairs), rtol=1e-6)


def test_the_fitted_temperature_is_of_the_held_out_rows():
    """Held-out rows that are too confident by a factor 3 flatten the predictions; the test labels have no part."""
    test, held = predicted(400, 1), predicted(2000, 2)
    hot = held.arrays["probabilities"].astype(np.float64) ** 3
    hot = (hot / hot.sum(-1, keepdims=True)).astype(np.float32)
    flat = scores.of_classes(test, held._replace(arrays={**held.arrays, "probabilities": hot}))
    plain = scores.of_classes(test, held)
    assert flat["fitted_test_nll"] > plain["fitted_test_nll"] + 0.05 and flat["test_nll"] == plain["test_nll"]
    other = test._replace(labels=np.roll(test.labels, 1))
    assert scores.of_classes(other, held)["fitted_test_nll"] > plain["fitted_test_nll"] + 0.3


def test_a_client_with_few_rows_has_no_score():
    test, held = predicted(400, 1), predicted(300, 2)
    owners = np.repeat([0, 1, 2], [200, 200 - 9, 9])
    wrong = test.arrays["probabilities"].copy()
    wrong[-9:] = np.eye(3, dtype=np.float32)[(test.labels[-9:] + 1) % 3] * 0.98 + 0.01 * (2 / 3)
    wrong /= wrong.sum(-1, keepdims=True)
    few = test._replace(owners=owners, arrays={**test.arrays, "probabilities": wrong})
    assert scores.of_classes(few, held)["least_accuracy"] > 0.4
    alone = test._replace(owners=np.zeros(400, int))
    assert "least_accuracy" not in scores.of_classes(alone, held)
    few = scores.of_classes(test, predicted(5, 2))  # Held-out rows for prediction sets.
    assert "coverage" not in few and "set_size" not in few and few["test_nll"] > 0


def test_scores_of_numbers():
    labels = np.array([1.0, 2.0, 3.0, 4.0])
    below = np.array([1, 1, 1, -0.5])
    arrays = {"mean": labels + np.array([1, -1, 1, -1]), "low": labels - below, "high": labels + 1}
    test = Predicted(labels, np.zeros(4, int), arrays, {"test_nll": 1.5, "crps": 0.2})
    assert scores.of_numbers(test) == {"rmse": 1.0, "test_nll": 1.5, "crps": 0.2, "coverage": 0.75}


@pytest.mark.parametrize(
    ("counts", "value"), [([[5, 5], [1, 1]], 0.0), ([[5, 0], [0, 5]], 0.5), ([[4, 0, 0], [0, 4, 0], [0, 0, 4]], 2 / 3)]
)
def test_heterogeneity(counts, value):
    np.testing.assert_allclose(scores.heterogeneity(np.array(counts)), value, atol=1e-12)


def test_foreign_examples():
    test = predicted(50, 1)
    found = scores.foreign(test, np.full(20, 9.0), np.full(20, -1.0))
    assert found == {"ood_auroc_entropy": 1.0, "ood_auroc": 0.0}
    point = test._replace(arrays={**test.arrays, "epistemic": np.zeros(50)})
    assert "ood_auroc" not in scores.foreign(point, np.full(20, 9.0), np.zeros(20))


def test_what_is_held_out_is_of_each_client_which_keeps_one_example():
    source = bfl.data.load("digits")
    clients = source.partition(bfl.data.dirichlet(5, 0.5), seed=0)
    rest, held = set_aside(clients, 0.25, seed=7)
    for k in range(5):
        n = len(clients.indices[k])
        assert len(held.rows[k]) == round(0.25 * n)
        assert set(held.rows[k]) | set(rest.indices[k]) == set(clients.indices[k])
        assert not set(held.rows[k]) & set(rest.indices[k])
    again, _ = set_aside(clients, 0.25, seed=7)
    other, _ = set_aside(clients, 0.25, seed=8)
    assert all((a == b).all() for a, b in zip(rest.indices, again.indices))
    assert any((a != b).any() for a, b in zip(rest.indices, other.indices))
    clients = bfl.data.Clients(source, [np.array([3]), np.arange(10, 20)])
    rest, held = set_aside(clients, 0.5, seed=0)
    assert list(rest.indices[0]) == [3] and len(held.rows[0]) == 0 and len(held.rows[1]) == 5
    assert (held.owners == 1).all() and len(held.places) == 5
    refuses("hold out a larger share", set_aside, bfl.data.Clients(source, [np.array([3]), np.array([4])]), 0.5, seed=0)


def test_clients_that_the_data_name_have_rows_of_their_own():
    source = bfl.data.load("breast_cancer", split="test")
    parts = RowsByClient(source, [np.arange(20), np.arange(20, 50)], ["north", "south"])
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(2), 50).astype(np.float32)
    labels = source.labels[:50]
    held = {"probabilities": p, "labels": labels}
    rows = client_scores.of_predictions(parts, {"probabilities": p}, labels, held)
    assert {row["client"]: row["n"] for row in rows} == {"north": 20, "south": 30}
    right = p.argmax(-1) == labels
    assert {row["client"]: row["accuracy"] for row in rows} == {"north": right[:20].mean(), "south": right[20:].mean()}
    limit = bfl.evaluation.conformal_limit(p, labels, 0.9)
    inside = bfl.evaluation.prediction_sets(p, limit)[np.arange(50), labels]
    assert {row["client"]: row["coverage"] for row in rows} == {
        "north": inside[:20].mean(),
        "south": inside[20:].mean(),
    }
    numbers = {"mean": np.arange(50.0), "low": np.arange(50.0), "high": np.arange(50) + 0.5, "nll": np.ones(50)}
    rows = client_scores.of_predictions(parts, numbers, np.arange(50) + np.repeat([0, 1], [20, 30]), None)
    assert [(row["client"], row["rmse"], row["coverage"], row["test_nll"]) for row in rows] == [
        ("south", 1.0, 0.0, 1.0),
        ("north", 0.0, 1.0, 1.0),
    ]
    source = bfl.data.load("digits")
    parts = RowsByClient(source, [np.array([5, 1]), np.array([], int), np.array([9])])
    assert list(parts.places) == [5, 1, 9] and list(parts.owners) == [0, 0, 2]
    _, features, labels = parts.examples(0)
    assert (features == source.features[[5, 1]]).all() and (labels == source.labels[[5, 1]]).all()
