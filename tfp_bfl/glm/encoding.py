"""Rows of a site as columns of the design on which all sites agreed: sums without rows, and the encoding by them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tfp_bfl.data.agreement import is_numbering
from tfp_bfl.data.cells import RISING
from tfp_bfl.data.columns import Columns
from tfp_bfl.data.tables import with_canonical_names
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.glm.agreement import CATEGORY, DATE, NUMBER, SIGNED, AgreedColumn, AgreedColumns
from tfp_bfl.glm.families import FAMILIES
from tfp_bfl.glm.outcomes import Outcome, are_filled, numbers, read_outcome
from tfp_bfl.glm.rows import Rows, read
from tfp_bfl.glm.sums import pack, unpack


class Encoding(NamedTuple):
    """The values by which rows become columns of the design.

    Fields:
      means: for empty cells, in the order of `AgreedColumns.names` [c]; () where rows with empty cells are left out.
      indicators: columns of the table with a column of 0 and 1 for empty cells.
      left_out: columns of the design that no row has.
    """

    means: tuple[float, ...]
    indicators: tuple[str, ...]
    left_out: tuple[str, ...]

    def names(self, plan: AgreedColumns) -> list[str]:
        """Return the names of the columns of the design [p]."""
        names = []
        for column in plan.columns:
            names += column.names + [f"{column.name}[missing]"] * (column.name in self.indicators)
        return [name for name in names if name not in self.left_out]


def num_sums(plan: AgreedColumns) -> int:
    """Return the number of sums of a site, before empty cells are filled (`SiteCells.sums`)."""
    return sum(map(math.prod, _shapes(plan)))


def _shapes(plan: AgreedColumns) -> list[tuple[int, ...]]:
    width, number = len(plan.names), len(plan.columns)
    return [(), (), (width,), (width,), (width,), (number, number)]


class OwnRows(NamedTuple):
    """Rows of a site as columns of the design: features [n, p], outcome [n] or [n, 2], and exposure [n] or None."""

    features: np.ndarray
    outcome: np.ndarray
    exposure: np.ndarray | None


class SiteCells:
    """The rows of a site, before empty cells are filled.

    Args:
      table: of `data.tables.read_table` or of pyarrow.
      outcome: its columns.
      plan: of all sites.
      missing: one of `MISSING`.
      where: the name of the table, for errors.

    Raises:
      InvalidArgument: the outcome, or a column of numbers, holds something else.
    """

    def __init__(self, table: object, outcome: Outcome, plan: AgreedColumns, missing: str, where: str):
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
        # Of the rows of the table, those that the fit uses [n].
        self.chosen = used.copy()
        self.chosen[used] = self._left

    def sums(self) -> np.ndarray:
        """Return the sums of `settle` over the rows of this site.

        Where rows with empty cells are left out, the sums of columns serve only to find one that numbers the rows: the
        others are 0, since their difference from those of the fit would be the sum of the rows that it leaves out.
        """
        filled = np.where(np.isnan(self._features), 0.0, self._features)
        serves = [self._missing == "indicate" or c.kind == RISING for c in self._plan.columns for _ in c.names]
        empty = self._empty.astype(np.float64)
        counts, sums = np.sum(~np.isnan(self._features), 0), np.where(serves, np.sum(filled, 0), 0.0)
        there = np.sum(filled[self._left] != 0, 0)
        return pack(float(len(filled)), float(np.sum(self._left)), sums, counts, there, empty.T @ empty)

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


def encode(table: Columns, plan: AgreedColumns, encoding: Encoding, where: str) -> np.ndarray:
    """Return the columns of the design of a table without an outcome [N, p]; NaN in rows that can't be encoded.

    A level that no row of the fit has counts as an empty cell.

    Args:
      table: of `data.tables.read_table`.
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


def _encoded(features: np.ndarray, empty: np.ndarray, plan: AgreedColumns, encoding: Encoding) -> np.ndarray:
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


def _block(table: Columns, column: AgreedColumn, where: str, date_unit: str | None) -> np.ndarray:
    """Return a column of the table as columns of the design [N, c], NaN in empty cells."""
    if column.name not in table.column_names:
        return np.full((table.num_rows, len(column.names)), np.nan)
    if column.kind != CATEGORY:
        kind, sign = (DATE, "") if column.kind == DATE else (NUMBER, column.kind.partition(SIGNED)[2])
        return numbers(table, column.name, where, kind, date_unit, sign)[:, np.newaxis]
    cells = table[column.name].categories
    block = np.stack([cells == level for level in column.levels[1:]], 1).astype(np.float64)
    block[~np.isin(cells, column.levels)] = np.nan
    return block


def settle(plan: AgreedColumns, missing: str, total: np.ndarray) -> tuple[Encoding, list[str]]:
    """Return how rows become columns of the design, and sentences on what was done.

    Args:
      plan: of all sites.
      missing: one of `MISSING`.
      total: the sum of `SiteCells.sums` over the sites.

    Raises:
      InvalidArgument: no row is left, or a column has no value in the rows with an outcome.
    """
    used, left, sums, counts, there, both = unpack(total, _shapes(plan))
    notes, indicators, means = list(plan.notes), [], ()
    if not left:
        raise InvalidArgument("No row is complete: give --missing indicate, or --drop columns.")
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
    numbering = [
        column.name
        for column, total, count in zip(plan.columns, _first_of(plan, sums), _first_of(plan, counts))
        if column.kind == RISING and count == used and is_numbering(float(used), total)
    ]
    notes += [f"The column {shown(name)} numbers the rows and is left out." for name in numbering]
    filled = there + (np.array([both[j, j] for j, c in enumerate(plan.columns) for _ in c.names]) if means else 0)
    gone = [name for name, count in zip(plan.names, filled) if not count and "[" in name]
    if gone:
        notes.append(f"No row is left with {', '.join(gone)}: left out.")
    return Encoding(means, tuple(indicators), (*numbering, *gone)), notes


def _first_of(plan: AgreedColumns, values: np.ndarray) -> np.ndarray:
    """Return the values [c] of the first column of the design of each column of the table."""
    starts = np.cumsum([0, *(len(column.names) for column in plan.columns)])[:-1]
    return values[starts]
