"""Statistics of columns: means and standard deviations, of one table or pooled, and numbers far from all others."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfp_bfl.errors import shown

# Probabilities outside a central range on each side, and the range's width in standard deviations of a normal column.
_RANGES = ((0.25, 1.349), (0.1, 2.563), (0.05, 3.29), (0.01, 4.653))
# A column is searched if the central range spans less than this many standard deviations in place of 1.349. A value is
# far beyond this multiple of the scale of that range, and of the distance of all other rows.
_NARROW, _FAR = 0.1, 20.0
# The largest share of rows that typing errors have; of fewer rows than `_LEAST` no quartiles are known.
_MOST_SHARE, _LEAST = 0.005, 20
_MOST_SHOWN = 3


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
    """Compute the statistics of a column of numbers [N], in float64."""
    exact = np.asarray(numbers, np.float64)
    # The mean of equal numbers is off by a rounding error.
    if exact.min() == exact.max():
        return Column(name, float(exact[0]), 0.0)
    return Column(name, float(exact.mean()), float(exact.std()))


def pooled_column(name: str, sizes: Sequence[int], means: Sequence[float], stddevs: Sequence[float]) -> Column:
    """Compute the statistics of a column from those of its K parts.

    With n_k rows, means m_k and standard deviations s_k, m = sum_k n_k m_k / N and
    s^2 = sum_k n_k (s_k^2 + (m_k - m)^2) / N.
    """
    if len(set(means)) == 1 and not any(stddevs):
        return Column(name, float(means[0]), 0.0)
    weights = np.asarray(sizes, np.float64) / sum(sizes)
    exact, spread = np.asarray(means, np.float64), np.asarray(stddevs, np.float64)
    mean = float(weights @ exact)
    variance = float(weights @ (spread**2 + (exact - mean) ** 2))
    return Column(name, mean, variance**0.5)


def within_bounds(values: np.ndarray, name: str, limit: bool = True) -> tuple[np.ndarray, list[str]]:
    """Limit a typing error that would determine the scale of a column; name the rows that determine it.

    With quantiles x_p, the scale of the column is s = (x_(1-p) - x_p) / (width of a normal column's range), of the
    first range among p = 25, 10, 5 and 1 % that is wider than 0; where none is, such as for a flag of fewer rows, s is
    the median distance of the other values from the most common one. The column is ordinary if its interquartile range
    spans 0.1 standard deviations or more, or s / 0.074 is at least the standard deviation. Otherwise rows further than
    20 s from the median are named. If they are at most one row, or 0.5 % of the rows, and 20 times as far from the
    median as all others, they are typing errors rather than a long tail or a code, and become the nearest value of the
    other rows. Columns of 0 and 1, and those of less than 20 rows, are ordinary.

    Values are [N], NaN for an empty cell. Without `limit` rows are named alone.
    """
    filled = values[~np.isnan(values)]
    largest = float(np.max(np.abs(filled), initial=0.0))
    if len(filled) < _LEAST or not 0 < largest < np.inf:
        return values, []
    whole = np.sort(filled / largest)  # Squares of large numbers overflow.
    places = ((int(p * len(whole)), width) for p, width in _RANGES)
    ranges = ((whole[-1 - place] - whole[place], width) for place, width in places)
    apart = np.sort(np.abs(whole - whole[len(whole) // 2]))
    apart = apart[apart > 0]
    rare = float(apart[(len(apart) - 1) // 2]) if len(apart) else 0.0
    scale = next((spanned / width for spanned, width in ranges if spanned > 0), rare)
    if scale == 0 or scale * _RANGES[0][1] >= _NARROW * (filled / largest).std():
        return values, []
    distance = np.abs(values / largest - whole[len(whole) // 2])
    far, near = distance > _FAR * scale, distance <= _FAR * scale
    if not far.any():
        return values, []
    rows, rest = np.flatnonzero(far), values[near]
    are_few = len(rows) <= max(1, int(_MOST_SHARE * len(filled))) and distance[far].min() > _FAR * distance[near].max()
    named = [f"row {row + 1} of {shown(name)} holds {values[row]:.10g}" for row in rows[:_MOST_SHOWN]]
    named += [f"{len(rows) - _MOST_SHOWN:,} more rows"] if len(rows) > _MOST_SHOWN else []
    away = np.min(np.abs(values[rows] - rest.mean())) / rest.std()
    or_more = " or more" if len(rows) > 1 else ""
    codes = "these rows determine its scale; empty the cells if they are codes of missing values, or use the logarithm"
    what = f"{' and '.join(named)}, {away:,.0f} standard deviations{or_more} from the mean of the others"
    notes = [f"Far from all others: {what}: {'correct or empty the cell' if are_few else codes}."]
    if not (are_few and limit):
        return values, notes
    low, high = float(rest.min()), float(rest.max())
    changed = f"{shown(name)} is limited to {low:.10g} to {high:.10g}, the range of its other rows."
    return np.clip(values, low, high), [*notes, changed]
