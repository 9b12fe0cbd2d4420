"""Numbers that a table holds as text: which mark is decimal, and which one groups thousands.

A spreadsheet writes 1234.5 as 1,234.5 in English, 1.234,5 in German, 1 234,5 in French and 1'234.5 in Swiss notation.
A column is read in the one notation that all its cells have. If two notations give different numbers, such as 1.234
and 1234 for the text 1,234, it is ambiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import numpy as np

_SPACES_AND_APOSTROPHES = " \u00a0\u2009\u202f'\u2019"
_MINUS = "\u2212"
_SIGN = f"[+{_MINUS}-]?"
# The key of a table's metadata that says that a column of it has decimal commas.
_COMMAS = b"tfp_bfl.decimal_commas"


class Notation(NamedTuple):
    """A way to write numbers.

    Fields:
      pattern: of a cell.
      decimal: the decimal mark.
      groups: the marks between groups of thousands.
    """

    pattern: str
    decimal: str
    groups: str = ""


def _plain(decimal: str) -> Notation:
    d = f"[{decimal}]"
    return Notation(rf"^\s*{_SIGN}(\d+{d}?\d*|{d}\d+)([eE][+-]?\d+)?\s*$", decimal)


def _grouped(decimal: str, groups: str) -> Notation:
    d = f"[{decimal}]"
    return Notation(rf"^\s*{_SIGN}([1-9]\d{{0,2}}([{groups}]\d{{3}})+|\d+)({d}\d*)?\s*$", decimal, groups)


_POINT, _COMMA = _plain("."), _plain(",")
_ENGLISH, _GERMAN = _grouped(".", ","), _grouped(",", ".")
_NOTATIONS = (
    _POINT,
    _COMMA,
    _ENGLISH,
    _GERMAN,
    _grouped(".", _SPACES_AND_APOSTROPHES),
    _grouped(",", _SPACES_AND_APOSTROPHES),
)
# What differs: the cell is 1.234 in the first notation, and 1234 in the second.
_DOUBTS = {",": (_COMMA, _ENGLISH), ".": (_POINT, _GERMAN)}


class Matches(NamedTuple):
    """The numbers in a column of text.

    Fields:
      column: the text, numbers written as 1234.5.
      good: mask of the cells that are numbers or empty, bool [N].
      empty: mask of the empty cells, bool [N].
      ambiguous: the mark, "," or ".", that may be decimal or group thousands; "" for none.
    """

    column: Any
    good: np.ndarray
    empty: np.ndarray
    ambiguous: str = ""


def match_numbers(column: Any, decimal_commas: bool = False) -> Matches:
    """Return which cells of a column of text are numbers, in the notation that most of its cells have.

    Args:
      column: of a pyarrow Table.
      decimal_commas: of its table, as `has_decimal_commas` says: commas are then decimal where they could also group
        thousands, and points are ambiguous where they could.
    """
    import pyarrow.compute as compute

    matches, empty = _matching(column)
    good = {_POINT: matches(_POINT)}
    if not good[_POINT].all() or decimal_commas:
        good |= {notation: matches(notation) for notation in _NOTATIONS[1:]}
    complete = [notation for notation in good if good[notation].all()]
    mark = "." if decimal_commas else ","
    if {*_DOUBTS[mark]} <= {*complete} and _has(column, mark):
        return Matches(column, good[_DOUBTS[mark][0]], empty, mark)
    found = max(good, key=lambda notation: int(good[notation].sum()))
    if found.groups:
        column = compute.replace_substring_regex(column, f"[{found.groups}]", "")
    column = compute.replace_substring(column, _MINUS, "-")
    if found.decimal == ",":
        column = compute.replace_substring(column, ",", ".")
    return Matches(column, good[found], empty)


def with_notation(table: Any, written: Optional[Callable[[list[str]], Any]] = None) -> Any:
    """Return a table that says whether it has decimal commas, for `has_decimal_commas`.

    If it has, a column such as 1.234, 950 may be of thousands, and the reader of a file has made it a number: that
    column is returned as text.

    Args:
      table: of pyarrow.
      written: names -> the table with these columns as text, as they are written; None if numbers are not text.
    """
    if not any(_are_decimal_commas(column) for column in table.columns):
        return table
    import pyarrow.types as types

    is_doubtful = lambda column: types.is_floating(column.type) and _are_thousandths(column)
    doubtful = [i for i, column in enumerate(table.columns) if is_doubtful(column)]
    if doubtful and written is not None:
        as_text = written([table.column_names[i] for i in doubtful])
        for i in doubtful:
            if _matching(as_text.column(i))[0](_GERMAN).all():
                table = table.set_column(i, table.column_names[i], as_text.column(i))
    return table.replace_schema_metadata({**(table.schema.metadata or {}), _COMMAS: b"yes"})


def has_decimal_commas(table: Any) -> bool:
    """Return whether a column of a pyarrow Table has commas that can only be decimal."""
    return _COMMAS in (table.schema.metadata or {})


def _are_decimal_commas(column: Any) -> bool:
    import pyarrow.types as types

    if not types.is_string(column.type) or not _has(column, ","):
        return False
    matches, empty = _matching(column)
    german = matches(_COMMA) | matches(_GERMAN)
    return bool(german.all() and not matches(_ENGLISH).all() and not empty.all())


def _are_thousandths(column: Any) -> bool:
    """Return whether numbers could be thousands with points between groups: below 1000, three decimals at most."""
    values = column.fill_null(0).to_numpy().astype(np.float64)
    thousands = values * 1000
    near = np.abs(thousands - np.round(thousands)) < 1e-6
    return bool(np.all(np.isfinite(values)) and np.all(near & ((np.abs(values) < 1000) | (values == np.round(values)))))


def _has(column: Any, mark: str) -> bool:
    import pyarrow.compute as compute

    return bool(compute.any(compute.match_substring(column, mark)).as_py())


def _matching(column: Any) -> tuple[Callable[[Notation], np.ndarray], np.ndarray]:
    """Return the function from a notation to the mask of the cells in it or empty, and the mask of empty cells."""
    import pyarrow.compute as compute

    empty: np.ndarray = compute.equal(compute.utf8_trim_whitespace(column), "").fill_null(True).to_numpy()

    def matches(notation: Notation) -> np.ndarray:
        found: np.ndarray = compute.match_substring_regex(column, notation.pattern).fill_null(True).to_numpy()
        return found | empty

    return matches, empty
