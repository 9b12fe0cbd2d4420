"""The columns of a linear model whose rows lie at sites: agreed on from descriptions and sums, without rows.

    site:   names and kinds of the columns, and the levels of text
    server: the columns of the model, by the union of the levels (`agree`)
    site:   sums over its rows: filled cells, their sum, and the rows in which two columns are empty (`Cells.sums`)
    server: means for empty cells, and the indicators (`settle`)

The result is that of `design.read_design` on all rows in one place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

from tfp_bfl.data.cells import COUNTERS, MOST_LEVELS, ROWS, is_blank, read_columns, texts
from tfp_bfl.data.columns import Troubles
from tfp_bfl.data.names import as_names, canonical, natural
from tfp_bfl.data.signs import doubts
from tfp_bfl.data.tables import with_canonical_names
from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.glm import design
from tfp_bfl.glm.design import Outcome
from tfp_bfl.glm.families import FAMILIES
from tfp_bfl.glm.rows import Rows, read
from tfp_bfl.glm.sums import pack, unpack

NUMBER, CATEGORY, EMPTY, DATE = ("number", "category", "empty", "date")
KINDS = (NUMBER, CATEGORY, EMPTY, DATE, *COUNTERS)
_IN_WORDS = {NUMBER: "numbers", DATE: "dates", CATEGORY: "text"}
# Of numbers with a sign beside them, after which the kind has the sign: "number in %".
SIGNED = f"{NUMBER} in "


class Column(NamedTuple):
    """A column of a table.

    Fields:
      name: of the column.
      kind: one of `KINDS`, or `SIGNED` with the sign.
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
        used &= texts(table[name]) != "" if name == event else np.isfinite(design.numbers(table, name, where, sign=""))
    columns = [
        _describe(table, name, used, name in categorical, name in only, where, date_unit)
        for name in table.column_names
        if name not in {*reserved, *drop} and (not only or name in only)
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
    values = design.categories(cells)
    if values is None:
        kind = SIGNED + cells.sign if cells.sign else NUMBER
        return Column(name, kind if is_chosen else cells.counter or kind)
    levels = sorted(set(values[used].tolist()) - {""}, key=natural)
    if len(levels) > MOST_LEVELS:
        raise InvalidArgument(
            f"The column {shown(name)} of {where} holds {len(levels)} texts, too many for a category: leave it "
            "out with --drop."
        )
    return Column(name, CATEGORY, tuple(levels))


def num_sums(plan: Plan) -> int:
    """Return the number of sums of a site, before empty cells are filled (`Cells.sums`)."""
    return sum(map(math.prod, _shapes(plan)))


def _shapes(plan: Plan) -> list[tuple[int, ...]]:
    width, number = len(plan.names), len(plan.columns)
    return [(), (), (width,), (width,), (width,), (number, number)]


def agree(
    descriptions: Mapping[str, Mapping[str, Any]], outcome: Outcome, missing: str, date_unit: Optional[str] = None
) -> Plan:
    """Return the columns of all sites, with the union of their levels.

    Args:
      descriptions: site -> the result of `describe`.
      outcome: its columns.
      missing: one of `design.MISSING`.
      date_unit: as of `describe`.

    Raises:
      InvalidArgument: a column holds numbers at one site and text at another, is missing at a site while rows with
        empty cells are left out, or has no value at all.
    """
    of_sites = {
        site: {name: Column(name, kind, tuple(levels)) for name, kind, levels in summary["columns"]}
        for site, summary in descriptions.items()
    }
    columns, notes = [], []
    for name in dict.fromkeys(name for own in of_sites.values() for name in own):
        found = {site: own[name] for site, own in of_sites.items() if name in own}
        kinds_of = {column.kind for column in found.values()}
        if ROWS in kinds_of and kinds_of <= {*COUNTERS}:
            notes.append(f"The column {shown(name)} numbers the rows and is left out.")
            continue
        filled = {site: c.kind for site, c in found.items() if c.kind != EMPTY}
        kinds = {NUMBER if kind in COUNTERS else kind: site for site, kind in filled.items()}
        absent = [site for site in of_sites if site not in found or found[site].kind == EMPTY]
        if len(kinds) > 1:
            in_order = [*(x for x in _IN_WORDS if x in kinds), *sorted({*kinds} - {*_IN_WORDS})]
            first, second = [f"{_IN_WORDS.get(x, x.replace(NUMBER, 'numbers'))} at {kinds[x]}" for x in in_order][:2]
            raise InvalidArgument(
                f"The column {shown(name)} holds {first} and {second}: correct the cells that are no numbers, name it "
                "with --categorical, or leave it out with --drop."
            )
        if not kinds or (absent and missing == "drop"):
            where, other = ", ".join(absent[:10]), ", or give --missing indicate" if kinds else ""
            raise InvalidArgument(f"The column {shown(name)} is empty at {where}: leave it out with --drop{other}.")
        levels = sorted({level for column in found.values() for level in column.levels}, key=natural)
        if len(levels) > MOST_LEVELS:
            raise InvalidArgument(f"The column {shown(name)} holds {len(levels)} texts at all sites: --drop it.")
        if len(levels) == 1:
            raise InvalidArgument(f"The column {shown(name)} is {shown(levels[0])} at all sites: --drop it.")
        columns.append(Column(name, next(iter(kinds)), tuple(levels)))
        notes += doubts(np.array(levels, object), name)
    if not columns:
        raise InvalidArgument("The tables have no columns beside the outcome: there is nothing to estimate.")
    values = sorted({x for summary in descriptions.values() for x in summary["events"]}, key=natural)
    event, events = canonical(outcome.event or outcome.column), outcome.event_values[:0]
    if values:
        events = design.find_events(np.array(values, object), event, outcome.event_values, "the sites' tables")
        notes.insert(0, f"Event: {event} = {', '.join(events)}.")
    return Plan(tuple(columns), tuple(events), tuple(notes), date_unit)


class Cells:
    """The rows of a site, before empty cells are filled.

    Args:
      table: a pyarrow Table.
      outcome: its columns.
      plan: of all sites.
      missing: one of `design.MISSING`.
      where: the name of the table, for errors.

    Raises:
      InvalidArgument: the outcome, or a column of numbers, holds something else.
    """

    def __init__(self, table: Any, outcome: Outcome, plan: Plan, missing: str, where: str):
        table, outcome = with_canonical_names(table, where), outcome.in_one_form()
        self._outcome, self._plan, self._missing, self._where = outcome, plan, missing, where
        self._values = self._read_outcome(table)
        self._exposure = design.numbers(table, outcome.exposure, where, sign="") if outcome.exposure else None
        used = design.are_filled(self._values, self._exposure)
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
            raise InvalidArgument(f"No row of {self._where} is complete: give --missing indicate.")
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
        family = self._outcome.family
        features = _encoded(self._features, self._empty, self._plan, encoding)
        exposure = None if self._exposure is None else [self._exposure[self._left]]
        given = [(features[self._left], self._values[self._left])]
        return read(given, FAMILIES.get(family), encoding.names(self._plan), exposure, family != "cox").clients[0]

    def _read_outcome(self, table: Any) -> np.ndarray:
        of, where = self._outcome, self._where
        if of.family == "cox":
            return np.stack([design.numbers(table, of.column, where, sign=""), self._events(table, of.event)], 1)
        is_event = of.family == "bernoulli"
        return self._events(table, of.column) if is_event else design.numbers(table, of.column, where, sign="")

    def _events(self, table: Any, name: Optional[str]) -> np.ndarray:
        cells = texts(table[str(name)])
        return np.where(cells == "", np.nan, np.isin(cells, list(self._plan.events)))


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
        kind, sign = (DATE, None) if column.kind == DATE else (NUMBER, column.kind.partition(SIGNED)[2])
        return design.numbers(table, column.name, where, kind, date_unit, sign)[:, np.newaxis]
    cells = texts(table[column.name])
    block = np.stack([cells == level for level in column.levels[1:]], 1).astype(np.float64)
    block[~np.isin(cells, column.levels)] = np.nan
    return block


def settle(plan: Plan, missing: str, total: np.ndarray) -> tuple[Encoding, list[str]]:
    """Return how rows become columns of the design, and sentences on what was done.

    Args:
      plan: of all sites.
      missing: one of `design.MISSING`.
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
        notes.append(f"{used - left:g} rows left out with an empty cell: --missing indicate keeps them.")
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
    filled = there + (np.array([both[j, j] for j, c in enumerate(plan.columns) for _ in c.names]) if means else 0)
    gone = [name for name, count in zip(plan.names, filled) if not count and "[" in name]
    if gone:
        notes.append(f"No row is left with {', '.join(gone)}: left out.")
    return Encoding(means, tuple(indicators), tuple(gone)), notes
