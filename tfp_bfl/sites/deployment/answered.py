"""Bounds of a site's file on all of its runs together, and the record of what it has answered.

A server that repeats honest fits reads the difference of two sums: the row by which two sets of rows differ. The rows
of linear models are therefore recorded, as bits, in the folder of the run.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator

import numpy as np

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files.arrays import read_arrays, write_arrays

# Folder of what a site keeps of its runs, each in a folder of its name; of a run's sets of rows.
MEMORY, ROWS = "memory", "rows"
# File of a run with how many numbers the site has sent in linear models.
ANSWERED = "answered.json"
_MOST_BYTES = 2**33


def check_runs(folder: pathlib.Path, run: str, most: int) -> None:
    """Refuse a run of a new name after the largest number of runs with answers.

    Args:
      folder: of the site.
      run: name of the run.
      most: of the site's file.

    Raises:
      InvalidArgument: the site has answered in as many runs.
    """
    others = [path for path in (folder / MEMORY).glob("*") if path.is_dir() and path.name != run]
    if len(others) >= most:
        raise InvalidArgument(
            f"It has answered in {len(others):,} runs, the most that max_runs of its file allows: each further run "
            "reveals more of its rows."
        )


def check_numbers(folder: pathlib.Path, run: str, share: float, most: int) -> None:
    """Refuse an answer with which the linear models of all runs would have as many numbers as the table has cells.

    Args:
      folder: of the site.
      run: name of the run.
      share: numbers of the run with this answer; those of sums with masks divided by the number of sites.
      most: rows times columns of the site's table.

    Raises:
      InvalidArgument: the numbers are too many.
    """
    records = [json.loads(x.read_text()) for x in (folder / MEMORY).glob(f"*/{ANSWERED}") if x.parent.name != run]
    total = share + sum(record.get("share", record["numbers"]) for record in records)
    if total >= most:
        raise InvalidArgument(
            f"Its answers in all runs would hold {total:,.0f} numbers, and its table has {most:,} (rows times "
            "columns): each further one reveals more of its rows. Use fewer columns, or sums with masks."
        )


def check_number(number: int, least: int) -> None:
    """Refuse a run over fewer rows than `least`; the number itself is not sent.

    Raises:
      InvalidArgument: the rows are fewer.
    """
    if number < least:
        raise InvalidArgument(
            f"It has fewer than {least} rows for this run, the least that min_rows of its file allows: sums of few "
            "rows reveal them."
        )


class RowSet:
    """The rows of a linear model at a site, beside those of its earlier runs.

    Args:
      folder: of the site.
      run: name of the run.
      job: digest of the job.
      columns: names of the columns of the model.
      rows: whether each row of the table is in the model [n].
    """

    def __init__(self, folder: pathlib.Path, run: str, job: str, columns: list[str], rows: np.ndarray):
        self._memory, self._path = folder / MEMORY, folder / MEMORY / run / ROWS / f"{job[:32]}.npz"
        self._columns, self._rows = columns, rows

    def check(self, least: int) -> None:
        """Check that the rows are those of each earlier run with a column in common, or differ by `least` at least.

        Raises:
          InvalidArgument: they differ by fewer rows.
        """
        for name, columns, earlier in self._earlier():
            width = max(len(earlier), len(self._rows))
            one, other = (np.pad(x, (0, width - len(x))) for x in (earlier, self._rows))
            if {*columns} & {*self._columns} and 0 < np.count_nonzero(one != other) < least:
                raise InvalidArgument(
                    f"Its rows in this run differ from those in the run {name} by fewer than {least}, the least that "
                    "min_rows of its file allows: the difference of two sums would reveal these rows. Submit with the "
                    "columns and the outcome of that run, or with --missing indicate if cells of columns are empty."
                )

    def record(self) -> None:
        """Record the rows before the first answer."""
        if not self._path.exists():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            columns = np.frombuffer("\n".join(self._columns).encode(), np.uint8)
            arrays = {"rows": np.packbits(self._rows), "number": np.array(len(self._rows)), "columns": columns}
            write_arrays(self._path, arrays)

    def _earlier(self) -> Iterator[tuple[str, list[str], np.ndarray]]:
        for path in sorted(self._memory.glob(f"*/{ROWS}/*.npz")):
            if path != self._path:
                found = read_arrays(path, "rows of a run", _MOST_BYTES)
                rows = np.unpackbits(found["rows"], count=int(found["number"])).astype(bool)
                yield path.parts[-3], found["columns"].tobytes().decode().split("\n"), rows
