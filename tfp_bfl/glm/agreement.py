"""The columns of a linear model whose rows lie at sites: agreed on from descriptions and sums, without rows.

    site:   names and kinds of the columns, and the levels of text
    server: the columns of the model, by the union of the levels (`agree`)
    site:   sums over its rows: filled cells, their sum, rows in which two columns are empty (`design.SiteCells.sums`)
    server: means for empty cells, and the indicators (`design.settle`)

`design.read_design` reads a table in one place by these steps, with its clients as the sites.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tfp_bfl.data.agreement import check_levels, check_one_kind
from tfp_bfl.data.cells import COUNTERS, MOST_LEVELS, NUMBERING, RISING, ROWS, read_columns
from tfp_bfl.data.columns import Columns, Troubles
from tfp_bfl.data.messages import Level, Name
from tfp_bfl.data.names import as_names, canonical, natural
from tfp_bfl.data.numerals import doubts
from tfp_bfl.data.tables import with_canonical_names
from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.glm.outcomes import Outcome, categories, find_events, numbers

NUMBER, CATEGORY, EMPTY, DATE = ("number", "category", "empty", "date")
KINDS = (NUMBER, CATEGORY, EMPTY, DATE, *NUMBERING)
MISSING = {
    "drop": "rows with an empty cell are left out",
    "indicate": "an empty cell becomes the mean of the column, and a column of 0 and 1 says where cells were empty",
}
_IN_WORDS = {NUMBER: "numbers", DATE: "dates", CATEGORY: "text"}
# Columns of a table, with one for each level of text.
MOST_COLUMNS = 2000
# Of numbers with a sign beside them, after which the kind has the sign: "number in %".
SIGNED = f"{NUMBER} in "


class AgreedColumn(NamedTuple):
    """A column of a table. Its kind is one of `KINDS`, or `SIGNED` with the sign.

    The levels of a category are in natural order; the first one is the reference.
    """

    name: str
    kind: str
    levels: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The names of its columns in the design."""
        return [f"{self.name}[{level}]" for level in self.levels[1:]] if self.kind == CATEGORY else [self.name]


class AgreedColumns(NamedTuple):
    """Columns that all sites have in common, the values that are an event, and what was done with columns, in words."""

    columns: tuple[AgreedColumn, ...]
    events: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    date_unit: str | None = None

    @property
    def names(self) -> list[str]:
        """The names of all columns of the design, without indicators [c]."""
        return [name for column in self.columns for name in column.names]


def describe(
    table: Any,
    outcome: Outcome,
    where: str,
    only: Sequence[str] = (),
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    date_unit: str | None = None,
) -> dict[str, Any]:
    """Describe the table of a site as JSON: columns, the levels of text, and the values of the event.

    Levels are those of the rows with an outcome: others are not in the fit.

    Args:
      table: of `data.tables.read_table` or of pyarrow.
      outcome: its columns.
      where: the name of the table, for errors.
      only, drop, categorical, date_unit: as of `design.read_design`.
    """
    table, outcome = with_canonical_names(table, where), outcome.in_one_form()
    only, drop, categorical = as_names(only), as_names(drop), as_names(categorical)
    reserved = [x for x in (outcome.column, outcome.event, outcome.exposure) if x]
    for name in reserved:
        lookup(dict.fromkeys(table.column_names), name, "column", f"in {where}")
    event = outcome.event if outcome.family == "cox" else outcome.column if outcome.family == "bernoulli" else None
    used = np.ones(table.num_rows, bool)
    for name in reserved:
        used &= table[name].categories != "" if name == event else np.isfinite(numbers(table, name, where))
    there = [name for name in only or table.column_names if name in table.column_names]
    columns = [
        _describe(table, name, used, name in categorical, name in only, where, date_unit)
        for name in there
        if name not in {*reserved, *drop}
    ]
    events = sorted(set(table[event].categories.tolist()) - {""}, key=natural) if event else []
    if len(events) > MOST_LEVELS:
        raise InvalidArgument(f"The column {shown(event)} of {where} holds {len(events)} values: name another event.")
    return {"columns": [[column.name, column.kind, list(column.levels)] for column in columns], "events": events}


def _describe(
    table: Columns, name: str, used: np.ndarray, is_category: bool, is_chosen: bool, where: str, date_unit: str | None
) -> AgreedColumn:
    if table[name].empty[used].all():
        return AgreedColumn(name, EMPTY)
    troubles = Troubles(where, "leave columns out with --drop")
    read = read_columns(table, [name], troubles, [name] if is_category else [], date_unit, client=name)
    troubles.check()
    cells = read[0]
    if cells.kind == DATE:
        return AgreedColumn(name, DATE)
    values = categories(cells)
    if values is None:
        found = None if is_chosen else cells.numbered()
        return AgreedColumn(name, found.kind if found else SIGNED + cells.sign if cells.sign else NUMBER)
    levels = sorted(set(values[used].tolist()) - {""}, key=natural)
    if len(levels) > MOST_LEVELS and not is_category:
        raise InvalidArgument(
            f"The column {shown(name)} of {where} holds {len(levels)} texts, too many for a category: leave it "
            "out with --drop."
        )
    return AgreedColumn(name, CATEGORY, tuple(levels))


class DesignDescription(BaseModel):
    """Description of a site's table, as JSON (`describe`)."""

    model_config = ConfigDict(strict=True)

    columns: list[Annotated[tuple[Name, str, list[Level]], Field(strict=False)]]
    events: Annotated[list[Level], Field(max_length=MOST_LEVELS)]


def check_description(site: str, summary: object, left_out: Collection[str] = (), only: Collection[str] = ()) -> None:
    """Check the form of a description that a site sent, before it is sent on.

    No description may have a column of `left_out`, nor one besides `only`, where that is not ().
    """
    wrong = InvalidArgument(f"The description of {site}'s table does not have the required form.")
    try:
        read = DesignDescription.model_validate(summary)
    except ValidationError:
        raise wrong from None
    columns, names = read.columns, [name for name, _, _ in read.columns]
    for _, kind, levels in columns:
        sign = kind.partition(SIGNED)[2]
        is_signed = kind == SIGNED + sign and len(sign) == 1 and sign.isprintable()
        if not (kind in KINDS or is_signed) or bool(levels) != (kind == CATEGORY):
            raise wrong
    if any(len({*own}) < len(own) for own in (names, read.events, *(levels for _, _, levels in columns))):
        raise wrong
    if not {*left_out}.isdisjoint(names) or (only and not {*names} <= {*only}):
        raise wrong
    size = sum(max(1, len(levels)) for _, _, levels in columns)
    if size > MOST_COLUMNS:
        raise InvalidArgument(
            f"{site}'s table has {size:,} columns, with one for each level of text, but at most {MOST_COLUMNS:,} are "
            "possible: leave columns out with --drop."
        )


def agree(
    descriptions: Mapping[str, Mapping[str, Any]],
    outcome: Outcome,
    missing: str,
    date_unit: str | None = None,
    categorical: Sequence[str] = (),
) -> AgreedColumns:
    """Combine the columns of all sites, with the union of their levels, from the descriptions of `describe`.

    A column must not hold numbers at one site and text at another, nor be empty everywhere, or at half of the sites
    while rows with empty cells are left out.
    """
    of_sites = {
        site: {name: AgreedColumn(name, kind, tuple(levels)) for name, kind, levels in summary["columns"]}
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
        kinds = [NUMBER if kind in NUMBERING else kind for kind in filled.values()]
        check_one_kind(name, zip(filled, (_IN_WORDS.get(x, x.replace(NUMBER, "numbers")) for x in kinds)))
        absent = [site for site in there if site not in filled]
        few = ", ".join(absent[:10]) + (f" and {len(absent) - 10} more" if len(absent) > 10 else "")
        if not kinds or (missing == "drop" and 2 * len(absent) >= len(there)):
            other = ", or give --missing indicate" if kinds else ""
            raise InvalidArgument(f"The column {shown(name)} is empty at {few}: leave it out with --drop{other}.")
        if absent and missing == "drop":
            notes.append(f"The column {shown(name)} is empty at {few}: --drop it, or none of these rows is used.")
        levels = sorted({level for column in found.values() for level in column.levels}, key=natural)
        check_levels(name, levels, as_names(categorical))
        if len(levels) == 1:
            raise InvalidArgument(f"The column {shown(name)} is {shown(levels[0])} in all rows: --drop it.")
        rises = RISING in filled.values() and {*filled.values()} <= {*NUMBERING}
        columns.append(AgreedColumn(name, RISING if rises else kinds[0], tuple(levels)))
        notes += doubts(np.array(levels, object), name, name in as_names(categorical))
    if not columns:
        raise InvalidArgument("The tables have no columns beside the outcome: there is nothing to estimate.")
    values = sorted({x for summary in descriptions.values() for x in summary["events"]}, key=natural)
    event, events = canonical(outcome.event or outcome.column), outcome.event_values[:0]
    if values:
        events = find_events(np.array(values, object), event, outcome.event_values, "the sites' tables")
        notes.insert(0, f"Event: {event} = {', '.join(events)}.")
    return AgreedColumns(tuple(columns), tuple(events), tuple(notes), date_unit)
