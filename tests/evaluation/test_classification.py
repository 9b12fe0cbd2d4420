"""Scores of each class against scikit-learn and closed forms."""

import numpy as np
import pytest
import sklearn.metrics
from scipy import stats

from tfp_bfl import evaluation


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
