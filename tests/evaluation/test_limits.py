"""Limits on the uncertainty, temperatures and prediction sets: counts by hand, and the guarantees that they give."""

import math

import numpy as np
import pytest
from scipy import stats

from experiments.limits.promise import ACCURACY, drawn, entropy, promises
from tests.kit import refuses
from tfp_bfl import evaluation


def test_risk_and_coverage_by_hand():
    probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.5, 0.5], [0.7, 0.3]], np.float32)
    labels, uncertainty = [0, 1, 1, 1, 0], [0.1, 0.2, 0.2, 0.9, 0.5]
    curve = evaluation.risk_coverage(probabilities, labels, uncertainty)
    np.testing.assert_allclose(curve.limit, [0.1, 0.2, 0.5, 0.9])
    np.testing.assert_allclose(curve.coverage, [0.2, 0.6, 0.8, 1.0])
    np.testing.assert_allclose(curve.risk, [0, 1 / 3, 1 / 4, 2 / 5])
    assert evaluation.area_under_risk_coverage(curve) == pytest.approx(0.4 / 3 + 0.2 / 4 + 0.2 * 2 / 5)


def test_the_area_of_an_uncertainty_that_knows_nothing_is_the_error_rate_and_of_one_that_knows_all_is_less():
    """Within 5 standard errors of the mean over 200 orders (error rate 6e-7)."""
    probabilities, labels = drawn(200)
    wrong = probabilities.argmax(-1) != labels
    area = lambda u: evaluation.area_under_risk_coverage(evaluation.risk_coverage(probabilities, labels, u))
    areas = [area(np.random.default_rng(seed).random(200)) for seed in range(200)]
    assert abs(np.mean(areas) - wrong.mean()) < 5 * np.std(areas) / 200**0.5
    assert area(np.zeros(200)) == pytest.approx(wrong.mean())
    assert area(wrong.astype(float)) < area(entropy(probabilities)) < wrong.mean() < area(-wrong.astype(float))


@pytest.mark.parametrize("coverage", [0.1, 0.5, 0.93, 1.0])
def test_a_limit_keeps_at_least_the_coverage_and_no_example_more(coverage):
    probabilities, labels = drawn(101)
    u = entropy(probabilities)
    found = evaluation.abstention_limit(probabilities, labels, u, coverage=coverage)
    kept = u <= found.limit
    assert found.coverage == pytest.approx(kept.mean()) and coverage <= found.coverage < coverage + 1 / 101
    assert found.accuracy == pytest.approx(np.mean(probabilities.argmax(-1)[kept] == labels[kept]))


def test_without_a_confidence_it_is_the_largest_limit_that_is_accurate_enough_on_these_examples():
    probabilities, labels = drawn(300)
    u = entropy(probabilities)
    found = evaluation.abstention_limit(probabilities, labels, u, accuracy=0.95, confidence=0)
    right = probabilities.argmax(-1) == labels
    accuracies = {t: right[u <= t].mean() for t in u}
    assert found.limit == max(t for t, accuracy in accuracies.items() if accuracy >= 0.95)


@pytest.mark.statistical
def test_new_examples_below_the_limit_are_as_accurate_as_it_says():
    """The promise holds in at least 90 % of 300 draws: fewer than 255 of them kept is an event of 0.4 % at most."""
    kept_it, without = (np.array(list(promises()))[..., 1] >= ACCURACY).sum(0)
    assert kept_it >= 255 > without > 30


def test_the_bound_is_that_of_clopper_and_pearson():
    """Thirty right ones allow the accuracy that the bound of no mistakes among them allows, and not one more."""
    probabilities, labels = np.tile([[0.9, 0.1]], (30, 1)), np.zeros(30, int)
    bound = stats.beta.ppf(1 - 0.1 / 20, 1, 30)
    u = np.arange(30.0)
    assert evaluation.abstention_limit(probabilities, labels, u, accuracy=1 - bound - 1e-6).coverage == 1
    most = math.floor(1000 * (1 - bound)) / 1000
    message = f"30 held-out examples support at most {most}, at coverage 100%"
    refuses(message, evaluation.abstention_limit, probabilities, labels, u, accuracy=1 - bound + 1e-3)
    assert evaluation.abstention_limit(probabilities, labels, u, accuracy=most).coverage == 1


@pytest.mark.parametrize("temperature", [0.2, 1.0, 3.0, 10.0])
def test_temperatures_of_many_examples_are_recovered(temperature):
    truth, labels = drawn(5_000, sharpness=1.0)
    found = evaluation.fit_temperature(evaluation.at_temperature(truth, 1 / temperature), labels)
    assert found == pytest.approx(temperature, rel=0.05)
    np.testing.assert_allclose(evaluation.at_temperature(truth, 1.0), truth, atol=1e-6)


def sure(number, seed):
    """Ten classes that a calibrated model predicts right in about 98 of 100 cases."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(number, 10))
    logits[np.arange(number), rng.integers(0, 10, number)] += 7.2
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    return p.astype(np.float32), (p.cumsum(-1) < rng.random((number, 1))).sum(-1).clip(max=9)


@pytest.mark.parametrize("number", [5, 20, 45, 100])
@pytest.mark.parametrize("only_right", [False, True])
def test_temperatures_of_few_examples_do_no_harm(number, only_right):
    """20 draws: the NLL of new examples is at most 1.1 times that at temperature 1."""
    new, new_labels = sure(20_000, seed=99)
    nll = lambda t: float(evaluation.negative_log_likelihood(evaluation.at_temperature(new, t), new_labels))
    for seed in range(20):
        p, labels = sure(number, seed)
        labels = p.argmax(-1) if only_right else labels
        assert nll(evaluation.fit_temperature(p, labels)) <= 1.1 * nll(1.0), seed


def test_temperatures_that_the_likelihood_leaves_open_are_1():
    assert evaluation.fit_temperature(np.full((50, 4), 0.25, np.float32), np.arange(50) % 4) == 1
    right = np.eye(3, dtype=np.float32)[np.arange(30) % 3]
    assert evaluation.fit_temperature(right, np.arange(30) % 3) == 1


@pytest.mark.statistical
@pytest.mark.parametrize("coverage", [0.8, 0.95])
def test_sets_hold_the_label_as_often_as_they_say_however_wrong_the_model(coverage):
    """500 draws of 99 held-out and 200 new examples, at temperature 0.3: the mean within 5 standard errors (6e-7).

    Their mean coverage is at least that asked for, and at most 1 / (B + 1) more where no two scores are equal.
    """
    covered = []
    for seed in range(500):
        probabilities, labels = drawn(299, seed=seed)
        probabilities = evaluation.at_temperature(probabilities, 0.3)
        limit = evaluation.conformal_limit(probabilities[:99], labels[:99], coverage)
        # Without the most probable class, which may only add to it.
        covered.append(np.mean(np.take_along_axis(probabilities[99:], labels[99:, None], -1) >= limit))
    error = 5 * np.std(covered) / 500**0.5
    assert coverage - error < np.mean(covered) < coverage + 0.01 + error


def test_sets_are_never_empty_and_grow_with_the_coverage():
    probabilities, labels = drawn(200)
    sizes = []
    for coverage in (0.5, 0.8, 0.99):
        found = evaluation.prediction_sets(probabilities, evaluation.conformal_limit(probabilities, labels, coverage))
        assert found[np.arange(200), probabilities.argmax(-1)].all() and found.dtype == bool
        sizes.append(found.sum(-1).mean())
    assert 1 <= sizes[0] <= sizes[1] < sizes[2] <= 3
