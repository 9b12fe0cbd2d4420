"""Every number of every cell as one CSV, which tables are made from where the cells themselves are gone."""

from __future__ import annotations

import ast
import csv
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

Summary = dict[str, Any]

# Several values of one chain or more, split by blanks.
LISTS = (
    *("quantile", "quantile_above_least", "mean_above_least", "variances"),
    *("accuracy", "ece", "brier", "nll", "auroc", "agreement", "total_variation"),
    *("travelled", "spread", "unlit_spread", "unlit_rms"),
)


def write(summaries: Sequence[Summary], path: pathlib.Path) -> None:
    """A row for each cell, the options before what was found."""
    rows = []
    for s in summaries:
        row = {**s["options"], **{key: value for key, value in s.items() if key != "options"}}
        rows.append({key: " ".join(map(repr, x)) if isinstance(x, list) else x for key, x in row.items()})
    names = list(dict.fromkeys(name for row in rows for name in row))
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read(path: pathlib.Path, every: Iterable[Mapping[str, Any]]) -> list[Summary]:
    """The summaries of a CSV; none where there is no file.

    Args:
      every: the options of each cell, which tell what columns of a study are options.
    """
    if not path.exists():
        return []
    with open(path, newline="") as file:
        rows = [{name: _value(name, text) for name, text in row.items() if text} for row in csv.DictReader(file)]
    names: dict[str, set[str]] = {}
    for options in every:
        names.setdefault(options["study"], set()).update(options)
    found = []
    for row in rows:
        own = names.get(row["study"], set())
        options = {name: row.pop(name) for name in list(row) if name in own}
        found.append({"options": options, **row})
    return found


def _value(name: str, text: str) -> Any:
    if name in LISTS:
        return [float(x) for x in text.split()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def merged(
    kept: Sequence[Summary],
    done: Sequence[Summary],
    every: Mapping[str, dict[str, Any]],
    name_of: Callable[[dict[str, Any]], str],
) -> list[Summary]:
    """The summaries that results hold, and those of the cells that are done, which take their places.

    Args:
      kept: of the results.
      done: of the cells.
      every: name -> options of each cell of the study as it is.
      name_of: the name of the cell with some options.

    Raises:
      UsageError: the results are of another size or another version of the study.
    """
    for s in kept:
        wanted = {key: x for key, x in every.get(name_of(s["options"]), {}).items() if x is not None}
        if wanted != s["options"]:
            raise click.UsageError(
                f"The results hold {name_of(s['options'])} of another size or another version of the study: give "
                "another --results."
            )
    found = {name_of(s["options"]): s for s in (*kept, *done)}
    return list(found.values())
