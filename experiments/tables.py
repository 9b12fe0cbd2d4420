"""Tables of results, as Markdown and CSV."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from tfp_bfl.evaluation.repeats import Difference, paired_difference
from tfp_bfl.files.tables import FORMATS


def mean_and_sd(values: Sequence[float], digits: int = 4) -> str:
    """Return mean +- standard deviation; the mean alone of a single value."""
    mean = f"{np.mean(values):.{digits}f}"
    return f"{mean} +- {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else mean


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Difference | None:
    """Return the first's scores less the second's, seed -> score each, over the seeds of both; None below two such
    seeds.
    """
    seeds = sorted(first.keys() & second.keys())
    return paired_difference([first[s] for s in seeds], [second[s] for s in seeds]) if len(seeds) > 1 else None


def interval(difference: Difference, digits: int = 4, scale: float = 1.0) -> str:
    """Return mean and 95 % interval of a difference; bold where the interval as it is printed leaves out 0."""
    mean, low, high = (f"{scale * x:+.{digits}f}" for x in (difference.mean, difference.low, difference.high))
    text = f"{mean} [{low}, {high}]"
    return f"**{text}**" if float(low) * float(high) > 0 else text


def less(first: Mapping[int, float], second: Mapping[int, float]) -> str:
    """Return a difference paired by seed with its 95 % interval; alone of one common seed, empty of none."""
    difference = paired(first, second)
    common = first.keys() & second.keys()
    return interval(difference) if difference else "".join(f"{first[s] - second[s]:+.4f}" for s in common)


def write(rows: list[list[str]], path: pathlib.Path) -> None:
    """Write a table as .csv and .md."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for suffix in (".csv", ".md"):
        path.with_name(f"{path.name}{suffix}").write_text(FORMATS[suffix](rows), encoding="utf-8")
