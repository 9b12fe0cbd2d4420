"""The columns of a linear model by the stages of `tfp_bfl.data`, with messages that hold neither rows nor counts.

    site:   names and kinds of the columns, and the levels of text (`describe`)
    server: the columns of the model, by the union of the levels (`agree`)
    site:   sums over its rows: filled cells, their sum, rows in which two columns are empty (`design.SiteCells.sums`)
    server: means for empty cells, and the indicators (`design.settle`)
    site:   its rows as columns of the design (`Encoding.encode`)

Functions take tables of `data.tables.read_table` or of pyarrow, and `where`, the name of the table for errors.
"""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tfp_bfl.data.agreement import NO_OPTIONS, TableOptions, check_levels, check_one_kind
from tfp_bfl.data.cells import (
    BLANK,
    COUNTERS,
    FACTOR,
    MOST_LEVELS,
    NUMBERING,
    RISING,
    ROWS,
    TEXT_KINDS,
    Cells,
    read_columns,
)
from tfp_bfl.data.columns import Troubles
from tfp_bfl.data.encoding import Feature, Raw, encode, read_features
from tfp_bfl.data.messages import Level, Name, describe_column
from tfp_bfl.data.names import as_names, canonical, natural
from tfp_bfl.data.numerals import doubts
from tfp_bfl.data.statistics import Column
from tfp_bfl.data.tables import with_canonical_names
from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.glm.outcomes import Outcome, find_events, numbers

NUMBER, CATEGORY, DATE = "number", "category", "date"
# Of numbers with a sign beside them, after which the kind has the sign: "number in %".
SIGNED = f"{NUMBER} in "
KINDS = (NUMBER, CATEGORY, BLANK, DATE, *NUMBERING)
MISSING = {
    "drop": "rows with an empty cell are left out",
    "indicate": "an empty cell becomes the mean of the column, and a column of 0 and 1 says where cells were empty",
}
_IN_WORDS = {**dict.fromkeys(NUMBERING, "numbers"), NUMBER: "numbers", DATE: "dates", CATEGORY: "text"}
# Columns of a table, with one for each level of text.
MOST_COLUMNS = 2000
LEAVE_OUT = "leave columns out with --drop"


class AgreedColumn(NamedTuple):
    """A column of a table. Its kind is one of `KINDS`, or `SIGNED` with the sign.

    The levels of a category are in natural order; the first one is the reference.
    """

    name: str
    kind: str
    levels: tuple[str, ...] = ()


class AgreedColumns(NamedTuple):
    """Columns that all sites have in common, the values that are an event, and what was done with columns, in words."""

    columns: tuple[AgreedColumn, ...]
    events: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    date_unit: str | None = None

    def features(self, indicators: Collection[str] = ()) -> list[Feature]:
        """Return the form of each column in the design, with a column for empty cells of `indicators`."""
        return [
            Feature(
                name,
                {CATEGORY: FACTOR, DATE: DATE}.get(kind, NUMBER),
                levels,
                has_missing=name in indicators,
                unit=kind.partition(SIGNED)[2] or None,
            )
            for name, kind, levels in self.columns
        ]

    @property
    def names(self) -> list[str]:
        """The names of all columns of the design, without indicators [c]."""
        return [name for feature in self.features() for name in feature.columns]

    def read(self, table: Any, where: str) -> Raw:
        """Read the cells of a table; a column that is not there is empty."""
        troubles = Troubles(where, "give numbers and dates as in the fit, or leave cells empty")
        raw = read_features(table, self.features(), troubles, self.date_unit, table.column_names)
        troubles.check()
        return raw


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
        every = (name for feature in plan.features(self.indicators) for name in feature.columns)
        return [name for name in every if name not in self.left_out]

    def encode(self, plan: AgreedColumns, raw: Raw) -> np.ndarray:
        """Encode rows [N, p]; NaN in empty cells where these have no mean, and a level of no site is an empty cell."""
        features, means = plan.features(self.indicators), dict(zip(plan.names, self.means))
        columns = [Column(name, means.get(name, np.nan), 0.0) for feature in features for name in feature.columns]
        return encode(raw, features, columns)[:, [column.name not in self.left_out for column in columns]]


def describe(table: Any, outcome: Outcome, where: str, options: TableOptions = NO_OPTIONS) -> dict[str, Any]:
    """Describe the table of a site as JSON: columns, the levels of text, and the values of the event.

    Levels are those of the rows with an outcome: others are not in the fit.
    """
    table, outcome = with_canonical_names(table, where), outcome.in_one_form()
    drop, only, categorical = map(as_names, options[:3])
    there, event = dict.fromkeys(table.column_names), outcome.event_column
    used = np.ones(table.num_rows, bool)
    for name in outcome.reserved:
        lookup(there, name, "column", f"in {where}")
        used &= table[name].categories != "" if name == event else np.isfinite(numbers(table, name, where))
    chosen = dict.fromkeys(x for x in only or there if x in there and x not in {*outcome.reserved, *drop})
    filled = [name for name in chosen if not table[name].empty[used].all()]
    troubles = Troubles(where, LEAVE_OUT)
    columns: dict[str, list[Any]] = {name: [name, BLANK, []] for name in chosen}
    for cells in read_columns(table, filled, troubles, categorical, options.date_unit, client=""):
        own = _as_text(cells)._replace(numbering=cells.numbered())
        message = describe_column(own._replace(values=own.values[used]), cells.name in only)
        kind = CATEGORY if own.kind in TEXT_KINDS else SIGNED + message.sign if message.sign else message.kind
        columns[cells.name] = [cells.name, kind, sorted(message.levels, key=natural)]
    troubles.check()
    events = sorted(set(table[event].categories.tolist()) - {""}, key=natural) if event else []
    if len(events) > MOST_LEVELS:
        raise InvalidArgument(f"The column {shown(event)} of {where} holds {len(events)} values: name another event.")
    return {"columns": [*columns.values()], "events": events}


def _as_text(cells: Cells) -> Cells:
    """Return truth values as categories; other columns as they are."""
    if cells.kind != "truth":
        return cells
    words = np.where(cells.empty, "", np.where(cells.values == 1, "True", "False")).astype(object)
    return Cells(cells.name, CATEGORY, words)


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
    names = [name for name, _, _ in read.columns]
    fits = (
        all(kind in KINDS or (kind[:-1] == SIGNED and kind.isprintable()) for _, kind, _ in read.columns)
        and all(bool(levels) == (kind == CATEGORY) for _, kind, levels in read.columns)
        and all(len({*x}) == len(x) for x in (names, read.events, *(levels for _, _, levels in read.columns)))
        and {*left_out}.isdisjoint(names)
        and (not only or {*names} <= {*only})
    )
    if not fits:
        raise wrong
    size = sum(max(1, len(levels)) for _, _, levels in read.columns)
    if size > MOST_COLUMNS:
        raise InvalidArgument(
            f"{site}'s table has {size:,} columns, with one for each level of text, but at most {MOST_COLUMNS:,} are "
            f"possible: {LEAVE_OUT}."
        )


def agree(
    descriptions: Mapping[str, Mapping[str, Any]], outcome: Outcome, missing: str, options: TableOptions = NO_OPTIONS
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
    there = [site for site, own in of_sites.items() if any(column.kind != BLANK for column in own.values())]
    columns: list[AgreedColumn] = []
    notes: list[str] = []
    categorical = as_names(options.categorical)
    for name in dict.fromkeys(name for own in of_sites.values() for name in own):
        found = {site: own[name] for site, own in of_sites.items() if name in own and own[name].kind != BLANK}
        kinds = [column.kind for column in found.values()]
        if (starts := kinds.count(ROWS)) and {*kinds} <= {*COUNTERS}:
            if starts == 1:
                notes.append(f"The column {shown(name)} numbers the rows and is left out.")
                continue
            notes.append(
                f"The column {shown(name)} counts the rows of each client anew and is used: --drop it if it numbers "
                "them, and is no time or dose."
            )
        check_one_kind(name, zip(found, (_IN_WORDS.get(x, x.replace(NUMBER, "numbers")) for x in kinds)))
        absent = [site for site in there if site not in found]
        few = ", ".join(absent[:10]) + (f" and {len(absent) - 10} more" if len(absent) > 10 else "")
        if not kinds or (missing == "drop" and 2 * len(absent) >= len(there)):
            other = ", or give --missing indicate" if kinds else ""
            raise InvalidArgument(f"The column {shown(name)} is empty at {few}: leave it out with --drop{other}.")
        if absent and missing == "drop":
            notes.append(f"The column {shown(name)} is empty at {few}: --drop it, or none of these rows is used.")
        levels = sorted({level for column in found.values() for level in column.levels}, key=natural)
        check_levels(name, levels, categorical)
        if len(levels) == 1:
            raise InvalidArgument(f"The column {shown(name)} is {shown(levels[0])} in all rows: --drop it.")
        rises = RISING in kinds and {*kinds} <= {*NUMBERING}
        kind = RISING if rises else NUMBER if kinds[0] in NUMBERING else kinds[0]
        columns.append(AgreedColumn(name, kind, tuple(levels)))
        notes += doubts(np.array(levels, object), name, name in categorical)
    if not columns and notes:  # Of columns that number the rows.
        raise InvalidArgument(f"{notes[0].rstrip('.')}, and no other is beside the outcome: name it with --only.")
    if not columns:
        raise InvalidArgument("The tables have no columns beside the outcome: there is nothing to estimate.")
    values = sorted({x for summary in descriptions.values() for x in summary["events"]}, key=natural)
    event, events = canonical(outcome.event or outcome.column), outcome.event_values[:0]
    if values:
        events = find_events(np.array(values, object), event, outcome, "the sites' tables")
        notes.insert(0, f"Event: {event} = {', '.join(events)}.")
    return AgreedColumns(tuple(columns), tuple(events), tuple(notes), options.date_unit)
