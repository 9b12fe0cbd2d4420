"""Scores over the rounds of a run (`rows` of `tfp_bfl.simulate`), and over runs with other seeds."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from tfp_bfl.errors import InvalidArgument, check_count, check_share


class Repeats(NamedTuple):
    """The number n of seeds, and mean and standard deviation (over n - 1; nan for one seed) of a score over them."""

    number: int
    mean: float
    stddev: float


class Difference(NamedTuple):
    """Mean and standard deviation (over n - 1) of n paired differences, with the ends of an interval for the mean."""

    number: int
    mean: float
    stddev: float
    low: float
    high: float

    @property
    def is_conclusive(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


def over_seeds(scores: Sequence[float]) -> Repeats:
    """Compute mean and standard deviation of a score over seeds.

    Example:
      >>> bfl.evaluation.over_seeds([0.5, 0.75, 1.0])
      Repeats(number=3, mean=0.75, stddev=0.25)
    """
    values = _finite(scores)
    return Repeats(len(values), float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else math.nan)


def paired_difference(first: Sequence[float], second: Sequence[float], confidence: float = 0.95) -> Difference:
    """Compute the mean difference of two methods' scores with the same seeds, in the same order [n], with its interval.

        d_i = first_i - second_i
        mean(d) -+ t_(n - 1)((1 + confidence) / 2) sd(d) / sqrt(n)

    The seeds, not the test examples, are what varies: the interval says what other seeds would give, where differences
    are about normal. Two seeds have an interval 12.7 sd(d) / sqrt(2) wide to either side; few differences are
    significant with it.

    Example:
      >>> difference = bfl.evaluation.paired_difference([0.93, 0.95, 0.94], [0.91, 0.92, 0.92])
      >>> print(f"{difference.mean:.3f} [{difference.low:.3f}, {difference.high:.3f}]")
      0.023 [0.009, 0.038]
    """
    a, b = _finite(first), _finite(second)
    if len(a) != len(b) or len(a) < 2:
        raise InvalidArgument(f"Paired scores must be of the same two seeds or more, not {len(a)} and {len(b)}.")
    check_share(confidence, "confidence")
    differences = a - b
    mean, stddev = float(differences.mean()), float(differences.std(ddof=1))
    half = float(half_width(differences, confidence))
    return Difference(len(a), mean, stddev, mean - half, mean + half)


def half_width(values: np.ndarray, confidence: float = 0.95) -> np.ndarray:
    """Compute half the width [...] of Student's interval of the mean of values [n, ...], t_(n - 1) sd / sqrt(n)."""
    t, n = stats.t.ppf((1 + confidence) / 2, len(values) - 1), len(values)
    return np.asarray(t * np.std(values, axis=0, ddof=1) / math.sqrt(n))


def _finite(scores: Sequence[float]) -> np.ndarray:
    values = np.asarray(scores, np.float64)
    if values.ndim != 1 or not len(values) or not np.all(np.isfinite(values)):
        raise InvalidArgument("Scores over seeds must be finite numbers, one for each seed, and at least one.")
    return values


def rounds_to(rows: Sequence[Mapping[str, Any]], threshold: float, metric: str = "accuracy") -> int | None:
    """Return the first round in which a metric is at least `threshold`, of those with it; None if it never is.

    Example:
      >>> bfl.evaluation.rounds_to([{"round": 1, "accuracy": 0.5}, {"round": 2, "accuracy": 0.7}], threshold=0.7)
      2
    """
    return next((row["round"] for row in _with(rows, metric) if row[metric] >= threshold), None)


def running_mean(rows: Sequence[Mapping[str, Any]], metric: str = "accuracy", window: int = 10) -> np.ndarray:
    """Compute (1 / min(t, window)) sum_(s > t - window) metric_s for each round t that has the metric: [n].

    Example:
      >>> rows = [{"round": 1, "accuracy": 0.5}, {"round": 2, "accuracy": 0.7}, {"round": 3, "accuracy": 0.9}]
      >>> print(np.round(bfl.evaluation.running_mean(rows, window=2), 2))
      [0.5 0.6 0.8]
    """
    values = np.array([row[metric] for row in _with(rows, metric)], np.float64)
    window = check_count(window, "window")
    sums = np.cumsum(values)
    before = np.concatenate([np.zeros(min(window, len(sums))), sums[:-window]])
    return (sums - before) / np.minimum(np.arange(1, len(sums) + 1), window)


def _with(rows: Sequence[Mapping[str, Any]], metric: str) -> list[Mapping[str, Any]]:
    scored = [row for row in rows if row.get(metric) is not None]
    if not scored:
        raise InvalidArgument(f"No round has the metric {metric!r}: evaluate it in `simulate`.")
    return scored
