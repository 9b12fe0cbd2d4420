"""Columns of tables as numbers and as text, and all that is wrong with them in one sentence."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from tfp_bfl.data.names import as_text
from tfp_bfl.data.numerals import decimal_commas, match_numbers
from tfp_bfl.errors import InvalidArgument, shown

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
    """Collect all that is wrong with a table's columns, to report it in one sentence.

    Args:
      where: the table's name in errors.
      advice: what the user can do about it.

    Attributes:
      notes: sentences on cells that were read as something else than they say, such as 12%.
    """

    def __init__(self, where: str, advice: str):
        self._where, self._advice = where, [advice]
        self.notes: list[str] = []
        self._found: list[tuple[str, str]] = []

    def add(self, column: str, problem: str) -> None:
        """Record a problem of a column."""
        self._found.append((shown(column), f"the column {shown(column)} {problem}"))

    def advise(self, advice: str) -> None:
        """Record what else the user can do about the problems."""
        if advice not in self._advice:
            self._advice.append(advice)

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


def numbers(
    table: Any,
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
      among: other columns that are read as numbers, as of `numerals.decimal_commas`.
      sign: beside the numbers, as of `to_float`.
    """
    commas = decimal_commas(table, {*columns, *among})
    return np.stack([_numbers(table[name], name, troubles, full, commas, sign) for name in columns], -1)


def texts(table: Any, name: str, troubles: Troubles | None = None) -> np.ndarray:
    """Return a column as names, object [N], as of `names.as_text`.

    Args:
      table: of `read_table`.
      name: of the column.
      troubles: gets an entry if a cell is empty; None where cells may be.
    """
    cells = as_text(decoded(table[name]).to_pylist())
    if troubles is not None:
        _check_full(cells == "", name, troubles)
    return cells


def decoded(column: Any) -> Any:
    """Return a column of a pyarrow Table with values in place of codes and counts, and text as strings."""
    import pyarrow
    import pyarrow.compute as compute
    import pyarrow.types as types

    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if types.is_run_end_encoded(column.type):
        column = compute.run_end_decode(column)
    return column.cast(pyarrow.string()) if str(column.type) in _OTHER_TEXT else column


def _numbers(column: Any, name: str, troubles: Troubles, full: bool, commas: str, sign: str | None) -> np.ndarray:
    column = decoded(column)
    exact, _ = to_float(column, name, troubles, commas, sign)
    if exact is None:
        return np.zeros(len(column))
    # NaN in a column of numbers is no empty cell where none may be.
    empty = column.is_null().to_numpy() if full and not is_text(column) else np.isnan(exact)
    if full:
        _check_full(empty, name, troubles)
    check_finite(exact, empty, name, troubles)
    return exact


def check_finite(exact: np.ndarray, empty: np.ndarray, name: str, troubles: Troubles) -> None:
    """Record a trouble if a number of a column that is not empty has no finite float32."""
    with np.errstate(over="ignore"):
        bad = ~np.isfinite(exact.astype(np.float32)) & ~empty
    if bad.any():
        row = int(np.argmax(bad))
        troubles.add(name, f"holds {exact[row]} in row {row + 1}, which is not finite, or too large")


def is_text(column: Any) -> bool:
    """Return whether the cells of a column of a pyarrow Table are text."""
    import pyarrow.types as types

    return bool(types.is_string(column.type))


def to_float(
    column: Any, name: str, troubles: Troubles, commas: str = "", sign: str | None = None
) -> tuple[np.ndarray | None, str]:
    """Return a column as float64 [N], NaN for an empty cell, None if a cell is no number; and the sign of its numbers.

    Args:
      column: of a pyarrow Table, without a dictionary.
      name: of the column.
      troubles: gets an entry for the first cell that is no number, or has another sign; and notes.
      commas: of its table, as `numerals.decimal_commas` says.
      sign: that numbers must have beside them (`signs`), "" for none; None for any.
    """
    import pyarrow
    import pyarrow.types as types

    kind = column.type
    if is_text(column):
        return _from_text(column, name, troubles, commas, sign)
    if types.is_null(kind):
        return np.full(len(column), np.nan), sign or ""
    if sign and column.null_count < len(column):
        _check_sign(column, _first(column), name, troubles, "", sign)
        return None, ""
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind):
        empty = column.is_null().to_numpy()
        if types.is_decimal(kind):
            column = column.cast(pyarrow.float64())
        filled = column.fill_null(False if types.is_boolean(kind) else 0)
        exact: np.ndarray = filled.to_numpy().astype(np.float64)
        exact[empty] = np.nan
        return exact, ""
    first = _first(column)
    troubles.add(name, f"holds {shown(str(column[first].as_py()))} in row {first + 1}, which is no number")
    return None, ""


def _first(column: Any) -> int:
    """Return the row of the first cell that is not null."""
    return int(np.argmax(column.is_valid().to_numpy()))


def _check_sign(column: Any, row: int, name: str, troubles: Troubles, found: str, wanted: str) -> bool:
    """Return whether numbers have the sign that they must have beside them; else record a trouble."""
    if found != wanted:
        beside = [f"the sign {shown(sign)} beside it" if sign else "no sign beside it" for sign in (found, wanted)]
        where = f"{shown(str(column[row].as_py()))} in row {row + 1}"
        troubles.add(name, f"holds {where}, with {beside[0]}, but must have {beside[1]}")
        troubles.advise("write the numbers of all data with one sign, or without")
    return found == wanted


def _from_text(
    column: Any, name: str, troubles: Troubles, commas: str, sign: str | None
) -> tuple[np.ndarray | None, str]:
    """Return the result of `to_float` for a column of text."""
    import pyarrow
    import pyarrow.compute as compute

    found = match_numbers(column, bool(commas))
    signs, wrong = found.signs, ~found.good
    why = "which is no number"
    if signs.wrong:
        row, why, advice = signs.wrong
        wrong = np.arange(len(column)) == row
        troubles.advise(advice)
    elif found.ambiguous:
        wrong = compute.match_substring(signs.column, found.ambiguous).fill_null(False).to_numpy()
        mark = {",": "comma", ".": "point"}[found.ambiguous]
        why = f"where the {mark} may be decimal or group thousands"
        if commas:
            why += f", as the column {shown(commas)} has decimal commas"
        troubles.advise(f"write numbers without such {mark}s")
    if wrong.any():
        row = int(np.argmax(wrong))
        troubles.add(name, f"holds {shown(column[row].as_py())} in row {row + 1}, {why}")
        return None, ""
    filled = np.flatnonzero(~found.empty)
    if len(filled) and not _check_sign(
        column, int(filled[0]), name, troubles, signs.sign, signs.sign if sign is None else sign
    ):
        return None, ""
    if signs.sign and len(filled):
        example, unit = column[int(filled[0])].as_py(), "per cent" if signs.sign == "%" else f"units of {signs.sign}"
        sentence = f"{shown(name)} has {shown(signs.sign)} beside all numbers, such as {shown(example)}"
        troubles.notes.append(f"{sentence}: they are read as numbers in {unit}.")
    kept = compute.if_else(pyarrow.array(found.empty), None, compute.utf8_trim_whitespace(found.column))
    exact: np.ndarray = kept.cast(pyarrow.float64()).to_numpy().astype(np.float64)
    return exact, signs.sign


def _check_full(empty: np.ndarray, name: str, troubles: Troubles) -> None:
    if empty.any():
        number, row = int(empty.sum()), int(np.argmax(empty)) + 1
        troubles.add(name, f"has {number} empty cell{'s' if number > 1 else ''}, the first in row {row}")
