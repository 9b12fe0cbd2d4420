"""The runs in folders: their progress in a list, and groups of those that differ in their seeds alone."""

from __future__ import annotations

import fcntl
import functools
import json
import math
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tfp_bfl.app.one_run.records import MOST_ROUNDS_BYTES, MOST_SUMMARY_BYTES, is_done, read_json, score, weights_in
from tfp_bfl.app.options.config import RunConfig, make_config
from tfp_bfl.app.options.given_data import recorded
from tfp_bfl.app.options.own_model import names_code
from tfp_bfl.app.options.resolve import resolved
from tfp_bfl.data import is_own
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files import read_regular
from tfp_bfl.labels import duration
from tfp_bfl.plots.repeats import Repeated
from tfp_bfl.plots.tables import text

# Names the run folders of a sweep.
ORDER = "runs.txt"
_HEAD = ("run", "state", "method", "data", "model", "seed", "score", "NLL", "time")
# Options that decide no score, or are the seed itself.
_ASIDE = ("seed", "data_dir", "tensorboard", "checkpoint_every", "keep_checkpoints", "evaluate_every")


def find_runs(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Return the run folders in a folder, to a depth of three, by name; those of a sweep in its order."""
    if (folder / "config.yaml").is_file():
        yield folder
        return
    if (folder / ORDER).is_file():  # Of a sweep: as it was asked for.
        names = read_regular(folder / ORDER, "list of runs", 1 << 22).decode("utf-8", "replace").splitlines()
        yield from (folder / name for name in names if (folder / name / "config.yaml").is_file())
        return
    for depth in ("*", "*/*", "*/*/*"):
        for path in sorted(folder.glob(f"{depth}/config.yaml")):
            yield path.parent


def expand(folders: Sequence[str | os.PathLike[str]]) -> list[pathlib.Path]:
    """Return run folders as they are, and the complete runs in each folder of many runs."""
    runs: list[pathlib.Path] = []
    for folder in map(pathlib.Path, folders):
        inside = [] if (folder / "config.yaml").exists() else [run for run in find_runs(folder) if is_done(run)]
        runs += inside or [folder]
    return runs


def described(folder: pathlib.Path) -> list[str]:
    """Return a head and a line for each run; none where there is no run."""
    rows = [_row(folder, run) for run in find_runs(folder)]
    if not rows:
        return []
    table = [_HEAD, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(_HEAD))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in table]


def _row(folder: pathlib.Path, run: pathlib.Path) -> tuple[str, ...]:
    name = str(run.relative_to(folder)) if run != folder else run.name
    try:
        config = make_config(run / "config.yaml", {}, runs_code=False)
    except InvalidArgument:
        return (name, "not readable", *[""] * (len(_HEAD) - 2))
    what = (config.method, config.data_name, config.model_name)
    return (name, _state(run, config), *what, str(config.seed), *_scores(run))


def _state(run: pathlib.Path, config: RunConfig) -> str:
    if is_done(run):
        return "done"
    try:
        rounds = len(read_regular(run / "metrics.jsonl", "file of metrics", MOST_ROUNDS_BYTES).splitlines())
    except InvalidArgument:
        rounds = 0
    state = "interrupted after"
    with open(run / "config.yaml", "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:  # A process works on the run and holds the lock of its configuration.
            state = "at"
    return f"{state} round {rounds}/{config.rounds * (config.ensemble or 1)}"


def _scores(run: pathlib.Path) -> tuple[str, ...]:
    try:
        (summary,) = read_json(run / "summary.json", "summary", MOST_SUMMARY_BYTES)
        return score(summary), f"{summary['test_nll']:.4f}", duration(summary["seconds"])
    except (InvalidArgument, ValueError, TypeError, KeyError):
        return "", "", ""


class RunGroup(NamedTuple):
    """A group, which of the runs are in it, and their options but the seed."""

    repeated: Repeated
    runs: list[int]
    options: Mapping[str, Any] = {}


def grouped(records: Sequence[tuple[RunConfig, Mapping[str, Any]]]) -> list[RunGroup]:
    """Group runs, (configuration, summary), by all options except their seeds, in the order in which they come."""
    settings = [{k: v for k, v in config.recorded().items() if k not in _ASIDE} for config, _ in records]
    by_key: dict[str, list[int]] = {}
    for i, (config, _) in enumerate(records):
        key = json.dumps(settings[i], sort_keys=True)
        taken = any(records[j][0].seed == config.seed for j in by_key.get(key, []))
        # The same twice stands beside itself.
        by_key.setdefault(f"{key} {i}" if taken else key, []).append(i)
    firsts = [settings[runs[0]] for runs in by_key.values()]
    names = _names([records[runs[0]] for runs in by_key.values()], firsts)
    groups = []
    for name, runs, first in zip(names, by_key.values(), firsts):
        config = records[runs[0]][0]
        scores = {records[i][0].seed: numbers_in(records[i][1]) for i in runs}
        data = config.dataset if recorded(config.dataset) else config.data_name
        groups.append(RunGroup(Repeated(name, scores, data), runs, first))
    return groups


def _names(records: Sequence[tuple[RunConfig, Mapping[str, Any]]], options: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a name for each of several groups: the options by which they differ and that were chosen.

    An option was chosen if at least one group has another value than its algorithm takes by default.
    """
    every = list(dict.fromkeys(name for values in options for name in values))
    differing = [name for name in every if len({text(values.get(name)) for values in options}) > 1]
    chosen = [name for name in differing if not all(map(functools.partial(_is_default, name), records))]
    join = lambda values, keep: ", ".join(
        f"{x}={_shown(x, values[x])}" for x in chosen if x in values and keep(values[x])
    )
    given = [join(values, lambda value: value is not None) for values in options]
    names = [x if x and given.count(x) == 1 else join(values, lambda value: True) for x, values in zip(given, options)]
    alone = [f"{config.model_name} on {config.data_name}" for config, _ in records]
    names = [name or other for name, other in zip(names, alone)]
    return [f"{name} ({i})" if names.count(name) > 1 else name for i, name in enumerate(names, 1)]


def _shown(name: str, value: Any) -> str:
    """Return an option's value as a row says it: of a file its name, of data in memory their name and digest."""
    given = recorded(value) if name == "dataset" else None
    if given:
        return f"{given.name} {given.digest[:8]}"
    is_file = names_code(value) or (name == "dataset" and is_own(value))
    return pathlib.PurePath(value).name if is_file else text(value)


def _is_default(name: str, record: tuple[RunConfig, Mapping[str, Any]]) -> bool:
    """Return whether an option has the value that a run's algorithm takes without it, or is none of the algorithm's."""
    config, summary = record
    options = config.recorded()
    value = options.pop(name, None)
    try:
        without = make_config(None, {key: x for key, x in options.items() if x is not None}, runs_code=False)
    except InvalidArgument:  # Other options need it.
        return False
    without = resolved(without, "rmse" in summary, weights_in(summary))
    return name not in config.recorded() or text(without.recorded().get(name)) == text(value)


def numbers_in(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a summary."""
    return {
        name: float(x)
        for name, x in summary.items()
        if isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x)
    }


def all_keys(groups: Sequence[RunGroup]) -> list[str]:
    """Return the names of all numbers in the groups' summaries."""
    return list(dict.fromkeys(key for g in groups for own in g.repeated.scores.values() for key in own))
