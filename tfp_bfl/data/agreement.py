"""Agree: the columns of a model follow from what clients, or sites, say of the columns of their tables.

Each client of a table in one place is asked as a site is asked for its table, and a site of a linear model likewise.
Messages (`describe_column`) have a column's number of rows, its number of filled cells, their mean and standard
deviation, or the counts of its categories. From these follow the columns of the model (`encoding`), and the means and
standard deviations by which they are scaled: with N rows, n filled cells, and share q of 0 and 1,

    number: m, s sqrt(n / N);   level: q, sqrt(q (1 - q) n / N);   missing: p = (N - n) / N, sqrt(p (1 - p))
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tfp_bfl.data.cells import BLANK, COUNTERS, MOST_LEVELS, NUMBERING, NUMERIC, ROWS, TEXT_KINDS, Cells, read_cells
from tfp_bfl.data.clients import rows_by_client
from tfp_bfl.data.columns import Columns, Troubles
from tfp_bfl.data.encoding import Feature, Raw
from tfp_bfl.data.messages import ColumnMessage, describe_column
from tfp_bfl.data.names import check_spelling, natural
from tfp_bfl.data.statistics import Column, column_of, pooled_column
from tfp_bfl.data.texts import TEXT
from tfp_bfl.errors import InvalidArgument, lookup, shown

# A level is rare in fewer rows than this, and in less than this share of the rows.
RARE_ROWS, RARE_SHARE = 10, 0.01
# Of more levels than this the most frequent ones are used, and the others are rare.
MOST_USED = 255
# The name and the rows [n_k] of each client of a table, in the order of the names; [] for one client.
Rows = Sequence[tuple[str, np.ndarray]]


class TableOptions(NamedTuple):
    """Options by which all sites read their tables, as of `data.read_own`; whoever submits the run gives them."""

    drop: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    date_unit: str | None = None


# Of data without options.
NO_OPTIONS = TableOptions()


def numbers_rows(kinds: Sequence[str], numbering: Sequence[tuple[int, int] | None]) -> bool:
    """Return whether a column numbers the rows: of each client, or of all together in any order.

    Of each client: at one of them its cells are 0, 1, 2, ... or 1, 2, 3, ..., and at all others consecutive. Of all N
    rows: the cells rise at each client, and their sum is that of 0, ..., N - 1 or of 1, ..., N.

    `numbering` has number and sum of the cells at each client; None where they do not rise.
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
    """Raise InvalidArgument if a column holds different kinds, in words, at two clients: (client, kind) each."""
    first: dict[str, str] = {}
    for client, what in kinds:
        first.setdefault(what, client)
    if len(first) > 1:
        (one, here), (other, there) = sorted(first.items(), key=lambda x: (x[0] != "numbers", x))[:2]
        advice = f"give --categorical {name} for categories, correct the cells, or leave it out with --drop"
        raise InvalidArgument(f"The column {shown(name)} holds {one} at {here} and {other} at {there}: {advice}.")


def check_levels(name: str, levels: Sequence[str], categorical: Sequence[str]) -> None:
    """Raise InvalidArgument if all clients together have more than `MOST_LEVELS` levels in a column."""
    if len(levels) > MOST_LEVELS and name not in categorical:
        advice = "leave it out with --drop, or give --categorical for categories"
        raise InvalidArgument(f"The column {shown(name)} holds {len(levels)} texts at all sites: {advice}.")


def rows_of_clients(owners: np.ndarray | None) -> Rows:
    """Return the clients of a table by their names [N], "" for none; None for one client."""
    if owners is None:
        return []
    names, numbers = np.unique(owners.astype(str), return_inverse=True)
    return [pair for pair in zip(names.tolist(), rows_by_client(numbers, len(names))) if pair[0]]


def counts(cells: Cells, clients: Rows) -> bool:
    """Return whether a column in one place numbers the rows, of the whole table or of each client."""
    whole = cells.numbered()
    if not (cells.is_whole and clients) or (whole and whole.kind == ROWS):
        return bool(whole and whole.kind == ROWS)
    parts = [cells._replace(values=cells.values[own]) for _, own in clients]
    found = [part.numbered() for part in parts]
    kinds = [one.kind if one else BLANK if part.empty.all() else cells.kind for one, part in zip(found, parts)]
    return numbers_rows(kinds, [one and one[1:] for one in found])


def check_kinds(table: Columns, columns: Collection[Cells], clients: Rows, categorical: Collection[str]) -> None:
    """Check that none of the columns of a table is a category, unless it is in `categorical`, and numbers at a client.

    At a site the column would be one of numbers.
    """
    for cells in columns if clients else ():
        name, column = cells.name, table[cells.name]
        if cells.kind not in TEXT_KINDS or name in categorical or not column.is_text or column.has_codes:
            continue
        is_number, kinds = column.numerals.match().good & ~column.empty, dict[str, str]()
        for client, own in clients:
            if np.all(cells.values[own] == ""):
                continue
            part = read_cells(column.take(own), Troubles("", "")) if is_number[own].any() else cells
            kinds[client] = "text" if part is not None and part.kind in TEXT_KINDS else "numbers"
        check_one_kind(name, kinds.items())


def fit_encoding(raw: Raw, owners: np.ndarray | None = None) -> tuple[tuple[Feature, ...], tuple[Column, ...]]:
    """Return the features of a table and the columns of the model, from one message of each client.

    `owners` are the clients of the training rows [N]; None for one client.
    """
    parts = [slice(None)] if owners is None else [owners == x for x in dict.fromkeys(owners.tolist())]
    messages = lambda x: [describe_column(x._replace(values=x.values[part])) for part in parts]
    fitted = [fit_column(x, [] if x.kind == TEXT else messages(x), raw.unit) for x in raw.columns]
    return tuple(feature for feature, _ in fitted), tuple(column for _, own in fitted for column in own)


def fit_column(
    cells: Cells, messages: Sequence[ColumnMessage], unit: str | None = None
) -> tuple[Feature, tuple[Column, ...]]:
    """Return how a column becomes columns of the model, and their means and standard deviations.

    Of `cells` name, kind, declared levels and sign are used, of texts the features; `unit` is of dates.
    """
    if cells.kind == TEXT:  # Of all rows, which equals what clients' own are pooled to.
        feature = Feature(cells.name, TEXT, unit=cells.sign)
        return feature, tuple(column_of(name, x) for name, x in zip(feature.columns, cells.values.T))
    rows, count = sum(m.rows for m in messages), sum(m.filled for m in messages)
    if not count:
        raise InvalidArgument(f"The column {shown(cells.name)} has no value in training rows: leave it out by --drop.")
    missing, filled = count < rows, (count / rows) ** 0.5
    if cells.kind in TEXT_KINDS:
        numbers: dict[str, int] = {}
        for level, number in (pair for m in messages for pair in m.levels.items()):
            numbers[level] = numbers.get(level, 0) + number
        levels, has_rare = [x for x in cells.levels if numbers.get(x)], False
        if cells.kind == "category":
            frequent = sorted(numbers, key=lambda x: (-numbers[x], natural(x)))[:MOST_USED]
            levels = sorted((x for x in frequent if numbers[x] >= min(RARE_ROWS, RARE_SHARE * rows)), key=natural)
            has_rare = len(levels) < len(numbers)
        feature = Feature(cells.name, cells.kind, tuple(levels), has_rare, missing)
        by_level = [*(numbers[x] for x in levels), sum(n for x, n in numbers.items() if x not in {*levels})]
        shares = np.minimum(np.array(by_level) / count @ np.nan_to_num(feature.codes), 1.0).tolist()
        moments = [(q, (q * (1 - q)) ** 0.5 * filled) for q in shares]
    else:
        pooled = pooled_column(cells.name, *zip(*((m.filled, m.mean, m.stddev) for m in messages if m.filled)))
        unit = unit if cells.kind == "date" else cells.sign or None
        feature = Feature(cells.name, cells.kind, has_missing=missing, unit=unit)
        moments = [(pooled.mean, pooled.stddev * filled)]
    if missing:
        share = 1 - count / rows
        moments.append((share, (share * (1 - share)) ** 0.5))
    return feature, tuple(Column(name, *moment) for name, moment in zip(feature.columns, moments))


def agree_columns(
    tables: Mapping[str, Sequence[ColumnMessage]], sizes: Mapping[str, int], options: TableOptions
) -> tuple[tuple[Feature, ...], tuple[Column, ...]]:
    """Return the encoding of all sites' columns, and the columns of the model.

    A column that a site does not have counts as empty there. The encoding is () where all columns are full and hold
    numbers, as of `data.read_own`.

    `tables` has the messages of each site, and `sizes` the number of rows by which it counts.
    """
    of_sites = {site: {x.name: x for x in described} for site, described in tables.items()}
    check_spelling({site: [*own] for site, own in of_sites.items()}, "column")
    there = dict.fromkeys(name for own in of_sites.values() for name in own)
    names = [*(name for name in options.only if name in there), *(name for name in there if name not in options.only)]
    for option in ("only", "categorical"):
        for name in getattr(options, option):
            lookup(dict.fromkeys(names), name, "column", f"at any site for --{option}")
    if not names:
        raise InvalidArgument("The tables of the sites have no columns besides the labels: there is nothing to learn.")
    absent = ColumnMessage.model_construct(name="", kind=BLANK, rows=0, filled=0, levels={}, numbering=None)
    found = {name: {site: own.get(name, absent) for site, own in of_sites.items()} for name in names}
    parts = {name: zip(*((x.kind, x.numbering) for x in own.values())) for name, own in found.items()}
    counting = {name for name, (kinds, numbering) in parts.items() if numbers_rows(kinds, numbering)}
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
        where = f"{shown(name)} have another order, or none, at some of the sites {', '.join(there)}"
        raise InvalidArgument(f"The categories of {where}: store the same order at all sites, or give --drop.")
    signs = {x.sign: site for site, x in there.items() if x.kind in NUMERIC and x.filled}
    if len(signs) > 1:
        (one, here), (other, where) = list(signs.items())[:2]
        signs_are = f"have the sign {shown(one)} beside them at {here} and {shown(other)} at {where}"
        raise InvalidArgument(f"The numbers of the column {shown(name)} {signs_are}: write them alike, or give --drop.")
    counts = not there or len(kinds) > 1 or kinds <= {*NUMBERING}
    order = next(iter(orders), ())
    return Cells(name, "number" if counts else kinds.pop(), np.zeros(0), order, sign=next(iter(signs), ""))
