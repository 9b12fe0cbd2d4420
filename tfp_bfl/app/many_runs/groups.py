"""Runs that differ in their seeds alone, as groups: tables of their scores."""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tfp_bfl.app.one_run.records import read_record
from tfp_bfl.app.options.config import RunConfig
from tfp_bfl.files.tables import FORMATS, Rows, to_csv
from tfp_bfl.plots import repeats
from tfp_bfl.plots.repeats import Repeated
from tfp_bfl.plots.tables import Table, text

# Options that decide no score, or are the seed itself.
_ASIDE = ("seed", "data_dir", "tensorboard", "checkpoint_every", "keep_checkpoints", "evaluate_every")


class Grouped(NamedTuple):
    """A group, and which of the runs are in it."""

    repeated: Repeated
    runs: list[int]


def grouped(records: Sequence[tuple[RunConfig, Mapping[str, Any]]]) -> list[Grouped]:
    """Runs by all options but their seeds, in the order in which they come.

    Args:
      records: configuration and summary of each run.
    """
    settings = [{k: v for k, v in config.told().items() if k not in _ASIDE} for config, _ in records]
    by_key: dict[str, list[int]] = {}
    for i, (config, _) in enumerate(records):
        key = json.dumps(settings[i], sort_keys=True)
        taken = any(records[j][0].seed == config.seed for j in by_key.get(key, []))
        # The same twice stands beside itself.
        by_key.setdefault(f"{key} {i}" if taken else key, []).append(i)
    firsts = [settings[runs[0]] for runs in by_key.values()]
    names = list(dict.fromkeys(name for own in firsts for name in own))
    differing = [name for name in names if len({text(own.get(name)) for own in firsts}) > 1]
    found = []
    for number, (runs, own) in enumerate(zip(by_key.values(), firsts), 1):
        config = records[runs[0]][0]
        alone = f"{config.model_name} on {config.data_name}" + (f" ({number})" if len(firsts) > 1 else "")
        parts = [f"{name}={text(own[name])}" for name in differing if name in own]
        scores = {records[i][0].seed: _numbers(records[i][1]) for i in runs}
        found.append(Grouped(Repeated(", ".join(parts) or alone, scores, config.data_name), runs))
    return found


def _numbers(summary: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(x)
        for name, x in summary.items()
        if isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x)
    }


def write_tables(folders: Sequence[pathlib.Path], output: pathlib.Path) -> None:
    """Writes results.csv, .md and .tex of runs that are done, and runs.csv, into a folder; old ones are replaced."""
    records = [read_record(folder) for folder in folders]
    groups = grouped(records)
    for suffix in FORMATS:
        path = (output / "results").with_suffix(suffix)
        path.write_text(table_text([group.repeated for group in groups], suffix), encoding="utf-8")
    rows = [["run", "group", "seed", *_all_keys(groups)]]
    for group in groups:
        for i in group.runs:
            config, summary = records[i]
            found = _numbers(summary)
            values = [repr(found[key]) if key in found else "" for key in rows[0][3:]]
            rows.append([folders[i].name, group.repeated.name, str(config.seed), *values])
    (output / "runs.csv").write_text(to_csv(rows), encoding="utf-8")


def _all_keys(groups: Sequence[Grouped]) -> list[str]:
    return list(dict.fromkeys(key for g in groups for own in g.repeated.scores.values() for key in own))


def table_text(groups: Sequence[Repeated], suffix: str) -> str:
    """The groups' scores and differences in the format of a suffix: in .csv all numbers, a line a group."""
    keys = repeats.keys_of(groups)
    if suffix == ".csv":
        return to_csv(_numeric(groups, keys))
    parts = [_transposed(repeats.scores(groups, keys))]
    if len(groups) > 1 and any(repeats.compare(other, groups[0], key) for other in groups[1:] for key in keys):
        parts.append(_transposed(repeats.differences(groups, keys)))
    return "\n".join(FORMATS[suffix](part) for part in parts)


def _transposed(table: Table) -> Rows:
    """A line a group, as papers have it."""
    head = [table.title if table.title != "Results" else "", *(name for name, _ in table.rows)]
    columns = zip(*(cells for _, cells in table.rows))
    bold = lambda cell: f"**{cell.text}**" if cell.is_best else cell.text
    return [head, *([name, *map(bold, cells)] for name, cells in zip(table.head[1:], columns))]


def _numeric(groups: Sequence[Repeated], keys: Sequence[str]) -> Rows:
    parts = ("mean", "sd", "difference", "low", "high")
    rows = [["group", "seeds", *(f"{key}_{part}" for key in keys for part in parts)]]
    for group in groups:
        row = [group.name, str(len(group.scores))]
        for key in keys:
            values = group.values(key)
            found = repeats.over_seeds(values) if values else None
            told = None if group is groups[0] else repeats.compare(group, groups[0], key)
            row += ["", ""] if found is None else [repr(found.mean), "" if found.number < 2 else repr(found.stddev)]
            row += ["", "", ""] if told is None else [repr(told.mean), repr(told.low), repr(told.high)]
        rows.append(row)
    return rows
