"""Scores of each class against scikit-learn and closed forms."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import sklearn.metrics
import tensorflow as tf
from scipy import stats

from tests.kit import refuses
from tfp_bfl import evaluation
from tfp_bfl.evaluation import auroc_interval, out_of_distribution
from tfp_bfl.evaluation.metrics import (
    accuracy,
    agreement,
    brier_score,
    macro_precision,
    macro_recall,
    negative_log_likelihood,
    total_variation,
)


def drawn(classes, number=200, seed=0):
    rng = np.random.default_rng(seed)
    # Rounded, so that some probabilities are equal.
    probabilities = np.round(rng.dirichlet(np.ones(classes), number), 2)
    probabilities = (probabilities / probabilities.sum(1, keepdims=True)).astype(np.float32)
    labels = np.where(rng.uniform(size=number) < 0.5, probabilities.argmax(1), rng.integers(0, classes, number))
    return probabilities, labels


@pytest.mark.parametrize("classes", [2, 5])
def test_scores_of_classes_are_scikit_learns(classes):
    probabilities, labels = drawn(classes)
    found, predicted = evaluation.class_scores(probabilities, labels), probabilities.argmax(1)
    np.testing.assert_array_equal(found.confusion, sklearn.metrics.confusion_matrix(labels, predicted))
    precision, recall, _, _ = sklearn.metrics.precision_recall_fscore_support(labels, predicted)
    np.testing.assert_allclose(found.precision, precision)
    np.testing.assert_allclose(found.recall, recall)
    assert found.balanced_accuracy == pytest.approx(sklearn.metrics.balanced_accuracy_score(labels, predicted))
    one_hot, columns = np.eye(classes)[labels], slice(1, None) if classes == 2 else slice(None)
    area = sklearn.metrics.roc_auc_score(one_hot[:, columns], probabilities[:, columns], average="macro")
    assert found.auroc == pytest.approx(area)
    assert (found.sensitivity is not None) == (classes == 2)


def test_classes_without_examples_are_left_out():
    probabilities, labels = drawn(4)
    some = labels != 2
    found = evaluation.class_scores(probabilities[some], labels[some])
    assert np.isnan(found.recall[2]) and np.isfinite(found.balanced_accuracy)
    areas = [sklearn.metrics.roc_auc_score(labels[some] == c, probabilities[some, c]) for c in (0, 1, 3)]
    assert found.auroc == pytest.approx(np.mean(areas))
    one = evaluation.class_scores(probabilities[labels == 1][:, :2] * 0 + 0.5, labels[labels == 1] * 0)
    assert one.auroc is None and one.sensitivity is None and one.specificity.value == 1.0


def test_sensitivity_is_of_class_one():
    probabilities = np.array([[0.9, 0.1]] * 6 + [[0.2, 0.8]] * 4, np.float32)
    found = evaluation.class_scores(probabilities, np.array([0] * 5 + [1] * 5), interval="clopper_pearson")
    assert (found.sensitivity.value, found.specificity.value) == (0.8, 1.0)
    beta = [stats.beta.ppf(0.025, 4, 2), stats.beta.ppf(0.975, 5, 1)]
    np.testing.assert_allclose(found.sensitivity[1:], beta)
    np.testing.assert_allclose(found.specificity[1:], [stats.beta.ppf(0.025, 5, 1), 1.0])


def test_wilsons_interval_is_his_formula():
    k, n, z = 7, 40, stats.norm.ppf(0.95)
    centre, p = (k + z**2 / 2) / (n + z**2), k / n
    half = z / (n + z**2) * np.sqrt(n * p * (1 - p) + z**2 / 4)
    np.testing.assert_allclose(evaluation.proportion_interval(k, n, 0.9), [centre - half, centre + half])


def by_counting(scores_in, scores_out):
    """The two areas from their definitions, pair by pair and threshold by threshold."""
    i, o = np.asarray(scores_in, np.float64), np.asarray(scores_out, np.float64)
    auroc = np.mean((o[:, None] > i) + 0.5 * (o[:, None] == i))
    aupr = before = 0.0
    for t in np.unique(np.concatenate([i, o]))[::-1]:
        found = np.sum(o >= t)
        aupr += (found / len(o) - before) * found / (found + np.sum(i >= t))
        before = found / len(o)
    limit = max(t for t in o if np.mean(o >= t) >= 0.95)
    return auroc, aupr, np.mean(i >= limit)


def test_by_hand():
    """AUPR's base is the share of what is out."""
    # Of the six pairs out wins five; from the top the ranks are out, in, out, in, in.
    assert out_of_distribution([0.1, 0.2, 0.6], [0.9, 0.4])[:2] == pytest.approx((5 / 6, 1 / 2 * 1 + 1 / 2 * 2 / 3))
    assert out_of_distribution([0.0, 0.1, 0.2], [0.3, 0.4]) == (1.0, 1.0, 0.0)
    assert out_of_distribution([0.3, 0.4, 0.5], [0.1, 0.2])[:2] == pytest.approx((0, 1 / 2 * 1 / 4 + 1 / 2 * 2 / 5))
    assert out_of_distribution(np.zeros(30), np.zeros(10)) == (0.5, 0.25, 1.0)


few = st.lists(st.sampled_from([-1.0, 0.0, 0.25, 0.5, 3.0]), min_size=1, max_size=12)


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(few, few)
def test_against_counting_with_ties(scores_in, scores_out):
    assert out_of_distribution(scores_in, scores_out) == pytest.approx(by_counting(scores_in, scores_out))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32, np.uint8])
def test_any_numbers(dtype):
    scores = out_of_distribution(tf.constant(np.array([1, 2, 3], dtype)), np.array([2, 4], dtype))
    assert scores == pytest.approx(by_counting([1, 2, 3], [2, 4]))
    assert all(type(area) is float for area in scores)


def test_the_interval_covers_the_area_of_normal_scores():
    """400 pairs of 30 and 20 normal scores one standard deviation apart, of which the area is Phi(1 / sqrt(2)).

    Error rate: at a coverage of 0.95 fewer than 0.91 of 400 are covered with probability below 1e-3; the seed is fixed.
    """
    rng, area = np.random.default_rng(0), stats.norm.cdf(1 / np.sqrt(2))
    covered = 0
    for _ in range(400):
        found = out_of_distribution(rng.normal(size=30), rng.normal(1, size=20)).auroc
        low, high = auroc_interval(found, 30, 20)
        covered += low <= area <= high
    assert 0.91 <= covered / 400 <= 0.985


def test_areas_at_their_bounds_have_an_interval():
    low, high = auroc_interval(1.0, 10, 10)
    assert 0.7 < low < 0.9 and high == 1.0
    assert auroc_interval(0.0, 10, 10) == pytest.approx((0.0, 1 - low))
    assert auroc_interval(0.9, 10**6, 10**6) == pytest.approx((0.9, 0.9), abs=1e-3)
    for arguments in ((1.2, 5, 5), (0.5, 0, 5), (0.5, 5, 5, 1.0)):
        refuses("but must be", auroc_interval, *arguments)


P = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.2, 0.5, 0.3]])
Y = np.array([0, 1, 1])
SCORES = [accuracy, negative_log_likelihood, brier_score]


def random_case(seed, size=40, classes=5):
    rng = np.random.default_rng(seed)
    return rng.dirichlet([0.5] * classes, size=size) * 0.999 + 0.001 / classes, rng.integers(0, classes, size)


def test_scores_by_hand():
    assert float(accuracy(P, Y)) == pytest.approx(2 / 3)
    assert float(negative_log_likelihood(P, Y)) == pytest.approx(-np.log(0.7 * 0.3 * 0.5) / 3)
    # 0.09 + 0.04 + 0.01, 0.01 + 0.49 + 0.36 and 0.04 + 0.25 + 0.09.
    assert float(brier_score(P, Y)) == pytest.approx((0.14 + 0.86 + 0.38) / 3)
    assert [float(brier_score(np.eye(3), y)) for y in ([0, 1, 2], [1, 2, 0])] == [0.0, 2.0]  # Both bounds.
    assert float(accuracy(np.full((2, 4), 0.25), [0, 3])) == 0.5  # Of equal probabilities the first class.


@pytest.mark.parametrize("seed", range(3))
def test_against_sklearn_and_keras(seed):
    p, y = random_case(seed)
    assert float(accuracy(p, y)) == pytest.approx(sklearn.metrics.accuracy_score(y, p.argmax(-1)))
    nll = float(negative_log_likelihood(p, y))
    assert nll == pytest.approx(sklearn.metrics.log_loss(y, p, labels=range(5)))
    assert nll == pytest.approx(float(tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(y, p))), rel=1e-6)
    two = p[:, :2] / p[:, :2].sum(-1, keepdims=True)
    binary = sklearn.metrics.brier_score_loss(y % 2, two[:, 1])
    assert float(brier_score(two, y % 2)) == pytest.approx(2 * binary)


@pytest.mark.parametrize(("dtype", "cost"), [(np.float32, 87.3365), (np.float64, 708.3964)])
def test_a_label_of_probability_zero_costs_a_finite_amount(dtype, cost):
    assert float(negative_log_likelihood(np.array([[1.0, 0.0]], dtype), [1])) == pytest.approx(cost, rel=1e-6)


@hypothesis.settings(max_examples=20, deadline=None)
@hypothesis.given(st.integers(0, 2**31), st.integers(1, 30), st.integers(2, 6))
def test_bounds(seed, size, classes):
    p, y = random_case(seed, size, classes)
    for score, high in zip(SCORES, (1.0, np.inf, 2.0)):
        assert 0.0 <= float(score(p, y)) <= high


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("classes", [3, 8])
def test_macro_recall_and_precision_against_sklearn(seed, classes):
    """With a class that has no examples, but is predicted, and one that is never predicted."""
    p, y = random_case(seed, classes=classes)
    y[y == 0] = 1
    p[:, 2] = 0
    p /= p.sum(1, keepdims=True)
    options = {"labels": np.unique(y), "average": "macro", "zero_division": 0}
    assert float(macro_recall(p, y)) == pytest.approx(sklearn.metrics.recall_score(y, p.argmax(-1), **options))
    assert float(macro_precision(p, y)) == pytest.approx(sklearn.metrics.precision_score(y, p.argmax(-1), **options))


def test_agreement_and_total_variation():
    p = np.float32([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4], [0.2, 0.5, 0.3]])
    q = np.float32([[0.6, 0.3, 0.1], [0.5, 0.4, 0.1], [0.3, 0.3, 0.4], [0.0, 1.0, 0.0]])
    assert agreement(p, q) == 0.75 and agreement(p, p) == 1
    np.testing.assert_allclose(total_variation(p, q), (0.1 + 0.4 + 0 + 0.5) / 4, rtol=1e-6)
    assert total_variation(p, p) == 0
    assert total_variation(np.float32([[1, 0]]), np.float32([[0, 1]])) == 1
