"""Rules of disclosure of a site: which linear models over its rows it answers, whatever a submitter asks for.

They are those of DataSHIELD, in `local/party.yaml` of the site alone. Each refusal names its rule, and not the count.

Source: Wilson et al. 2017, DataSHIELD: new directions and dimensions; its options nfilter.tab and nfilter.glm.
"""

import pathlib
import time
from collections.abc import Sequence

import numpy as np

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.glm.rows import INTERCEPT, Rows
from tfp_bfl.sites.deployment.party_file import PartyFile

_DAY = 24 * 3600


def check_model(file: PartyFile, rows: Rows, names: Sequence[str], family: str) -> None:
    """Refuse a model over the rows of the site with a small cell, or too many coefficients.

    A cell is the number of rows with 1, or with 0, in a column of 0 and 1, and of rows with and without an event.
    """
    if len(names) > file.max_coefficient_share * len(rows.design):
        raise InvalidArgument(
            f"The model has more coefficients than {file.max_coefficient_share:g} of its rows, the most that "
            "max_coefficient_share of its file allows: use fewer columns, or leave this site out."
        )
    cells = {name: column for name, column in zip(names, rows.design.T) if name != INTERCEPT}
    outcome = rows.outcome[:, 1] if family == "cox" else rows.outcome
    if family in ("bernoulli", "cox"):
        cells["the event"] = outcome
    for name, column in cells.items():
        ones = int(np.sum(column == 1))
        is_cell = np.all((column == 0) | (column == 1)) and 0 < ones < len(column)
        if is_cell and min(ones, len(column) - ones) < file.smallest_cell:
            raise InvalidArgument(
                f"It has fewer than {file.smallest_cell} rows with one of the values of {name}, the least that "
                "smallest_cell of its file allows: join levels, drop the column, or leave this site out."
            )


def check_day(file: PartyFile, runs: Sequence[pathlib.Path]) -> None:
    """Refuse a run if the folders of so many others have changed within a day."""
    recent = [path for path in runs if path.stat().st_mtime > time.time() - _DAY]
    if len(recent) >= file.max_daily_runs:
        raise InvalidArgument(
            f"It has answered in {len(recent):,} runs within a day, the most that max_daily_runs of its file allows: "
            "submit tomorrow."
        )
