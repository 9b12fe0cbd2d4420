"""Tables of results, as Markdown and CSV."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import numpy as np

from tfp_bfl.files.tables import FORMATS


def mean_and_sd(values: Sequence[float], digits: int = 4) -> str:
    """Mean +- standard deviation; the mean alone of a single value."""
    mean = f"{np.mean(values):.{digits}f}"
    return f"{mean} +- {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else mean


def write(rows: list[list[str]], path: pathlib.Path) -> None:
    """Writes a table as .csv and .md."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for suffix in (".csv", ".md"):
        path.with_name(f"{path.name}{suffix}").write_text(FORMATS[suffix](rows), encoding="utf-8")
