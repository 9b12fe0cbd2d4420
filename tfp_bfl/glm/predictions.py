"""Predictions of a fit for the rows of another table, of known and of new clients."""

from __future__ import annotations

import csv
import io
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

from tfp_bfl.data.columns import decoded
from tfp_bfl.data.names import client_names as names_of_clients
from tfp_bfl.data.tables import read_table
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files import name as path_name
from tfp_bfl.files.writing import write_bytes
from tfp_bfl.glm.agreement import Cells, Encoding, Plan, agree, describe, encode, settle
from tfp_bfl.glm.design import Outcome
from tfp_bfl.glm.families import FAMILIES
from tfp_bfl.glm.hierarchical import Hierarchical
from tfp_bfl.glm.posterior import quantile
from tfp_bfl.glm.report import Result, posterior_of


class Columns(NamedTuple):
    """The columns of a fit.

    Fields:
      plan: names, kinds and levels.
      encoding: means for empty cells, and indicators.
    """

    plan: Plan
    encoding: Encoding


def columns_of(
    path: pathlib.Path,
    outcome: Outcome,
    client_column: Optional[str],
    missing: str,
    separator: Optional[str] = None,
    date_unit: Optional[str] = None,
    **chosen: Sequence[str],
) -> Columns:
    """Return the columns of a fit to a table.

    Args:
      path: of the table of the fit.
      outcome, client_column, missing, separator, date_unit: as of `design.read_design`.
      **chosen: `only`, `drop` and `categorical`, likewise.

    Raises:
      InvalidArgument: as of `design.read_design`.
    """
    where = path_name(path)
    table = read_table(path, separator, text=[client_column] if client_column else [])
    if client_column:
        owned = _owners(table, client_column) != ""
        table = table.filter(owned.tolist()).drop_columns([client_column])
    described = describe(table, outcome, where, date_unit=date_unit, **chosen)
    plan = agree({where: described}, outcome, "indicate", date_unit)
    cells = Cells(table, outcome, plan, missing, where)
    return Columns(plan, settle(plan, missing, cells.sums())[0])


def _owners(table: Any, column: str) -> np.ndarray:
    """Return the client of each row, by the names of the fit [N]."""
    return names_of_clients(decoded(table[column]).to_pylist(), column)[0]


def write_predictions(
    path: pathlib.Path,
    table: pathlib.Path,
    result: Result,
    columns: Columns,
    client_names: Sequence[str],
    client_column: Optional[str] = None,
    separator: Optional[str] = None,
    level: float = 0.95,
) -> list[str]:
    """Write a prediction for each row of a table to a .csv file, and return sentences on them.

    The file has the row, its client, whether the client is new, the mean of the outcome, its central interval, and mean
    and standard deviation of the linear predictor. The interval is that of the mean outcome, not of an outcome; for
    "cox" the outcome is the hazard relative to a row of zeros, and for counts with an exposure that of one unit. With
    Student's t the last column, df, has its degrees of freedom for the row.

    Args:
      path: of the .csv file.
      table: path of the rows, with the columns of the fit.
      result: of the fit.
      columns: of the fit.
      client_names: of its clients.
      client_column: column with the client of each row; a client that is not in the fit is new, as all are without it.
      separator: as of `data.read_own`.
      level: probability of the interval.

    Raises:
      InvalidArgument: the table lacks a column, or has text in a column of numbers.
    """
    where, posterior = path_name(table), posterior_of(result)
    rows = read_table(table, separator, text=[client_column] if client_column else [])
    has_client = client_column in rows.column_names
    owners = _owners(rows, str(client_column)) if has_client else np.full(rows.num_rows, "", object)
    features = encode(rows, columns.plan, columns.encoding, where)
    if features.shape[1] != len(posterior.names) - (posterior.family != "cox"):
        raise InvalidArgument(f"The columns of {where} are not those of the fit.")
    whole = ~np.any(np.isnan(features), 1)
    known = {name: number for number, name in enumerate(client_names)}
    has_t = posterior.degrees_of_freedom is not None
    centre, stddev, mean, degrees = (np.full(rows.num_rows, np.nan) for _ in range(4))
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
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(head)
    for k in range(rows.num_rows):
        numbers: list[Any] = [x[k] if whole[k] else "" for x in columns_of_row]
        writer.writerow([k + 1, owners[k], "no" if owners[k] in known else "yes", *numbers])
    write_bytes(path, text.getvalue().encode("utf-8"))
    new = sum(owner not in known for owner in owners)
    notes = [f"{rows.num_rows:,} predictions, {new:,} of them for new clients."]
    if not np.all(whole):
        notes.append(f"{int(np.sum(~whole))} rows have an empty cell, or a level that the fit has not: no prediction.")
    return notes
