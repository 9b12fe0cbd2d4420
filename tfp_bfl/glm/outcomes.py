"""Outcomes of linear models: their columns, values and events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tfp_bfl.data.columns import Columns, Troubles
from tfp_bfl.data.encoding import Feature, read_features
from tfp_bfl.data.names import as_category, canonical, is_nothing, natural, value
from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.glm.families import NEGATIVE_BINOMIAL, ORDINAL

# The value of two that is an event, where they are text.
_YES = ("y", "yes", "true", "t", "1")
_MOST_CLASSES = 100
# Families of which each value of the outcome is a class.
_OF_CLASSES = ("multinomial", ORDINAL)
_COUNTS = ("poisson", NEGATIVE_BINOMIAL)
# Fields of an outcome with a column beside its own.
BESIDE = ("event", "exposure", "entry", "offset", "weights", "trials")


class Outcome(NamedTuple):
    """The columns of the outcome, the exposure, and for "cox" time, event, and the time after which a row is at risk.

    `event_values` are the values that are an event; () stands for the larger one of two.
    """

    column: str
    family: str
    event: str | None = None
    event_values: Sequence[str] = ()
    exposure: str | None = None
    entry: str | None = None
    offset: str | None = None
    weights: str | None = None
    trials: str | None = None

    @property
    def event_column(self) -> str | None:
        """The column of which some values are an event, or each is a class; None without one."""
        if self.trials:
            return None
        return {"cox": self.event, **dict.fromkeys(("bernoulli", *_OF_CLASSES), self.column)}.get(self.family)

    @property
    def reserved(self) -> list[str]:
        """The columns that are no features."""
        return [x for x in (self.column, *(getattr(self, name) for name in BESIDE)) if x]

    def check(self) -> None:
        """Raise InvalidArgument for a column that the family lacks, or that is of another one."""
        if (self.event is None) != (self.family != "cox"):
            raise InvalidArgument("--event names the column with the event, for the family cox and no other.")
        if self.event_values and self.family not in ("bernoulli", "cox"):
            raise InvalidArgument(f"--event-value is for bernoulli and cox, but the family is {self.family}.")
        if self.exposure and self.family not in _COUNTS:
            raise InvalidArgument(f"--exposure is for {' and '.join(_COUNTS)}, but the family is {self.family}.")
        for option, family in (("entry", "cox"), ("trials", "bernoulli")):
            if getattr(self, option) and self.family != family:
                raise InvalidArgument(f"--{option} is for {family}, but the family is {self.family}.")
        if self.trials and self.event_values:
            raise InvalidArgument("With --trials the outcome counts events: leave --event-value out.")
        if self.offset and self.family == "multinomial":
            raise InvalidArgument("--offset is for families of one linear predictor, but the family is multinomial.")

    def in_one_form(self) -> Outcome:
        """Return the outcome with `data.names.canonical` names."""
        form = lambda name: None if name is None else canonical(name)
        of = {name: form(getattr(self, name)) for name in BESIDE}
        return Outcome(canonical(self.column), self.family, event_values=self.event_values, **of)


def read_outcome(table: Columns, outcome: Outcome, where: str, events: Sequence[str] | None = None) -> np.ndarray:
    """Read outcomes [N], or (time, event) [N, 2] or (time, event, entry) [N, 3] for "cox"; NaN in empty cells.

    `events` are the values that are an event, or the classes, in all tables; None for those of this one
    (`find_events`).
    """
    outcome.check()
    if (name := outcome.event_column) is None:
        return numbers(table, outcome.column, where)
    cells = table[name].categories
    found = list(find_events(cells, name, outcome, where) if events is None else events)
    of_value = {x: number for number, x in enumerate(found)}
    values = [of_value[x] if x else 0 for x in cells] if outcome.family in _OF_CLASSES else np.isin(cells, found)
    event = np.where(cells == "", np.nan, values)
    if outcome.event is None:
        return event
    entry = [numbers(table, outcome.entry, where)] if outcome.entry else []
    return np.stack([numbers(table, outcome.column, where), event, *entry], 1)


def read_beside(table: Columns, outcome: Outcome, where: str) -> dict[str, np.ndarray]:
    """Read exposure, offset, weights and trials, those that there are [N]; NaN in empty cells."""
    named = {name: column for name in ("exposure", "offset", "weights", "trials") if (column := getattr(outcome, name))}
    found = {name: numbers(table, column, where) for name, column in named.items()}
    wrong = np.flatnonzero(found.get("exposure", np.ones(1)) <= 0)
    if len(wrong):
        raise InvalidArgument(
            f"The column {shown(named['exposure'])} of {where} must hold numbers above 0, but row {wrong[0] + 1} is "
            f"{found['exposure'][wrong[0]]:g}."
        )
    return found


def are_filled(values: np.ndarray, beside: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return which outcomes [N] or [N, 2 or 3], and numbers of `read_beside`, have no empty cell, bool [N]."""
    found: np.ndarray = np.all(np.isfinite(values), tuple(range(1, values.ndim)))
    return np.all([found, *map(np.isfinite, beside.values())], 0)


def check_outcome(values: np.ndarray, outcome: Outcome, where: str) -> None:
    """Refuse counts (of `read_outcome`) that are no whole numbers of at least 0, gamma outcomes that are not above 0,
    and times that are not above 0 or not after the entry.
    """
    numbers = values[:, 0] if outcome.family == "cox" else values
    if outcome.family == "cox":
        wrong, requirement = numbers <= 0, "times above 0"
        if outcome.entry and not np.any(wrong):
            wrong, requirement = values[:, 2] >= numbers, f"times after those of {shown(outcome.entry)}"
    elif outcome.family == "gamma":
        wrong, requirement = numbers <= 0, "numbers above 0 for the family gamma"
    elif outcome.family in _COUNTS:
        wrong = (numbers < 0) | (numbers != np.round(numbers))
        requirement = f"counts (0, 1, 2, ...) for the family {outcome.family}"
    else:
        return
    rows = np.flatnonzero(wrong & ~np.isnan(numbers))
    if len(rows):
        raise InvalidArgument(
            f"The column {shown(outcome.column)} of {where} must hold {requirement}, "
            f"but row {rows[0] + 1} is {numbers[rows[0]]:g}."
        )


def find_events(cells: np.ndarray, name: str, outcome: Outcome, where: str) -> Sequence[str]:
    """Find the values that are an event: those given, else the larger of two numbers, or the one that says yes.

    For classes all values, in natural order, which is also that of ordered levels.
    """
    found = sorted(set(cells.tolist()) - {""}, key=natural)
    if not found:
        raise InvalidArgument(f"The column {shown(name)} of {where} is empty: name another outcome.")
    if nothing := next(filter(is_nothing, found), None):
        raise InvalidArgument(
            f"The column {shown(name)} of {where} holds {shown(nothing)}, which is no outcome: empty the cells that "
            "stand for a missing value."
        )
    if outcome.family in _OF_CLASSES:
        least = 3 if outcome.family == ORDINAL else 2
        if not least <= len(found) <= _MOST_CLASSES:
            other = "use the family bernoulli" if len(found) == 2 else "name another outcome, or another family"
            raise InvalidArgument(
                f"The column {shown(name)} of {where} holds {len(found)} values, but classes must be {least} to "
                f"{_MOST_CLASSES}: {other}."
            )
        return found
    events = [as_category(event) for event in outcome.event_values]
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


def note_event(table: Columns, outcome: Outcome, where: str) -> list[str]:
    """Return which values count as an event, where that is not obvious."""
    if (name := outcome.event_column) is None:
        return []
    cells = table[name].categories
    events = find_events(cells, name, outcome, where)
    if outcome.family in _OF_CLASSES:
        counts = ", ".join(f"{x} ({np.sum(cells == x):,})" for x in events)
        if outcome.family == ORDINAL:
            return [f"Levels of {name} in ascending order: {counts}. If the order is another, number them."]
        return [f"Classes of {name}: {counts}. Reference: {events[0]}."]
    count = int(np.sum(np.isin(cells, list(events))))
    return [f"Event: {name} = {', '.join(events)} ({count:,} of {int(np.sum(cells != '')):,} rows)."]


def numbers(table: Columns, name: str, where: str) -> np.ndarray:
    """Read a column of numbers without a sign beside them as float64 [N], NaN for an empty cell."""
    troubles = Troubles(where, "name a column of numbers")
    raw = read_features(table, [Feature(name, "number")], troubles, among=table.column_names)
    troubles.check()
    return raw.columns[0].values
