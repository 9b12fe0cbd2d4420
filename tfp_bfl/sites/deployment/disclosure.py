"""Rules of disclosure of a site: which linear models over its rows, and how many runs a day, it answers.

They are keys of `local/party.yaml`, of the site alone. Each refusal names its rule and no count, comes before any sum
over the rows leaves the site, and is a line in `local/refusals.log`.

Rows are those of the table: a row with a weight, or with trials, is one.

Source: Wilson et al. 2017, DataSHIELD: new directions and dimensions; its options nfilter.tab and nfilter.glm.
"""

import datetime
import json
import pathlib
import time

import numpy as np

from tfp_bfl.data.cells import TEXT_KINDS
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files import write_whole
from tfp_bfl.glm.design import SiteCells
from tfp_bfl.sites.deployment.party_file import PartyFile

# Files of a site: the jobs that it began within a day, and its refusals.
DAY, REFUSALS = "memory/day.json", "refusals.log"
_DAY = 24 * 3600
# A column or an outcome with as many different values has cells.
_MOST_VALUES = 3


def check_cells(file: PartyFile, cells: SiteCells, indicates: bool) -> None:
    """Refuse the rows of a model if few of them have a level, or one of up to three values, or an event.

    With `indicates`, few empty cells of a column are refused too: they have a column of their own.
    """
    places = cells.places
    for column in cells.columns:
        texts = column.values.astype(str)
        if indicates and 0 < len(np.unique(places[column.empty])) < file.smallest_cell:
            _refuse(file, f"an empty cell of {column.name}")
        _check(file, texts[~column.empty], places[~column.empty], column.name, column.kind in TEXT_KINDS)
    _check(file, cells.outcomes.astype(str), places, "the outcome", False)


def _check(file: PartyFile, values: np.ndarray, places: np.ndarray, name: str, is_text: bool) -> None:
    distinct = np.unique(values)
    if (is_text or len(distinct) <= _MOST_VALUES) and any(
        len(np.unique(places[values == value])) < file.smallest_cell for value in distinct
    ):
        _refuse(file, f"one of the values of {name}")


def _refuse(file: PartyFile, what: str) -> None:
    raise InvalidArgument(
        f"It has fewer than {file.smallest_cell} rows with {what}, the least that smallest_cell of its file allows: "
        "join levels, drop the column, or leave this site out."
    )


def check_share(file: PartyFile, coefficients: int, rows: int) -> None:
    """Refuse a model with many coefficients for the rows of the site."""
    if coefficients > file.max_coefficient_share * rows:
        raise InvalidArgument(
            f"The model has more coefficients than {file.max_coefficient_share:g} of its rows, the most that "
            "max_coefficient_share of its file allows: use fewer columns, or leave this site out."
        )


def count_job(file: PartyFile, folder: pathlib.Path, digest: str) -> None:
    """Count a job, by its digest, among those of a day, and refuse one more than the file allows."""
    path, now = folder / DAY, time.time()
    begun = json.loads(path.read_text()) if path.exists() else {}
    begun = {job: at for job, at in begun.items() if at > now - _DAY}
    if digest not in begun and len(begun) >= file.max_daily_runs:
        raise InvalidArgument(
            f"It has begun {len(begun):,} runs within a day, the most that max_daily_runs of its file allows: submit "
            "tomorrow."
        )
    path.parent.mkdir(exist_ok=True)
    write_whole(path, json.dumps({digest: now, **begun}))


def log_refusal(folder: pathlib.Path, task: str, reason: object) -> None:
    """Add a line to the log of a site: time, task and reason."""
    at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with open(folder / REFUSALS, "a", encoding="utf-8") as file:
        file.write(f"{at} {task} {' '.join(str(reason).split())}\n")
