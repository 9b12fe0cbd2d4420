"""Cells beside numbers that are no plain numbers: signs of a unit, marks of missing values, and limits of detection.

A spreadsheet writes 12% or $12 for a number, and #DIV/0! if it has none; SAS writes a dot; a laboratory writes <5. In a
column of numbers

    percent or one currency, at all cells     is the sign of the column: the numbers are read without it
    several signs, or numbers without one     are refused
    error codes, dots, dashes, "?"            are refused, however many there are: an empty cell is a missing value
    limits of detection                       are refused

and a column with words is a category, which a note names if other cells look like numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfp_bfl.data.names import EMPTY
from tfp_bfl.errors import shown

# Text that consists of digits, their marks and an exponent, whatever notation it has.
_LOOSE = "[+\u2212-]?[0-9., '\u2019]*[0-9][0-9., '\u2019]*(?:[eE][+-]?[0-9]+)?"
# Percent, per mille and the currencies of Unicode.
_SIGN = (
    "[%\u2030$\xa2-\xa5\u058f\u060b\u09f2\u09f3\u09fb\u0af1\u0bf9\u0e3f\u17db\u20a0-\u20c0\ua838\ufdfc\ufe69\uff04\uffe0\uffe1"
    "\uffe5\uffe6]"
)
_NUMBER = re.compile(_LOOSE)
_BEFORE = re.compile(f"(?P<minus>[+\u2212-]?) ?(?P<sign>{_SIGN}) ?(?P<number>{_LOOSE})")
_AFTER = re.compile(f"(?P<number>{_LOOSE}?) ?(?P<sign>{_SIGN})(?P<minus>)")
_LIMIT = re.compile(f"(?:[<>\u2264\u2265]=?|=[<>]) ?{_SIGN}? ?{_LOOSE} ?{_SIGN}?")
# Error codes of spreadsheets, the dots of SAS and of statistical offices, and question marks.
_MARK = re.compile(r"#[A-Z][A-Z0-9_/]*[!?]|Err:[0-9]{3}|\.[A-Za-z_]?|\.{2,3}|\?{1,3}")
_DASH = re.compile("[-\u2013\u2014\u2212]{1,3}")
# What begins with a number.
_BEGINS = re.compile(f"[(~\u2248<>\u2264\u2265=+\u2212-]* ?{_SIGN}? ?[0-9]")


class Signs(NamedTuple):
    """The cells of a column of text beside plain numbers.

    Fields:
      column: the text, without the sign that all numbers have beside them.
      aside: mask of the cells that no column of numbers may hold, and that are no words [N].
      words: mask of the cells that are words [N].
      sign: "%", a currency, or "" for none.
      wrong: the row of a cell that no column of numbers may hold, why, and the remedy; None for none.
    """

    column: Any
    aside: np.ndarray
    words: np.ndarray
    sign: str = ""
    wrong: tuple[int, str, str] | None = None


class _Cell(NamedTuple):
    kind: str
    number: str
    sign: str = ""


def signs_of(column: Any) -> Signs:
    """Return what a column of `canonical` text of a pyarrow Table holds beside plain numbers."""
    import pyarrow
    import pyarrow.compute as compute

    none = np.zeros(len(column), bool)
    if compute.all(compute.match_substring_regex(column, f"^(?:{_LOOSE})?$")).as_py() is not False:
        return Signs(column, none, none)
    encoded = column.combine_chunks().dictionary_encode()
    places, texts = encoded.indices.fill_null(-1).to_numpy(), encoded.dictionary.to_pylist()
    cells = [_cell(text) for text in texts]
    if {cell.kind for cell in cells} <= {"dash", "empty"}:  # As "+" and "-" of a test may be at one client.
        cells = [cell._replace(kind="word") if cell.kind == "dash" else cell for cell in cells]
    are = lambda *kinds: np.isin(places, [i for i, cell in enumerate(cells) if cell.kind in kinds])
    sign, wrong = _fault(cells, texts, lambda i: int(np.argmax(places == i)))
    if sign:
        bare = pyarrow.array([cell.number for cell in cells], pyarrow.string())
        column = pyarrow.chunked_array([compute.take(bare, encoded.indices)])
    return Signs(column, are("mark", "dash", "limit"), are("word"), sign, wrong)


def _fault(
    cells: Sequence[_Cell], texts: Sequence[str], row_of: Callable[[int], int]
) -> tuple[str, tuple[int, str, str] | None]:
    """Return the sign of a column of numbers, and what is wrong with it, as of `Signs`."""
    signs: dict[str, int] = {}
    for i, cell in enumerate(cells):
        if cell.kind == "limit":
            advice = "write a number for a limit, such as half of it, or give --categorical"
            return "", (row_of(i), "a limit of detection", advice)
        if cell.kind in ("mark", "dash"):
            advice = "empty the cells that stand for a missing value, or give --categorical"
            return "", (row_of(i), "which is no number", advice)
        if cell.kind == "number":
            signs.setdefault(cell.sign, i)
    if len(signs) < 2:
        return next(iter(signs), ""), None
    i, j = list(signs.values())[:2]
    what = f"and {shown(texts[i])} in row {row_of(i) + 1}, which have not the same sign beside them"
    return "", (row_of(j), what, "write all numbers of a column with one sign, or without")


def _cell(text: str) -> _Cell:
    """Return the kind of a cell, its text without a sign beside a number, and the sign."""
    if text in ("", *EMPTY):
        return _Cell("empty", text)
    for kind, pattern in (("number", _NUMBER), ("mark", _MARK), ("dash", _DASH), ("limit", _LIMIT)):
        if pattern.fullmatch(text):
            return _Cell(kind, text)
    found = _BEFORE.fullmatch(text) or _AFTER.fullmatch(text)
    return _Cell("number", found["minus"] + found["number"].strip(), found["sign"]) if found else _Cell("word", text)


def is_nothing(text: str) -> bool:
    """Return whether text alone is an error code of a spreadsheet, dots or question marks: no word, in any column."""
    return _MARK.fullmatch(text) is not None


def doubts(categories: np.ndarray, name: str) -> list[str]:
    """Return sentences on a column that became a category though its cells look like numbers, or like missing values.

    Args:
      categories: its cells, object [N]; "" for an empty one.
      name: of the column.
    """
    values, counts = np.unique(categories[categories != ""].astype(str), return_counts=True)
    cells = [_cell(x) for x in values.tolist()]
    begin = np.array([_BEGINS.match(x) is not None for x in values.tolist()], bool)
    numbers = [x for x, cell in zip(values.tolist(), cells) if cell.kind in ("number", "limit")]
    if 2 * counts[begin].sum() >= counts.sum() > 0:
        numbers = numbers or values[begin].tolist()
    notes = []
    if numbers:
        few = ", ".join(map(shown, numbers[:3]))
        notes.append(
            f"{shown(name)} is a category, though cells such as {few} look like numbers: if it is a column of numbers, "
            "correct the cells that are none."
        )
    marks = [x for x, cell in zip(values.tolist(), cells) if cell.kind in ("mark", "dash")]
    if marks:
        notes.append(
            f"{shown(name)} has the category {' and '.join(map(shown, marks[:3]))}: empty these cells if they stand "
            "for missing values."
        )
    return notes
