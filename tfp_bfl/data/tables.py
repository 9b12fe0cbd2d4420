"""Tables of numbers with labels and clients, from a file or from memory, and what is wrong with one in a sentence."""

from __future__ import annotations

import pathlib
from typing import Any, NamedTuple, Optional

import numpy as np

from tfp_bfl import files
from tfp_bfl.errors import InvalidArgument, lookup, shown


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


def is_table(value: Any) -> bool:
    """Return whether a value is a table in memory: a pandas DataFrame, a pyarrow Table, or another of Arrow's form."""
    is_frame = type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "columns")
    return is_frame or (hasattr(value, "__arrow_c_stream__") and hasattr(value, "columns"))


def read_table(path: pathlib.Path) -> Any:
    """Return the pyarrow Table in a .csv or .parquet file.

    Raises:
      InvalidArgument: the file cannot be read, or is no table of named columns.
    """
    import pyarrow.csv
    import pyarrow.parquet

    reader = pyarrow.csv.read_csv if path.suffix.lower() == ".csv" else pyarrow.parquet.read_table
    with files.open_regular(path, "table") as file:
        return _checked(lambda: reader(file), files.name(path))


def as_table(value: Any, where: str) -> Any:
    """Return a table in memory as a pyarrow Table; the index of a DataFrame is left out.

    Args:
      value: for which `is_table` holds.
      where: the table's name in errors.

    Raises:
      InvalidArgument: a column holds values of several types, or the columns have no names of their own.
    """
    import pyarrow

    if hasattr(value, "dtypes") and hasattr(value, "to_numpy"):
        return _checked(lambda: pyarrow.Table.from_pandas(value, preserve_index=False), where)
    return _checked(lambda: value if isinstance(value, pyarrow.Table) else pyarrow.table(value), where)


def _checked(read: Any, where: str) -> Any:
    import pyarrow

    try:
        table = read()
        # Its text too, which nobody has looked at so far.
        table.validate(full=True)
        names = [name for name in table.column_names if not name.isprintable()]
    except (pyarrow.ArrowException, OSError, ValueError, TypeError) as error:
        reason = "".join(x if x.isprintable() else " " for x in str(error)[:200])
        reason = " ".join(reason.split()).rstrip(".")
        raise InvalidArgument(f"The table {where} can't be read: {reason}.") from None
    if names:
        raise InvalidArgument(f"The table {where} has a column {shown(names[0])}: rename it.")
    if not table.num_rows:
        raise InvalidArgument(f"The table {where} has no rows.")
    twice = sorted({name for name in table.column_names if table.column_names.count(name) > 1})
    if twice:
        raise InvalidArgument(f"The table {where} has two columns {shown(twice[0])}: rename one.")
    return table


def examples_of(table: Any, where: str, label: str, client: Optional[str], ignored: Optional[str] = None) -> Examples:
    """Return the examples of a table: a row each, all columns numbers but the labels and the clients.

    Args:
      table: of pyarrow.
      where: the table's name in errors.
      label: the column with the labels.
      client: the column with the names of the clients; None for none.
      ignored: a column that is not read.

    Raises:
      InvalidArgument: there is no such column, a cell is empty or no number.
    """
    for what, name in (("label", label), ("client", client)):
        if name is not None and name not in table.column_names:
            lookup(table.column_names, name, f"column for --{what} in {where}")
    columns = [name for name in table.column_names if name not in (label, client, ignored)]
    if not columns:
        raise InvalidArgument(f"The table {where} has no columns besides {label!r}: there is nothing to learn.")
    labels = _full(table, label, where).to_pylist()
    owners = None if client is None else np.array([str(x) for x in _full(table, client, where).to_pylist()])
    return Examples(numbers(table, columns, where), np.array(labels), owners, tuple(columns))


def _full(table: Any, name: str, where: str) -> Any:
    """Return a column without an empty cell."""
    column = table[name]
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy())[0])
        raise InvalidArgument(
            f"The column {shown(name)} of {where} has {column.null_count} empty cells, the first in row "
            f"{row + 1}: fill them in, or leave those rows out."
        )
    return column


def numbers(table: Any, columns: list[str], where: str) -> np.ndarray:
    """Return columns of a table as float32 [N, D].

    Raises:
      InvalidArgument: there is no such column, or a cell is empty or no number.
    """
    import pyarrow.types as types

    found = []
    for name in columns:
        if name not in table.column_names:
            raise InvalidArgument(f"The table {where} has no column {shown(name)}, which the model asks for.")
        kind = table.schema.field(name).type
        if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_null(kind)):
            first = _full(table, name, where)[0].as_py()
            raise InvalidArgument(
                f"The column {shown(name)} of {where} holds {shown(first)}, but must hold numbers: encode it, or leave "
                "it out."
            )
        found.append(_full(table, name, where).to_numpy().astype(np.float64))
    with np.errstate(over="ignore"):
        rows = np.stack(found, -1).astype(np.float32)
    bad = np.argwhere(~np.isfinite(rows))
    if len(bad):
        row, column = bad[0]
        raise InvalidArgument(
            f"The column {shown(columns[column])} of {where} holds a number that is not finite, or too large, in row "
            f"{row + 1}: fill it in, or leave that row out."
        )
    return rows
