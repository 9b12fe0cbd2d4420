"""Scores of runs that were repeated with other seeds: what they come to, and whether two methods differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from tfp_bfl.errors import InvalidArgument


class Repeats(NamedTuple):
    """A score over n seeds.

    Fields:
      number: n.
      mean: of the score.
      stddev: of the score between seeds, over n - 1; nan for one seed.
    """

    number: int
    mean: float
    stddev: float


class Difference(NamedTuple):
    """A paired difference over n seeds, first less second, with an interval for its mean.

    Fields:
      number: n.
      mean, stddev: of the n differences; stddev over n - 1.
      low, high: the ends of the interval.
    """

    number: int
    mean: float
    stddev: float
    low: float
    high: float

    @property
    def is_told(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


def over_seeds(scores: Sequence[float]) -> Repeats:
    """Return mean and standard deviation of a score over seeds.

    Raises:
      InvalidArgument: there is none, or one is not finite.

    Example:
      >>> scores = bfl.evaluation.over_seeds([0.91, 0.93, 0.92])
      >>> print(f"{scores.mean:.2f} +- {scores.stddev:.2f}, n = {scores.number}")
      0.92 +- 0.01, n = 3
    """
    values = _finite(scores)
    return Repeats(len(values), float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else math.nan)


def paired_difference(first: Sequence[float], second: Sequence[float], confidence: float = 0.95) -> Difference:
    """Compute the mean difference of two methods' scores with the same seeds, with its interval.

        d_i = first_i - second_i
        mean(d) -+ t_(n - 1)((1 + confidence) / 2) sd(d) / sqrt(n)

    The seeds, not the test examples, are what varies: the interval says what other seeds would give, where differences
    are about normal. Two seeds have an interval 12.7 sd(d) / sqrt(2) wide to either side; few differences are
    significant with it.

    Args:
      first: [n], scores by seed.
      second: [n], scores by the same seeds in the same order.
      confidence: of the interval, in (0, 1).

    Raises:
      InvalidArgument: they are not of the same number, fewer than two, or one is not finite.

    Example:
      >>> difference = bfl.evaluation.paired_difference([0.93, 0.95, 0.94], [0.91, 0.92, 0.92])
      >>> print(f"{difference.mean:.3f} [{difference.low:.3f}, {difference.high:.3f}]")
      0.023 [0.009, 0.038]
    """
    a, b = _finite(first), _finite(second)
    if len(a) != len(b) or len(a) < 2:
        raise InvalidArgument(
            f"A paired difference needs scores of the same two seeds or more, but there are {len(a)} and {len(b)}."
        )
    if not 0 < confidence < 1:
        raise InvalidArgument(f"confidence is {confidence}, but must be between 0 and 1.")
    differences = a - b
    mean, stddev = float(differences.mean()), float(differences.std(ddof=1))
    half = float(stats.t.ppf((1 + confidence) / 2, len(a) - 1)) * stddev / math.sqrt(len(a))
    return Difference(len(a), mean, stddev, mean - half, mean + half)


def _finite(scores: Sequence[float]) -> np.ndarray:
    values = np.asarray(scores, np.float64)
    if values.ndim != 1 or not len(values) or not np.all(np.isfinite(values)):
        raise InvalidArgument("Scores over seeds must be finite numbers, one for each seed, and at least one.")
    return values
