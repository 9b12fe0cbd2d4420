"""Predictions that use no features, against which a model's scores are compared, and the comparison."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.evaluation.regression import mixture_crps

# A baseline is better if its NLL is lower by this many standard errors of the difference.
STANDARD_ERRORS = 2.0


class Baseline(NamedTuple):
    """The scores of a simple prediction on N test examples: accuracy and test_nll of classes, or rmse, test_nll and
    crps of numbers; and the negative log likelihood of each label in nats [N].
    """

    name: str
    metrics: dict[str, float]
    losses: np.ndarray


def class_frequencies(counts: object, labels: object) -> Baseline:
    """Score p_c = (n_c + 1) / (N + C), the class frequencies of the training data, predicted for every test example.

    n_c are numbers of training examples of all clients [C].

    Example:
      >>> bfl.evaluation.class_frequencies([8, 2], np.array([0, 0, 0, 1])).metrics["accuracy"]
      0.75
    """
    numbers, true = np.asarray(counts, np.float64), np.asarray(labels)
    if not len(true) or true.min() < 0 or true.max() >= len(numbers):
        raise InvalidArgument(f"The labels must be at least one, and lie in [0, {len(numbers)}).")
    probabilities = (numbers + 1) / (numbers.sum() + len(numbers))
    return of_classes("class frequencies", np.tile(probabilities, (len(true), 1)), true)


def training_mean(mean: float, stddev: float, labels: object) -> Baseline:
    """Score N(mean, stddev^2) of the training labels of all clients, predicted for every test label [B].

    Example:
      >>> bfl.evaluation.training_mean(1.0, 2.0, np.array([0.0, 2.0])).metrics["rmse"]
      1.0
    """
    truth = np.asarray(labels, np.float64)
    if not len(truth):
        raise InvalidArgument("There are no labels.")
    return of_numbers("training mean", np.full(len(truth), mean), np.full(len(truth), max(stddev, 1e-12)), truth)


def of_classes(name: str, probabilities: np.ndarray, labels: np.ndarray) -> Baseline:
    """Score predicted probabilities [B, C]."""
    losses = nll_of_classes(probabilities, labels)
    accuracy = float(np.mean(probabilities.argmax(-1) == labels))
    return Baseline(name, {"accuracy": accuracy, "test_nll": float(losses.mean())}, losses)


def of_numbers(name: str, mean: np.ndarray, stddev: np.ndarray, truth: np.ndarray) -> Baseline:
    """Score predicted normal distributions, means [B] and standard deviations [B]."""
    rmse = float(np.sqrt(np.mean(np.square(truth - mean))))
    losses = nll_of_numbers(mean, stddev, truth)
    crps = mixture_crps(mean[np.newaxis], np.square(stddev)[np.newaxis], truth)
    return Baseline(name, {"rmse": rmse, "test_nll": float(losses.mean()), "crps": float(crps.mean())}, losses)


def nll_of_classes(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the negative log probability of each label, in nats [B]."""
    true = np.take_along_axis(np.asarray(probabilities, np.float64), np.asarray(labels)[:, np.newaxis], -1)[:, 0]
    return np.asarray(-np.log(np.maximum(true, np.finfo(np.float32).tiny)))


def nll_of_numbers(mean: np.ndarray, stddev: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return the negative log density of each number under a normal distribution, in nats [B]."""
    return np.asarray(0.5 * np.square((truth - mean) / stddev) + np.log(stddev) + 0.5 * math.log(2 * math.pi))


def better_baseline(losses: np.ndarray, baselines: Sequence[Baseline]) -> Baseline | None:
    """Return the baseline with the lowest NLL of those that are better than a model, with losses [N], else None.

    A baseline is better if the mean difference of the NLL, example by example, is above `STANDARD_ERRORS` of its
    standard errors.
    """
    better = []
    for baseline in baselines:
        difference = np.asarray(losses, np.float64) - baseline.losses
        error = difference.std(ddof=1) / math.sqrt(len(difference)) if len(difference) > 1 else math.inf
        if difference.mean() > STANDARD_ERRORS * error:
            better.append(baseline)
    return min(better, key=lambda baseline: float(baseline.losses.mean()), default=None)
