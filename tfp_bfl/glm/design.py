"""Tables as the columns of a linear model: of sites, by what all agreed on (`agreement`), and of a table in one place.

`SiteCells` holds the rows of a site, sends sums without rows, and encodes its rows by the `Encoding` that `settle`
makes of the sums of all sites. `read_design` does the same with the clients of one table.
"""

import math
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tfp_bfl import files
from tfp_bfl.data.agreement import TableOptions, is_numbering
from tfp_bfl.data.cells import RISING, Cells, read_columns
from tfp_bfl.data.columns import Columns, Troubles
from tfp_bfl.data.names import as_names, canonical, client_names, natural
from tfp_bfl.data.tables import as_table, is_table, read_table, with_canonical_names
from tfp_bfl.errors import InvalidArgument, counted, lookup, shown
from tfp_bfl.glm.agreement import LEAVE_OUT, MISSING, AgreedColumns, Encoding, agree, describe
from tfp_bfl.glm.families import FAMILIES
from tfp_bfl.glm.outcomes import BESIDE, Outcome, are_filled, check_outcome, note_event, read_beside, read_outcome
from tfp_bfl.glm.rows import Beside, Rows, expand, read
from tfp_bfl.glm.sums import pack, unpack

# Names of columns that often hold how many times a row occurs.
_COUNTS = ("freq", "frequency", "count", "counts", "n", "weight", "weights")


def num_sums(plan: AgreedColumns) -> int:
    """Return the number of sums of a site, before empty cells are filled (`SiteCells.sums`)."""
    return sum(map(math.prod, _shapes(plan)))


def _shapes(plan: AgreedColumns) -> list[tuple[int, ...]]:
    width, number = len(plan.names), len(plan.columns)
    return [(), (), (width,), (width,), (width,), (number, number)]


class SiteCells:
    """The rows of a site, before empty cells are filled."""

    def __init__(self, table: object, outcome: Outcome, plan: AgreedColumns, missing: str, where: str):
        table, outcome = with_canonical_names(table, where), outcome.in_one_form()
        self._family, self._plan, self._missing, self._where = outcome.family, plan, missing, where
        values = read_outcome(table, outcome, where, plan.events)
        beside = read_beside(table, outcome, where)
        used = np.flatnonzero(are_filled(values, beside))
        beside = {name: numbers[used] for name, numbers in beside.items()}
        # A row for each one for which a row of the table stands.
        places, self._values = expand(values[used], beside.get("weights"), beside.get("trials"), where)
        self._cells = plan.read(table, where)[used[places]]
        offset = beside.get("offset", np.zeros(len(used))) + np.log(beside.get("exposure", np.ones(len(used))))
        self._offset = offset[places]
        is_full = [~cells.empty for cells in self._cells.columns]
        self._left = np.all(is_full, 0) if missing == "drop" else np.ones(len(self._values), bool)
        # Of each row of the fit, the row of the table that it is of [m]; of those of the table, those of the fit [n].
        self.places = used[places[self._left]]
        self.chosen = np.zeros(len(values), bool)
        self.chosen[self.places] = True

    def sums(self) -> np.ndarray:
        """Compute the sums of `settle` over the rows of this site.

        Where rows with empty cells are left out, the sums of columns serve only to find one that numbers the rows: the
        others are 0, since their difference from those of the fit would be the sum of the rows that it leaves out.
        """
        features = np.ascontiguousarray(Encoding((), (), ()).encode(self._plan, self._cells))
        filled = np.where(np.isnan(features), 0.0, features)
        pairs = zip(self._plan.columns, self._plan.features())
        serves = [self._missing == "indicate" or c.kind == RISING for c, feature in pairs for _ in feature.columns]
        empty = np.stack([cells.empty for cells in self._cells.columns], 1).astype(np.float64)
        counts, sums = np.sum(~np.isnan(features), 0), np.where(serves, np.sum(filled, 0), 0.0)
        there = np.sum(filled[self._left] != 0, 0)
        return pack(float(len(filled)), float(np.sum(self._left)), sums, counts, there, empty.T @ empty)

    def check_presence(self, of_events: bool = False) -> None:
        """Raise InvalidArgument for a site whose sums are zeros, so that those of all sites are those of the others.

        With `of_events`, as for a stratified Cox model, an event adds nothing if its own row alone is at risk.
        """
        if not np.any(self._left):
            raise InvalidArgument(
                f"No row of {self._where} is complete: give --missing indicate, or leave columns with many empty cells "
                "out with --drop."
            )
        if of_events:
            times, events, *entries = self._values[self._left].T
            at_risk = len(times) - np.searchsorted(np.sort(times), times)
            for entry in entries:
                at_risk -= len(times) - np.searchsorted(np.sort(entry), times)
            if not np.any(events * (at_risk > 1)):
                raise InvalidArgument(
                    f"No event of {self._where} has a second row at risk, so that it adds nothing to the model."
                )

    def rows(self, encoding: Encoding) -> Rows:
        """Return the rows of the design, with a column of ones for the intercept."""
        self.check_presence()
        features, outcome, offset = self.design(encoding)
        of = encoding.names(self._plan), Beside(offset=[offset]), self._family != "cox"
        return read([(features, outcome)], FAMILIES.get(self._family), *of).clients[0]

    @property
    def columns(self) -> list[Cells]:
        """The columns of the rows of the fit, as they are in the table."""
        return list(self._cells[self._left].columns)

    @property
    def outcomes(self) -> np.ndarray:
        """Outcomes of the rows of the fit [m]; of survival whether there is an event."""
        values = self._values[self._left]
        return values if values.ndim == 1 else values[:, 1]

    @property
    def num_rows(self) -> int:
        """The number of rows with an outcome."""
        return len(self._left)

    def design(self, encoding: Encoding) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return features, outcome and offset of the rows that the fit uses; there may be none."""
        features = encoding.encode(self._plan, self._cells)[self._left]
        return features, self._values[self._left], self._offset[self._left]


def encode(table: Columns, plan: AgreedColumns, encoding: Encoding, where: str) -> np.ndarray:
    """Encode the rows of a table without an outcome [N, p]; NaN in rows that can't be encoded."""
    for column in plan.columns:
        if column.name not in table.column_names and not encoding.means:
            raise InvalidArgument(f"{where} has no column {shown(column.name)}, which the fit uses.")
    return encoding.encode(plan, plan.read(table, where))


def settle(plan: AgreedColumns, missing: str, total: np.ndarray) -> tuple[Encoding, list[str]]:
    """Return how rows become columns of the design, by the total of `SiteCells.sums`, and what was done, in words."""
    used, left, sums, counts, there, both = unpack(total, _shapes(plan))
    names, notes, indicators, means = plan.names, list(plan.notes), [], ()
    if not left:
        raise InvalidArgument("No row is complete: give --missing indicate, or --drop columns.")
    if np.any(counts == 0):
        raise InvalidArgument(f"The column of {shown(names[int(np.argmin(counts))])} is empty: --drop it.")
    if used > left:
        notes.append(f"{counted(int(used - left), 'row')} left out with an empty cell: --missing indicate keeps them.")
    if missing == "indicate":
        means = tuple((sums / counts).tolist())
        for j, column in enumerate(plan.columns):
            same = [i for i in range(j) if both[i, j] == both[i, i] == both[j, j]]
            if both[j, j] and not same:
                indicators.append(column.name)
            elif both[j, j]:
                notes.append(
                    f"{shown(column.name)} is empty in the same rows as {shown(plan.columns[same[0]].name)}: one "
                    "indicator serves both."
                )
    rising = [(x.name, names.index(x.name)) for x in plan.columns if x.kind == RISING]
    numbering = [name for name, j in rising if counts[j] == used and is_numbering(float(used), sums[j])]
    notes += [f"The column {shown(name)} numbers the rows and is left out." for name in numbering]
    gaps = [both[j, j] if means else 0 for j, feature in enumerate(plan.features()) for _ in feature.columns]
    gone = [name for name, count in zip(names, there + gaps) if not count and "[" in name]
    if gone:
        notes.append(f"No row is left with {', '.join(gone)}: left out.")
    return Encoding(means, tuple(indicators), (*numbering, *gone)), notes


class Design(NamedTuple):
    """The columns of a linear model, by client.

    Fields:
      clients: (features [n, p], outcome) of each client; outcome [n], or (time, event) [n, 2].
      offset: of each client's rows [n], with the logarithm of their exposure; None without both.
      names: of the p features, such as "age" and "sex[Male]".
      client_names: of each client.
      notes: sentences on what was done with the table.
      plan, encoding: by which rows become columns of the design.
    """

    clients: list[tuple[np.ndarray, np.ndarray]]
    offset: list[np.ndarray] | None
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
      only, drop, categorical, separator, date_unit: as of `data.read_own`.
      missing: one of `MISSING`.
    """
    lookup(MISSING, missing, "way with empty cells")
    where = "the table" if is_table(path) else files.name(pathlib.Path(path))
    options = TableOptions(as_names(drop), as_names(only), as_names(categorical), date_unit)
    outcome, client_column = outcome.in_one_form(), canonical(client_column) if client_column else None
    text = [name for name in (client_column, *options.categorical) if name]
    table = as_table(path, where) if is_table(path) else read_table(pathlib.Path(path), separator, text=text)
    reserved = [*outcome.reserved, *([client_column] if client_column else [])]
    of_outcome = f"--outcome, {', '.join(f'--{name}' for name in BESIDE)} or --client-column"
    if len({*reserved}) < len(reserved):
        raise InvalidArgument(f"{of_outcome.replace('or', 'and')} must name different columns.")
    given = {of_outcome: reserved, "--only": options.only, "--drop": options.drop, "--categorical": options.categorical}
    for option, name in ((option, name) for option, names in given.items() for name in names):
        lookup(dict.fromkeys(table.column_names), name, "column", f"in {where} for {option}")
    chosen = [name for name in options.only or table.column_names if name not in {*reserved, *options.drop}]
    if not chosen:
        raise InvalidArgument(f"{where} has no columns beside the outcome: there is nothing to estimate.")
    values = read_outcome(table, outcome, where)
    check_outcome(values, outcome, where)
    owners, of_clients = np.full(table.num_rows, "all rows", object), list[str]()
    if client_column:
        distinct, of_clients = client_names(table[client_column].distinct[1], client_column)
        owners = table[client_column].spread(distinct)
    beside = read_beside(table, outcome, where)
    count = int(np.sum(~are_filled(values, beside) | (owners == "")))
    notes = [*note_event(table, outcome, where), *of_clients]
    if count:
        columns = "".join(f", {name}" for name in beside)
        notes.append(f"{counted(count, 'row')} left out without an outcome{columns} or a client.")
    if looks := [name for name in chosen if name.lower() in _COUNTS and not options.only]:
        notes.append(f"If {shown(looks[0])} is how often a row occurs, give --weights {looks[0]}; here it is a column.")
    # Of the whole table, so that errors name its rows.
    troubles = Troubles(where, LEAVE_OUT)
    read = read_columns(table, chosen, troubles, options.categorical, date_unit, client_column)
    troubles.check()
    notes += [*troubles.notes, *(note for cells in read for note in cells.within_bounds(limit=False)[1])]
    whole = table.select([*dict.fromkeys((*outcome.reserved, *chosen))])
    tables = {name: whole.filter(owners == name) for name in sorted({*owners} - {""}, key=natural)}
    options = options._replace(drop=())
    described = {name: describe(part, outcome, where, options) for name, part in tables.items()}
    plan = agree(described, outcome, missing, options)
    cells = {name: SiteCells(part, outcome, plan, missing, where) for name, part in tables.items()}
    encoding, of_columns = settle(plan, missing, np.sum([one.sums() for one in cells.values()], 0))
    notes += [note for note in of_columns if not note.startswith("Event: ")]
    parts = {name: one.design(encoding) for name, one in cells.items()}
    gone = [name for name, (_, own, _) in parts.items() if not len(own) and cells[name].num_rows]
    if gone:
        notes.append(f"No row is left of {', '.join(gone)}.")
    parts = {name: part for name, part in parts.items() if len(part[1])}
    return Design(
        [(features, own) for features, own, _ in parts.values()],
        [own for _, _, own in parts.values()] if outcome.exposure or outcome.offset else None,
        encoding.names(plan),
        [*parts],
        [*dict.fromkeys(notes)],
        plan,
        encoding,
    )
