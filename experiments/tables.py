"""Tables of results, as Markdown and CSV."""

from __future__ import annotations

import csv
import pathlib
from collections.abc import Sequence

import numpy as np


def mean_and_sd(values: Sequence[float], digits: int = 4) -> str:
    """Mean +- standard deviation; the mean alone of a single value."""
    mean = f"{np.mean(values):.{digits}f}"
    return f"{mean} +- {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else mean


def write(rows: list[list[str]], path: pathlib.Path) -> None:
    """Writes a table as .csv and .md."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f"{path.name}.csv"), "w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    path.with_name(f"{path.name}.md").write_text("\n".join(lines) + "\n")
