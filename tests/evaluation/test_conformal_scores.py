"""Scores of prediction sets: against MAPIE, and against the algorithm of the paper."""

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin

from tfp_bfl import evaluation


def drawn(seed, number=300, classes=6):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(classes, 0.4), number)
    labels = (rng.uniform(size=(number, 1)) > p.cumsum(1)).sum(1).clip(0, classes - 1)
    return p, labels


class Predicted(ClassifierMixin, BaseEstimator):
    """A classifier of which the features are the probabilities."""

    def fit(self, features, labels):
        self.classes_ = np.unique(labels)
        return self

    def predict_proba(self, features):
        return features

    def predict(self, features):
        return features.argmax(1)


@pytest.mark.parametrize("coverage", [0.8, 0.95])
def test_sets_by_the_probability_are_mapies(coverage):
    classification = pytest.importorskip("mapie.classification")
    (p, labels), (new, _) = drawn(0), drawn(1)
    estimator = Predicted().fit(p, labels)
    mapie = classification.SplitConformalClassifier(estimator, coverage, conformity_score="lac", prefit=True)
    mapie.conformalize(p, labels)
    _, sets = mapie.predict_set(new)
    wanted = sets[:, :, 0].astype(bool)
    wanted[np.arange(len(new)), new.argmax(1)] = True  # MAPIE's sets may be empty.
    limit = evaluation.conformal_limit(p, labels, coverage)
    np.testing.assert_array_equal(evaluation.prediction_sets(new, limit), wanted)


def test_the_score_of_adaptive_sets_is_mapies():
    scores = pytest.importorskip("mapie.conformity_scores")
    p, labels = drawn(0)
    # MAPIE then subtracts a random part, which the score here leaves out.
    cumulated, _ = scores.APSConformityScore().get_true_label_cumsum_proba(labels, p, np.arange(6))
    np.testing.assert_allclose(evaluation.aps()(p)[np.arange(300), labels], 1 - cumulated[:, 0], atol=1e-12)


@pytest.mark.parametrize(("penalty", "free"), [(0.0, 1), (0.05, 2), (0.5, 1), (0.1, 9)])
def test_regularised_sets_are_those_of_the_paper(penalty, free):
    """Algorithms 2 and 3 of Angelopoulos et al. 2021 without the random part, example by example."""
    (p, labels), (new, _) = drawn(2), drawn(3)

    def cost(row, c):
        rank = 1 + np.sum(row > row[c])
        return np.sum(row[row >= row[c]]) + penalty * max(0, rank - free)

    costs = np.sort([cost(row, y) for row, y in zip(p, labels)])
    threshold = costs[int(np.ceil(301 * 0.9)) - 1] + 1e-9
    wanted = np.array([[cost(row, c) <= threshold or c == row.argmax() for c in range(6)] for row in new])
    score = evaluation.raps(penalty, free)
    limit = evaluation.conformal_limit(p, labels, 0.9, score=score)
    np.testing.assert_array_equal(evaluation.prediction_sets(new, limit, score=score), wanted)


@pytest.mark.statistical
@pytest.mark.parametrize("score", ["probability", "aps", "raps:0.1"])
def test_sets_of_every_score_cover(score):
    """The mean over 20 draws is within 5 standard errors of .9 (error rate 6e-7), also from histograms of clients."""
    found, merged = [], []
    for seed in range(20):
        (p, labels), (new, truth) = drawn(2 * seed + 10), drawn(2 * seed + 11)
        limit = evaluation.conformal_limit(p, labels, 0.9, score=score)
        inside = evaluation.prediction_sets(new, limit, score=score)[np.arange(300), truth]
        found.append(inside.mean())
        parts = [evaluation.label_histogram(p[k::5], labels[k::5], score=score) for k in range(5)]
        limit = evaluation.calibrate_clients(parts, 0.9).limit(sum(parts))
        merged.append(evaluation.prediction_sets(new, limit, score=score)[np.arange(300), truth].mean())
    # The likeliest class is in every set, which adds some coverage.
    assert 0.9 - 5 * np.std(found) / 20**0.5 < np.mean(found) < 0.95
    assert np.mean(np.array(merged) > 0.87) >= 0.9


def test_adaptive_sets_are_larger_for_hard_examples_than_sets_by_probability():
    (p, labels), (new, truth) = drawn(4, 4000), drawn(5, 4000)
    hard = new.max(1) < 0.5
    covered = {}
    for score in ("probability", "aps"):
        limit = evaluation.conformal_limit(p, labels, 0.8, score=score)
        sets = evaluation.prediction_sets(new, limit, score=score)
        covered[score] = [sets[np.arange(4000), truth][part].mean() for part in (hard, ~hard)]
    assert covered["aps"][0] > covered["probability"][0]
