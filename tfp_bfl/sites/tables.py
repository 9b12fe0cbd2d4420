"""Tables of sites: the options by which all of them read theirs, and what a run keeps of their messages.

A site sends for each column the message that a client of a simulation gives (`data.messages`), and the server merges
these messages as a simulation does (`data.agreement`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from tfp_bfl.data.agreement import TableOptions
from tfp_bfl.data.cells import DATE_UNITS, NUMBERING, TEXT_KINDS
from tfp_bfl.data.encoding import Feature, Raw
from tfp_bfl.data.messages import MOST_CATEGORIES, describe_column
from tfp_bfl.data.names import as_names
from tfp_bfl.data.numerals import doubts
from tfp_bfl.data.parts import Schema
from tfp_bfl.errors import InvalidArgument, lookup, shown

# Options of a run that all sites apply to their tables.
TABLE_OPTIONS = TableOptions._fields


def parse_options(given: object) -> TableOptions:
    """Return the options of a message.

    Raises:
      InvalidArgument: they do not have the form of `TableOptions`.
    """
    try:
        if not isinstance(given, Mapping):
            raise ValueError(given)
        stated = {name: x for name, x in given.items() if x is not None}
        drop, only, categorical, unit = TypeAdapter(TableOptions).validate_python(stated)
    except ValueError:
        raise InvalidArgument("The options of the tables do not have the required form.") from None
    if unit is not None:
        lookup(DATE_UNITS, unit, "unit of dates")
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
    described = [describe_column(cells, cells.name in options.only) for cells in raw.columns]
    for message in described:
        if len(message.levels) > most_categories:
            raise InvalidArgument(
                f"The column {shown(message.name)} has {len(message.levels):,} categories, but at most "
                f"{most_categories:,} are described: leave it out with --drop, or let the site's file allow more "
                "(max_categories)."
            )
    return [message.model_dump() for message in described]


def text_columns(raw: Raw) -> list[str]:
    """Return the names of the columns with categories."""
    return [cells.name for cells in raw.columns if cells.kind in TEXT_KINDS]


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
      tables: site -> its description (`describe_table`).
      schema: of all sites.
    """
    used = {x.name for x in schema.encoding or schema.columns}
    doubtful = (doubts(np.array(x.levels, object), x.name) for x in schema.encoding if x.is_text)
    counting = dict.fromkeys(x["name"] for own in tables.values() for x in own if x["kind"] in NUMBERING)
    left_out = [
        f"The column {shown(name)} numbers the rows and is left out: name it with --only to use it."
        for name in counting
        if name not in used
    ]
    return [*left_out, *(note for each in doubtful for note in each)]
