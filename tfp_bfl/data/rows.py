"""Rows of tables for a model: the columns that it was trained on, in the form that it requires."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfp_bfl import files
from tfp_bfl.data.cells import numbers, read_columns
from tfp_bfl.data.columns import Troubles
from tfp_bfl.data.encoding import Feature, Raw, encode, unknown_levels
from tfp_bfl.data.examples import check_columns
from tfp_bfl.data.names import as_names, canonical, client_names
from tfp_bfl.data.statistics import Column
from tfp_bfl.data.tables import read_table

Path = str | os.PathLike[str]


class EncodedRows(NamedTuple):
    """Rows of a table as a model requires them.

    Fields:
      rows: float64 [N, D], not standardised: float32 may lack the digits of a number far from zero.
      notes: a sentence for each column with levels, or empty cells, that the training did not have.
    """

    rows: np.ndarray
    notes: tuple[str, ...]


def read_rows(path: Path, columns: Sequence[str], separator: str | None = None) -> np.ndarray:
    """Read the columns that a model requires from a table, by name; other columns are ignored.

    Args:
      path: of a .csv, .tsv or .parquet file.
      columns: D names.
      separator: as of `read_own`.

    Returns:
      float64 [N, D].

    Raises:
      InvalidArgument: it can't be read, lacks a column, or a cell is empty or no number.
    """
    path, columns = pathlib.Path(path), as_names(columns)
    where = files.name(path)
    troubles = Troubles(where, "give numbers, as in the training data")
    table = read_table(path, separator, keep=columns)
    check_columns(table, columns, where)
    rows = numbers(table, columns, troubles)
    troubles.check()
    return rows


def read_encoded(
    path: Path, features: Sequence[Feature], columns: Sequence[Column], separator: str | None = None
) -> EncodedRows:
    """Read the columns that a model requires from a table as it is, and encode categories and empty cells.

    Args:
      path: of a .csv, .tsv or .parquet file.
      features: of the model; () for a model of numbers, as of `read_rows`.
      columns: D, of all features.
      separator: as of `read_own`.

    Raises:
      InvalidArgument: it can't be read, lacks a column, or a cell that must be a number is none.
    """
    if not features:
        return EncodedRows(read_rows(path, [column.name for column in columns], separator), ())
    path = pathlib.Path(path)
    where = files.name(path)
    names = [feature.name for feature in features]
    table = read_table(path, separator, text=[x.name for x in features if x.is_text], keep=names)
    check_columns(table, names, where)
    troubles = Troubles(where, "give numbers and dates as in the training data, or leave cells empty")
    unit = next((x.unit for x in features if x.kind == "date"), None)
    signs = {x.name: x.sign for x in features}
    kinds = {x.name: x.kind for x in features}
    raw = Raw(read_columns(table, names, troubles, date_unit=unit, kinds=kinds, signs=signs))
    troubles.check()
    return EncodedRows(encode(raw, features, columns), (*troubles.notes, *unknown_levels(raw, features)))


def read_clients(path: Path, column: str, separator: str | None = None) -> np.ndarray | None:
    """Read the client of each row of a table, object [N], "" for none; None without such a column.

    Args:
      path: of a .csv, .tsv or .parquet file.
      column: names the clients.
      separator: as of `read_own`.
    """
    column = canonical(column)
    table = read_table(pathlib.Path(path), separator, text=[column])
    if column not in table.column_names:
        return None
    return table[column].spread(client_names(table[column].distinct[1], column)[0])
