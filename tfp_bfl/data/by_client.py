"""Questions that each client of a table in one place answers for its own rows, as a site does for its table."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from tfp_bfl.data.cells import COUNTERS, ROWS, TEXT_KINDS, Cells, read_cells
from tfp_bfl.data.columns import Troubles, decoded, is_text
from tfp_bfl.data.numerals import match_numbers
from tfp_bfl.errors import InvalidArgument, shown


def numbers_rows(cells: Cells, owners: np.ndarray | None) -> bool:
    """Return whether a column numbers the rows, of the whole table or of each client.

    Args:
      cells: of the column.
      owners: the client of each row [N], "" for none; None for one client.
    """
    if cells.counts_rows or owners is None:
        return cells.counts_rows
    parts = [cells._replace(values=cells.values[owners == name]) for name in {*owners.tolist()} - {""}]
    kinds = {part.counter for part in parts if not part.empty.all()}
    return ROWS in kinds and kinds <= {*COUNTERS}


def check_kinds(table: Any, columns: Collection[Cells], owners: np.ndarray, categorical: Collection[str]) -> None:
    """Check that no category has only numbers at a client: at a site the column would be one of numbers.

    Args:
      table: of pyarrow.
      columns: their cells.
      owners: the client of each row [N], "" for none.
      categorical: columns that are categories, whatever they hold.

    Raises:
      InvalidArgument: a column has words at one client, and at another numbers or dates.
    """
    import pyarrow

    for cells in columns:
        name, plain = cells.name, decoded(table[cells.name])
        if cells.kind not in TEXT_KINDS or name in categorical or not is_text(plain) or plain.type != table[name].type:
            continue
        found = match_numbers(plain)
        numeric = {*owners[found.good & ~found.empty].tolist()} - {""}
        kinds: dict[bool, str] = {}
        for client in sorted({*owners.tolist()} - {""}):
            own = owners == client
            if np.all(cells.values[own] == ""):
                continue
            part = read_cells(plain.filter(pyarrow.array(own)), name, Troubles("", "")) if client in numeric else cells
            kinds.setdefault(part is None or part.kind not in TEXT_KINDS, client)
        if len(kinds) > 1:
            raise InvalidArgument(
                f"The column {shown(name)} holds numbers at {kinds[True]} and text at {kinds[False]}: give "
                f"--categorical {name} for categories, correct the cells, or leave it out with --drop."
            )
