"""Questions that each client of a table in one place answers for its own rows, as a site does for its table."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from tfp_bfl.data.agreement import check_one_kind, numbers_rows
from tfp_bfl.data.cells import BLANK, ROWS, TEXT_KINDS, Cells, read_cells
from tfp_bfl.data.clients import rows_by_client
from tfp_bfl.data.columns import Columns, Troubles

Rows = Sequence[tuple[str, np.ndarray]]


def rows_of_clients(owners: np.ndarray | None) -> Rows:
    """Return the name and the rows [n_k] of each client of a table, in the order of the names.

    Args:
      owners: the client of each row [N], "" for none; None for one client.
    """
    if owners is None:
        return []
    names, numbers = np.unique(owners.astype(str), return_inverse=True)
    return [pair for pair in zip(names.tolist(), rows_by_client(numbers, len(names))) if pair[0]]


def counts(cells: Cells, clients: Rows) -> bool:
    """Return whether a column numbers the rows, of the whole table or of each client."""
    whole = cells.numbered()
    if not (cells.is_whole and clients) or (whole and whole.kind == ROWS):
        return bool(whole and whole.kind == ROWS)
    parts = [cells._replace(values=cells.values[own]) for _, own in clients]
    found = [part.numbered() for part in parts]
    kinds = [one.kind if one else BLANK if part.empty.all() else cells.kind for one, part in zip(found, parts)]
    return numbers_rows(kinds, [one and one[1:] for one in found])


def check_kinds(table: Columns, columns: Collection[Cells], clients: Rows, categorical: Collection[str]) -> None:
    """Check that no category has only numbers at a client: at a site the column would be one of numbers.

    Args:
      table: of `read_table`.
      columns: their cells.
      clients: of `rows_of_clients`.
      categorical: columns that are categories, whatever they hold.

    Raises:
      InvalidArgument: a column has words at one client, and at another numbers or dates.
    """
    for cells in columns:
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
