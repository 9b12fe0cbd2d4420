"""Baselines of a run's test scores: constant predictions, and linear models of a table's rows."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl import edges
from tfp_bfl.app.one_run.records import truth
from tfp_bfl.evaluation.baselines import nll_of_classes, nll_of_numbers
from tfp_bfl.federated.notices import baseline_warning

logger = logging.getLogger(__name__)

# In the records of a summary.
MOST_CLASSES = 30


def baselines(clients: bfl.data.Clients, test: bfl.data.Source) -> list[bfl.evaluation.Baseline]:
    """Score the baselines on the test data.

    For classes the class frequencies, for numbers mean and standard deviation of the training labels, and the
    baselines of edges, such as linear models.
    """
    if test.target is None:
        constant = bfl.evaluation.class_frequencies(clients.label_counts().sum(0), test.labels)
    else:
        labels = np.concatenate([clients.source.labels[part] for part in clients.indices]).astype(np.float64)
        mean, stddev = labels.mean(), labels.std()
        scale, shift = test.target.scale, test.target.mean
        constant = bfl.evaluation.training_mean(shift + scale * mean, scale * stddev, truth(test))
    return [constant, *(found for baselines_of in edges.parts("baselines") for found in baselines_of(clients, test))]


def worse_than(final: object, found: list[bfl.evaluation.Baseline], test: bfl.data.Source) -> list[str]:
    """Return a warning in a list if a model is worse than a baseline on the test data."""
    losses = _losses(final, test)
    better = bfl.evaluation.better_baseline(losses, found)
    if better is None:
        return []
    return [baseline_warning(float(losses.mean()), better.name, better.metrics["test_nll"])]


def is_better(final: object, baseline: bfl.evaluation.Baseline, test: bfl.data.Source) -> bool:
    """Return whether a model is better than a baseline on the test data, by more than chance."""
    model = bfl.evaluation.Baseline("model", {}, _losses(final, test))
    return bfl.evaluation.better_baseline(baseline.losses, [model]) is not None


def _losses(final: Any, test: bfl.data.Source) -> np.ndarray:
    """Return the negative log likelihood of each test label by a model."""
    if test.target is None:
        return nll_of_classes(final.probabilities, test.labels)
    return nll_of_numbers(final.mean, final.stddev, truth(test))


def of_classes_in(final: Any, test: bfl.data.Source) -> dict[str, Any]:
    """Return what a summary records of each class: examples, recall, precision, and the confusion matrix."""
    if test.target is not None or test.num_classes > MOST_CLASSES:
        return {}
    scores = bfl.evaluation.class_scores(final.probabilities, test.labels)
    number = lambda x: None if np.isnan(x) else float(x)
    classes = {
        name: {"examples": int(examples), "recall": number(recall), "precision": number(precision)}
        for name, examples, recall, precision in zip(
            test.class_names, scores.confusion.sum(1), scores.recall, scores.precision
        )
    }
    return {"classes": classes, "confusion_matrix": scores.confusion.tolist()}


def sensitivity_in(final: Any, test: bfl.data.Source) -> dict[str, float]:
    """Return sensitivity and specificity with their 95 % intervals; nothing unless there are two classes."""
    if test.target is not None or test.num_classes != 2:
        return {}
    scores, found = bfl.evaluation.class_scores(final.probabilities, test.labels), dict[str, float]()
    for name in ("sensitivity", "specificity"):
        recall = getattr(scores, name)
        if recall is not None:
            found |= {name: recall.value, f"{name}_low": recall.low, f"{name}_high": recall.high}
    return found
