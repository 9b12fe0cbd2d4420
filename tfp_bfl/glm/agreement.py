"""The columns of a linear model whose rows lie at sites: agreed on from descriptions and sums, without rows.

    site:   names and kinds of the columns, and the levels of text
    server: the columns of the model, by the union of the levels (`agree`)
    site:   sums over its rows: filled cells, their sum, and the rows in which two columns are empty (`Cells.sums`)
    server: means for empty cells, and the indicators (`settle`)

`design.read_design` reads a table in one place by these steps, with its clients as the sites.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

from tfp_bfl.data.cells import COUNTERS, MOST_LEVELS, ROWS, is_blank, read_columns, texts
from tfp_bfl.data.columns import Troubles
from tfp_bfl.data.names import as_names, canonical, natural
from tfp_bfl.data.tables import with_canonical_names
from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.glm.families import FAMILIES
from tfp_bfl.glm.outcomes import Outcome, are_filled, categories, find_events, numbers, read_outcome
from tfp_bfl.glm.rows import Rows, read
from tfp_bfl.glm.sums import pack, unpack

NUMBER, CATEGORY, EMPTY, DATE = ("number", "category", "empty", "date")
# Of whole numbers that rise from row to row: all sites together may number the rows of one table.
RISING = "rising number"
KINDS = (NUMBER, CATEGORY, EMPTY, DATE, RISING, *COUNTERS)
MISSING = {
    "drop": "rows with an empty cell are left out",
    "indicate": "an empty cell becomes the mean of the column, and a column of 0 and 1 says where cells were empty",
}
_IN_WORDS = {NUMBER: "numbers", CATEGORY: "text", DATE: "dates"}


class Column(NamedTuple):
    """A column of a table.

    Fields:
      name: of the column.
      kind: one of `KINDS`.
      levels: of a category, in natural order; the first one is the reference.
    """

    name: str
    kind: str
    levels: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The names of its columns in the design."""
        return [f"{self.name}[{level}]" for level in self.levels[1:]] if self.kind == CATEGORY else [self.name]


class Plan(NamedTuple):
    """Columns that all sites have in common.

    Fields:
      columns: of the model.
      events: the values that are an event; () for a family without.
      notes: sentences on what was done with columns.
      date_unit: in which dates become numbers; None where there are none.
    """

    columns: tuple[Column, ...]
    events: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    date_unit: Optional[str] = None

    @property
    def names(self) -> list[str]:
        """The names of all columns of the design, without indicators [c]."""
        return [name for column in self.columns for name in column.names]


class Encoding(NamedTuple):
    """The values by which rows become columns of the design.

    Fields:
      means: for empty cells, in the order of `Plan.names` [c]; () where rows with empty cells are left out.
      indicators: columns of the table with a column of 0 and 1 for empty cells.
      left_out: columns of the design that no row has.
    """

    means: tuple[float, ...]
    indicators: tuple[str, ...]
    left_out: tuple[str, ...]

    def names(self, plan: Plan) -> list[str]:
        """Return the names of the columns of the design [p]."""
        names = []
        for column in plan.columns:
            names += column.names + [f"{column.name}[missing]"] * (column.name in self.indicators)
        return [name for name in names if name not in self.left_out]


def describe(
    table: Any,
    outcome: Outcome,
    where: str,
    only: Sequence[str] = (),
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    date_unit: Optional[str] = None,
) -> dict[str, Any]:
    """Return what a site says of its table as JSON: columns, the levels of text, and the values of the event.

    Levels are those of the rows with an outcome: others are not in the fit.

    Args:
      table: a pyarrow Table.
      outcome: its columns.
      where: the name of the table, for errors.
      only, drop, categorical, date_unit: as of `design.read_design`.

    Raises:
      InvalidArgument: a column of the outcome is missing, or a column is not fit for a model.
    """
    table, outcome = with_canonical_names(table, where), outcome.in_one_form()
    only, drop, categorical = as_names(only), as_names(drop), as_names(categorical)
    reserved = [x for x in (outcome.column, outcome.event, outcome.exposure) if x]
    for name in reserved:
        lookup(dict.fromkeys(table.column_names), name, "column", f"in {where}")
    event = outcome.event if outcome.family == "cox" else outcome.column if outcome.family == "bernoulli" else None
    used = np.ones(table.num_rows, bool)
    for name in reserved:
        used &= texts(table[name]) != "" if name == event else np.isfinite(numbers(table, name, where))
    there = [name for name in only or table.column_names if name in table.column_names]
    columns = [
        _describe(table, name, used, name in categorical, name in only, where, date_unit)
        for name in there
        if name not in {*reserved, *drop}
    ]
    events = sorted(set(texts(table[event]).tolist()) - {""}, key=natural) if event else []
    if len(events) > MOST_LEVELS:
        raise InvalidArgument(f"The column {shown(event)} of {where} holds {len(events)} values: name another event.")
    return {"columns": [[column.name, column.kind, list(column.levels)] for column in columns], "events": events}


def _describe(
    table: Any, name: str, used: np.ndarray, is_category: bool, is_chosen: bool, where: str, date_unit: Optional[str]
) -> Column:
    import pyarrow

    if is_blank(table[name].filter(pyarrow.array(used))):
        return Column(name, EMPTY)
    troubles = Troubles(where, "leave columns out with --drop")
    read = read_columns(table, [name], troubles, [name] if is_category else [], date_unit, client=name)
    troubles.check()
    cells = read[0]
    if cells.kind == DATE:
        return Column(name, DATE)
    values = categories(cells)
    if values is None:
        return Column(name, NUMBER if is_chosen else cells.counter or (RISING if _rises(cells) else NUMBER))
    levels = sorted(set(values[used].tolist()) - {""}, key=natural)
    if len(levels) > MOST_LEVELS and not is_category:
        raise InvalidArgument(
            f"The column {shown(name)} of {where} holds {len(levels)} texts, too many for a category: leave it "
            "out with --drop."
        )
    return Column(name, CATEGORY, tuple(levels))


def _rises(cells: Any) -> bool:
    return bool(cells.is_whole and len(cells.values) > 1 and np.all(np.diff(cells.values) > 0))


def num_sums(plan: Plan) -> int:
    """Return the number of sums of a site, before empty cells are filled (`Cells.sums`)."""
    return sum(map(math.prod, _shapes(plan)))


def _shapes(plan: Plan) -> list[tuple[int, ...]]:
    width, number = len(plan.names), len(plan.columns)
    return [(), (), (width,), (width,), (width,), (number, number)]


def agree(
    descriptions: Mapping[str, Mapping[str, Any]],
    outcome: Outcome,
    missing: str,
    date_unit: Optional[str] = None,
    categorical: Sequence[str] = (),
) -> Plan:
    """Return the columns of all sites, with the union of their levels.

    Args:
      descriptions: site -> the result of `describe`.
      outcome: its columns.
      missing: one of `MISSING`.
      date_unit, categorical: as of `describe`.

    Raises:
      InvalidArgument: a column holds numbers at one site and text at another, has no value at all, or none at most
        sites while rows with empty cells are left out.
    """
    of_sites = {
        site: {name: Column(name, kind, tuple(levels)) for name, kind, levels in summary["columns"]}
        for site, summary in descriptions.items()
    }
    # The others have no row with an outcome.
    there = [site for site, own in of_sites.items() if any(column.kind != EMPTY for column in own.values())]
    columns, notes = [], []
    for name in dict.fromkeys(name for own in of_sites.values() for name in own):
        found = {site: own[name] for site, own in of_sites.items() if name in own}
        filled = {site: c.kind for site, c in found.items() if c.kind != EMPTY}
        starts = [*filled.values()].count(ROWS)
        if starts and {*filled.values()} <= {*COUNTERS}:
            if starts == 1:
                notes.append(f"The column {shown(name)} numbers the rows and is left out.")
                continue
            notes.append(
                f"The column {shown(name)} counts the rows of each client anew and is used: --drop it if it numbers "
                "them, and is no time or dose."
            )
        kinds = {NUMBER if kind in (*COUNTERS, RISING) else kind: site for site, kind in filled.items()}
        absent = [site for site in there if site not in filled]
        if len(kinds) > 1:
            first, second = [f"{_IN_WORDS[x]} at {kinds[x]}" for x in (NUMBER, DATE, CATEGORY) if x in kinds][:2]
            raise InvalidArgument(
                f"The column {shown(name)} holds {first} and {second}: correct the cells that are no numbers, name it "
                "with --categorical, or leave it out with --drop."
            )
        few = ", ".join(absent[:10]) + (f" and {len(absent) - 10} more" if len(absent) > 10 else "")
        if not kinds or (missing == "drop" and 2 * len(absent) > len(there)):
            other = ", or give --missing indicate" if kinds else ""
            raise InvalidArgument(f"The column {shown(name)} is empty at {few}: leave it out with --drop{other}.")
        if absent and missing == "drop":
            notes.append(f"The column {shown(name)} is empty at {few}: --drop it, or none of these rows is used.")
        levels = sorted({level for column in found.values() for level in column.levels}, key=natural)
        if len(levels) > MOST_LEVELS and name not in as_names(categorical):
            raise InvalidArgument(
                f"The column {shown(name)} holds {len(levels)} texts at all sites: leave it out with --drop, or give "
                "--categorical for categories."
            )
        if len(levels) == 1:
            raise InvalidArgument(f"The column {shown(name)} is {shown(levels[0])} in all rows: --drop it.")
        rises = RISING in filled.values() and {*filled.values()} <= {*COUNTERS, RISING}
        columns.append(Column(name, RISING if rises else next(iter(kinds)), tuple(levels)))
    if not columns:
        raise InvalidArgument("The tables have no columns beside the outcome: there is nothing to estimate.")
    values = sorted({x for summary in descriptions.values() for x in summary["events"]}, key=natural)
    event, events = canonical(outcome.event or outcome.column), outcome.event_values[:0]
    if values:
        events = find_events(np.array(values, object), event, outcome.event_values, "the sites' tables")
        notes.insert(0, f"Event: {event} = {', '.join(events)}.")
    return Plan(tuple(columns), tuple(events), tuple(notes), date_unit)


class OwnRows(NamedTuple):
    """Rows of a site as columns of the design: features [n, p], outcome [n] or [n, 2], and exposure [n] or None."""

    features: np.ndarray
    outcome: np.ndarray
    exposure: Optional[np.ndarray]


class Cells:
    """The rows of a site, before empty cells are filled.

    Args:
      table: a pyarrow Table.
      outcome: its columns.
      plan: of all sites.
      missing: one of `MISSING`.
      where: the name of the table, for errors.

    Raises:
      InvalidArgument: the outcome, or a column of numbers, holds something else.
    """

    def __init__(self, table: Any, outcome: Outcome, plan: Plan, missing: str, where: str):
        table, outcome = with_canonical_names(table, where), outcome.in_one_form()
        self._outcome, self._plan, self._missing, self._where = outcome, plan, missing, where
        self._values = read_outcome(table, outcome, where, plan.events)
        self._exposure = numbers(table, outcome.exposure, where) if outcome.exposure else None
        used = are_filled(self._values, self._exposure)
        blocks = [_block(table, column, where, plan.date_unit)[used] for column in plan.columns]
        self._features = np.concatenate(blocks, 1)
        self._empty = np.stack([np.isnan(block[:, 0]) for block in blocks], 1)
        self._values = self._values[used]
        self._exposure = None if self._exposure is None else self._exposure[used]
        self._left = ~np.any(self._empty, 1) if missing == "drop" else np.ones(len(self._empty), bool)

    def sums(self) -> np.ndarray:
        """Return the sums of `settle` over the rows of this site."""
        filled = np.where(np.isnan(self._features), 0.0, self._features)
        empty = self._empty.astype(np.float64)
        counts = np.sum(~np.isnan(self._features), 0)
        there = np.sum(filled[self._left] != 0, 0)
        return pack(float(len(filled)), float(np.sum(self._left)), np.sum(filled, 0), counts, there, empty.T @ empty)

    def check_presence(self, of_events: bool = False) -> None:
        """Raise InvalidArgument for a site whose sums are zeros, so that those of all sites are those of the others.

        Args:
          of_events: as for a stratified Cox model, to which an event adds nothing if its own row alone is at risk.
        """
        if not np.any(self._left):
            raise InvalidArgument(
                f"No row of {self._where} is complete: give --missing indicate, or leave columns with many empty cells "
                "out with --drop."
            )
        if of_events:
            times, events = self._values[self._left].T
            at_risk = len(times) - np.searchsorted(np.sort(times), times)
            if not np.any(events * (at_risk > 1)):
                raise InvalidArgument(
                    f"No event of {self._where} has a second row at risk, so that it adds nothing to the model."
                )

    def rows(self, encoding: Encoding) -> Rows:
        """Return the rows of the design in float64.

        Raises:
          InvalidArgument: no row is left, or an outcome is not one of the family's.
        """
        self.check_presence()
        family, own = self._outcome.family, self.design(encoding)
        exposure = None if own.exposure is None else [own.exposure]
        names = encoding.names(self._plan)
        return read([(own.features, own.outcome)], FAMILIES.get(family), names, exposure, family != "cox").clients[0]

    @property
    def num_rows(self) -> int:
        """The number of rows with an outcome."""
        return len(self._left)

    def design(self, encoding: Encoding) -> OwnRows:
        """Return the rows that the fit uses, as columns of the design; there may be none."""
        features = _encoded(self._features, self._empty, self._plan, encoding)
        exposure = None if self._exposure is None else self._exposure[self._left]
        return OwnRows(features[self._left], self._values[self._left], exposure)


def encode(table: Any, plan: Plan, encoding: Encoding, where: str) -> np.ndarray:
    """Return the columns of the design of a table without an outcome [N, p]; NaN in rows that can't be encoded.

    A level that no row of the fit has counts as an empty cell.

    Args:
      table: a pyarrow Table.
      plan, encoding: of the fit.
      where: the name of the table, for errors.

    Raises:
      InvalidArgument: a column is missing, or does not hold numbers.
    """
    for column in plan.columns:
        if column.name not in table.column_names and not encoding.means:
            raise InvalidArgument(f"{where} has no column {shown(column.name)}, which the fit uses.")
    blocks = [_block(table, column, where, plan.date_unit) for column in plan.columns]
    empty = np.stack([np.isnan(block[:, 0]) for block in blocks], 1)
    return _encoded(np.concatenate(blocks, 1), empty, plan, encoding)


def _encoded(features: np.ndarray, empty: np.ndarray, plan: Plan, encoding: Encoding) -> np.ndarray:
    parts, start = [], 0
    for number, column in enumerate(plan.columns):
        end = start + len(column.names)
        block = features[:, start:end]
        if encoding.means:
            block = np.where(np.isnan(block), np.array(encoding.means[start:end]), block)
        parts.append(block)
        if column.name in encoding.indicators:
            parts.append(empty[:, number : number + 1].astype(np.float64))
        start = end
    every = Encoding(encoding.means, encoding.indicators, ()).names(plan)
    return np.concatenate(parts, 1)[:, [name not in encoding.left_out for name in every]]


def _block(table: Any, column: Column, where: str, date_unit: Optional[str]) -> np.ndarray:
    """Return a column of the table as columns of the design [N, c], NaN in empty cells."""
    if column.name not in table.column_names:
        return np.full((table.num_rows, len(column.names)), np.nan)
    if column.kind != CATEGORY:
        kind = DATE if column.kind == DATE else NUMBER
        return numbers(table, column.name, where, kind, date_unit)[:, np.newaxis]
    cells = texts(table[column.name])
    block = np.stack([cells == level for level in column.levels[1:]], 1).astype(np.float64)
    block[~np.isin(cells, column.levels)] = np.nan
    return block


def settle(plan: Plan, missing: str, total: np.ndarray) -> tuple[Encoding, list[str]]:
    """Return how rows become columns of the design, and sentences on what was done.

    Args:
      plan: of all sites.
      missing: one of `MISSING`.
      total: the sum of `Cells.sums` over the sites.

    Raises:
      InvalidArgument: no row is left, or a column has no value in the rows with an outcome.
    """
    used, left, sums, counts, there, both = unpack(total, _shapes(plan))
    notes, indicators, means = list(plan.notes), [], ()
    if not left:
        raise InvalidArgument("No row of any site is complete: give --missing indicate, or --drop columns.")
    if np.any(counts == 0):
        raise InvalidArgument(f"The column of {shown(plan.names[int(np.argmin(counts))])} is empty: --drop it.")
    if used > left:
        rows = f"{used - left:g} row{'s' if used - left > 1 else ''}"
        notes.append(f"{rows} left out with an empty cell: --missing indicate keeps them.")
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
    last = used * (used + 1) / 2
    numbering = [
        column.name
        for column, total, count in zip(plan.columns, _first_of(plan, sums), _first_of(plan, counts))
        if column.kind == RISING and count == used and total in (last, last - used)
    ]
    notes += [f"The column {shown(name)} numbers the rows and is left out." for name in numbering]
    filled = there + (np.array([both[j, j] for j, c in enumerate(plan.columns) for _ in c.names]) if means else 0)
    gone = [name for name, count in zip(plan.names, filled) if not count and "[" in name]
    if gone:
        notes.append(f"No row is left with {', '.join(gone)}: left out.")
    return Encoding(means, tuple(indicators), (*numbering, *gone)), notes


def _first_of(plan: Plan, values: np.ndarray) -> np.ndarray:
    """Return the values [c] of the first column of the design of each column of the table."""
    starts = np.cumsum([0, *(len(column.names) for column in plan.columns)])[:-1]
    return values[starts]
