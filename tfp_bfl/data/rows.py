"""Rows of tables for a model: the columns that it was trained on, in the form that it requires.

Paths are of .csv, .tsv or .parquet files, or of folders of Hugging Face; separators as of `read_own`. A table that
can't be read, or lacks a column, raises InvalidArgument.
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
from tfp_bfl.data.series import SeriesColumns, find_series
from tfp_bfl.data.statistics import Column
from tfp_bfl.data.tables import read_table
from tfp_bfl.files import Path


class EncodedRows(NamedTuple):
    """Rows of a table as a model requires them.

    Fields:
      rows: float64 [N, D], or [S, T, D] of series; not standardised: float32 may lack digits of a number far from zero.
      notes: a sentence for each column with levels, or empty cells, that the training did not have.
      names: of the series [S]; () of rows.
    """

    rows: np.ndarray
    notes: tuple[str, ...]
    names: tuple[str, ...] = ()


def read_rows(path: Path, columns: Sequence[str], separator: str | None = None) -> np.ndarray:
    """Read the D columns that a model requires from a table, by name, float64 [N, D]; other columns are ignored."""
    return read_encoded(path, (), [Column(name, 0.0, 1.0) for name in as_names(columns)], separator).rows


def read_encoded(
    path: Path,
    features: Sequence[Feature],
    columns: Sequence[Column],
    separator: str | None = None,
    series: SeriesColumns | None = None,
) -> EncodedRows:
    """Read the columns that a model requires from a table as it is, and encode categories and empty cells.

    `features` are those of the model, () for a model of numbers as of `read_rows`, and `columns` D of all features.
    For a model of `series` the table is a long one.
    """
    path, is_full = pathlib.Path(path), not features
    features = features or [Feature(column.name, "number") for column in columns]
    names, where = [x.name for x in features], files.name(path)
    text = [*(x.name for x in features if x.is_text), *(series[:1] if series else ())]
    table = read_table(path, separator, text=text, keep=[*names, *(series[1:2] if series else ())])
    check_columns(table, names, where)
    advice = "give numbers and dates as in the training data, or leave cells empty"
    troubles = Troubles(where, "give numbers, as in the training data" if is_full else advice)
    unit = next((x.unit for x in features if x.kind == "date"), None)
    raw = read_features(table, features, troubles, unit)
    for cells in raw.columns if is_full else ():
        check_full(table[cells.name].empty, cells.name, troubles)
    troubles.check()
    found = find_series(table, series, where) if series else None
    if found:
        raw = Raw([cells._replace(values=cells.values[found.rows]) for cells in raw.columns], unit)
    notes = (*troubles.notes, *unknown_levels(raw, features))
    return EncodedRows(encode(raw, features, columns), notes, tuple(found.names.tolist()) if found else ())


def read_clients(
    path: Path, column: str, separator: str | None = None, series: SeriesColumns | None = None
) -> np.ndarray | None:
    """Read the client of each row or series from a column, object [N], "" for none; None without such a column."""
    column = canonical(column)
    table = read_table(pathlib.Path(path), separator, text=[column, *(series[:1] if series else ())])
    if column not in table.column_names:
        return None
    owners = table[column].spread(client_names(table[column].distinct[1], column)[0])
    return find_series(table, series, files.name(path)).common(owners, column) if series else owners
