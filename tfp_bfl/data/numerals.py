"""Numbers that a table holds as text: which mark is decimal, and which one groups thousands.

A spreadsheet writes 1234.5 as 1,234.5 in English, 1.234,5 in German, 1 234,5 in French and 1'234.5 in Swiss notation.
A column is read in the one notation that all its cells have. If two notations give different numbers, such as 1.234
and 1234 for the text 1,234, it is ambiguous.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from tfp_bfl.data.names import EMPTY, canonical_cells
from tfp_bfl.data.signs import Signs, signs_of

_SPACES_AND_APOSTROPHES = " \u00a0\u2009\u202f'\u2019"
_MINUS = "\u2212"
_SIGN = f"[+{_MINUS}-]?"
# The key of a table's metadata with the columns that have decimal commas, and those with decimal points.
_NOTATION = b"tfp_bfl.notation"


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
    return Notation(rf"^{_SIGN}(\d+{d}?\d*|{d}\d+)([eE][+-]?\d+)?$", decimal)


def _grouped(decimal: str, groups: str) -> Notation:
    d = f"[{decimal}]"
    g = f"[{groups}]"
    thousands, lakhs = rf"[1-9]\d{{0,2}}({g}\d{{3}})+", rf"[1-9]\d?({g}\d{{2}})+{g}\d{{3}}"
    return Notation(rf"^{_SIGN}({thousands}|{lakhs}|\d+)({d}\d*)?$", decimal, groups)


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
      signs: of the text.
      ambiguous: the mark, "," or ".", that may be decimal or group thousands; "" for none.
    """

    column: Any
    good: np.ndarray
    empty: np.ndarray
    signs: Signs
    ambiguous: str = ""


def match_numbers(column: object, decimal_commas: bool = False) -> Matches:
    """Return which cells of a column of text are numbers, in the notation that most of its cells have.

    Args:
      column: of a pyarrow Table.
      decimal_commas: of its table, as `decimal_commas` says: commas are then decimal where they could also group
        thousands, and points are ambiguous where they could.
    """
    import pyarrow.compute as compute

    column, matches, empty, signs = _matching(column)
    good = {_POINT: matches(_POINT)}
    if not good[_POINT].all() or decimal_commas:
        good |= {notation: matches(notation) for notation in _NOTATIONS[1:]}
    complete = [notation for notation in good if good[notation].all()]
    mark = "." if decimal_commas else ","
    if {*_DOUBTS[mark]} <= {*complete} and _has(column, mark):
        return Matches(column, good[_DOUBTS[mark][0]], empty, signs, mark)
    found = max(good, key=lambda notation: int(good[notation].sum()))
    if found.groups:
        column = compute.replace_substring_regex(column, f"[{found.groups}]", "")
    column = compute.replace_substring(column, _MINUS, "-")
    if found.decimal == ",":
        column = compute.replace_substring(column, ",", ".")
    return Matches(column, good[found], empty, signs)


def with_notation(table: Any, written: Callable[[list[str]], Any] | None = None) -> Any:
    """Return a table that says which columns have decimal commas and which decimal points, for `decimal_commas`.

    If one has commas, a column such as 1.234, 950 may be of thousands, and the reader of a file has made it a number:
    that column is returned as text.

    Args:
      table: of pyarrow.
      written: names -> the table with these columns as text, as they are written; None if numbers are not text.
    """
    import pyarrow.types as types

    named = list(enumerate(table.column_names))
    commas = [name for i, name in named if _are_surely(",", table.column(i))]
    metadata = {key: x for key, x in (table.schema.metadata or {}).items() if key != _NOTATION}
    if not commas:
        return table.replace_schema_metadata(metadata)
    points = [name for i, name in named if _are_surely(".", table.column(i))]
    if written is not None:
        floats = [(i, name) for i, name in named if types.is_floating(table.schema.field(i).type)]
        doubtful = [(i, name) for i, name in floats if _are_thousandths(table.column(i))]
        points += [name for i, name in floats if (i, name) not in doubtful]
        as_text: Any = written([name for _, name in doubtful]) if doubtful else None
        for i, name in doubtful:
            if _matching(as_text.column(i))[1](_GERMAN).all():
                table = table.set_column(i, name, as_text.column(i))
            else:
                points.append(name)
    found = json.dumps({"commas": commas, "points": points}).encode()
    return table.replace_schema_metadata({**metadata, _NOTATION: found})


def decimal_commas(table: Any, names: Iterable[str]) -> str:
    """Return a column of a pyarrow Table with commas that can only be decimal; "" if there is none.

    It is "" too if another column has points that can only be decimal: the columns then have notations of their own.

    Args:
      table: of `with_notation`.
      names: the columns that are read as numbers.
    """
    found = json.loads((table.schema.metadata or {}).get(_NOTATION, b"{}"))
    names = set(names)
    if names.intersection(found.get("points", ())):
        return ""
    return next((name for name in found.get("commas", ()) if name in names), "")


def _are_surely(decimal: str, column: Any) -> bool:
    """Return whether all cells of a column of text are numbers, and one has a mark that can only be decimal."""
    import pyarrow.types as types

    if not types.is_string(column.type) or not _has(column, decimal):
        return False
    _, matches, empty, _ = _matching(column)
    if empty.all():
        return False
    number = np.any([matches(notation) for notation in _NOTATIONS if notation.decimal == decimal], 0)
    other = _ENGLISH if decimal == "," else _GERMAN
    return bool(number.all() and not matches(other).all())


def _are_thousandths(column: Any) -> bool:
    """Return whether numbers could be thousands with points between groups: below 1000, three decimals at most."""
    values = column.fill_null(0).to_numpy().astype(np.float64)
    thousands = values * 1000
    near = np.abs(thousands - np.round(thousands)) < 1e-6
    return bool(np.all(np.isfinite(values)) and np.all(near & ((np.abs(values) < 1000) | (values == np.round(values)))))


def _has(column: object, mark: str) -> bool:
    import pyarrow.compute as compute

    return bool(compute.any(compute.match_substring(column, mark)).as_py())


def _matching(column: object) -> tuple[Any, Callable[[Notation], np.ndarray], np.ndarray, Signs]:
    """Return `canonical` text without signs, the function from a notation to the mask of the cells in it or empty, the
    mask of the cells that are empty or hold a word that stands for that, and the signs.
    """
    import pyarrow
    import pyarrow.compute as compute

    signs = signs_of(canonical_cells(column))
    trimmed = signs.column
    words = pyarrow.array(["", *EMPTY])
    empty: np.ndarray = compute.or_kleene(compute.is_null(trimmed), compute.is_in(trimmed, words)).to_numpy()

    def matches(notation: Notation) -> np.ndarray:
        found: np.ndarray = compute.match_substring_regex(trimmed, notation.pattern).fill_null(True).to_numpy()
        return found | empty

    return trimmed, matches, empty, signs
