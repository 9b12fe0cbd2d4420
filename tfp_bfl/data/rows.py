"""Rows of tables for a model: the columns that it was trained on, in the form that it requires.

Paths are of .csv, .tsv or .parquet files; separators as of `read_own`. A table that can't be read, or lacks a column,
raises InvalidArgument.
"""

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfp_bfl import files
from tfp_bfl.data.cells import check_full
from tfp_bfl.data.columns import Troubles
from tfp_bfl.data.encoding import Feature, Raw, encode, read_features, unknown_levels
from tfp_bfl.data.names import as_names, canonical, client_names
from tfp_bfl.data.read_examples import check_columns
from tfp_bfl.data.statistics import Column
from tfp_bfl.data.tables import read_table
from tfp_bfl.files import Path


class EncodedRows(NamedTuple):
    """Rows of a table as a model requires them.

    Fields:
      rows: float64 [N, D], not standardised: float32 may lack the digits of a number far from zero.
      notes: a sentence for each column with levels, or empty cells, that the training did not have.
    """

    rows: np.ndarray
    notes: tuple[str, ...]


def read_rows(path: Path, columns: Sequence[str], separator: str | None = None) -> np.ndarray:
    """Read the D columns that a model requires from a table, by name, float64 [N, D]; other columns are ignored."""
    features = [Feature(name, "number") for name in as_names(columns)]
    raw, _ = _read(path, features, separator, "give numbers, as in the training data", is_full=True)
    return np.stack([cells.values for cells in raw.columns], -1)


def read_encoded(
    path: Path, features: Sequence[Feature], columns: Sequence[Column], separator: str | None = None
) -> EncodedRows:
    """Read the columns that a model requires from a table as it is, and encode categories and empty cells.

    `features` are those of the model, () for a model of numbers as of `read_rows`, and `columns` D of all features.
    """
    if not features:
        return EncodedRows(read_rows(path, [column.name for column in columns], separator), ())
    advice = "give numbers and dates as in the training data, or leave cells empty"
    raw, notes = _read(path, features, separator, advice)
    return EncodedRows(encode(raw, features, columns), (*notes, *unknown_levels(raw, features)))


def _read(
    path: Path, features: Sequence[Feature], separator: str | None, advice: str, is_full: bool = False
) -> tuple[Raw, list[str]]:
    path = pathlib.Path(path)
    where, names = files.name(path), [x.name for x in features]
    table = read_table(path, separator, text=[x.name for x in features if x.is_text], keep=names)
    check_columns(table, names, where)
    troubles = Troubles(where, advice)
    unit = next((x.unit for x in features if x.kind == "date"), None)
    raw = read_features(table, features, troubles, unit)
    for cells in raw.columns if is_full else ():
        check_full(table[cells.name].empty, cells.name, troubles)
    troubles.check()
    return raw, troubles.notes


def read_clients(path: Path, column: str, separator: str | None = None) -> np.ndarray | None:
    """Read the client of each row of a table from a column, object [N], "" for none; None without such a column."""
    column = canonical(column)
    table = read_table(pathlib.Path(path), separator, text=[column])
    if column not in table.column_names:
        return None
    return table[column].spread(client_names(table[column].distinct[1], column)[0])
