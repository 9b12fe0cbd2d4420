"""Time series: the rows of a long table that belong to one series, in the order of time, as one example [T, D]."""

from typing import NamedTuple

import numpy as np

from tfp_bfl.data.cells import TEXT_KINDS, check_full, read_columns
from tfp_bfl.data.columns import Columns, Troubles
from tfp_bfl.data.names import canonical, client_names
from tfp_bfl.errors import InvalidArgument, lookup, shown

# Steps in time are equal to this share of them, and to rounding errors of the times.
_TOLERANCE, _ROUNDING = 1e-6, 8 * np.finfo(np.float64).eps
_DAY = 24 * 3600 * 1e6


class SeriesColumns(NamedTuple):
    """The columns of a long table that name the series of each row and its time; T is None for any number of steps."""

    series: str
    time: str
    steps: int | None = None


class Series(NamedTuple):
    """The S series of a long table, and the name of the table in errors."""

    names: np.ndarray  # Of each, in the order of their first rows, object [S].
    rows: np.ndarray  # Of each, in the order of time, int64 [S, T].
    where: str

    def common(self, values: np.ndarray, column: str) -> np.ndarray:
        """Return the value of each series [S] from those of the rows [N]; InvalidArgument if a series has two."""
        each = values[self.rows]
        first = each[:, :1]
        differ = (each != first) & ~((each != each) & (first != first))
        if differ.any():
            s, t = np.argwhere(differ)[0]
            both = " and ".join(shown(str(x)) for x in (each[s, 0], each[s, t]))
            what = f"The series {shown(self.names[s])} of {self.where} has {both} in the column {shown(column)}"
            raise InvalidArgument(f"{what}: give all rows of a series one value, or leave the series out.")
        return each[:, 0]


def series_columns(series: str | None, time: str | None, steps: int | None = None) -> SeriesColumns | None:
    """Return the columns of a long table; None without names. InvalidArgument if one of two names is missing."""
    if series is not None and time is not None:
        return SeriesColumns(canonical(series), canonical(time), steps)
    if series != time:
        given, other = ("series_column", "time_column") if time is None else ("time_column", "series_column")
        raise InvalidArgument(f"{given} is given without {other}: name both columns of the long table.")
    return None


def find_series(table: Columns, by: SeriesColumns, where: str) -> Series:
    """Return the series of a long table, the rows of which may have any order.

    Raises:
      InvalidArgument: a column is missing, a row has no series or no time, or a series has another number of rows than
        most, two rows at one time, or a step in time that is not the usual one of all series.
    """
    for option, name in (("series-column", by.series), ("time-column", by.time)):
        lookup(dict.fromkeys(table.column_names), name, "column", f"in {where} for --{option}")
    names = table[by.series].spread(client_names(table[by.series].distinct[1], by.series)[0])
    troubles = Troubles(where, "name the series of each row, or leave the row out")
    check_full(names == "", by.series, troubles)
    troubles.check()
    times, is_date = _times(table, by.time, where)
    each, first, places, sizes = np.unique(names.astype(str), True, True, True)
    usual = by.steps or int(np.bincount(sizes).argmax())
    if usual == 1 and not by.steps:
        raise InvalidArgument(f"Most series of {where} have one row: name a --series-column that rows have in common.")
    if (sizes != usual).any():
        odd = min(np.flatnonzero(sizes != usual), key=lambda i: first[i])
        must = f"the model takes {usual}" if by.steps else f"most have {usual}"
        what = f"The series {shown(str(each[odd]))} of {where} has {sizes[odd]} time steps, and {must}"
        raise InvalidArgument(f"{what}: give all series as many, or leave the series out.")
    rows = np.lexsort((times, first[places])).reshape(-1, usual)
    _check_steps(table, Series(names[rows[:, 0]], rows, where), times[rows], by.time, is_date)
    return Series(names[rows[:, 0]], rows, where)


def _times(table: Columns, name: str, where: str) -> tuple[np.ndarray, bool]:
    """Return the times of all rows, float64 [N], and whether they are dates, in days."""
    troubles = Troubles(where, "write times as numbers, or as dates such as 2020-12-31")
    found = read_columns(table, [name], Troubles("", ""), date_unit="days", client="")
    if not found or found[0].kind in TEXT_KINDS:
        found = read_columns(table, [name], troubles, kinds={name: "number"})
    check_full(table[name].empty, name, troubles)
    troubles.check()
    return found[0].values, found[0].kind == "date"


def _check_steps(table: Columns, series: Series, times: np.ndarray, column: str, is_date: bool) -> None:
    """Check that all steps between times [S, T] are equal; those between dates may be months."""
    steps, unit = np.diff(times), " days" if is_date else ""
    wrong = _unequal(steps, times)
    for shift in (0, 1) if is_date and wrong.any() else ():  # A month's last day is the one before the next month.
        stamps = np.rint((times + shift) * _DAY).astype(np.int64).astype("M8[us]")
        months = stamps.astype("M8[M]")
        within = stamps - months.astype("M8[us]")
        if (within == within[0, 0]).all():
            steps, unit = np.diff(months.astype(np.int64)).astype(np.float64), " months"
            wrong = _unequal(steps, steps)
    if wrong.any():
        s, t = np.argwhere(wrong)[0]
        ends = [shown(str(table[column].values[int(row)].as_py())) for row in series.rows[s, t : t + 2]]
        what = f"The series {shown(series.names[s])} of {series.where} has"
        if not steps[s, t]:
            raise InvalidArgument(f"{what} two rows at {ends[0]} in {shown(column)}: leave one of them out.")
        usual = f"and the usual one is {np.median(steps):.4g}{unit}: fill in rows between, or leave the series out"
        raise InvalidArgument(f"{what} a step from {ends[0]} to {ends[1]} in {shown(column)}, {usual}.")


def _unequal(steps: np.ndarray, times: np.ndarray) -> np.ndarray:
    usual = np.median(steps)
    return ~np.isclose(steps, usual, _TOLERANCE, _ROUNDING * np.abs(times).max()) | (steps == 0)
