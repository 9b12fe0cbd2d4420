"""Cells of a table as they are: numbers, truth values, categories, dates and empty cells."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfp_bfl.data.columns import Columns, Decoded, Troubles, check_full, to_float
from tfp_bfl.data.names import note_spellings
from tfp_bfl.data.outliers import within_bounds
from tfp_bfl.data.signs import doubts
from tfp_bfl.errors import lookup, shown

# Text with more values than this is rather a name than a category.
MOST_LEVELS = 30
# The length in days of the units that dates are counted in, from 1970-01-01 on.
DATE_UNITS = {"days": 1.0, "weeks": 7.0, "months": 365.2425 / 12, "years": 365.2425}
# Cells that are no numbers are errors in a column of numbers up to this share, and beyond it categories.
_MOST_ERRORS = 0.2
TEXT_KINDS = ("category", "ordinal")
# Dates that are not ISO 8601, such as 31.12.2020, 12/31/20, 2020/12/31, 31-Dec-2020 and Dec 31, 2020, months such as
# 2020-12, 12/2020 and Dec 2020, and ISO dates that do not exist: the readers of files leave all as text.
# Months without a separator are those of SAS: 31DEC2020, DEC20.
_ISO = r"^\d{4}-\d{2}-\d{2}(?:[ T]\d{2}:\d{2}.*)?$"
_DAY, _YEAR, _BETWEEN = r"\d{1,2}", r"(?:\d{4}|\d{2})", r"[-/., ]{1,2}"
_MONTH = r"(?:jan|feb|m[aä]r|apr|ma[iy]|jun|jul|aug|sep|o[ck]t|nov|de[cz])\pL*"
_DAYS = (_DAY, _DAY, _YEAR), (r"\d{4}", _DAY, _DAY), (_DAY, _MONTH, _YEAR), (_MONTH, _DAY, r"\d{4}")
_SHORT = "(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)"
_NAMED_MONTHS = (_MONTH, r"\d{4}"), (_SHORT, _YEAR), (_DAY, _SHORT)
_MONTHS = r"(?:19|20)\d\d[-/](?:0[1-9]|1[012])|(?:0?[1-9]|1[012])[-/](?:19|20)\d\d"
_SAS = rf"(?:\d{{2}})?{_SHORT}{_YEAR}"
_SPACED = "|".join(_BETWEEN.join(order) for order in (*_DAYS, *_NAMED_MONTHS))
_LIKE_A_DATE = rf"(?i)^(?:{_SPACED}|{_MONTHS}|{_SAS})(?:[ T,:]+\d{{1,2}}:\d{{2}}.*)?$"
# Of a column that counts the rows of a table, and of one that does not begin at 0 or 1: it numbers the rows if another
# site has the first ones.
ROWS, ROWS_ON = COUNTERS = ("row number", "later row number")
# Of whole numbers that rise from row to row: all clients together may number the rows of one table.
RISING = "rising number"
NUMBERING = (*COUNTERS, RISING)
NUMERIC = ("number", "truth", *NUMBERING)
# Of a column without a value at one site: other sites may have values.
BLANK = "empty"


class Numbering(NamedTuple):
    """Whole numbers that rise: one of `NUMBERING`, their number and their sum."""

    kind: str
    rows: int
    total: int


class Cells(NamedTuple):
    """A column of a table.

    Fields:
      name: of the column.
      kind: "number", "truth" (numbers 0 and 1), "date" (numbers), "category" or "ordinal" (text); "empty" for a column
        of one site without a value.
      values: numbers float64 [N], NaN for an empty cell; or text, object [N], "" for an empty cell.
      levels: of ordinal cells, in their order; () otherwise.
      is_whole: whether the numbers have an integer type.
      numbering: `numbered` of the column in one site's table, which may be divided since.
      sign: beside all numbers in the table, such as "%"; "" for none.
    """

    name: str
    kind: str
    values: np.ndarray
    levels: tuple[str, ...] = ()
    is_whole: bool = False
    sign: str = ""
    numbering: Numbering | None = None

    @property
    def empty(self) -> np.ndarray:
        """The mask of empty cells, bool [N]."""
        empty: np.ndarray = self.values == "" if self.kind in TEXT_KINDS else np.isnan(self.values)
        return empty

    def within_bounds(self, limit: bool = True) -> tuple[Cells, list[str]]:
        """Return the column as a model is trained on it, and sentences on values that may be mistakes.

        Args:
          limit: as of `outliers.within_bounds`.
        """
        if self.kind in TEXT_KINDS:
            return self, note_spellings(self.values.tolist(), self.name)
        values, notes = within_bounds(self.values, self.name, limit)
        return self._replace(values=values), notes

    def numbered(self) -> Numbering | None:
        """Return how the column could number rows; None if its cells are no whole numbers that rise.

        A column that begins elsewhere than at 0 or 1 may be a year or a dose.
        """
        if not self.is_whole or self.empty.any() or not np.all((steps := np.diff(self.values)) > 0):
            return None
        kind = ROWS if self.values[0] in (0, 1) else ROWS_ON
        kind = kind if len(steps) and np.all(steps == 1) else RISING
        return Numbering(kind, len(self.values), int(self.values.sum()))


def read_columns(
    table: Columns,
    names: Sequence[str],
    troubles: Troubles,
    categorical: Collection[str] = (),
    date_unit: str | None = None,
    client: str | None = None,
    kinds: Mapping[str, str] = {},
    signs: Mapping[str, str] = {},
    among: Collection[str] = (),
) -> list[Cells]:
    """Return columns by the values that they hold, or in the form in which a model requires them.

    A column with a trouble is left out, or its cells are empty if its kind is given.

    Args:
      table: of `read_table`.
      names: of the columns.
      troubles: as of `read_cells`; also gets an entry if a cell has another form than its kind.
      categorical: the columns that are categories, whatever they hold.
      date_unit: one of `DATE_UNITS`, in which dates become numbers; None where dates are refused.
      client: the column with the names of the clients, if one is known.
      kinds: column -> its kind, of `Cells`, where a model requires it.
      signs: column of these -> the sign that its numbers must have beside them, "" for none; columns that are not there
        may have any.
      among: other columns that are read as numbers, as of `Columns.decimal_commas`.

    Raises:
      InvalidArgument: there is no such unit.
    """
    if date_unit is not None:
        lookup(DATE_UNITS, date_unit, "unit of dates")
    are_numbers = {name for name in names if name not in categorical and kinds.get(name) not in TEXT_KINDS}
    commas = table.decimal_commas(are_numbers.union(among))
    found = {
        name: _read_as(table[name], kinds[name], troubles, date_unit, commas, signs.get(name))
        if name in kinds
        else read_cells(table[name], troubles, name in categorical, date_unit, commas)
        for name in names
    }
    site = next((name for name, cells in found.items() if cells is None and _looks_like_names(table[name])), None)
    if client is None and site is not None:
        troubles.advise(f"give --client-column {site} if it names the client of each row")
    return [cells for cells in found.values() if cells is not None]


def _looks_like_names(column: Decoded) -> bool:
    """Return whether a column holds text with repeated values, as a client column does."""
    if not column.is_text or not MOST_LEVELS < len(column.values.unique()) <= len(column.empty) / 2:
        return False
    return bool(np.mean(column.numerals.match().good) < 0.5)


def read_cells(
    column: Decoded,
    troubles: Troubles,
    is_category: bool = False,
    date_unit: str | None = None,
    commas: str = "",
) -> Cells | None:
    """Return a column by the values that it holds; None if something is wrong with it.

    Numbers are numbers, of whichever type, and text is a category, unless all of it are numbers. Columns of
    dictionaries (pandas categories) are categories, or ordinal if they are declared so.

    Args:
      column: of a table.
      troubles: gets an entry for a column without any value; dates without `date_unit`; text that is mostly dates in
        another form than 2020-12-31; text with more than `MOST_LEVELS` values; text in up to a fifth of the cells of a
        column of numbers; numbers that are not finite.
      is_category: the column is a category, whatever it holds.
      date_unit: one of `DATE_UNITS`, in which dates become numbers.
      commas: of its table, as `Columns.decimal_commas` says.
    """
    import pyarrow.types as types

    name, values = column.name, column.values
    if types.is_nested(values.type):
        troubles.add(name, "holds lists or records")
        return None
    if column.empty.all():
        troubles.add(name, "has no value")
        return None
    if is_category or column.has_codes:
        cells = Cells(name, "ordinal" if column.order else "category", column.categories, column.order)
        return cells if is_category else _few(cells, troubles)
    if types.is_temporal(values.type):
        return _dates(values, name, troubles, date_unit)
    if not column.is_text:
        return _numbers(column, troubles, commas)
    dates = _as_dates(column.text, name, troubles)
    if dates is not None:
        return _dates(dates, name, troubles, date_unit) if len(dates) else None
    found, signs = column.numerals.match(bool(commas)), column.numerals.signs
    bad, filled = ~(found.good | signs.aside), np.sum(~(column.empty | signs.aside))
    many = bad.sum() < 0.5 * filled and len(column.text.unique()) > MOST_LEVELS
    if found.ambiguous or not signs.words.any() or bad.sum() <= _MOST_ERRORS * filled or many:
        if bad.any() and not found.ambiguous and not signs.wrong:
            troubles.advise("correct the cell")
            troubles.advise("give --categorical for categories")
        return _numbers(column, troubles, commas)
    return _few(Cells(name, "category", column.categories), troubles)


def _read_as(
    column: Decoded, kind: str, troubles: Troubles, date_unit: str | None, commas: str, sign: str | None
) -> Cells:
    import pyarrow

    if kind in TEXT_KINDS:
        return Cells(column.name, kind, column.categories)
    nothing = Cells(column.name, kind, np.full(len(column.empty), np.nan))
    if column.empty.all():
        return nothing
    if kind != "date":
        return _numbers(column, troubles, commas, sign) or nothing
    plain = column.values
    if column.is_text:
        plain = column.text
        with contextlib.suppress(pyarrow.ArrowInvalid):  # `_dates` says which cell.
            plain = plain.cast(pyarrow.timestamp("us"))
    return _dates(plain, column.name, troubles, date_unit) or nothing


def numbers(
    table: Columns,
    columns: Sequence[str],
    troubles: Troubles,
    full: bool = True,
    among: Collection[str] = (),
    sign: str | None = "",
) -> np.ndarray:
    """Return columns as float64 [N, D]; what is no number is recorded in `troubles`, and undefined in the result.

    Args:
      table: of `read_table`.
      columns: names, all in the table.
      troubles: gets an entry for each column with a cell that is empty, no number, not finite or too large.
      full: an empty cell is a trouble; otherwise it becomes NaN.
      among: other columns that are read as numbers, as of `Columns.decimal_commas`.
      sign: beside the numbers, as of `to_float`.
    """
    signs = {} if sign is None else dict.fromkeys(columns, sign)
    kinds = dict.fromkeys(columns, "number")
    read = read_columns(table, columns, troubles, kinds=kinds, signs=signs, among=among)
    for name in columns if full else ():
        check_full(table[name].empty, name, troubles)
    return np.stack([cells.values for cells in read], -1)


def blank(name: str, number: int) -> Cells:
    """Return a column of `number` empty cells."""
    return Cells(name, BLANK, np.full(number, np.nan))


def _few(cells: Cells, troubles: Troubles) -> Cells | None:
    """Return categories, unless they have more than `MOST_LEVELS` levels."""
    number = len(set(cells.values.tolist()) - {""})
    if not number:
        troubles.add(cells.name, "has no value")
        return None
    if number > MOST_LEVELS:
        row = int(np.argmax(cells.values != ""))
        problem = f"holds {number} texts, such as {shown(cells.values[row])} in row {row + 1}"
        troubles.add(cells.name, problem)
        troubles.advise("give --categorical for categories")
        return None
    troubles.notes += doubts(cells.values, cells.name)
    return cells


def _as_dates(column: Any, name: str, troubles: Troubles) -> Any:
    """Return text of dates as timestamps; what is wrong with it if it is empty; None for other text.

    Dates have an order, which categories would lose: text of which most cells look like dates is an error.
    """
    import pyarrow
    import pyarrow.compute as compute

    matches = lambda pattern: compute.match_substring_regex(column, pattern).fill_null(False).to_numpy()
    filled, iso = column.is_valid().to_numpy(), matches(_ISO)
    with contextlib.suppress(pyarrow.ArrowInvalid):
        if np.all(iso[filled]):
            return column.cast(pyarrow.timestamp("us"))
    like = iso | matches(_LIKE_A_DATE)
    if like.sum() <= 0.5 * filled.sum():
        return None
    if iso.sum() > 0.5 * filled.sum() and not np.all(iso[filled]):
        row = int(np.argmax(filled & ~iso))
        problem = f"holds {shown(column[row].as_py())} in row {row + 1}, which is no date such as 2020-12-31"
    else:
        row = int(np.argmax(like))
        problem = f"holds dates as text, such as {shown(column[row].as_py())} in row {row + 1}"
    troubles.add(name, problem)
    troubles.advise("write dates as 2020-12-31 and give --date-unit")
    troubles.advise("give --categorical for categories")
    return column.slice(0, 0)


def _numbers(column: Decoded, troubles: Troubles, commas: str, sign: str | None = None) -> Cells | None:
    """Return a column without dictionaries as numbers; None if a cell is no number."""
    import pyarrow.types as types

    exact, beside = to_float(column, troubles, commas, sign)
    if exact is None:
        return None
    with np.errstate(over="ignore"):
        bad = ~np.isfinite(exact.astype(np.float32)) & ~column.empty
    if bad.any():
        row = int(np.argmax(bad))
        troubles.add(column.name, f"holds {exact[row]} in row {row + 1}, which is not finite, or too large")
    kind = "truth" if types.is_boolean(column.values.type) else "number"
    return Cells(column.name, kind, exact, is_whole=types.is_integer(column.values.type), sign=beside)


def _dates(column: Any, name: str, troubles: Troubles, unit: str | None) -> Cells | None:
    import pyarrow
    import pyarrow.types as types

    first = int(np.argmax(column.is_valid().to_numpy()))
    example = f"{shown(str(column[first].as_py()))} in row {first + 1}"
    if not (types.is_date(column.type) or types.is_timestamp(column.type)):
        troubles.add(name, f"holds {example}, which is no date")
    elif unit is None:
        troubles.add(name, f"holds dates, such as {example}")
        troubles.advise("give --date-unit years (or months, weeks, days) to count them")
    else:
        # Nanoseconds are cut off.
        exact = column.cast(pyarrow.timestamp("us", getattr(column.type, "tz", None)), safe=False).cast(pyarrow.int64())
        days = exact.to_numpy().astype(np.float64) / (24 * 3600 * 1e6)
        days[~column.is_valid().to_numpy()] = np.nan
        return Cells(name, "date", days / DATE_UNITS[unit])
    return None
