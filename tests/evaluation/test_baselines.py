"""Baselines of test scores."""

import numpy as np
import pytest
from scipy import stats

from tfp_bfl import evaluation
from tfp_bfl.errors import InvalidArgument


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
    with pytest.raises(InvalidArgument, match="lie in"):
        evaluation.class_frequencies([1, 2, 3], np.array(labels, np.int64))
    with pytest.raises(InvalidArgument, match="no labels"):
        evaluation.training_mean(0.0, 1.0, [])
