"""Columns of tables as numbers and as text, and all that is wrong with them in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

from tfp_bfl.data.names import as_text, ordered
from tfp_bfl.errors import InvalidArgument, lookup, shown

# Most letters of an error's list of columns; of the others the names are stated, of at most so many.
_MOST_LETTERS, _MOST_OTHERS = 300, 20
_NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
_DECIMAL_COMMA = r"^\s*[+-]?(\d+|\d*,\d+)([eE][+-]?\d+)?\s*$"
# 1,234 is 1.234 where the comma is decimal, and 1234 where it groups thousands.
_AMBIGUOUS = r"^\s*[+-]?([1-9]\d{0,2},\d{3}|\d+)\s*$"


class Examples(NamedTuple):
    """Hold examples as they were read.

    Fields:
      features: [N, ...].
      labels: [N].
      owners: the name of each example's client [N]; None where the data name none.
      columns: names of a table's columns; () otherwise.
      class_names: C names; () for the names of the labels.
    """

    features: np.ndarray
    labels: np.ndarray
    owners: Optional[np.ndarray] = None
    columns: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()


class Reading(NamedTuple):
    """The options of reading examples.

    Fields:
      label: the column with the labels.
      client: the column, or array, with the names of the clients; None for none.
      regresses: labels are numbers.
      drop: columns that are left out.
      separator: between the columns of a file; None for that of its header.
      columns: the features, in order; () for all other columns.
      is_part: the data are one site's, as its file describes them; no option of the command line does.
    """

    label: str = "label"
    client: Optional[str] = None
    regresses: bool = False
    drop: tuple[str, ...] = ()
    separator: Optional[str] = None
    columns: tuple[str, ...] = ()
    is_part: bool = False

    @property
    def option_prefix(self) -> str:
        """The characters before the name of an option of these in errors."""
        return "" if self.is_part else "--"

    @property
    def text(self) -> tuple[str, ...]:
        """The columns that are read as text."""
        return tuple(x for x in (None if self.regresses else self.label, self.client) if x is not None)


class Troubles:
    """Collect all that is wrong with a table's columns, to report it in one sentence.

    Args:
      where: the table's name in errors.
      advice: what the user can do about it.
    """

    def __init__(self, where: str, advice: str):
        self._where, self._advice = where, advice
        self._found: list[tuple[str, str]] = []

    def add(self, column: str, problem: str) -> None:
        """Record a problem of a column."""
        self._found.append((shown(column), f"the column {shown(column)} {problem}"))

    def check(self) -> None:
        """Raise InvalidArgument if anything was recorded."""
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
        raise InvalidArgument(f"In {self._where} {'; '.join(listed)}: {self._advice}.")


def examples_of(table: Any, where: str, reading: Reading) -> Examples:
    """Return the examples of a table: a row each, all columns numbers but the labels and the clients.

    Args:
      table: of pyarrow.
      where: the table's name in errors.
      reading: names its columns.

    Raises:
      InvalidArgument: there is no such column, or a cell is empty or no number.
    """
    label, client = reading.label, reading.client
    for option, name in (("label", label), ("client-column", client)):
        if name is not None and name not in table.column_names:
            lookup(table.column_names, name, "column", f"in {where} for {reading.option_prefix}{option}")
    check_columns(table, reading.columns, where)
    columns = reading.columns or tuple(name for name in table.column_names if name not in (label, client))
    if not columns:
        raise InvalidArgument(f"The table {where} has no columns besides {label!r}: there is nothing to learn.")
    advice = (
        "encode text as numbers, fill in empty cells or remove their rows, or leave columns out with "
        f"{reading.option_prefix}drop"
    )
    site = next((name for name in columns if _looks_like_names(table, name)), None)
    if client is None and site is not None and not reading.is_part:
        advice += f" ({shown(site)} with --client-column, if it names the client of each row)"
    troubles = Troubles(where, advice)
    features = numbers(table, columns, troubles)
    owners = None if client is None else texts(table, client, troubles)
    labels = numbers(table, [label], troubles)[:, 0] if reading.regresses else texts(table, label, troubles)
    troubles.check()
    names = () if reading.regresses else ordered(labels)
    return Examples(features, labels, owners, columns, names)


def check_columns(table: Any, columns: Sequence[str], where: str) -> None:
    """Raise InvalidArgument unless a table has the columns.

    Args:
      table: of pyarrow.
      columns: names.
      where: the table's name in errors.
    """
    for name in columns:
        if name not in table.column_names:
            raise InvalidArgument(
                f"The table {where} has no column {shown(name)}, which the model requires: its columns are "
                f"{', '.join(map(shown, table.column_names[:10]))}."
            )


def check_no_table(reading: Reading, where: str) -> None:
    """Raise InvalidArgument if options of tables are given for other data.

    Args:
      reading: of the data.
      where: the name of the data in errors.
    """
    for name, value in (("drop", reading.drop), ("separator", reading.separator)):
        if value:
            raise InvalidArgument(f"{name} belongs to tables, and {where} is none: leave it out.")


def names_of(array: Any, name: str, where: str) -> np.ndarray:
    """Return an array of names as text, object [N].

    Args:
      array: [N].
      name: of the array in errors.
      where: the name of the data in errors.

    Raises:
      InvalidArgument: a name is empty.
    """
    names = as_text(np.asarray(array).tolist())
    empty = [i for i, x in enumerate(names) if not x.strip()]
    if empty:
        raise InvalidArgument(
            f"The array {name} of {where} has {len(empty)} empty names, the first in example {empty[0]}: fill them in, "
            "or leave those examples out."
        )
    return names


def numbers(table: Any, columns: Sequence[str], troubles: Troubles) -> np.ndarray:
    """Return columns as float64 [N, D]; what is no number is recorded in `troubles`, and undefined in the result.

    Args:
      table: of `read_table`.
      columns: names, all in the table.
      troubles: gets an entry for each column with a cell that is empty, no number, not finite or too large.
    """
    return np.stack([_numbers(table[name], name, troubles) for name in columns], -1)


def texts(table: Any, name: str, troubles: Troubles) -> np.ndarray:
    """Return a column as text, object [N]: whole numbers without a fraction; empty cells are recorded in `troubles`.

    Args:
      table: of `read_table`.
      name: of the column.
      troubles: gets an entry if a cell is empty.
    """
    cells = as_text(_plain(table[name]).to_pylist())
    _check_full(np.array([not x.strip() for x in cells]), name, troubles)
    return cells


def _looks_like_names(table: Any, name: str) -> bool:
    """Return whether a column holds text with repeated values, as a client column does."""
    import pyarrow.types as types

    cells = _plain(table[name])
    return types.is_string(cells.type) and 1 < len(cells.unique()) <= len(cells) / 2


def _plain(column: Any) -> Any:
    """Return a column without categories."""
    import pyarrow
    import pyarrow.types as types

    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.cast(pyarrow.string()) if types.is_large_string(column.type) else column


def _numbers(column: Any, name: str, troubles: Troubles) -> np.ndarray:
    import pyarrow
    import pyarrow.compute
    import pyarrow.types as types

    column, kind = _plain(column), _plain(column).type
    if types.is_string(kind):
        column, empty = _from_text(column, name, troubles)
    elif types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_null(kind):
        empty = column.is_null().to_numpy()
    elif types.is_decimal(kind):
        column, empty = column.cast(pyarrow.float64()), column.is_null().to_numpy()
    else:
        first = next((i for i, x in enumerate(column.is_valid().to_pylist()) if x), 0)
        troubles.add(name, f"holds {shown(str(column[first].as_py()))} in row {first + 1}, which is no number")
        return np.zeros(len(column))
    if column is None:
        return np.zeros(len(empty))
    _check_full(empty, name, troubles)
    if types.is_null(column.type):
        return np.zeros(len(column))
    numbers: np.ndarray = column.fill_null(False if types.is_boolean(column.type) else 0).to_numpy().astype(np.float64)
    with np.errstate(over="ignore"):
        bad = ~np.isfinite(numbers.astype(np.float32))
    if bad.any() and not empty.any():
        row = int(np.argmax(bad))
        troubles.add(name, f"holds {numbers[row]} in row {row + 1}, which is not finite, or too large")
    return numbers


def _from_text(column: Any, name: str, troubles: Troubles) -> tuple[Any, np.ndarray]:
    """Return a column of text as numbers, None where a cell is none; and which cells are empty, [N]."""
    import pyarrow
    import pyarrow.compute as compute

    trimmed = compute.utf8_trim_whitespace(column)
    empty: np.ndarray = compute.equal(trimmed, "").fill_null(True).to_numpy()
    matches = lambda pattern: compute.match_substring_regex(column, pattern).fill_null(True).to_numpy() | empty
    good, with_comma = matches(_NUMBER), matches(_DECIMAL_COMMA)
    if with_comma.all() and not good.all() and not matches(_AMBIGUOUS).all():
        column, good = compute.replace_substring(column, ",", "."), with_comma
    if not good.all():
        row = int(np.argmin(good))
        cell = column[row].as_py()
        why = "which is no number"
        if with_comma.all():
            why = "where the comma may be decimal or group thousands"
        troubles.add(name, f"holds {shown(cell)} in row {row + 1}, {why}")
        return None, empty
    kept = compute.if_else(pyarrow.array(empty), None, compute.utf8_trim_whitespace(column))
    return kept.cast(pyarrow.float64()), empty


def _check_full(empty: np.ndarray, name: str, troubles: Troubles) -> None:
    if empty.any():
        number, row = int(empty.sum()), int(np.argmax(empty)) + 1
        troubles.add(name, f"has {number} empty cell{'s' if number > 1 else ''}, the first in row {row}")
