"""Read: tables from files (.csv, .tsv, .parquet) and from memory, as decoded columns without their row index.

Columns have `names.canonical` names. InvalidArgument is raised for a table that can't be read, has no rows, or has
columns without a name, or two of which the names are one; it calls the table by its file's name, or by `where`.
"""

import codecs
import contextlib
import csv
import io
import json
import pathlib
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, BinaryIO

from tfp_bfl import files
from tfp_bfl.data import huggingface
from tfp_bfl.data.columns import Columns, Decoded, with_notation
from tfp_bfl.data.names import EMPTY, as_names, canonical
from tfp_bfl.errors import InvalidArgument, lookup, shown, shown_apart
from tfp_bfl.faces import pandas, pyarrow
from tfp_bfl.files import Path

TABLES = (".csv", ".tsv", ".parquet")
SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "space": " ", "pipe": "|"}
_HEAD_BYTES = 2**20
_BLOCK = 2**20
# A first line that names the separator, as some spreadsheets write it; it is no row.
_SEP_LINE = re.compile(r'"?sep=(.)"?\r?\n', re.IGNORECASE)
_INDEX = re.compile(r"|Unnamed: 0|__index_level_\d+__")


def read_table(
    path: pathlib.Path,
    separator: str | None = None,
    text: Collection[str] = (),
    drop: Collection[str] = (),
    keep: Collection[str] = (),
) -> Columns:
    """Read a table from a .csv, .tsv or .parquet file, or from a folder of Hugging Face.

    Args:
      path: of the file or folder.
      separator: between the columns of a .csv or .tsv file; None for the one of comma, semicolon, tab and pipe that
        splits the header into most columns.
      text: columns that are read as text, as they are written.
      drop: columns that are left out.
      keep: columns that are read although they are a row index, as those of `text` are.
    """
    import pyarrow.parquet

    text, drop, keep = as_names(text), as_names(drop), as_names(keep)
    if huggingface.is_saved(path) and separator is None:
        return as_table(huggingface.load(path), files.name(path), drop, {*text, *drop, *keep})
    is_parquet = path.suffix.lower() == ".parquet"
    if is_parquet and separator is not None:
        raise InvalidArgument(f"{files.name(path)} has no separator, but one is given: leave it out.")
    with files.open_regular(path, "table") as file:
        how = files.name(path), drop, {*text, *drop, *keep}
        if is_parquet:
            return _checked(lambda: pyarrow.parquet.read_table(file), *how)
        written = lambda names: _read_csv(file, path, separator, {*text, *names})
        return _checked(lambda: written([]), *how, written)


def is_table_file(path: Path) -> bool:
    """Return whether a path is of a file of a table by its suffix, or a folder of Hugging Face."""
    return pathlib.PurePath(path).suffix.lower() in TABLES or huggingface.is_saved(path)


def holds_table(path: Path) -> bool:
    """Return whether a path is of a file or folder with a table of numbers and text, without reading the table."""
    return is_table_file(path) and not (huggingface.is_saved(path) and huggingface.saves_arrays(path))


def is_table(value: object) -> bool:
    """Return whether a value is a table in memory: of pandas, pyarrow, Hugging Face, or another of Arrow's form."""
    is_arrow = hasattr(value, "columns") and (_is_of_pandas(value) or hasattr(value, "__arrow_c_stream__"))
    return is_arrow or huggingface.is_dataset(value)


def _is_of_pandas(value: object) -> bool:
    return any(kind.__module__.partition(".")[0] == "pandas" for kind in type(value).__mro__)


def as_table(value: object, where: str, drop: Collection[str] = (), keep: Collection[str] = ()) -> Columns:
    """Return a table in memory, for which `is_table` holds; the index of a DataFrame is left out."""
    drop, keep = as_names(drop), as_names(keep)
    if _is_of_pandas(value):
        read = lambda: _from_pandas(value, where, drop)
    elif huggingface.is_dataset(value):
        read = lambda: huggingface.as_arrow(value, where)
    else:
        read = lambda: value if isinstance(value, pyarrow.Table) else pyarrow.table(value)
    return _checked(lambda: _without_blank_end(read()), where, drop, {*drop, *keep})


def _from_pandas(frame: Any, where: str, drop: Collection[str]) -> Any:
    """Return a DataFrame as a pyarrow Table; the first cell that differs in type from those above it is an error.

    The cells of `drop`, of whichever types, are zeros, and empty ones stay so.
    """
    frame = frame.copy(deep=False)
    for i, name in enumerate(frame.columns):
        if canonical(str(name)) in drop:
            frame.isetitem(i, frame.iloc[:, i].isna().map({True: None, False: 0}))
    try:
        return pyarrow.Table.from_pandas(_in_arrow_types(frame), preserve_index=False)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError):
        for name, column in frame.items():
            first: Any = None
            for row, cell in enumerate(column.tolist() if column.dtype == object else ()):
                if cell is None or cell is pandas.NA or (isinstance(cell, float) and cell != cell):
                    continue
                first = cell if first is None else first
                if isinstance(cell, str) != isinstance(first, str):
                    one, other = (f"{shown(x)} ({type(x).__name__})" for x in (cell, first))
                    what = f"The column {shown(name)} of {where} holds {one} in row {row + 1} and {other} above it"
                    raise InvalidArgument(f"{what}: write all cells in one type.") from None
        raise


def _in_arrow_types(frame: Any) -> Any:
    """Return a DataFrame with the columns that pandas has and Arrow has not in types of both.

    Intervals, as of `pandas.cut`, become text; periods the dates on which they begin; sparse columns full ones.
    """
    changed = frame.copy(deep=False)
    for i, kind in enumerate(frame.dtypes):
        column = frame.iloc[:, i]
        if pandas.api.types.is_object_dtype(kind):
            column = column.infer_objects()  # Of intervals and periods, which an array of objects may hold.
            kind = column.dtype
        levels: Any = getattr(kind, "categories", None)
        if isinstance(kind, pandas.CategoricalDtype) and isinstance(levels.dtype, pandas.IntervalDtype):
            changed.isetitem(i, column.cat.rename_categories([str(level) for level in levels]))
        elif isinstance(kind, pandas.IntervalDtype):
            changed.isetitem(i, column.map(str, na_action="ignore").astype(object))
        elif isinstance(kind, pandas.PeriodDtype):
            changed.isetitem(i, column.dt.to_timestamp())
        elif isinstance(kind, pandas.SparseDtype):
            changed.isetitem(i, column.sparse.to_dense())
    return changed


def _checked(
    read: Callable[[], Any],
    where: str,
    drop: Collection[str],
    named: Collection[str],
    written: Callable[[list[str]], Any] | None = None,
) -> Columns:
    """Decode the result of `read`, without the columns of `drop` and without row indices that are not in `named`.

    `written` reads columns as text, for `with_notation`; None for a table whose numbers are not text.
    """
    try:
        table = read()
        # Its text too, which nobody has looked at so far.
        table.validate(full=True)
        stored = table.column_names
        decoded = [*map(Decoded, as_names(stored), table.columns)]
        every = with_notation(decoded, written and (lambda x: written(x).columns))
    except InvalidArgument:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, TypeError, OverflowError) as error:
        reason = "".join(x if x.isprintable() else " " for x in str(error)[:200])
        reason = " ".join(reason.split()).rstrip(".")
        raise InvalidArgument(f"The table {where} can't be read: {reason}.") from None
    try:
        index = json.loads((table.schema.metadata or {}).get(b"pandas", b"{}"))["index_columns"]
        recorded = {canonical(name) for name in index if isinstance(name, str)}
    except (ValueError, KeyError, TypeError):
        recorded = set()
    names = []
    for i, name in enumerate(as_names(stored)):
        looks_so = _INDEX.fullmatch(name) is not None and (i == 0 or name.startswith("__"))
        is_unnamed = name == "" and table.column(i).null_count == table.num_rows  # And has no values.
        if name in named or not (name in recorded or is_unnamed or looks_so):
            names.append(name)
    for name in drop:
        lookup(dict.fromkeys(names), name, "column", f"in {where} for --drop")
    names = [name for name in names if name not in drop]
    _check_names(names, stored, where)
    if not table.num_rows:
        raise InvalidArgument(f"The table {where} has no rows.")
    return every.select(names)


def _read_csv(file: BinaryIO, path: pathlib.Path, separator: str | None, text: Collection[str]) -> Any:
    import pyarrow.csv

    start = file.read(4)
    # That of UTF-32, little-endian, begins with that of UTF-16.
    if start in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE) or b"\0" in start[:2]:
        raise InvalidArgument(f"The table {files.name(path)} is not UTF-8 text, first in line 1: save it as UTF-8.")
    encoding = "utf-16" if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8"
    decoder, line, has_quotes = codecs.getincrementaldecoder(encoding)(), 1, False
    file.seek(0)
    try:
        while block := file.read(_BLOCK):
            read_text = decoder.decode(block)
            line, has_quotes = line + read_text.count("\n"), has_quotes or '"' in read_text
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        line += error.object[: error.start].count(b"\n")
        what = f"is not {encoding.upper()} text, first in line {line}"
        raise InvalidArgument(f"The table {files.name(path)} {what}: save it as UTF-8.") from None
    file.seek(0)
    head = file.read(_HEAD_BYTES).decode(encoding, "ignore").lstrip("\ufeff")
    first_line = _SEP_LINE.match(head)
    skipped, lines = (1, head[first_line.end() :]) if first_line else (0, head)
    between = first_line[1] if first_line else None
    between = between if separator is None else SEPARATORS.get(separator, separator)
    if between is None:  # The one that splits the header into most columns.
        first = "\t" if path.suffix.lower() == ".tsv" else ","
        between = max((first, *",;\t|"), key=lambda x: len(_header(lines, x)))
    if len(between) != 1 or between in '"\n\r':
        words = ", ".join(SEPARATORS)
        raise InvalidArgument(f"The separator is {shown(separator)}, but must be one character, or one of {words}.")
    rows: list[Any] = []
    of_text = [name for name in _header(lines, between) if canonical(name) in text]

    def keep(row: object) -> str:
        rows.append(row)
        return "error"

    def read(use_threads: bool) -> Any:
        file.seek(0)
        options = {"delimiter": between, "newlines_in_values": has_quotes}
        strings = dict.fromkeys(of_text, pyarrow.string())
        table = pyarrow.csv.read_csv(
            file,
            pyarrow.csv.ReadOptions(encoding=encoding, use_threads=use_threads, skip_rows=skipped),
            pyarrow.csv.ParseOptions(**options, invalid_row_handler=None if use_threads else keep),
            pyarrow.csv.ConvertOptions(column_types=strings, null_values=["", *EMPTY]),
        )
        return _without_blank_end(table)

    with contextlib.suppress(pyarrow.ArrowInvalid):
        return read(use_threads=True)
    # With one thread it says which row. What this raises is the error.
    try:
        return read(use_threads=False)
    except pyarrow.ArrowInvalid:
        if not rows:
            raise
        row = rows[0]
        what = f"{row.actual_columns} cells, but the header has {row.expected_columns}, separated by {shown(between)}"
        where = f"Row {row.number - 1 - skipped} of {files.name(path)}"
        raise InvalidArgument(f"{where} has {what}: correct the row, or give --separator.") from None


def _without_blank_end(table: Any) -> Any:
    """Return a table without the rows at its end that have no value, as spreadsheets write them."""
    is_blank = lambda x: x is None or x != x or (isinstance(x, str) and canonical(x) in ("", *EMPTY))
    number = table.num_rows
    while number and all(is_blank(column[number - 1].as_py()) for column in table.columns):
        number -= 1
    return table.slice(0, number) if number else table


def _header(head: str, separator: str) -> list[str]:
    """Return the names in the first line of text; [] if that is none."""
    try:
        return next(csv.reader(io.StringIO(head.lstrip("\r\n"), newline=""), delimiter=separator), [])
    except csv.Error:
        return []


def with_canonical_names(table: Any, where: str) -> Columns:
    """Decode a pyarrow Table of the name `where`; a `Columns` stays as it is."""
    if isinstance(table, Columns):
        return table
    names = as_names(table.column_names)
    _check_names(names, table.column_names, where)
    return with_notation([*map(Decoded, names, table.columns)])


def _check_names(names: Sequence[str], stored: Sequence[str], where: str) -> None:
    """Check the names of columns; `stored` are those in the table, of columns that were left out too."""
    for i, name in enumerate(names):
        if not name:
            raise InvalidArgument(f"The table {where} has a column without a name, number {i + 1}: name it.")
        if not name.isprintable():
            raise InvalidArgument(f"The table {where} has a column {shown(name)}: rename it.")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        first, second = [x for x in stored if canonical(x) == twice[0]][:2]
        if first == second:
            raise InvalidArgument(f"The table {where} has two columns {shown(first)}: rename one.")
        both = f"{' and '.join(shown_apart(first, second))}, which are one name but for blanks and forms of letters"
        raise InvalidArgument(f"The table {where} has the columns {both}: rename one.")
