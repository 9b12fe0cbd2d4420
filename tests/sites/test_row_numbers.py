"""Columns that number the rows of the sites' tables."""

import numpy as np

from tests.sites.test_tables import ROWS, agreed, put, table


def test_row_numbers_begin_at_0_or_1_at_some_site(tmp_path):
    for k, name in enumerate(("north", "south")):
        of = {"id": np.arange(ROWS) + ROWS * k + 1, "year": np.arange(ROWS) + 1960}
        put(tmp_path, name, table(k, **of).drop_columns(["seen"]), suffix=".parquet")
    names = [column.name for column in agreed(tmp_path)[0].columns]
    assert "year" in names and "id" not in names
