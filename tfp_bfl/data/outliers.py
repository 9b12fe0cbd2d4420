"""Detection of numbers so far from the rest of a column that a few rows determine its standard deviation."""

from __future__ import annotations

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


class Outliers(NamedTuple):
    """Rows of a column that determine its standard deviation.

    Fields:
      rows: their places [k].
      low, high: the smallest and the largest value of the other rows.
      mean, stddev: of the other rows.
      are_few: whether they are at most one row, or 0.5 % of the rows, 20 times as far from the median as all others:
        typing errors rather than a long tail or a code.
    """

    rows: np.ndarray
    low: float
    high: float
    mean: float
    stddev: float
    are_few: bool


NONE = Outliers(np.zeros(0, np.int64), 0.0, 0.0, 0.0, 0.0, False)


def find_outliers(values: np.ndarray) -> Outliers:
    """Find the rows that determine the standard deviation of a column alone; `NONE` for an ordinary column.

    With quantiles x_p, the scale of the column is s = (x_(1-p) - x_p) / (width of a normal column's range), of the
    first range among p = 25, 10, 5 and 1 % that is wider than 0. The column is ordinary if its interquartile range
    spans 0.1 standard deviations or more, or s / 0.074 is at least the standard deviation. Otherwise rows further than
    20 s from the median are returned. Columns of 0 and 1, and those of less than 20 rows, are ordinary.

    Args:
      values: numbers [N]; NaN for an empty cell.
    """
    filled = values[~np.isnan(values)]
    largest = float(np.max(np.abs(filled), initial=0.0))
    if len(filled) < _LEAST or not 0 < largest < np.inf:
        return NONE
    whole = filled / largest  # Squares of large numbers overflow.
    stddev = whole.std()
    ordered = np.sort(whole)
    places = ((int(p * len(whole)), width) for p, width in _RANGES)
    ranges = ((ordered[-1 - place] - ordered[place], width) for place, width in places)
    scale = next((spanned / width for spanned, width in ranges if spanned > 0), 0.0)
    if scale == 0 or scale * _RANGES[0][1] >= _NARROW * stddev:
        return NONE
    distance = np.abs(values / largest - ordered[len(ordered) // 2])
    far, near = distance > _FAR * scale, distance <= _FAR * scale
    if not far.any():
        return NONE
    rest = values[near]
    few = int(far.sum()) <= max(1, int(_MOST_SHARE * len(filled)))
    few = few and bool(distance[far].min() > _FAR * distance[near].max())
    low, high, mean = (float(f(rest)) for f in (np.min, np.max, np.mean))
    return Outliers(np.flatnonzero(far), low, high, mean, float(rest.std()), few)


def within_bounds(values: np.ndarray, name: str, limit: bool = True) -> tuple[np.ndarray, list[str]]:
    """Return a column without a typing error that would determine its scale, and sentences on outlying rows.

    A few outlying numbers are replaced by the nearest value of the other rows. An ordinary column, and one with many
    such rows, is returned as it is.

    Args:
      values: numbers [N]; NaN for an empty cell.
      name: of the column.
      limit: whether outlying numbers are replaced; else they are named alone.
    """
    found = find_outliers(values)
    if not len(found.rows):
        return values, []
    rows = [f"row {row + 1} of {shown(name)} holds {values[row]:.10g}" for row in found.rows[:_MOST_SHOWN]]
    more = len(found.rows) - len(rows)
    which = " and ".join([*rows, *([f"{more:,} more rows"] if more else [])])
    nearest = np.min(np.abs(values[found.rows] - found.mean)) / found.stddev
    or_more = " or more" if len(found.rows) > 1 else ""
    advice = (
        "correct or empty the cell"
        if found.are_few
        else "these rows determine its scale; empty the cells if they are codes of missing values, or use the logarithm"
    )
    away = f"{nearest:,.0f} standard deviations{or_more} from the mean of the others"
    notes = [f"Far from all others: {which}, {away}: {advice}."]
    if not (found.are_few and limit):
        return values, notes
    changed = f"{shown(name)} is limited to {found.low:.10g} to {found.high:.10g}, the range of its other rows."
    return np.clip(values, found.low, found.high), [*notes, changed]


def table_within_bounds(features: np.ndarray, columns: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """Return rows of numbers with each column `within_bounds`, and the sentences on them.

    Args:
      features: [N, D]; other data, such as images, stay as they are.
      columns: names [D]; () for data that are no table.
    """
    notes: list[str] = []
    if not columns or features.dtype.kind not in "iuf":
        return features, notes
    for j, name in enumerate(columns):
        values, found = within_bounds(features[:, j].astype(np.float64), name)
        if found:
            features = features.copy()
            features[:, j] = values
            notes += found
    return features, notes
