"""Tables (.csv, .tsv, .parquet): columns of numbers, and columns of text that name classes and clients."""

from __future__ import annotations

import codecs
import csv
import io
import json
import pathlib
import re
from collections.abc import Collection, Sequence
from typing import Any, BinaryIO, Optional

import numpy as np

from tfp_bfl import files
from tfp_bfl.data.names import as_text
from tfp_bfl.errors import InvalidArgument, lookup, shown

TABLES = (".csv", ".tsv", ".parquet")
SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "space": " ", "pipe": "|"}
# Most letters of an error's list of columns; of the others the number is stated.
_MOST_LETTERS = 300
_HEAD_BYTES = 2**20
_BLOCK = 2**20
_INDEX = re.compile(r"|Unnamed: 0|__index_level_\d+__")
_NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
_DECIMAL_COMMA = r"^\s*[+-]?(\d+|\d*,\d+)([eE][+-]?\d+)?\s*$"
# 1,234 is 1.234 where the comma is decimal, and 1234 where it groups thousands.
_AMBIGUOUS = r"^\s*[+-]?([1-9]\d{0,2},\d{3}|\d+)\s*$"


class Troubles:
    """Collect all that is wrong with a table's columns, to report it in one sentence.

    Args:
      path: of the table.
      advice: what the user can do about it.
    """

    def __init__(self, path: pathlib.Path, advice: str):
        self._path, self._advice = path, advice
        self._found: list[str] = []

    def add(self, column: str, problem: str) -> None:
        """Record a problem of a column."""
        self._found.append(f"the column {shown(column)} {problem}")

    def check(self) -> None:
        """Raise InvalidArgument if anything was recorded."""
        if not self._found:
            return
        listed = self._found[:1]
        for text in self._found[1:]:
            if sum(map(len, listed)) + len(text) > _MOST_LETTERS:
                break
            listed.append(text)
        more = len(self._found) - len(listed)
        rest = f"; and {more} more column{'s' if more > 1 else ''} can't be used" if more else ""
        raise InvalidArgument(f"In {files.name(self._path)} {'; '.join(listed)}{rest}: {self._advice}.")


def read_table(
    path: pathlib.Path,
    separator: Optional[str] = None,
    text: Collection[str] = (),
    drop: Collection[str] = (),
    keep: Collection[str] = (),
) -> Any:
    """Read a table, without the columns that are a row index.

    Args:
      path: of a .csv, .tsv or .parquet file.
      separator: between the columns of a .csv or .tsv file; None for the one of comma, semicolon, tab and pipe that
        splits the header into most columns.
      text: columns that are read as text, as they are written.
      drop: columns that are left out.
      keep: columns that are read although they are a row index, as those of `text` are.

    Returns:
      A `pyarrow.Table`.

    Raises:
      InvalidArgument: the file can't be read, is not UTF-8 or UTF-16, has no rows, lacks a column of `drop`, or has
        columns without a name or of the same name.
    """
    import pyarrow

    is_parquet = path.suffix.lower() == ".parquet"
    if is_parquet and separator is not None:
        raise InvalidArgument(f"{files.name(path)} has no separator, but one is given: leave it out.")
    with files.open_regular(path, "table") as file:
        try:
            table = _read_parquet(file) if is_parquet else _read_csv(file, path, separator, text)
            # Its text too, which nobody has looked at so far.
            table.validate(full=True)
        except InvalidArgument:
            raise
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            reason = "".join(x if x.isprintable() else " " for x in str(error)[:200])
            reason = " ".join(reason.split()).rstrip(".")
            raise InvalidArgument(f"The table {files.name(path)} can't be read: {reason}.") from None
    table = _without_index(table, {*text, *drop, *keep})
    for name in drop:
        lookup(dict.fromkeys(table.column_names), name, f"column for --drop in {files.name(path)}")
    table = table.select([i for i, name in enumerate(table.column_names) if name not in drop])
    _check_names(table.column_names, path)
    if not table.num_rows:
        raise InvalidArgument(f"The table {files.name(path)} has no rows.")
    return table


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


def looks_like_text(table: Any, name: str) -> bool:
    """Return whether a column holds text with repeated values, as a column that names clients does.

    Args:
      table: of `read_table`.
      name: of the column.
    """
    import pyarrow.types as types

    cells = _plain(table[name])
    return types.is_string(cells.type) and 1 < len(cells.unique()) <= len(cells) / 2


def _read_parquet(file: BinaryIO) -> Any:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(file)


def _read_csv(file: BinaryIO, path: pathlib.Path, separator: Optional[str], text: Collection[str]) -> Any:
    import pyarrow
    import pyarrow.csv

    start = file.read(2)
    encoding = "utf-16" if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8"
    file.seek(0)
    _check_encoding(file, encoding, path)
    head = file.read(_HEAD_BYTES).decode(encoding, "ignore")
    file.seek(0)
    between = _separator(head, path) if separator is None else SEPARATORS.get(separator, separator)
    if len(between) != 1 or between in '"\n\r':
        raise InvalidArgument(
            f"The separator is {shown(separator)}, but must be one character, or one of {', '.join(SEPARATORS)}."
        )
    rows: list[Any] = []

    def keep(row: Any) -> str:
        rows.append(row)
        return "error"

    def read(use_threads: bool) -> Any:
        file.seek(0)
        return pyarrow.csv.read_csv(
            file,
            pyarrow.csv.ReadOptions(encoding=encoding, use_threads=use_threads),
            pyarrow.csv.ParseOptions(delimiter=between, invalid_row_handler=None if use_threads else keep),
            pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(text, pyarrow.string())),
        )

    try:
        return read(use_threads=True)
    except pyarrow.ArrowInvalid:
        # With one thread it says which row. What this raises is the error.
        try:
            return read(use_threads=False)
        except pyarrow.ArrowInvalid:
            if not rows:
                raise
            row = rows[0]
            raise InvalidArgument(
                f"Row {row.number - 1} of {files.name(path)} has {row.actual_columns} cells, but the header has "
                f"{row.expected_columns}, separated by {shown(between)}: correct the row, or give --separator."
            ) from None


def _check_encoding(file: BinaryIO, encoding: str, path: pathlib.Path) -> None:
    decoder, line = codecs.getincrementaldecoder(encoding)(), 1
    while True:
        block = file.read(_BLOCK)
        try:
            line += decoder.decode(block, final=not block).count("\n")
        except UnicodeDecodeError as error:
            line += error.object[: error.start].count(b"\n")
            raise InvalidArgument(
                f"The table {files.name(path)} is not {encoding.upper()} text, first in line {line}: save it as UTF-8."
            ) from None
        if not block:
            break
    file.seek(0)


def _separator(head: str, path: pathlib.Path) -> str:
    """The one that splits the header into most columns."""
    lines = head.lstrip("\ufeff\r\n")

    def count(separator: str) -> int:
        try:
            return len(next(csv.reader(io.StringIO(lines, newline=""), delimiter=separator), []))
        except csv.Error:
            return 0

    first = "\t" if path.suffix.lower() == ".tsv" else ","
    return max((first, *",;\t|"), key=count)


def _without_index(table: Any, named: Collection[str]) -> Any:
    """Without the columns that are a row index by pandas' record or by their name, and unnamed ones without a value."""
    try:
        index = json.loads((table.schema.metadata or {}).get(b"pandas", b"{}"))["index_columns"]
        index = {name for name in index if isinstance(name, str)}
    except (ValueError, KeyError, TypeError):
        index = set()

    def is_index(i: int, name: str) -> bool:
        unnamed = name == "" and table.column(i).null_count == table.num_rows
        return name in index or unnamed or (_INDEX.fullmatch(name) is not None and (i == 0 or name.startswith("__")))

    names = table.column_names
    return table.select([i for i, name in enumerate(names) if name in named or not is_index(i, name)])


def _check_names(names: Sequence[str], path: pathlib.Path) -> None:
    for i, name in enumerate(names):
        if not name:
            raise InvalidArgument(f"The table {files.name(path)} has a column without a name, number {i + 1}: name it.")
        if not name.isprintable():
            raise InvalidArgument(f"The table {files.name(path)} has a column {shown(name)}: rename it.")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidArgument(f"The table {files.name(path)} has two columns {shown(twice[0])}: rename one.")


def _plain(column: Any) -> Any:
    """A column without categories."""
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
    found: np.ndarray = column.fill_null(False if types.is_boolean(column.type) else 0).to_numpy().astype(np.float64)
    with np.errstate(over="ignore"):
        bad = ~np.isfinite(found.astype(np.float32))
    if bad.any() and not empty.any():
        row = int(np.argmax(bad))
        troubles.add(name, f"holds {found[row]} in row {row + 1}, which is not finite, or too large")
    return found


def _from_text(column: Any, name: str, troubles: Troubles) -> tuple[Any, np.ndarray]:
    """A column of text as numbers, None where a cell is none; and which cells are empty, [N]."""
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
            why = "where the comma may be decimal or group thousands: write it without one"
        troubles.add(name, f"holds {shown(cell)} in row {row + 1}, {why}")
        return None, empty
    kept = compute.if_else(pyarrow.array(empty), None, compute.utf8_trim_whitespace(column))
    return kept.cast(pyarrow.float64()), empty


def _check_full(empty: np.ndarray, name: str, troubles: Troubles) -> None:
    if empty.any():
        number, row = int(empty.sum()), int(np.argmax(empty)) + 1
        troubles.add(name, f"has {number} empty cell{'s' if number > 1 else ''}, the first in row {row}")
