"""Tables as they are published, as the columns of a linear model: categories, missing cells and outcomes."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from tfp_bfl import files
from tfp_bfl.data.cells import TEXT_KINDS, Cells, read_as, read_columns, texts
from tfp_bfl.data.columns import Troubles, decoded
from tfp_bfl.data.names import as_category, as_names, canonical, client_names, natural, value
from tfp_bfl.data.tables import as_table, is_table, read_table
from tfp_bfl.errors import InvalidArgument, lookup, shown

MISSING = {
    "drop": "rows with an empty cell are left out",
    "indicate": "an empty cell becomes the mean of the column, and a column of 0 and 1 says where cells were empty",
}
# The value of two that is an event, where they are text.
_YES = ("y", "yes", "true", "t", "1")


class Design(NamedTuple):
    """The columns of a linear model, by client.

    Fields:
      clients: (features [n, p], outcome) of each client; outcome [n], or (time, event) [n, 2].
      exposure: of each client's rows [n]; None without one.
      names: of the p features, such as "age" and "sex[Male]".
      client_names: of each client.
      notes: sentences on what was done with the table.
      columns: of the table that the features are of.
    """

    clients: list[tuple[np.ndarray, np.ndarray]]
    exposure: Optional[list[np.ndarray]]
    names: list[str]
    client_names: list[str]
    notes: list[str]
    columns: tuple[str, ...]


class Outcome(NamedTuple):
    """The columns of the outcome.

    Fields:
      column: the outcome, or the time for "cox".
      family: its name.
      event: the column with the event, for "cox".
      event_values: the values that are an event; () for the larger one of two.
      exposure: the column with the exposure.
    """

    column: str
    family: str
    event: Optional[str] = None
    event_values: Sequence[str] = ()
    exposure: Optional[str] = None

    @property
    def of_numbers(self) -> list[str]:
        """The columns that hold numbers."""
        return [x for x in (None if self.family == "bernoulli" else self.column, self.exposure) if x is not None]

    def in_one_form(self) -> Outcome:
        """Return the outcome with `data.names.canonical` names."""
        form = lambda name: None if name is None else canonical(name)
        return self._replace(column=canonical(self.column), event=form(self.event), exposure=form(self.exposure))


def read_design(
    path: Union[str, pathlib.Path, Any],
    outcome: Outcome,
    client_column: Optional[str] = None,
    *,
    only: Sequence[str] = (),
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    missing: str = "drop",
    separator: Optional[str] = None,
    date_unit: Optional[str] = None,
) -> Design:
    """Read a table for a generalised linear model.

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
    values = _outcome(table, outcome, where)
    check_outcome(values, outcome, where)
    owners, of_clients = np.full(table.num_rows, "all rows", object), list[str]()
    if client_column:
        owners, of_clients = client_names(decoded(table[client_column]).to_pylist(), client_column)
    exposure = None if outcome.exposure is None else numbers(table, outcome.exposure, where)
    keep = are_filled(values, exposure) & (owners != "")
    left_out = _note(int(np.sum(~keep)), "without an outcome, a client or an exposure")
    notes = [*_event_note(table, outcome, where), *of_clients, *left_out]
    for name in outcome.of_numbers:
        numbers(table, name, where, notes=notes)
    blocks, names, complete, columns = [], [], np.ones(table.num_rows, bool), []
    patterns: dict[bytes, str] = {}
    troubles = Troubles(where, "leave columns out with --drop")
    read = read_columns(table, chosen, troubles, categorical, date_unit, client_column)
    troubles.check()
    notes += troubles.notes
    for cells in read:
        name = cells.name
        if name not in only and cells.counts_rows:
            notes.append(f"The column {shown(name)} numbers the rows and is left out.")
            continue
        notes += cells.notes
        block, own = _column(cells, keep, where)
        empty = np.isnan(block[:, 0])
        if np.all(empty[keep]):
            raise InvalidArgument(f"The column {shown(name)} of {where} is empty: leave it out with --drop.")
        if missing == "indicate" and np.any(empty & keep):
            block = np.where(np.isnan(block), np.nanmean(block[keep], 0), block)
            same = patterns.setdefault(empty[keep].tobytes(), name)
            if same == name:
                block, own = np.column_stack([block, empty]), [*own, f"{name}[missing]"]
            else:
                notes.append(f"{shown(name)} is empty in the same rows as {shown(same)}: one indicator serves both.")
        elif missing == "drop":
            complete &= ~empty
            notes += _empty_clients(name, empty, owners, keep)
        blocks.append(block)
        columns.append(name)
        names += own
    left = keep & complete
    notes += _note(int(np.sum(keep & ~complete)), "with an empty cell: --missing indicate keeps them")
    if not np.any(left):
        raise InvalidArgument(
            f"No row of {where} is complete: give --missing indicate, or leave columns with many empty cells out with "
            "--drop."
        )
    features, names = _joined(blocks, names, left, notes, where)
    clients, rows = _by_client(owners, left, keep, notes)
    return Design(
        [(features[own], values[own]) for own in rows],
        None if exposure is None else [exposure[own] for own in rows],
        names,
        clients,
        notes,
        tuple(columns),
    )


def has_outcome(table: Any, outcome: Outcome, where: str) -> np.ndarray:
    """Return whether each row of a table has an outcome and, where one is named, an exposure, bool [N]."""
    exposure = None if outcome.exposure is None else numbers(table, outcome.exposure, where)
    return are_filled(_outcome(table, outcome, where), exposure)


def are_filled(values: np.ndarray, exposure: Optional[np.ndarray]) -> np.ndarray:
    """Return which outcomes [N] or [N, 2] have no empty cell, and an exposure [N] if there is one, bool [N]."""
    found: np.ndarray = np.all(np.isfinite(values), tuple(range(1, values.ndim)))
    return found if exposure is None else found & np.isfinite(exposure)


def _reserved(outcome: Outcome, client_column: Optional[str]) -> list[str]:
    """Return the columns that are no features, which must differ."""
    reserved = [x for x in (outcome.column, outcome.event, outcome.exposure, client_column) if x]
    if len({*reserved}) < len(reserved):
        raise InvalidArgument("--outcome, --event, --exposure and --client-column must name different columns.")
    return reserved


def _by_client(
    owners: np.ndarray, left: np.ndarray, keep: np.ndarray, notes: list[str]
) -> tuple[list[str], list[np.ndarray]]:
    """Return the clients in natural order, and the rows left of each; `notes` gets a sentence on the others."""
    unique, number = np.unique(owners[left], return_inverse=True)
    clients = [str(name) for name in unique]
    gone = sorted(set(owners[keep].tolist()) - set(clients), key=natural)
    if gone:
        notes.append(f"No row is left of {', '.join(gone)}.")
    parts = np.split(np.flatnonzero(left)[np.argsort(number, kind="stable")], np.cumsum(np.bincount(number))[:-1])
    order = sorted(range(len(clients)), key=lambda k: natural(clients[k]))
    return [clients[k] for k in order], [parts[k] for k in order]


def _joined(
    blocks: list[np.ndarray], names: list[str], left: np.ndarray, notes: list[str], where: str
) -> tuple[np.ndarray, list[str]]:
    """Return the columns of the design without levels that no row has; `notes` gets a sentence on them."""
    if not blocks:
        raise InvalidArgument(f"{where} has no columns beside the outcome: there is nothing to estimate.")
    features = np.concatenate(blocks, 1)
    vanished = [j for j, name in enumerate(names) if "[" in name and not np.any(features[left, j])]
    if vanished:
        notes.append(f"No row is left with {', '.join(names[j] for j in vanished)}: left out.")
    return np.delete(features, vanished, 1), [name for j, name in enumerate(names) if j not in vanished]


def _note(count: int, why: str) -> list[str]:
    return [f"{count} row{'s' if count > 1 else ''} left out {why}."] if count else []


def _empty_clients(name: str, empty: np.ndarray, owners: np.ndarray, keep: np.ndarray) -> list[str]:
    if not np.any(empty & keep):
        return []
    clients, number = np.unique(owners[keep], return_inverse=True)
    wholly = [str(x) for x, full in zip(clients, np.bincount(number, ~empty[keep])) if not full]
    if not wholly:
        return []
    few = ", ".join(sorted(wholly, key=natural)[:10]) + (f" and {len(wholly) - 10} more" if len(wholly) > 10 else "")
    return [f"The column {shown(name)} is empty at {few}: --drop it, or none of these rows is used."]


def _event_note(table: Any, outcome: Outcome, where: str) -> list[str]:
    """Return which values count as an event, where that is not obvious."""
    name = outcome.event if outcome.family == "cox" else outcome.column if outcome.family == "bernoulli" else None
    if name is None:
        return []
    cells = texts(table[name])
    events = find_events(cells, name, outcome.event_values, where)
    count = int(np.sum(np.isin(cells, list(events))))
    return [f"Event: {name} = {', '.join(events)} ({count:,} of {int(np.sum(cells != '')):,} rows)."]


def numbers(
    table: Any,
    name: str,
    where: str,
    kind: str = "number",
    date_unit: Optional[str] = None,
    sign: Optional[str] = None,
    notes: Optional[list[str]] = None,
) -> np.ndarray:
    """Return a column of numbers, or of the kind "date", as float64 [N], NaN for an empty cell.

    Args:
      table: a pyarrow Table.
      name, kind: of the column.
      where: the name of the table, for errors.
      date_unit: of dates.
      sign: that the numbers must have beside them; None for any.
      notes: gets sentences on its cells.
    """
    troubles = Troubles(where, f"name a column of {kind}s")
    signs = {} if sign is None else {name: sign}
    (cells,) = read_as(table, [(name, kind)], troubles, date_unit, among=table.column_names, signs=signs)
    troubles.check()
    if notes is not None:
        notes += troubles.notes
    return cells.values


def categories(cells: Cells) -> Optional[np.ndarray]:
    """Return text and truth values as text, object [N], "" for an empty cell; None for numbers."""
    if cells.kind == "truth":
        return np.where(cells.empty, "", np.where(cells.values == 1, "True", "False")).astype(object)
    return cells.values if cells.kind in TEXT_KINDS else None


def _column(cells: Cells, keep: np.ndarray, where: str) -> tuple[np.ndarray, list[str]]:
    """Return a column of the table as columns of the design [N, c], NaN in empty cells, and their names."""
    name, values = cells.name, categories(cells)
    if values is None:
        return cells.values[:, np.newaxis], [name]
    levels = sorted(set(values[keep].tolist()) - {""}, key=natural)
    if not levels:
        raise InvalidArgument(f"The column {shown(name)} of {where} is empty: leave it out with --drop.")
    if len(levels) == 1:
        raise InvalidArgument(f"The column {shown(name)} of {where} is {shown(levels[0])} in all rows: --drop it.")
    block = np.stack([values == level for level in levels[1:]], 1).astype(np.float64)
    block[values == ""] = np.nan
    return block, [f"{name}[{level}]" for level in levels[1:]]


def check_outcome(values: np.ndarray, outcome: Outcome, where: str) -> None:
    """Check the outcomes of a table; empty cells are left out later.

    Args:
      values: outcomes [N], or (time, event) [N, 2], NaN in empty cells.
      outcome: its columns.
      where: the name of the table, for errors.

    Raises:
      InvalidArgument: a count is no whole number of at least 0, or a time is not above 0; the message names the row.
    """
    numbers = values[:, 0] if outcome.family == "cox" else values
    if outcome.family == "cox":
        wrong, requirement = numbers <= 0, "times above 0"
    elif outcome.family == "poisson":
        wrong, requirement = (numbers < 0) | (numbers != np.round(numbers)), "counts (0, 1, 2, ...)"
    else:
        return
    rows = np.flatnonzero(wrong & ~np.isnan(numbers))
    if len(rows):
        raise InvalidArgument(
            f"The column {shown(outcome.column)} of {where} must hold {requirement} for the family {outcome.family}, "
            f"but row {rows[0] + 1} is {numbers[rows[0]]:g}."
        )


def _outcome(table: Any, outcome: Outcome, where: str) -> np.ndarray:
    if outcome.family == "cox":
        if outcome.event is None:
            raise InvalidArgument("The family cox needs the column with the event: give --event.")
        event = _binary(texts(table[outcome.event]), outcome.event, outcome.event_values, where)
        return np.stack([numbers(table, outcome.column, where), event], 1)
    if outcome.event is not None:
        raise InvalidArgument(f"--event is of the family cox, but the family is {outcome.family}.")
    if outcome.family == "bernoulli":
        return _binary(texts(table[outcome.column]), outcome.column, outcome.event_values, where)
    if outcome.event_values:
        raise InvalidArgument(f"--event-value is of bernoulli and cox, but the family is {outcome.family}.")
    return numbers(table, outcome.column, where)


def _binary(cells: np.ndarray, name: str, events: Sequence[str], where: str) -> np.ndarray:
    """Return 1 for an event, 0 for none and NaN for an empty cell [N]."""
    binary = np.isin(cells, list(find_events(cells, name, events, where))).astype(np.float64)
    binary[cells == ""] = np.nan
    return binary


def find_events(cells: np.ndarray, name: str, events: Sequence[str], where: str) -> Sequence[str]:
    """Return the values that are an event: those given, else the larger of two numbers, or the one that says yes."""
    found = sorted(set(cells.tolist()) - {""}, key=natural)
    if not found:
        raise InvalidArgument(f"The column {shown(name)} of {where} is empty: name another outcome.")
    events = [as_category(event) for event in events]
    for event in events:
        lookup(dict.fromkeys(found), event, "value", f"in column {name} of {where} for --event-value")
    if events:
        return events
    if len(found) != 2:
        few = ", ".join(map(shown, found[:6]))
        raise InvalidArgument(
            f"The column {shown(name)} of {where} must hold two values, but holds {len(found)} ({few}): give "
            "--event-value with the values that count as an event, such as 1,2,3."
        )
    if all(value(x) is not None for x in found):
        return found[1:]
    yes = [x for x in found if x.lower() in _YES]
    if len(yes) != 1:
        raise InvalidArgument(
            f"The column {shown(name)} of {where} holds {shown(found[0])} and {shown(found[1])}: give --event-value "
            "with the one that is an event."
        )
    return yes
