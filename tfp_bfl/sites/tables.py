"""Tables of sites as they are: the description of each column, and the encoding that follows from all of them.

A site sends for each column the message that clients of a simulation send (`data.encoding.ColumnMessage`), and the
server merges these messages as a simulation does (`data.encoding.fit_column`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfp_bfl.data.cells import BLANK, COUNTERS, DATE_UNITS, MOST_LEVELS, ROWS, TEXT_KINDS, Cells
from tfp_bfl.data.encoding import ColumnMessage, Feature, Raw, describe_column, fit_column
from tfp_bfl.data.names import EMPTY, as_names, canonical, check_spelling
from tfp_bfl.data.schema import Schema
from tfp_bfl.data.signs import doubts
from tfp_bfl.data.statistics import Column
from tfp_bfl.errors import InvalidArgument, lookup, shown

# Options of a run that all sites apply to their tables.
TABLE_OPTIONS = ("drop", "only", "categorical", "date_unit")
_NUMBERS = ("number", "truth", *COUNTERS)
KINDS = (*_NUMBERS, "date", *TEXT_KINDS, BLANK)
# Bounds on a description: columns, categories of a column, of all columns, and characters of one.
MOST_COLUMNS, MOST_CATEGORIES, _MOST_TOGETHER, _MOST_CHARACTERS = 10_000, 10_000, 100_000, 1000


class TableOptions(NamedTuple):
    """Options by which all sites read their tables; whoever submits the run gives them.

    Fields:
      drop, only, categorical, date_unit: as of `data.read_own`.
    """

    drop: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    date_unit: str | None = None


# Of data without options.
NO_OPTIONS = TableOptions()


def parse_options(given: object) -> TableOptions:
    """Return the options of a message.

    Raises:
      InvalidArgument: they do not have the form of `TableOptions`.
    """
    texts = lambda x: isinstance(x, (list, tuple)) and all(isinstance(y, str) for y in x)
    if not isinstance(given, Mapping) or not set(given) <= set(TABLE_OPTIONS):
        raise InvalidArgument("The options of the tables do not have the required form.")
    lists, unit = [given.get(name) or [] for name in TABLE_OPTIONS[:-1]], given.get(TABLE_OPTIONS[-1])
    if not all(map(texts, lists)) or not (unit is None or isinstance(unit, str)):
        raise InvalidArgument("The options of the tables do not have the required form.")
    if unit is not None:
        lookup(DATE_UNITS, unit, "unit of dates")
    drop, only, categorical = lists
    return TableOptions(as_names(drop), as_names(only), as_names(categorical), unit)


def describe_table(raw: Raw, options: TableOptions, most_categories: int = MOST_CATEGORIES) -> list[dict[str, Any]]:
    """Return the message of a site about each column of its table, as JSON.

    Args:
      raw: the columns.
      options: of the run.
      most_categories: largest number of categories of a column.

    Raises:
      InvalidArgument: a column has more categories.
    """
    described = []
    for cells in raw.columns:
        message = describe_column(cells)
        if len(message.levels) > most_categories:
            raise InvalidArgument(
                f"The column {shown(cells.name)} has {len(message.levels):,} categories, but at most "
                f"{most_categories:,} are described: leave it out with --drop, or let the site's file allow more "
                "(max_categories)."
            )
        kind = cells.rows_of if cells.rows_of and cells.name not in options.only else cells.kind
        of_cells = {"name": cells.name, "kind": kind, "order": list(cells.levels), "sign": cells.sign}
        described.append({**of_cells, **message._asdict()})
    return described


def text_columns(raw: Raw) -> list[str]:
    """Return the names of the columns with categories."""
    return [cells.name for cells in raw.columns if cells.kind in TEXT_KINDS]


def check_table(described: object, num_examples: int, most_magnitude: float, bounded: bool = False) -> bool:
    """Return whether the description of a table has the form of `describe_table`, with one number of rows.

    Args:
      described: a site's message.
      num_examples: of the site.
      most_magnitude: bound on means and standard deviations.
      bounded: whether `num_examples` may be below the number of rows.
    """
    if not isinstance(described, list) or not 0 < len(described) <= MOST_COLUMNS:
        return False
    if not all(_is_column(x, num_examples, most_magnitude) for x in described):
        return False
    names = [x["name"] for x in described]
    rows = {x["rows"] for x in described}
    if len(rows) > 1 or not (bounded or rows == {num_examples}):
        return False
    return len({*names}) == len(names) and sum(len(x["levels"]) for x in described) <= _MOST_TOGETHER


def _is_column(x: object, num_examples: int, most_magnitude: float) -> bool:
    if not isinstance(x, Mapping) or set(x) != {"name", "kind", "order", "sign", *ColumnMessage._fields}:
        return False
    is_text = x["kind"] in TEXT_KINDS
    whole = lambda n, least: isinstance(n, int) and not isinstance(n, bool) and least <= n <= x["rows"]
    finite = lambda y: isinstance(y, (int, float)) and not isinstance(y, bool) and abs(y) <= most_magnitude
    well = (
        _is_name(x["name"])
        and x["kind"] in KINDS
        and isinstance(x["rows"], int)
        and not isinstance(x["rows"], bool)
        and num_examples <= x["rows"] < 2**31
        and isinstance(x["sign"], str)
        and len(x["sign"]) <= (x["kind"] in _NUMBERS)
        and x["sign"].isprintable()
        and whole(x["filled"], 0)
        and isinstance(x["order"], list)
        and bool(x["order"]) == (x["kind"] == "ordinal")
        and len(x["order"]) <= MOST_CATEGORIES
        and all(map(_is_level, x["order"]))
        and len(set(x["order"])) == len(x["order"])
        and finite(x["mean"])
        and finite(x["stddev"])
        and x["stddev"] >= 0
        and isinstance(x["levels"], Mapping)
        and len(x["levels"]) <= MOST_CATEGORIES
        and all(map(_is_level, x["levels"]))
        and all(whole(n, 1) for n in x["levels"].values())
    )
    return (
        well
        and sum(x["levels"].values()) == (x["filled"] if is_text else 0)
        and (x["kind"] != BLANK or not x["filled"])
    )


def _is_name(x: object) -> bool:
    return isinstance(x, str) and 0 < len(x) <= _MOST_CHARACTERS and x.isprintable() and x == canonical(x)


def _is_level(x: Any) -> bool:
    """Return whether this is a category as tables have: `canonical` text in UTF-8 without NUL, not empty."""
    is_text = isinstance(x, str) and 0 < len(x) <= _MOST_CHARACTERS and "\0" not in x and x == canonical(x)
    return is_text and x not in EMPTY and x == x.encode(errors="ignore").decode()


def agree_columns(
    tables: Mapping[str, Sequence[Mapping[str, Any]]], sizes: Mapping[str, int], options: TableOptions
) -> tuple[tuple[Feature, ...], tuple[Column, ...]]:
    """Return the encoding of all sites' columns, and the columns of the model.

    A column that a site does not have counts as empty there. The encoding is () where all columns are full and hold
    numbers, as of `data.read_own`.

    Args:
      tables: site -> its valid description (`describe_table`).
      sizes: site -> the number of rows by which it counts.
      options: of the run.

    Raises:
      InvalidArgument: an option names a column that no site has, no column is left, two columns differ in case only, or
        a column holds text at one site and numbers at another, has too many categories, or has no value at any site.
    """
    of_sites = {site: {x["name"]: x for x in described} for site, described in tables.items()}
    check_spelling({site: [*own] for site, own in of_sites.items()}, "column")
    there = dict.fromkeys(name for own in of_sites.values() for name in own)
    names = [*(name for name in options.only if name in there), *(name for name in there if name not in options.only)]
    for option in ("only", "categorical"):
        for name in getattr(options, option):
            if name not in names:
                lookup(dict.fromkeys(names), name, "column", f"at any site for --{option}")
    if not names:
        raise InvalidArgument("The tables of the sites have no columns besides the labels: there is nothing to learn.")
    kinds = {name: {own[name]["kind"] for own in of_sites.values() if name in own} for name in names}
    counting = {name for name, own in kinds.items() if ROWS in own and own <= {*COUNTERS, BLANK}}
    features: list[Feature] = []
    columns: list[Column] = []
    # A column that is the only one is used, whatever it holds.
    for name in [name for name in names if name not in counting] or names:
        found = {site: own[name] for site, own in of_sites.items() if name in own}
        kind, order = _kind(name, found)
        sign = _sign(name, found)
        messages = [_message(found.get(site), size) for site, size in zip(of_sites, sizes.values())]
        levels = {x for message in messages for x in message.levels}
        if len(levels) > MOST_LEVELS and name not in options.categorical:
            raise InvalidArgument(
                f"The column {shown(name)} holds {len(levels)} texts at all sites together: leave it out with --drop, "
                "or give --categorical for categories."
            )
        feature, own_columns = fit_column(Cells(name, kind, np.zeros(0), order, sign=sign), messages, options.date_unit)
        features.append(feature)
        columns += own_columns
    is_plain = all(x.kind in _NUMBERS and not (x.has_missing or x.unit) for x in features)
    return () if is_plain else tuple(features), tuple(columns)


def _message(described: Mapping[str, Any] | None, size: int) -> ColumnMessage:
    """Return a site's message about a column, counted as `size` rows."""
    if described is None:
        return ColumnMessage(size, 0)
    message = ColumnMessage(*(described[field] for field in ColumnMessage._fields))
    if size == (rows := message.rows):
        return message
    share: Any = size / rows  # Counts need not be whole.
    levels = {level: number * share for level, number in message.levels.items()}
    filled = size if message.filled == rows else message.filled * share
    return message._replace(rows=size, filled=filled, levels=levels)


def _kind(name: str, found: Mapping[str, Mapping[str, Any]]) -> tuple[str, tuple[str, ...]]:
    """Return the kind of a column at all sites, and the order of its categories."""
    there = {site: x for site, x in found.items() if x["kind"] != BLANK}
    first: dict[str, str] = {}
    for site, x in there.items():
        of = "text" if x["kind"] in TEXT_KINDS else "dates" if x["kind"] == "date" else "numbers"
        first.setdefault(of, site)
    if len(first) > 1:
        (one, here), (other, where) = list(first.items())[:2]
        raise InvalidArgument(
            f"The column {shown(name)} holds {one} at {here} and {other} at {where}: give --categorical {name} for "
            "categories, correct the cells, or leave it out with --drop."
        )
    kinds, orders = {x["kind"] for x in there.values()}, {tuple(x["order"]) for x in there.values()}
    if len(orders) > 1:
        raise InvalidArgument(
            f"The categories of {shown(name)} have another order, or none, at some of the sites {', '.join(there)}: "
            "store the same order at all sites, or leave the column out with --drop."
        )
    if not there:
        return "number", ()
    return "number" if len(kinds) > 1 or kinds <= {*COUNTERS} else kinds.pop(), orders.pop()


def _sign(name: str, found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the sign that the numbers of a column have beside them at all sites."""
    signs = {x["sign"]: site for site, x in found.items() if x["kind"] in _NUMBERS and x["filled"]}
    if len(signs) > 1:
        (one, here), (other, where) = list(signs.items())[:2]
        raise InvalidArgument(
            f"The numbers of the column {shown(name)} have the sign {shown(one)} beside them at {here} and "
            f"{shown(other)} at {where}: write them alike, or leave the column out with --drop."
        )
    return next(iter(signs), "")


def pool_rare(described: Sequence[Mapping[str, Any]], encoding: Collection[Feature]) -> list[dict[str, Any]]:
    """Return a description without the names of rare categories: "" has their number of rows together.

    Args:
      described: the description of a site (`describe_table`).
      encoding: of all sites.
    """
    used = {feature.name: {*feature.levels} for feature in encoding}
    pooled = []
    for x in described:
        levels = {level: n for level, n in x["levels"].items() if level in used.get(x["name"], ())}
        rare = sum(x["levels"].values()) - sum(levels.values())
        pooled.append({**x, "levels": {**levels, **({"": rare} if rare else {})}})
    return pooled


def notes(tables: Mapping[str, Sequence[Mapping[str, Any]]], schema: Schema) -> list[str]:
    """Return a sentence on each column that counts the rows, which is left out, and on doubtful categories.

    Args:
      tables: as of `agree_columns`.
      schema: of all sites.
    """
    used = {x.name for x in schema.encoding or schema.columns}
    doubtful = (doubts(np.array(x.levels, object), x.name) for x in schema.encoding if x.is_text)
    counting = dict.fromkeys(x["name"] for own in tables.values() for x in own if x["kind"] == ROWS)
    left_out = [
        f"The column {shown(name)} numbers the rows and is left out: name it with --only to use it."
        for name in counting
        if name not in used
    ]
    return [*left_out, *(note for each in doubtful for note in each)]
