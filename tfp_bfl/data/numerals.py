"""Numbers that a table holds as text: their notation, the sign beside them, and cells that are no numbers.

A spreadsheet writes 1234.5 as 1,234.5 in English, 1.234,5 in German, 1 234,5 in French and 1'234.5 in Swiss notation.
A column is read in the one notation that all its cells have. If two notations give different numbers, such as 1.234
and 1234 for the text 1,234, it is ambiguous.

A spreadsheet writes 12% or $12 for a number, and #DIV/0! if it has none; SAS writes a dot; a laboratory writes <5. In a
column of numbers

    percent or one currency, at all cells     is the sign of the column: the numbers are read without it
    several signs, or numbers without one     are refused
    error codes, dots, dashes, "?"            are refused, however many there are: an empty cell is a missing value
    limits of detection                       are refused

and a column with words is a category, which a note names if other cells look like numbers.
"""

import re
from typing import Any, NamedTuple

import numpy as np

from tfp_bfl.data.names import EMPTY, MARK
from tfp_bfl.errors import shown
from tfp_bfl.faces import compute, pyarrow

_SPACES_AND_APOSTROPHES = " \u00a0\u2009\u202f'\u2019"
_MINUS = "\u2212"
# Text that consists of digits, their marks and an exponent, whatever notation it has.
_LOOSE = "[+\u2212-]?[0-9., '\u2019]*[0-9][0-9., '\u2019]*(?:[eE][+-]?[0-9]+)?"
# Percent, per mille and the currencies of Unicode.
_SIGN = (
    "[%\u2030$\xa2-\xa5\u058f\u060b\u09f2\u09f3\u09fb\u0af1\u0bf9\u0e3f\u17db\u20a0-\u20c0\ua838\ufdfc\ufe69\uff04\uffe0\uffe1"
    "\uffe5\uffe6]"
)
_BEFORE = re.compile(f"(?P<minus>[+\u2212-]?) ?(?P<sign>{_SIGN}) ?(?P<number>{_LOOSE})")
_AFTER = re.compile(f"(?P<number>{_LOOSE}?) ?(?P<sign>{_SIGN})(?P<minus>)")
_KINDS = {
    "number": re.compile(_LOOSE),
    "mark": MARK,
    "dash": re.compile("[-\u2013\u2014\u2212]{1,3}"),
    "limit": re.compile(f"(?:[<>\u2264\u2265]=?|=[<>]) ?{_SIGN}? ?{_LOOSE} ?{_SIGN}?"),
}
_EMPTY_THEM = "empty the cells that stand for a missing value, or give --categorical"
_REMEDIES = {
    **{"mark": _EMPTY_THEM, "dash": _EMPTY_THEM},
    "limit": "write a number for a limit, such as half of it, or give --categorical",
}
# What begins with a number, or with a currency in letters and a number.
_MONEY = r"(?:[A-Z]{1,3}\$|AUD|BRL|CAD|CHF|CNY|CZK|DKK|EUR|GBP|INR|JPY|NOK|PLN|SEK|USD|ZAR|Fr\.?|Rs\.?|kr\.?)"
_BEGINS = re.compile(f"[(~\u2248<>\u2264\u2265=+\u2212-]* ?(?:{_SIGN}|{_MONEY})? ?[0-9]")


class Notation(NamedTuple):
    """A way to write numbers: the pattern of a cell, the decimal mark, and the marks between groups of thousands."""

    pattern: str
    decimal: str
    groups: str = ""


def _plain(decimal: str) -> Notation:
    d = f"[{decimal}]"
    return Notation(rf"^[+{_MINUS}-]?(\d+{d}?\d*|{d}\d+)([eE][+-]?\d+)?$", decimal)


def _grouped(decimal: str, groups: str) -> Notation:
    d, g = f"[{decimal}]", f"[{groups}]"
    thousands, lakhs = rf"[1-9]\d{{0,2}}({g}\d{{3}})+", rf"[1-9]\d?({g}\d{{2}})+{g}\d{{3}}"
    return Notation(rf"^[+{_MINUS}-]?({thousands}|{lakhs}|\d+)({d}\d*)?$", decimal, groups)


_POINT, _COMMA, _ENGLISH, _GERMAN = _plain("."), _plain(","), _grouped(".", ","), _grouped(",", ".")
_OTHERS = _COMMA, _ENGLISH, _GERMAN, *(_grouped(decimal, _SPACES_AND_APOSTROPHES) for decimal in ".,")
# What differs: the cell is 1.234 in the first notation, and 1234 in the second.
_DOUBTS = {",": (_COMMA, _ENGLISH), ".": (_POINT, _GERMAN)}


class Matches(NamedTuple):
    """The cells of a column in the notation that most of them have."""

    column: Any  # The text, numbers written as 1234.5.
    good: np.ndarray  # Mask of the cells that are numbers or empty, bool [N].
    ambiguous: str = ""  # The mark, "," or ".", that may be decimal or group thousands; "" for none.


class Numerals:
    """The numbers in a column of text.

    Attributes:
      column: the text, without the sign that all numbers have beside them.
      aside: mask of the cells that no column of numbers may hold, and that are no words [N].
      words: mask of the cells that are words [N].
      sign: "%", a currency, or "" for none.
      wrong: the row of a cell that no column of numbers may hold, why, and the remedy; None for none.
    """

    def __init__(self, text: Any):
        self.column, self.sign = text, ""
        self.wrong: tuple[int, str, str] | None = None
        self._masks: dict[Notation, np.ndarray] = {}
        self.aside = self.words = np.zeros(len(text), bool)
        if compute.all(compute.match_substring_regex(text, f"^(?:{_LOOSE})?$")).as_py() is not False:
            return
        encoded = text.combine_chunks().dictionary_encode()
        places, texts = encoded.indices.fill_null(-1).to_numpy(), encoded.dictionary.to_pylist()
        cells = [_cell(x) for x in texts]
        kinds = np.array([kind for kind, _, _ in cells])
        if {*kinds} <= {"dash", "empty"}:  # As "+" and "-" of a test may be at one client.
            kinds[kinds == "dash"] = "word"
        self.aside = np.isin(places, np.flatnonzero(np.isin(kinds, ("mark", "dash", "limit"))))
        self.words = np.isin(places, np.flatnonzero(kinds == "word"))
        row_of = lambda i: int(np.argmax(places == i))
        bad = next((i for i, kind in enumerate(kinds) if kind in _REMEDIES), None)
        signs: dict[str, int] = {}
        for i, (kind, _, sign) in enumerate(cells):
            if kind == "number":
                signs.setdefault(sign, i)
        if bad is not None:
            why = "a limit of detection" if kinds[bad] == "limit" else "which is no number"
            self.wrong = row_of(bad), why, _REMEDIES[kinds[bad]]
        elif len(signs) > 1:
            i, j = list(signs.values())[:2]
            what = f"and {shown(texts[i])} in row {row_of(i) + 1}, which have not the same sign beside them"
            self.wrong = row_of(j), what, "write all numbers of a column with one sign, or without"
        elif sign := next(iter(signs), ""):
            self.sign, bare = sign, pyarrow.array([number for _, number, _ in cells], pyarrow.string())
            self.column = pyarrow.chunked_array([compute.take(bare, encoded.indices)])

    def mask(self, notation: Notation) -> np.ndarray:
        """Return the mask of the cells that are in a notation or empty, bool [N]."""
        if notation not in self._masks:
            found = compute.match_substring_regex(self.column, notation.pattern)
            self._masks[notation] = found.fill_null(True).to_numpy()
        return self._masks[notation]

    def match(self, decimal_commas: bool = False) -> Matches:
        """Return which cells are numbers, in the notation that most of them have.

        With `decimal_commas` another column of the table has commas that can only be decimal: commas are then decimal
        where they could also group thousands, and points are ambiguous where they could.
        """
        column, mark = self.column, "." if decimal_commas else ","
        others = () if self.mask(_POINT).all() and not decimal_commas else _OTHERS
        good = {notation: self.mask(notation) for notation in (_POINT, *others)}
        if all(x in good and good[x].all() for x in _DOUBTS[mark]) and has(column, mark):
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
        number = np.any([self.mask(x) for x in (_POINT, *_OTHERS) if x.decimal == decimal], 0)
        return bool(number.all() and not self.mask(_ENGLISH if decimal == "," else _GERMAN).all())

    @property
    def may_group(self) -> bool:
        """Whether points may group thousands in all cells."""
        return bool(self.mask(_GERMAN).all())


def _cell(text: str) -> tuple[str, str, str]:
    """Return the kind of a cell, its text without a sign beside a number, and the sign."""
    if text in ("", *EMPTY):
        return "empty", text, ""
    for kind, pattern in _KINDS.items():
        if pattern.fullmatch(text):
            return kind, text, ""
    found = _BEFORE.fullmatch(text) or _AFTER.fullmatch(text)
    return ("number", found["minus"] + found["number"].strip(), found["sign"]) if found else ("word", text, "")


def doubts(categories: np.ndarray, name: str, declared: bool = False) -> list[str]:
    """Return sentences on a column that became a category though cells look like numbers, or like missing values.

    Cells of a column that was declared a category may look like numbers.
    """
    found, counts = np.unique(categories[categories != ""].astype(str), return_counts=True)
    values = found.tolist()
    kinds = [_cell(x)[0] for x in values]
    begin = np.array([_BEGINS.match(x) is not None for x in values], bool)
    numbers = [x for x, kind in zip(values, kinds) if kind in ("number", "limit")]
    if 2 * counts[begin].sum() >= counts.sum() > 0:
        numbers = numbers or found[begin].tolist()
    notes = []
    if numbers and not declared:
        few = ", ".join(map(shown, numbers[:3]))
        advice = "if it is a column of numbers, correct the cells that are none"
        notes.append(f"{shown(name)} is a category, though cells such as {few} look like numbers: {advice}.")
    marks = [x for x, kind in zip(values, kinds) if kind in ("mark", "dash")]
    if marks:
        few = " and ".join(map(shown, marks[:3]))
        notes.append(f"{shown(name)} has the category {few}: empty these cells if they stand for missing values.")
    return notes


def are_thousandths(column: Any) -> bool:
    """Return whether numbers could be thousands with points between groups: below 1000, three decimals at most."""
    values = column.fill_null(0).to_numpy().astype(np.float64)
    thousands = values * 1000
    near = np.abs(thousands - np.round(thousands)) < 1e-6
    return bool(np.all(np.isfinite(values)) and np.all(near & ((np.abs(values) < 1000) | (values == np.round(values)))))


def has(column: object, mark: str) -> bool:
    """Return whether a cell of a column of text has a mark."""
    return bool(compute.any(compute.match_substring(column, mark)).as_py())
