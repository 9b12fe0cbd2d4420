"""Columns of tables as numbers and as text, and all that is wrong with them in one sentence."""

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from tfp_bfl.data.names import EMPTY, as_category, as_text, canonical_cells
from tfp_bfl.data.numerals import Numerals, are_thousandths, has
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.faces import compute, pyarrow, types

# Most letters of an error's list of columns; of the others the names are stated, of at most so many.
_MOST_LETTERS, _MOST_OTHERS = 300, 20
# Types of Arrow for text beside string; polars has the second.
_OTHER_TEXT = ("large_string", "string_view")


class BadColumns(InvalidArgument):
    """Columns of a table that can't be used: the message quotes cells.

    Attributes:
      without_cells: the message with the names of the columns and without their cells.
    """

    def __init__(self, message: str, without_cells: str):
        super().__init__(message)
        self.without_cells = without_cells


class Troubles:
    """Collect all that is wrong with a table's columns, to report it in one sentence, and notes on its cells.

    `where` is the table's name in errors, and `advice` what the user can do about it.
    """

    def __init__(self, where: str, advice: str):
        self._where, self._advice = where, [advice]
        self.notes: list[str] = []
        self._found: list[tuple[str, str]] = []

    def add(self, column: str, problem: str, *advice: str) -> None:
        """Record a problem of a column, and what else the user can do about it."""
        self._found.append((shown(column), f"the column {shown(column)} {problem}"))
        self.advise(*advice)

    def advise(self, *advice: str) -> None:
        """Record what else the user can do about the problems."""
        self._advice += [x for x in advice if x not in self._advice]

    def check(self) -> None:
        """Raise `BadColumns` if anything was recorded."""
        if not self._found:
            return
        listed: list[str] = []
        for _, text in self._found:
            if listed and sum(map(len, listed)) + len(text) > _MOST_LETTERS:
                break
            listed.append(text)
        others = [name for name, _ in self._found[len(listed) :]]
        if others:
            more = len(others) - _MOST_OTHERS
            names = ", ".join(others[:_MOST_OTHERS]) + (f" and {more} more" if more > 0 else "")
            listed.append(f"likewise {names}")
        *first, last = self._advice
        advice = f"{', '.join(first)}, or {last}" if first else last
        names = ", ".join(name for name, _ in self._found[:_MOST_OTHERS])
        without = f"Cells of {names} can't be used: {advice}."
        raise BadColumns(f"In {self._where} {'; '.join(listed)}: {advice}.", without)


class Decoded:
    """A column of a table, decoded once: its values, and what it is as text, as numbers in text and as categories.

    Attributes:
      name: of the column.
      values: of the column, in place of codes and counts, text as strings; of pyarrow.
      has_codes: whether it was stored as codes, as pandas categories are.
      order: the levels of an ordered category; () of another column.
      is_text: whether the values are text.
      text: `canonical` text, null for empty cells and for the words that stand for them; None of other columns.
      empty: mask of the empty cells, bool [N].
    """

    def __init__(self, name: str, stored: Any):
        def plain(column: Any) -> Any:
            if types.is_run_end_encoded(column.type):
                column = compute.run_end_decode(column)
            return column.cast(pyarrow.string()) if str(column.type) in _OTHER_TEXT else column

        self.name, self.has_codes, self.order = name, types.is_dictionary(stored.type), tuple[str, ...]()
        if not self.has_codes:
            self.values = plain(stored)
        elif not stored.num_chunks:
            self.values = plain(stored.cast(stored.type.value_type))
        else:
            levels = [plain(part.dictionary) for part in stored.chunks]
            taken = (compute.take(own, part.indices) for own, part in zip(levels, stored.chunks))
            self.values = pyarrow.chunked_array(taken, type=levels[0].type)
            if stored.type.ordered:
                self.order = tuple(dict.fromkeys(x for own in levels for x in as_text(_written(own), as_category)))
        self.is_text: bool = types.is_string(self.values.type)
        empty = self.values.is_null(nan_is_null=types.is_floating(self.values.type))
        self.text: Any = None
        if self.is_text:
            trimmed = canonical_cells(self.values)
            self.text = compute.if_else(compute.is_in(trimmed, pyarrow.array(["", *EMPTY])), None, trimmed)
            empty = self.text.is_null()
        self.empty: np.ndarray = empty.to_numpy()

    def take(self, rows: np.ndarray) -> "Decoded":
        """Return the cells of some rows, with the same levels."""
        part, kept = object.__new__(Decoded), pyarrow.array(rows)
        part.name, part.has_codes, part.order, part.is_text = self.name, self.has_codes, self.order, self.is_text
        part.values, part.empty = self.values.take(kept), self.empty[rows]
        part.text = None if self.text is None else self.text.take(kept)
        return part

    @functools.cached_property
    def numerals(self) -> Numerals:
        """The numbers in text."""
        return Numerals(self.text)

    @functools.cached_property
    def distinct(self) -> tuple[np.ndarray, list[Any]]:
        """The place of each cell among the distinct values, -1 for a null, and these in the order of the cells."""
        if types.is_nested(self.values.type):
            return np.arange(len(self.values)), self.values.to_pylist()
        found = self.values.combine_chunks().dictionary_encode()
        return found.indices.fill_null(-1).to_numpy(zero_copy_only=False), _written(found.dictionary)

    def spread(self, levels: np.ndarray) -> np.ndarray:
        """Return what belongs to the cells, object [N], from what belongs to the distinct values; "" of nulls."""
        return np.append(levels, "")[self.distinct[0]]

    @functools.cached_property
    def categories(self) -> np.ndarray:
        """The cells as categories, object [N]: "" for empty cells and for the words that stand for them."""
        levels = as_text(self.distinct[1], as_category)
        levels[[x in EMPTY for x in levels]] = ""
        return self.spread(levels)


def _written(values: Any) -> list[Any]:
    """Return the values of a pyarrow array; of float32 the shortest digits that name them."""
    if types.is_float32(values.type) or types.is_float16(values.type):
        return [float(str(x)) for x in values.to_numpy(zero_copy_only=False)]
    return list(values.to_pylist())


class Columns:
    """A table whose columns are decoded once; `commas` and `points` name those with marks that can only be decimal."""

    def __init__(self, columns: Sequence[Decoded], commas: Collection[str] = (), points: Collection[str] = ()):
        self._columns = {column.name: column for column in columns}
        self.commas, self.points = tuple(commas), tuple(points)
        self.column_names, self.num_rows = [*self._columns], len(columns[0].empty) if columns else 0

    def __getitem__(self, name: str) -> "Decoded":
        return self._columns[name]

    def select(self, names: Sequence[str]) -> "Columns":
        """Return some of the columns."""
        return Columns([self[name] for name in names], self.commas, self.points)

    def filter(self, mask: np.ndarray) -> "Columns":
        """Return the rows of a mask."""
        rows = np.flatnonzero(mask)
        return Columns([column.take(rows) for column in self._columns.values()], self.commas, self.points)


def with_notation(columns: list[Decoded], written: Callable[[list[str]], list[Any]] | None = None) -> Columns:
    """Return a table that knows which columns have decimal commas and which decimal points.

    If one has commas, a column such as 1.234, 950 may be of thousands, and the reader of a file has made it a number:
    that column is returned as text.

    `written` maps names to all columns of the file, these as text, as they are written; None if numbers are not text.
    """
    texts = [column for column in columns if column.is_text and not column.has_codes]
    surely = lambda mark: [x.name for x in texts if has(x.values, mark) and x.numerals.are_surely(mark)]
    commas = surely(",")
    points = surely(".") if commas else []
    if commas and written is not None:
        floats = [i for i, column in enumerate(columns) if types.is_floating(column.values.type)]
        doubtful = [i for i in floats if are_thousandths(columns[i].values)]
        points += [columns[i].name for i in floats if i not in doubtful]
        as_written = written([columns[i].name for i in doubtful]) if doubtful else []
        for i in doubtful:
            text = Decoded(columns[i].name, as_written[i])
            if text.numerals.may_group:
                columns[i] = text
            else:
                points.append(text.name)
    return Columns(columns, commas, points)
