"""Predictions of a fit for the rows of another table, of known and of new clients."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfp_bfl.data.columns import Columns
from tfp_bfl.data.names import canonical
from tfp_bfl.data.names import client_names as names_of_clients
from tfp_bfl.data.tables import read_table
from tfp_bfl.files import name as path_name
from tfp_bfl.files.tables import to_csv
from tfp_bfl.files.writing import write_bytes
from tfp_bfl.glm.agreement import CATEGORY, AgreedColumns
from tfp_bfl.glm.encoding import Encoding, encode
from tfp_bfl.glm.families import FAMILIES
from tfp_bfl.glm.hierarchical import Hierarchical
from tfp_bfl.glm.posterior import quantile
from tfp_bfl.glm.report import Result, posterior_of


class RowsToPredict(NamedTuple):
    """The rows of a table to predict, in the columns of a fit.

    Fields:
      owners: the client of each row, "" without one [N].
      features: of each row, NaN in those that can't be encoded [N, p].
    """

    owners: np.ndarray
    features: np.ndarray


def read_rows(
    path: pathlib.Path,
    plan: AgreedColumns,
    encoding: Encoding,
    client_column: str | None = None,
    separator: str | None = None,
) -> RowsToPredict:
    """Return the rows of a table, encoded in the columns of a fit.

    Args:
      path: of the table, with the columns of the fit.
      plan, encoding: of the fit (`design.Design`).
      client_column: column with the client of each row; without it all rows are of new clients.
      separator: as of `data.read_own`.

    Raises:
      InvalidArgument: there is no such file, it lacks a column, or it has text in a column of numbers.
    """
    where = path_name(path)
    text = [column.name for column in plan.columns if column.kind == CATEGORY]
    table = read_table(path, separator, text=[name for name in (client_column, *text) if name])
    client_column = canonical(client_column or "")
    owners = (
        _owners(table, client_column) if client_column in table.column_names else np.full(table.num_rows, "", object)
    )
    return RowsToPredict(owners, encode(table, plan, encoding, where))


def _owners(table: Columns, column: str) -> np.ndarray:
    """Return the client of each row, by the names of the fit [N]."""
    return table[column].spread(names_of_clients(table[column].distinct[1], column)[0])


def write_predictions(
    path: pathlib.Path, rows: RowsToPredict, result: Result, client_names: Sequence[str], level: float = 0.95
) -> list[str]:
    """Write a prediction for each row to a .csv file, and return sentences on them.

    The file has the row, its client, whether the client is new, the mean of the outcome, its central interval, and mean
    and standard deviation of the linear predictor. The interval is that of the mean outcome, not of an outcome; for
    "cox" the outcome is the hazard relative to a row of zeros, and for counts with an exposure that of one unit. With
    Student's t the last column, df, has its degrees of freedom for the row.

    Args:
      path: of the .csv file.
      rows: of `read_rows`.
      result: of the fit.
      client_names: of its clients; a client that is not in the fit is new.
      level: probability of the interval.
    """
    (owners, features), posterior = rows, posterior_of(result)
    whole = ~np.any(np.isnan(features), 1)
    known = {name: number for number, name in enumerate(client_names)}
    has_t = posterior.degrees_of_freedom is not None
    centre, stddev, mean, degrees = (np.full(len(owners), np.nan) for _ in range(4))
    for owner in dict.fromkeys(owners.tolist()):
        own = (owners == owner) & whole
        if isinstance(result, Hierarchical):
            client = known.get(owner)
            centre[own], stddev[own] = result.linear_predictor(features[own], client)
            mean[own] = result.predict(features[own], client)
            found = result.degrees_at(features[own], client)
        else:
            centre[own], stddev[own] = posterior.linear_predictor(features[own])
            mean[own] = posterior.predict(features[own])
            found = posterior.degrees_at(features[own])
        degrees[own] = np.nan if found is None else found
    half = quantile(level, degrees if has_t else None) * stddev
    of_mean = FAMILIES[posterior.family].mean if posterior.family in FAMILIES else np.exp
    low, high = of_mean(centre - half), of_mean(centre + half)
    percent = f"{100 * level:g} %"
    head = ["row", "client", "new client", "mean", f"{percent} from", "to", "linear predictor", "sd", *["df"] * has_t]
    columns_of_row = [mean, low, high, centre, stddev, *[degrees] * has_t]
    lines = (
        [k + 1, owner, "no" if owner in known else "yes", *(x[k] if whole[k] else "" for x in columns_of_row)]
        for k, owner in enumerate(owners)
    )
    write_bytes(path, to_csv([head, *lines]).encode("utf-8"))
    new = sum(owner not in known for owner in owners)
    notes = [f"{len(owners):,} predictions, {new:,} of them for new clients."]
    if not np.all(whole):
        notes.append(f"{int(np.sum(~whole))} rows have an empty cell, or a level that the fit has not: no prediction.")
    return notes
