"""Questions that each client of a table in one place answers for its own rows, as a site does for its table."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from tfp_bfl.data.agreement import check_one_kind, numbers_rows
from tfp_bfl.data.cells import BLANK, ROWS, TEXT_KINDS, Cells, read_cells
from tfp_bfl.data.columns import Troubles, decoded, is_text
from tfp_bfl.data.numerals import match_numbers

Rows = Sequence[tuple[str, np.ndarray]]


def rows_of_clients(owners: np.ndarray | None) -> Rows:
    """Return the name and the rows [n_k] of each client of a table, in the order of the names.

    Args:
      owners: the client of each row [N], "" for none; None for one client.
    """
    if owners is None:
        return []
    names, numbers = np.unique(owners.astype(str), return_inverse=True)
    rows = np.split(np.argsort(numbers, kind="stable"), np.cumsum(np.bincount(numbers))[:-1])
    return [(name, own) for name, own in zip(names.tolist(), rows) if name]


def counts(cells: Cells, clients: Rows) -> bool:
    """Return whether a column numbers the rows, of the whole table or of each client."""
    if not cells.is_whole or not clients:
        return cells.counter == ROWS
    parts = [cells._replace(values=cells.values[own]) for _, own in clients]
    kinds = [BLANK if part.empty.all() else part.counter for part in parts]
    return cells.counter == ROWS or numbers_rows(kinds, [part.numbered for part in parts])


def check_kinds(table: Any, columns: Collection[Cells], clients: Rows, categorical: Collection[str]) -> None:
    """Check that no category has only numbers at a client: at a site the column would be one of numbers.

    Args:
      table: of pyarrow.
      columns: their cells.
      clients: of `rows_of_clients`.
      categorical: columns that are categories, whatever they hold.

    Raises:
      InvalidArgument: a column has words at one client, and at another numbers or dates.
    """
    for cells in columns:
        name, plain = cells.name, decoded(table[cells.name])
        if cells.kind not in TEXT_KINDS or name in categorical or not is_text(plain) or plain.type != table[name].type:
            continue
        found = match_numbers(plain)
        is_number, kinds = found.good & ~found.empty, dict[str, str]()
        for client, own in clients:
            if np.all(cells.values[own] == ""):
                continue
            part = read_cells(plain.take(own), name, Troubles("", "")) if is_number[own].any() else cells
            kinds[client] = "text" if part is not None and part.kind in TEXT_KINDS else "numbers"
        check_one_kind(name, kinds.items())
