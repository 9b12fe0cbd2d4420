"""Numbers that a table holds as text: which mark is decimal, and which one groups thousands.

A spreadsheet writes 1234.5 as 1,234.5 in English, 1.234,5 in German, 1 234,5 in French and 1'234.5 in Swiss notation.
A column is read in the one notation that all its cells have. If two notations give different numbers, such as 1.234
and 1234 for the text 1,234, it is ambiguous.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tfp_bfl.data.signs import signs_of

_SPACES_AND_APOSTROPHES = " \u00a0\u2009\u202f'\u2019"
_MINUS = "\u2212"
_SIGN = f"[+{_MINUS}-]?"


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
    """The cells of a column in the notation that most of them have.

    Fields:
      column: the text, numbers written as 1234.5.
      good: mask of the cells that are numbers or empty, bool [N].
      ambiguous: the mark, "," or ".", that may be decimal or group thousands; "" for none.
    """

    column: Any
    good: np.ndarray
    ambiguous: str = ""


class Numerals:
    """The numbers in a column of text.

    Args:
      text: `names.canonical` text of a pyarrow Table, null for an empty cell.
      empty: mask of the empty cells, bool [N].

    Attributes:
      signs: of the text.
    """

    def __init__(self, text: Any, empty: np.ndarray):
        self.signs, self._empty = signs_of(text), empty
        self._masks: dict[Notation, np.ndarray] = {}

    def mask(self, notation: Notation) -> np.ndarray:
        """Return the mask of the cells that are in a notation or empty, bool [N]."""
        import pyarrow.compute as compute

        if notation not in self._masks:
            found = compute.match_substring_regex(self.signs.column, notation.pattern)
            self._masks[notation] = found.fill_null(True).to_numpy()
        return self._masks[notation]

    def match(self, decimal_commas: bool = False) -> Matches:
        """Return which cells are numbers, in the notation that most of them have.

        Args:
          decimal_commas: another column of the table has commas that can only be decimal: commas are then decimal where
            they could also group thousands, and points are ambiguous where they could.
        """
        import pyarrow.compute as compute

        column = self.signs.column
        first = () if self.mask(_POINT).all() and not decimal_commas else _NOTATIONS[1:]
        good = {notation: self.mask(notation) for notation in (_POINT, *first)}
        complete = {notation for notation in good if good[notation].all()}
        mark = "." if decimal_commas else ","
        if {*_DOUBTS[mark]} <= complete and has(column, mark):
            return Matches(column, good[_DOUBTS[mark][0]], mark)
        found = max(good, key=lambda notation: int(good[notation].sum()))
        if found.groups:
            column = compute.replace_substring_regex(column, f"[{found.groups}]", "")
        column = compute.replace_substring(column, _MINUS, "-")
        if found.decimal == ",":
            column = compute.replace_substring(column, ",", ".")
        return Matches(column, good[found])

    def are_surely(self, decimal: str) -> bool:
        """Return whether all cells are numbers, and one has a mark that can only be decimal."""
        if self._empty.all():
            return False
        number = np.any([self.mask(notation) for notation in _NOTATIONS if notation.decimal == decimal], 0)
        return bool(number.all() and not self.mask(_ENGLISH if decimal == "," else _GERMAN).all())

    @property
    def may_group(self) -> bool:
        """Whether points may group thousands in all cells."""
        return bool(self.mask(_GERMAN).all())


def are_thousandths(column: Any) -> bool:
    """Return whether numbers could be thousands with points between groups: below 1000, three decimals at most."""
    values = column.fill_null(0).to_numpy().astype(np.float64)
    thousands = values * 1000
    near = np.abs(thousands - np.round(thousands)) < 1e-6
    return bool(np.all(np.isfinite(values)) and np.all(near & ((np.abs(values) < 1000) | (values == np.round(values)))))


def has(column: object, mark: str) -> bool:
    """Return whether a cell of a column of text has a mark."""
    import pyarrow.compute as compute

    return bool(compute.any(compute.match_substring(column, mark)).as_py())
