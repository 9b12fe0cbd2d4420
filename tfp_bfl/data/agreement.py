"""The columns of a model that follow from what clients, or sites, say of the columns of their tables.

Each client of a table in one place is asked as a site is asked for its table, and a site of a linear model likewise:

    describe_column   the message about a column: its kind, and counts, or mean and standard deviation
    numbers_rows      whether the column numbers the rows, of each client or of all together
    check_one_kind    numbers, dates or text: one of these at all clients
    agree_columns     the columns of the model, from all messages
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tfp_bfl.data.cells import BLANK, COUNTERS, MOST_LEVELS, NUMBERING, NUMERIC, ROWS, TEXT_KINDS, Cells
from tfp_bfl.data.encoding import Feature, fit_column
from tfp_bfl.data.messages import ColumnMessage
from tfp_bfl.data.names import check_spelling
from tfp_bfl.data.statistics import Column
from tfp_bfl.errors import InvalidArgument, lookup, shown


def numbers_rows(kinds: Sequence[str], numbering: Sequence[tuple[int, int] | None]) -> bool:
    """Return whether a column numbers the rows: of each client, or of all together in any order.

    Of each client: at one of them its cells are 0, 1, 2, ... or 1, 2, 3, ..., and at all others consecutive. Of all N
    rows: the cells rise at each client, and their sum is that of 0, ..., N - 1 or of 1, ..., N.

    Args:
      kinds: of the column at each client.
      numbering: number and sum of its cells at each client; None where they do not rise.
    """
    filled = {*kinds} - {BLANK}
    if ROWS in filled and filled <= {*COUNTERS}:
        return True
    sent = [pair for pair in numbering if pair is not None]
    return len(sent) == len(kinds) and is_numbering(*map(sum, zip(*sent)))


def is_numbering(count: float, total: float) -> bool:
    """Return whether `count` whole numbers with this total can be 0, ..., count - 1 or 1, ..., count."""
    last = count * (count + 1) / 2
    return count > 0 and total in (last, last - count)


def check_one_kind(name: str, kinds: Iterable[tuple[str, str]]) -> None:
    """Raise InvalidArgument if a column holds different kinds at two clients.

    Args:
      name: of the column.
      kinds: (client, what it holds there, in words), in the order of the clients.
    """
    first: dict[str, str] = {}
    for client, what in kinds:
        first.setdefault(what, client)
    if len(first) > 1:
        (one, here), (other, there) = sorted(first.items(), key=lambda x: (x[0] != "numbers", x))[:2]
        raise InvalidArgument(
            f"The column {shown(name)} holds {one} at {here} and {other} at {there}: give --categorical {name} for "
            "categories, correct the cells, or leave it out with --drop."
        )


def check_levels(name: str, levels: Sequence[str], categorical: Sequence[str]) -> None:
    """Raise InvalidArgument if all clients together have more than `MOST_LEVELS` levels in a column."""
    if len(levels) > MOST_LEVELS and name not in categorical:
        raise InvalidArgument(
            f"The column {shown(name)} holds {len(levels)} texts at all sites: leave it out with --drop, or give "
            "--categorical for categories."
        )


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


def agree_columns(
    tables: Mapping[str, Sequence[ColumnMessage]], sizes: Mapping[str, int], options: TableOptions
) -> tuple[tuple[Feature, ...], tuple[Column, ...]]:
    """Return the encoding of all sites' columns, and the columns of the model.

    A column that a site does not have counts as empty there. The encoding is () where all columns are full and hold
    numbers, as of `data.read_own`.

    Args:
      tables: site -> its messages.
      sizes: site -> the number of rows by which it counts.
      options: of the run.

    Raises:
      InvalidArgument: an option names a column that no site has, no column is left, two columns differ in case only, or
        a column holds text at one site and numbers at another, has too many categories, or has no value at any site.
    """
    of_sites = {site: {x.name: x for x in described} for site, described in tables.items()}
    check_spelling({site: [*own] for site, own in of_sites.items()}, "column")
    there = dict.fromkeys(name for own in of_sites.values() for name in own)
    names = [*(name for name in options.only if name in there), *(name for name in there if name not in options.only)]
    for option in ("only", "categorical"):
        for name in getattr(options, option):
            if name not in names:
                lookup(dict.fromkeys(names), name, "column", f"at any site for --{option}")
    if not names:
        raise InvalidArgument("The tables of the sites have no columns besides the labels: there is nothing to learn.")
    found = {name: {site: own.get(name, _absent(name)) for site, own in of_sites.items()} for name in names}
    counting = {
        name
        for name, own in found.items()
        if numbers_rows([x.kind for x in own.values()], [x.numbering for x in own.values()])
    }
    features: list[Feature] = []
    columns: list[Column] = []
    # A column that is the only one is used, whatever it holds.
    for name in [name for name in names if name not in counting] or names:
        cells = _agreed(name, {site: x for site, x in found[name].items() if x.kind != BLANK})
        messages = [_counted(x, size) for x, size in zip(found[name].values(), sizes.values())]
        check_levels(name, [*{x for message in messages for x in message.levels}], options.categorical)
        feature, own_columns = fit_column(cells, messages, options.date_unit)
        features.append(feature)
        columns += own_columns
    is_plain = all(x.kind in NUMERIC and not (x.has_missing or x.unit) for x in features)
    return () if is_plain else tuple(features), tuple(columns)


def _absent(name: str) -> ColumnMessage:
    return ColumnMessage.model_construct(name=name, kind=BLANK, rows=0, filled=0, levels={}, numbering=None)


def _counted(message: ColumnMessage, size: int) -> ColumnMessage:
    """Return a site's message about a column, counted as `size` rows."""
    if size == (rows := message.rows):
        return message
    share = size / max(rows, 1)  # Counts need not be whole.
    levels = {level: number * share for level, number in message.levels.items()}
    filled = size if rows and message.filled == rows else message.filled * share
    return message.model_copy(update={"rows": size, "filled": filled, "levels": levels})


def _agreed(name: str, there: Mapping[str, ColumnMessage]) -> Cells:
    """Return name, kind, order of the categories and sign of a column at all sites that have a value."""
    words = {**dict.fromkeys(TEXT_KINDS, "text"), "date": "dates"}
    check_one_kind(name, ((site, words.get(x.kind, "numbers")) for site, x in there.items()))
    kinds, orders = {x.kind for x in there.values()}, {tuple(x.order) for x in there.values()}
    if len(orders) > 1:
        raise InvalidArgument(
            f"The categories of {shown(name)} have another order, or none, at some of the sites {', '.join(there)}: "
            "store the same order at all sites, or leave the column out with --drop."
        )
    signs = {x.sign: site for site, x in there.items() if x.kind in NUMERIC and x.filled}
    if len(signs) > 1:
        (one, here), (other, where) = list(signs.items())[:2]
        raise InvalidArgument(
            f"The numbers of the column {shown(name)} have the sign {shown(one)} beside them at {here} and "
            f"{shown(other)} at {where}: write them alike, or leave the column out with --drop."
        )
    counts = not there or len(kinds) > 1 or kinds <= {*NUMBERING}
    order = next(iter(orders), ())
    return Cells(name, "number" if counts else kinds.pop(), np.zeros(0), order, sign=next(iter(signs), ""))
