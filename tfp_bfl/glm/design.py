"""Tables as they are published, as the columns of a linear model: categories, missing cells and outcomes."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tfp_bfl import files
from tfp_bfl.data.cells import read_columns
from tfp_bfl.data.columns import Troubles
from tfp_bfl.data.names import as_names, canonical, client_names, natural
from tfp_bfl.data.tables import as_table, is_table, read_table
from tfp_bfl.errors import InvalidArgument, lookup
from tfp_bfl.glm.agreement import MISSING, AgreedColumns, agree, describe
from tfp_bfl.glm.encoding import Encoding, SiteCells, settle
from tfp_bfl.glm.outcomes import Outcome, are_filled, check_outcome, note_event, numbers, read_outcome


class Design(NamedTuple):
    """The columns of a linear model, by client.

    Fields:
      clients: (features [n, p], outcome) of each client; outcome [n], or (time, event) [n, 2].
      exposure: of each client's rows [n]; None without one.
      names: of the p features, such as "age" and "sex[Male]".
      client_names: of each client.
      notes: sentences on what was done with the table.
      plan, encoding: by which rows become columns of the design.
    """

    clients: list[tuple[np.ndarray, np.ndarray]]
    exposure: list[np.ndarray] | None
    names: list[str]
    client_names: list[str]
    notes: list[str]
    plan: AgreedColumns
    encoding: Encoding


def read_design(
    path: str | pathlib.Path | Any,
    outcome: Outcome,
    client_column: str | None = None,
    *,
    only: Sequence[str] = (),
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    missing: str = "drop",
    separator: str | None = None,
    date_unit: str | None = None,
) -> Design:
    """Read a table for a generalised linear model, as sites read theirs: each client is one (`agreement`).

    Columns of numbers stay in their units. Text, truth values and the columns of `categorical` become a column of 0 and
    1 for each level but the first, in natural order, which is the reference. Rows without an outcome or a client are
    left out.

    Args:
      path: of a .csv, .tsv or .parquet file; or a table in memory, such as a pandas DataFrame.
      outcome: its columns.
      client_column: the column with the client of each row; None for one client.
      only: the columns to use; () for all.
      drop: columns to leave out.
      categorical: columns of numbers that are categories.
      missing: one of `MISSING`.
      separator, date_unit: as of `data.read_own`.

    Raises:
      InvalidArgument: there is no such file or column; dates without a unit; text with more than 30 values; a column
        that is empty; or an outcome that is not one of the family's. The message names column, row and option.
    """
    lookup(MISSING, missing, "way with empty cells")
    where = "the table" if is_table(path) else files.name(pathlib.Path(path))
    only, drop, categorical = as_names(only), as_names(drop), as_names(categorical)
    outcome, client_column = outcome.in_one_form(), canonical(client_column) if client_column else None
    text = [name for name in (client_column, *categorical) if name]
    table = as_table(path, where) if is_table(path) else read_table(pathlib.Path(path), separator, text=text)
    reserved = _reserved(outcome, client_column)
    of_outcome = "--outcome, --event, --exposure or --client-column"
    given = {of_outcome: reserved, "--only": only, "--drop": drop, "--categorical": categorical}
    for option, name in ((option, name) for option, names in given.items() for name in names):
        lookup(dict.fromkeys(table.column_names), name, "column", f"in {where} for {option}")
    chosen = [name for name in only or table.column_names if name not in {*reserved, *drop}]
    if not chosen:
        raise InvalidArgument(f"{where} has no columns beside the outcome: there is nothing to estimate.")
    values = read_outcome(table, outcome, where)
    check_outcome(values, outcome, where)
    owners, of_clients = np.full(table.num_rows, "all rows", object), list[str]()
    if client_column:
        owners, of_clients = client_names(table[client_column].distinct[1], client_column)
        owners = table[client_column].spread(owners)
    exposure = None if outcome.exposure is None else numbers(table, outcome.exposure, where)
    count = int(np.sum(~are_filled(values, exposure) | (owners == "")))
    notes = [*note_event(table, outcome, where), *of_clients]
    if count:
        notes.append(f"{count} row{'s' if count > 1 else ''} left out without an outcome, a client or an exposure.")
    # Of the whole table, so that errors name its rows.
    troubles = Troubles(where, "leave columns out with --drop")
    read = read_columns(table, chosen, troubles, categorical, date_unit, client_column)
    troubles.check()
    notes += [*troubles.notes, *(note for cells in read for note in cells.within_bounds(limit=False)[1])]
    columns = [*dict.fromkeys(name for name in (outcome.column, outcome.event, outcome.exposure, *chosen) if name)]
    tables = {name: table.select(columns).filter(owners == name) for name in sorted({*owners} - {""}, key=natural)}
    how = only, (), categorical, date_unit
    described = {name: describe(part, outcome, where, *how) for name, part in tables.items()}
    plan = agree(described, outcome, missing, date_unit, categorical)
    cells = {name: SiteCells(part, outcome, plan, missing, where) for name, part in tables.items()}
    encoding, of_columns = settle(plan, missing, np.sum([one.sums() for one in cells.values()], 0))
    notes += [note for note in of_columns if not note.startswith("Event: ")]
    parts = {name: one.design(encoding) for name, one in cells.items()}
    gone = [name for name, part in parts.items() if not len(part.outcome) and cells[name].num_rows]
    if gone:
        notes.append(f"No row is left of {', '.join(gone)}.")
    parts = {name: part for name, part in parts.items() if len(part.outcome)}
    return Design(
        [(part.features, part.outcome) for part in parts.values()],
        [part.exposure for part in parts.values() if part.exposure is not None] if outcome.exposure else None,
        encoding.names(plan),
        [*parts],
        [*dict.fromkeys(notes)],
        plan,
        encoding,
    )


def _reserved(outcome: Outcome, client_column: str | None) -> list[str]:
    """Return the columns that are no features, which must differ."""
    reserved = [x for x in (outcome.column, outcome.event, outcome.exposure, client_column) if x]
    if len({*reserved}) < len(reserved):
        raise InvalidArgument("--outcome, --event, --exposure and --client-column must name different columns.")
    return reserved
