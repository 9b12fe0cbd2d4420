"""Means and standard deviations of columns, of one table and pooled from several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Column(NamedTuple):
    """Statistics of a column of a table, by which a `Source` standardises it: (x - mean) / scale.

    Fields:
      name: of the column.
      mean, stddev: of the training rows; the standard deviation of a constant column is 0.
    """

    name: str
    mean: float
    stddev: float

    @property
    def scale(self) -> float:
        """The divisor: the standard deviation, and 1 for a constant column."""
        return self.stddev if self.stddev > 0 else 1.0


def column_of(name: str, numbers: np.ndarray) -> Column:
    """Compute the statistics of a column, in float64.

    Args:
      name: of the column.
      numbers: [N].
    """
    exact = np.asarray(numbers, np.float64)
    # The mean of equal numbers is off by a rounding error.
    if exact.min() == exact.max():
        return Column(name, float(exact[0]), 0.0)
    return Column(name, float(exact.mean()), float(exact.std()))


def pooled_column(name: str, sizes: Sequence[int], means: Sequence[float], stddevs: Sequence[float]) -> Column:
    """Compute the statistics of a column from those of its parts.

    With n_k rows, means m_k and standard deviations s_k, m = sum_k n_k m_k / N and
    s^2 = sum_k n_k (s_k^2 + (m_k - m)^2) / N.

    Args:
      name: of the column.
      sizes: rows of each part, [K].
      means, stddevs: of each part, [K].
    """
    if len(set(means)) == 1 and not any(stddevs):
        return Column(name, float(means[0]), 0.0)
    weights = np.asarray(sizes, np.float64) / sum(sizes)
    exact, spread = np.asarray(means, np.float64), np.asarray(stddevs, np.float64)
    mean = float(weights @ exact)
    variance = float(weights @ (spread**2 + (exact - mean) ** 2))
    return Column(name, mean, variance**0.5)
