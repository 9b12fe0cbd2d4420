"""Cells of a table as they are: numbers, truth values, categories, dates and empty cells.

`read_columns` reads columns by the values that they hold, or in the form in which a model requires them. What is wrong
with a column is recorded in `Troubles`, with its first cell and the options that help; the column is then left out, or
its cells are empty if a model requires it.
"""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfp_bfl.data.columns import Columns, Decoded, Troubles
from tfp_bfl.data.names import note_spellings
from tfp_bfl.data.numerals import doubts
from tfp_bfl.data.statistics import within_bounds
from tfp_bfl.data.texts import TEXT, WIDTHS, TextColumns, text_features
from tfp_bfl.errors import lookup, shown
from tfp_bfl.faces import compute, pyarrow, types

# Text with more values than this is rather a name than a category.
MOST_LEVELS = 30
# The length in days of the units that dates are counted in, from 1970-01-01 on.
DATE_UNITS = {"days": 1.0, "weeks": 7.0, "months": 365.2425 / 12, "years": 365.2425}
# Cells that are no numbers are errors in a column of numbers up to this share, and beyond it categories.
_MOST_ERRORS = 0.2
# Categories of which the first one is the reference, as of linear models: a column does not have this kind by itself.
FACTOR = "factor"
TEXT_KINDS = ("category", "ordinal", FACTOR)
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

    The kind is "number", "truth" (numbers 0 and 1), "date" (numbers), "category" or "ordinal" (text), "text" (features
    of texts, float32 [N, F], 0 for an empty cell), and "empty" for a column of one site without a value.
    """

    name: str
    kind: str
    values: np.ndarray  # Numbers float64 [N], NaN for an empty cell; or text, object [N], "" for an empty cell.
    levels: tuple[str, ...] = ()  # Of ordinal cells, in their order; () otherwise.
    is_whole: bool = False  # The numbers have an integer type.
    sign: str = ""  # Beside all numbers in the table, such as "%"; "" for none. The backbone of texts.
    numbering: Numbering | None = None  # `numbered` of the column in one site's table, which may be divided since.

    @property
    def empty(self) -> np.ndarray:
        """The mask of empty cells, bool [N]."""
        return self.values == "" if self.kind in TEXT_KINDS else np.isnan(self.values)

    def within_bounds(self, limit: bool = True) -> "tuple[Cells, list[str]]":
        """Return the column with typing errors limited (`statistics.within_bounds`), and sentences on its values."""
        if self.kind in TEXT_KINDS:
            return self, note_spellings(self.values.tolist(), self.name)
        if self.kind == TEXT:
            return self, []
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


def blank(name: str, number: int, kind: str = BLANK) -> Cells:
    """Return a column of `number` empty cells."""
    return Cells(name, kind, np.full(number, "", object) if kind in TEXT_KINDS else np.full(number, np.nan))


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
    texts: TextColumns | None = None,
) -> list[Cells]:
    """Return columns by the values that they hold, or in the form in which a model requires them.

    Args:
      troubles, texts: as of `read_cells`; the first also gets an entry if a cell has another form than its kind.
      categorical: the columns that are categories, whatever they hold.
      date_unit: one of `DATE_UNITS`, in which dates become numbers; None where dates are refused.
      client: the column with the names of the clients, if one is known.
      kinds: column -> its kind, of `Cells`, where a model requires it.
      signs: column of these -> the sign that its numbers must have beside them, "" for none; columns that are not there
        may have any.
      among: other columns that are read as numbers: if one has commas that can only be decimal, all have.
    """
    if date_unit is not None:
        lookup(DATE_UNITS, date_unit, "unit of dates")
    are_numbers = {name for name in names if name not in categorical and kinds.get(name) not in TEXT_KINDS}
    are_numbers.update(among)
    # Points that can only be decimal in another column: notations then differ by column.
    commas = "" if are_numbers.intersection(table.points) else next((x for x in table.commas if x in are_numbers), "")
    read, suspect = [], None
    for name in dict.fromkeys(names):
        column = table[name]
        if name in kinds:
            read.append(_read_as(column, kinds[name], troubles, date_unit, commas, signs.get(name)))
        elif cells := read_cells(column, troubles, name in categorical, date_unit, commas, texts):
            read.append(cells)
        # Text with repeated values, as a client column has.
        elif column.is_text and MOST_LEVELS < len(column.values.unique()) <= len(column.empty) / 2:
            suspect = suspect or (name if np.mean(column.numerals.match().good) < 0.5 else None)
    if client is None and suspect is not None:
        troubles.advise(f"give --client-column {suspect} if it names the client of each row")
    return read


def read_cells(
    column: Decoded,
    troubles: Troubles,
    is_category: bool = False,
    date_unit: str | None = None,
    commas: str = "",
    texts: TextColumns | None = None,
) -> Cells | None:
    """Return a column by the values that it holds; None if something is wrong with it.

    Numbers are numbers, of whichever type, and text is a category, unless all of it are numbers. Columns of
    dictionaries (pandas categories) are categories, or ordinal if they are declared so.

    Args:
      troubles: gets an entry for a column without any value; dates without `date_unit`; text that is mostly dates in
        another form than 2020-12-31; text with more than `MOST_LEVELS` values; text in up to a fifth of the cells of a
        column of numbers; numbers that are not finite.
      is_category, date_unit: as of `read_columns`.
      commas: a column of its table with commas that can only be decimal; "" for none.
      texts: the columns that become features of texts; None where there can't be any.
    """
    name, values = column.name, column.values
    if types.is_nested(values.type):
        troubles.add(name, "holds lists or records")
        return None
    if column.empty.all():
        troubles.add(name, "has no value")
        return None
    if texts and name in texts.names:
        return _texts(column, texts.backbone, troubles)
    if is_category or column.has_codes:
        cells = Cells(name, "ordinal" if column.order else "category", column.categories, column.order)
        return _few(cells, troubles, is_category)
    if types.is_temporal(values.type):
        return _dates(values, name, troubles, date_unit)
    if not column.is_text:
        return _numbers(column, troubles, commas)
    dates = _as_dates(column.text, name, troubles)
    if dates is not None:
        return _dates(dates, name, troubles, date_unit) if len(dates) else None
    numerals = column.numerals
    found = numerals.match(bool(commas))
    bad, filled = ~(found.good | numerals.aside), np.sum(~(column.empty | numerals.aside))
    many = bad.sum() < 0.5 * filled and len(column.text.unique()) > MOST_LEVELS
    if found.ambiguous or not numerals.words.any() or bad.sum() <= _MOST_ERRORS * filled or many:
        if bad.any() and not found.ambiguous and not numerals.wrong:
            troubles.advise("correct the cell", "give --categorical for categories")
        return _numbers(column, troubles, commas)
    if texts is not None and len(column.text.drop_null().unique()) > MOST_LEVELS and not texts.names:
        if texts.backbone:
            return _texts(column, texts.backbone, troubles)
        troubles.advise("give --text-features wordllama for texts")
    return _few(Cells(name, "category", column.categories), troubles)


def _read_as(
    column: Decoded, kind: str, troubles: Troubles, date_unit: str | None, commas: str, sign: str | None
) -> Cells:
    if kind in TEXT_KINDS:
        return Cells(column.name, kind, column.categories)
    nothing = blank(column.name, len(column.empty), kind)
    if kind == TEXT:
        return _texts(column, str(sign), troubles, is_new=False) or nothing
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


def _texts(column: Decoded, backbone: str, troubles: Troubles, is_new: bool = True) -> Cells | None:
    """Return the features of texts, 0 of empty cells; None of numbers, and of numbers as text where no model has it."""
    filled = ~column.empty
    if filled.any() and (not column.is_text or (is_new and column.numerals.match().good[filled].all())):
        example = shown(str(column.values[int(np.argmax(filled))].as_py()))
        troubles.add(column.name, f"holds {example}, which is no text", "leave it out of --text-features")
        return None
    if is_new:
        troubles.notes.append(f"{shown(column.name)} is read as texts: {WIDTHS[backbone]} features of {backbone}.")
    texts = column.text.fill_null("").to_pylist() if column.is_text else [""] * len(filled)
    return Cells(column.name, TEXT, text_features(backbone)(texts), sign=backbone)


def check_full(empty: np.ndarray, name: str, troubles: Troubles) -> None:
    """Record a trouble if a cell of a column is empty."""
    if empty.any():
        number, row = int(empty.sum()), int(np.argmax(empty)) + 1
        troubles.add(name, f"has {number} empty cell{'s' if number > 1 else ''}, the first in row {row}")


def _few(cells: Cells, troubles: Troubles, declared: bool = False) -> Cells | None:
    """Return categories, unless they have more than `MOST_LEVELS` levels and were not declared."""
    number = len(set(cells.values.tolist()) - {""})
    if not number:
        troubles.add(cells.name, "has no value")
        return None
    if number > MOST_LEVELS and not declared:
        row = int(np.argmax(cells.values != ""))
        problem = f"holds {number} texts, such as {shown(cells.values[row])} in row {row + 1}"
        troubles.add(cells.name, problem, "give --categorical for categories")
        return None
    troubles.notes += doubts(cells.values, cells.name, declared)
    return cells


def _numbers(column: Decoded, troubles: Troubles, commas: str, sign: str | None = None) -> Cells | None:
    """Return a column with a value, and without dictionaries, as numbers; None if a cell is no number.

    `sign` must be beside the numbers, "" for none; None for any.
    """
    values, kind = column.text if column.is_text else column.values, column.values.type
    first = int(np.argmin(column.empty))
    example, beside = shown(str(values[first].as_py())), column.numerals.sign if column.is_text else ""
    exact = _from_text(column, troubles, commas) if column.is_text else None
    if column.is_text and exact is None:
        return None
    if sign is not None and beside != sign:
        words = [f"the sign {shown(x)} beside it" if x else "no sign beside it" for x in (beside, sign)]
        problem = f"holds {example} in row {first + 1}, with {words[0]}, but must have {words[1]}"
        troubles.add(column.name, problem, "write the numbers of all data with one sign, or without")
        return None
    if beside:
        unit = "per cent" if beside == "%" else f"units of {beside}"
        sentence = f"{shown(column.name)} has {shown(beside)} beside all numbers, such as {example}"
        troubles.notes.append(f"{sentence}: they are read as numbers in {unit}.")
    if exact is None:
        if not any(f(kind) for f in (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)):
            troubles.add(column.name, f"holds {example} in row {first + 1}, which is no number")
            return None
        values = values.cast(pyarrow.float64()) if types.is_decimal(kind) else values
        exact = values.fill_null(False if types.is_boolean(kind) else 0).to_numpy().astype(np.float64)
        exact[column.empty] = np.nan
    with np.errstate(over="ignore"):
        bad = ~np.isfinite(exact.astype(np.float32)) & ~column.empty
    if bad.any():
        row = int(np.argmax(bad))
        troubles.add(column.name, f"holds {exact[row]} in row {row + 1}, which is not finite, or too large")
    of_kind = "truth" if types.is_boolean(kind) else "number"
    return Cells(column.name, of_kind, exact, is_whole=types.is_integer(kind), sign=beside)


def _from_text(column: Decoded, troubles: Troubles, commas: str) -> np.ndarray | None:
    """Return the numbers in text, float64 [N]; None if a cell is no number."""
    numerals = column.numerals
    found = numerals.match(bool(commas))
    wrong, why = ~found.good, "which is no number"
    if numerals.wrong:
        row, why, advice = numerals.wrong
        wrong = np.arange(len(wrong)) == row
        troubles.advise(advice)
    elif found.ambiguous:
        wrong = compute.match_substring(numerals.column, found.ambiguous).fill_null(False).to_numpy()
        mark = {",": "comma", ".": "point"}[found.ambiguous]
        why = f"where the {mark} may be decimal or group thousands"
        if commas:
            why += f", as the column {shown(commas)} has decimal commas"
        troubles.advise(f"write numbers without such {mark}s")
    if wrong.any():
        row = int(np.argmax(wrong))
        troubles.add(column.name, f"holds {shown(column.text[row].as_py())} in row {row + 1}, {why}")
        return None
    return found.column.cast(pyarrow.float64()).to_numpy().astype(np.float64)


def _as_dates(column: Any, name: str, troubles: Troubles) -> Any:
    """Return text of dates as timestamps; what is wrong with it if it is empty; None for other text.

    Dates have an order, which categories would lose: text of which most cells look like dates is an error.
    """
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
    remedy = "write dates as 2020-12-31 and give --date-unit"
    troubles.add(name, problem, remedy, "give --categorical for categories")
    return column.slice(0, 0)


def _dates(column: Any, name: str, troubles: Troubles, unit: str | None) -> Cells | None:
    first = int(np.argmax(column.is_valid().to_numpy()))
    example = f"{shown(str(column[first].as_py()))} in row {first + 1}"
    if not (types.is_date(column.type) or types.is_timestamp(column.type)):
        troubles.add(name, f"holds {example}, which is no date")
        return None
    if unit is None:
        remedy = "give --date-unit years (or months, weeks, days) to count them"
        troubles.add(name, f"holds dates, such as {example}", remedy)
        return None
    # Nanoseconds are cut off.
    exact = column.cast(pyarrow.timestamp("us", getattr(column.type, "tz", None)), safe=False).cast(pyarrow.int64())
    days = exact.to_numpy().astype(np.float64) / (24 * 3600 * 1e6)
    days[~column.is_valid().to_numpy()] = np.nan
    return Cells(name, "date", days / DATE_UNITS[unit])
