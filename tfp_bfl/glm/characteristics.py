"""Table 1 of a study: the columns of a table by group, from sums of its clients.

Of a column of numbers x, over the rows of a group with a filled cell:

    mean = sum x / n,   sd^2 = sum (x - mean)^2 / (n - 1),   quantiles as R's type 7, by bisection on counts
    standardised difference of two groups:  (mean_1 - mean_2) / sqrt((sd_1^2 + sd_2^2) / 2)

Of a column of text with shares p, q of its levels but the first in two groups:

    sqrt((p - q)' S^+ (p - q)),   S = (diag(p) - p p' + diag(q) - q q') / 2

Of several groups it is the largest of all pairs. All that a client sends are sums over its rows, so that the table is
that of all rows in one place.

Source: Yang & Dalton 2012 for levels; Hyndman & Fan 1996 for the type of quantiles.
"""

import itertools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfp_bfl import files
from tfp_bfl.data.cells import ROWS, TEXT_KINDS, Cells, read_columns
from tfp_bfl.data.columns import Troubles
from tfp_bfl.data.names import as_names, canonical, client_names, natural
from tfp_bfl.data.tables import as_table, is_table, read_table
from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.glm.federation import add_answers
from tfp_bfl.glm.posterior import Coefficients

# Of --by, of which each is a column of the table; thresholds of a message of the bisection, and its messages.
MOST_GROUPS = 10
_THRESHOLDS, _MESSAGES = 15, 13
_SHARES = np.array([0.25, 0.5, 0.75])
# Adds up what a function returns for the rows of each client [n].
_Total = Callable[[Callable[[np.ndarray], Any]], np.ndarray]


class Numbers(NamedTuple):
    """A column of numbers by group, all rows first.

    Fields:
      name: of the column.
      filled, missing: rows with and without a value [g].
      mean, sd: [g]; the standard deviation of one row is NaN.
      quartiles: [g, 3], to 1e-9 of the standard deviation of all rows.
      difference: the largest standardised difference of two groups; NaN without groups.
    """

    name: str
    filled: np.ndarray
    missing: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    quartiles: np.ndarray
    difference: float


class Levels(NamedTuple):
    """A column of text by group, all rows first: rows of each level [g, l], rows without one [g], and the difference of
    groups as of `Numbers`.
    """

    name: str
    levels: list[str]
    counts: np.ndarray
    missing: np.ndarray
    difference: float


class TableOne(NamedTuple):
    """Table 1 (`table_one`); `str` of `table()` is aligned text.

    Fields:
      groups: names, "all" first [g].
      rows: of each group [g].
      columns: `Numbers` or `Levels` of each column.
      messages: that each client received.
      notes: sentences on the rows.
    """

    groups: list[str]
    rows: np.ndarray
    columns: list[Numbers | Levels]
    messages: int
    notes: list[str]

    def table(self) -> Coefficients:
        """Tabulate mean (sd), median [quartiles], number (percent), missing cells and standardised differences."""
        has_groups = len(self.groups) > 1

        def row(name: str, cells: Sequence[str], missing: object = "", difference: float = np.nan) -> dict[str, str]:
            beside = {"missing": str(missing), **({"difference": _text(difference)} if has_groups else {})}
            return {"": name, **dict(zip(self.groups, cells)), **beside}

        found = Coefficients([row("rows", [f"{n:,.0f}" for n in self.rows])])
        for column in self.columns:
            missing = f"{column.missing[0]:,.0f}"
            if isinstance(column, Numbers):
                means = [f"{_text(m)} ({_text(s)})" for m, s in zip(column.mean, column.sd)]
                found.append(row(f"{column.name}, mean (sd)", means, missing, column.difference))
                found.append(row(f"{column.name}, median [quartiles]", [_quartiles(q) for q in column.quartiles]))
                continue
            found.append(row(f"{column.name}, n (%)", [""] * len(self.groups), missing, column.difference))
            of_groups = np.maximum(column.counts.sum(1), 1)
            for level, counts in zip(column.levels, column.counts.T):
                cells = [f"{n:,.0f} ({100 * n / of:.1f})" for n, of in zip(counts, of_groups)]
                found.append(row(f"  {level}", cells))
        return found


def table_one(
    table: Any,
    by: str | None = None,
    client_column: str | None = None,
    *,
    only: Sequence[str] = (),
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    separator: str | None = None,
    secure_sums: bool = False,
) -> TableOne:
    """Describe the columns of a table by group, from sums of its clients; the result is that of all rows in one place.

    Clients send rows, filled cells, sums and levels by group, then sums of squares, and then counts of values up to
    thresholds, between which the quartiles are found.

    Args:
      table: the path of a .csv, .tsv or .parquet file; or a table in memory, such as a pandas DataFrame.
      by: the column of the groups, two to ten; None for all rows alone.
      client_column: the client of each row; None for one client.
      only, drop: columns to use, and to leave out; all but `by` and `client_column` by default.
      categorical: columns of numbers that are categories.
      separator: of a .csv or .tsv file; None for that of the header.
      secure_sums: add the clients' sums in fixed point, as secure aggregation does (`glm.sums`).

    Raises:
      InvalidArgument: a column that the table has not, too many groups, or an empty column.

    Example:
      >>> import pandas as pd
      >>> import tfp_bfl as bfl
      >>> rows = pd.DataFrame({"arm": ["drug", "none"] * 4, "site": ["n"] * 3 + ["s"] * 5, "age": [60, 52, 71, 64, 55,
      ...                      49, 66, 58], "sex": ["f", "m", "m", "m", "f", "f", "m", None]})
      >>> print(bfl.glm.table_one(rows, by="arm", client_column="site").table())
                                            all               drug              none  missing  difference
      rows                                    8                  4                 4
      age, mean (sd)              59.38 (7.405)         63 (6.976)     55.75 (6.652)        0       1.064
      age, median [quartiles]  59 [54.25, 64.5]  63 [58.75, 67.25]  55 [51.25, 59.5]
      sex, n (%)                                                                            1       0.343
        f                              3 (42.9)           2 (50.0)          1 (33.3)
        m                              4 (57.1)           2 (50.0)          2 (66.7)
    """
    where = "the table" if is_table(table) else files.name(pathlib.Path(table))
    names = {option: canonical(name) for option, name in (("by", by), ("client_column", client_column)) if name}
    only, drop, categorical = map(as_names, (only, drop, categorical))
    text = [*names.values(), *categorical]
    read = as_table(table, where) if is_table(table) else read_table(pathlib.Path(table), separator, text=text)
    for name in (*names.values(), *only, *drop, *categorical):
        lookup(dict.fromkeys(read.column_names), name, "column", f"in {where}")
    chosen = [x for x in only or read.column_names if x not in (*drop, *names.values())]
    if not chosen:
        raise InvalidArgument(
            f"{where} has no columns beside those of groups and clients: there is nothing to describe."
        )
    everybody = np.full(read.num_rows, "all", object)
    groups = read[names["by"]].categories if by else everybody
    owners, notes = everybody, list[str]()
    if client_column:
        distinct, notes = client_names(read[names["client_column"]].distinct[1], names["client_column"])
        owners = read[names["client_column"]].spread(distinct)
    used = (groups != "") & (owners != "")
    if count := int(np.sum(~used)):
        notes = [*notes, f"Rows left out without a group or a client: {count:,}."]
    of_groups = sorted({*groups[used]}, key=natural) if by else []
    if by and not 2 <= len(of_groups) <= MOST_GROUPS:
        raise InvalidArgument(
            f"The column {shown(by)} of {where} holds {len(of_groups)} groups, but must hold 2 to {MOST_GROUPS}: name "
            "another column by --by."
        )
    troubles = Troubles(where, "leave columns out with --drop")
    cells = read_columns(read, chosen, troubles, categorical, None, names.get("client_column"))
    troubles.check()
    numbering = [x.name for x in cells if x.name not in only and (own := x.numbered()) and own.kind == ROWS]
    notes = [*notes, *(f"The column {shown(name)} numbers the rows and is left out." for name in numbering)]
    cells = [x for x in cells if x.name not in numbering]
    if empty := next((x.name for x in cells if np.all(x.empty[used])), None):
        raise InvalidArgument(f"The column {shown(empty)} of {where} is empty: --drop it.")
    # Groups of a row: all, and its own.
    members = np.stack([used, *(used & (groups == name) for name in of_groups)], 1).astype(np.float64)
    parts = [np.flatnonzero(owners == name) for name in sorted({*owners[used]}, key=natural)]
    total: _Total = lambda of_rows: add_answers((np.ravel(of_rows(part)) for part in parts), secure_sums)
    found: list[Numbers | Levels] = []
    for x in cells:
        is_text = x.kind in (*TEXT_KINDS, "truth")
        found.append(_levels(x, members, total) if is_text else _numbers(x, members, total))
    rows = total(lambda part: members[part].sum(0))
    has_numbers = any(isinstance(x, Numbers) for x in found)
    return TableOne(["all", *of_groups], rows, found, 2 + _MESSAGES if has_numbers else 1, notes)


def _numbers(cells: Cells, members: np.ndarray, total: _Total) -> Numbers:
    """Describe a column of numbers, by sums over the rows of clients [n]."""
    filled = members * ~cells.empty[:, np.newaxis]
    x = np.where(cells.empty, 0.0, cells.values)
    first_sums = lambda part: [filled[part].sum(0), (members - filled)[part].sum(0), x[part] @ filled[part]]
    number, missing, sums = total(first_sums).reshape(3, -1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = sums / number
        centred = np.where(filled > 0, x[:, np.newaxis] - mean, 0.0)
        squares = total(lambda part: (centred[part] ** 2).sum(0))
        sd = np.sqrt(squares / (number - 1))
        of_pairs = [
            abs(mean[a] - mean[b]) / np.sqrt((sd[a] ** 2 + sd[b] ** 2) / 2)
            for a, b in itertools.combinations(range(1, len(mean)), 2)
        ]
    # All values are within sqrt(n) standard deviations of the mean; order statistics k and k + 1 of each quartile.
    place = 1 + np.maximum(number - 1, 0)[:, np.newaxis] * _SHARES
    ranks = np.stack([np.floor(place), np.ceil(place)], 2)
    half = np.sqrt(np.maximum(squares, 0))[:, np.newaxis, np.newaxis] * np.ones(ranks.shape)
    low, high = mean[:, np.newaxis, np.newaxis] - half, mean[:, np.newaxis, np.newaxis] + half
    for _ in range(_MESSAGES):
        at = low[..., np.newaxis] + (high - low)[..., np.newaxis] * np.arange(1, _THRESHOLDS + 1) / (_THRESHOLDS + 1)

        def below(part: np.ndarray, at: np.ndarray = at) -> np.ndarray:
            found = np.zeros(at.shape)
            for g in range(at.shape[0]):
                own = np.sort(x[part][filled[part, g] > 0])
                found[g] = np.searchsorted(own, at[g], "right")
            return found

        passed = total(below).reshape(at.shape) >= ranks[..., np.newaxis]
        first = np.where(passed.any(-1), passed.argmax(-1), _THRESHOLDS)
        edges = np.concatenate([low[..., np.newaxis], at, high[..., np.newaxis]], -1)
        low, high = (np.take_along_axis(edges, (first + k)[..., np.newaxis], -1)[..., 0] for k in (0, 1))
    share = (place - ranks[..., 0])[..., np.newaxis] * [-1, 1] + [1, 0]
    quartiles = np.sum((low + high) / 2 * share, -1)
    unit = 10.0 ** (np.floor(np.log10(sd[0])) - 9) if sd[0] > 0 else 1e-9
    quartiles = np.round(quartiles / unit) * unit + 0.0
    return Numbers(cells.name, number, missing, mean, sd, quartiles, max(of_pairs, default=np.nan))


def _levels(cells: Cells, members: np.ndarray, total: _Total) -> Levels:
    """Describe a column of text or of truth values."""
    truth = cells.values
    if cells.kind == "truth":
        truth = np.where(cells.empty, "", np.where(cells.values == 1, "True", "False"))
    levels = sorted({*truth} - {""}, key=natural)
    at = np.stack([truth == level for level in [*levels, ""]], 1).astype(np.float64)
    counts = total(lambda part: members[part].T @ at[part]).reshape(members.shape[1], -1)
    counts, missing = counts[:, :-1], counts[:, -1]
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    of_pairs = []
    for p, q in itertools.combinations(shares[1:, 1:], 2):
        spread = (np.diag(p) - np.outer(p, p) + np.diag(q) - np.outer(q, q)) / 2
        of_pairs.append(float(np.sqrt((p - q) @ np.linalg.pinv(spread, hermitian=True) @ (p - q))))
    return Levels(cells.name, levels, counts, missing, max(of_pairs, default=np.nan))


def _text(x: float) -> str:
    return f"{x:.4g}" if np.isfinite(x) else "-" if not np.isnan(x) else ""


def _quartiles(of_group: np.ndarray) -> str:
    first, median, third = map(_text, of_group)
    return f"{median} [{first}, {third}]"
