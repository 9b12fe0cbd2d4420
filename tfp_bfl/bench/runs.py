"""The runs in folders: their progress in a list, groups of those that differ in their seeds alone, one table of all."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tfp_bfl.app.one_run import records as written
from tfp_bfl.app.options.config import RunConfig, make_config
from tfp_bfl.app.options.given_data import recorded
from tfp_bfl.app.options.own_model import names_code
from tfp_bfl.app.options.resolve import resolved
from tfp_bfl.bench.cells import ORDER
from tfp_bfl.data import is_own
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.faces import Later
from tfp_bfl.files import read_regular
from tfp_bfl.labels import duration

if TYPE_CHECKING:
    from tfp_bfl.plots import score_tables, tables
    from tfp_bfl.plots.score_tables import Repeated
else:  # With TensorFlow, which refusals do without.
    score_tables, tables = Later("tfp_bfl.plots.score_tables"), Later("tfp_bfl.plots.tables")

Records = Sequence[tuple[RunConfig, Mapping[str, Any]]]  # Configuration and summary of each run.
_HEAD = ("run", "state", "method", "data", "model", "seed", "score", "NLL", "time")
# Options that decide no score, or are the seed itself.
_ASIDE = ("seed", "data_dir", "tracker", "checkpoint_every", "keep_checkpoints", "evaluate_every")


def find_runs(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Return the run folders in a folder, to a depth of three, by name; those of a sweep in its order."""
    if (folder / "config.yaml").is_file():
        yield folder
        return
    if (folder / ORDER).is_file():  # Of a sweep: as it was asked for.
        yield from (folder / name for name in _order(folder) if (folder / name / "config.yaml").is_file())
        return
    for depth in ("*", "*/*", "*/*/*"):
        for path in sorted(folder.glob(f"{depth}/config.yaml")):
            yield path.parent


def _order(folder: pathlib.Path) -> dict[str, str]:
    """Return run -> name of its row, "" without one, of the sweep in a folder; {} where there is none."""
    if not (folder / ORDER).is_file():
        return {}
    lines = read_regular(folder / ORDER, "list of runs", 1 << 22).decode("utf-8", "replace").splitlines()
    return dict(line.partition("\t")[::2] for line in lines)


def expand(folders: Sequence[str | os.PathLike[str]]) -> list[pathlib.Path]:
    """Return run folders as they are, and the complete runs in each folder of many runs."""
    runs: list[pathlib.Path] = []
    for folder in map(pathlib.Path, folders):
        inside = [] if (folder / "config.yaml").exists() else [run for run in find_runs(folder) if written.is_done(run)]
        runs += inside or [folder]
    return runs


class Described(NamedTuple):
    """A run of a list; state: "done", "at round 3/60", "interrupted after round 3/60" or "not readable".

    run is below the folder of the list. Fields after the state are None where the file that holds them can't be read or
    has no scores; numbers: of the summary.
    """

    run: str
    state: str
    method: str | None = None
    data: str | None = None
    model: str | None = None
    seed: int | None = None
    numbers: Mapping[str, float] | None = None


def described(folder: pathlib.Path) -> list[Described]:
    """Describe each run in a folder."""
    return [_described(str(run.relative_to(folder)) if run != folder else run.name, run) for run in find_runs(folder)]


def in_lines(runs: Sequence[Described]) -> str:
    """Return a head and a line for each run."""
    numbers = lambda x: (written.score(x), f"{x['test_nll']:.4f}", duration(x["seconds"])) if x else ("", "", "")
    rows = [[*("" if x is None else str(x) for x in run[:-1]), *numbers(run.numbers)] for run in runs]
    return written.in_columns([_HEAD, *rows])


def _described(name: str, run: pathlib.Path) -> Described:
    try:
        config = make_config(run / "config.yaml", {}, runs_code=False)
    except InvalidArgument:
        return Described(name, "not readable")
    state = written.state_of(run, config)
    found = Described(name, state, config.method, config.data_name, config.model_name, config.seed)
    with contextlib.suppress(InvalidArgument):
        (summary,) = written.read_json(run / "summary.json", "summary", written.MOST_SUMMARY_BYTES)
        numbers = numbers_in(summary)
        if numbers.keys() >= {"test_nll", "seconds"} and numbers.keys() & {"accuracy", "rmse"}:
            return found._replace(numbers=numbers)
    return found


class RunGroup(NamedTuple):
    """A group, which of the runs are in it, their options but the seed, and whether a user named it."""

    repeated: Repeated
    runs: list[int]
    options: Mapping[str, Any] = {}
    is_named: bool = False


def grouped(records: Records, folders: Sequence[pathlib.Path] = ()) -> list[RunGroup]:
    """Group runs by all options except their seeds, in the order in which they come, by the names of their sweep."""
    settings = [{k: v for k, v in config.recorded().items() if k not in _ASIDE} for config, _ in records]
    by_key: dict[str, list[int]] = {}
    for i, (config, _) in enumerate(records):
        key = json.dumps(settings[i], sort_keys=True)
        taken = any(records[j][0].seed == config.seed for j in by_key.get(key, []))
        # The same twice stands beside itself.
        by_key.setdefault(f"{key} {i}" if taken else key, []).append(i)
    firsts = [settings[runs[0]] for runs in by_key.values()]
    names = _names([records[runs[0]] for runs in by_key.values()], firsts)
    orders = {folder: _order(folder) for folder in {run.parent for run in folders}}
    given = [orders[run.parent].get(run.name, "") for run in folders] or [""] * len(records)
    names = [given[runs[0]] or name for runs, name in zip(by_key.values(), names)]
    names = [f"{name} ({i})" if names.count(name) > 1 else name for i, name in enumerate(names, 1)]
    groups = []
    for name, runs, first in zip(names, by_key.values(), firsts):
        config = records[runs[0]][0]
        scores = {records[i][0].seed: numbers_in(records[i][1]) for i in runs}
        data = config.dataset if recorded(config.dataset) else config.data_name
        groups.append(RunGroup(score_tables.Repeated(name, scores, data), runs, first, bool(given[runs[0]])))
    return groups


def _names(records: Records, options: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a name for each of several groups: the options by which they differ and that were chosen.

    An option was chosen if at least one group has another value than its algorithm takes by default. A rule names the
    algorithm variational, as of `RunConfig.method`.
    """
    every = list(dict.fromkeys(name for values in options for name in values))
    differing = [name for name in every if len({tables.text(values.get(name)) for values in options}) > 1]
    chosen = [name for name in differing if not all(map(functools.partial(_is_default, name), records))]
    is_implied = lambda name, values: name == "algorithm" and values[name] == "variational" and "rule" in chosen
    join = lambda values, keep: ", ".join(
        f"{x}={_shown(x, values[x])}" for x in chosen if x in values and keep(values[x]) and not is_implied(x, values)
    )
    given = [join(values, lambda value: value is not None) for values in options]
    names = [x if x and given.count(x) == 1 else join(values, lambda value: True) for x, values in zip(given, options)]
    alone = [f"{config.model_name} on {config.data_name}" for config, _ in records]
    return [name or other for name, other in zip(names, alone)]


def _shown(name: str, value: Any) -> str:
    """Return an option's value as a row says it: of a file its name, of data in memory their name and digest."""
    given = recorded(value) if name == "dataset" else None
    if given:
        return f"{given.name} {given.digest[:8]}"
    is_file = names_code(value) or (name == "dataset" and is_own(value))
    return pathlib.PurePath(value).name if is_file else tables.text(value)


def _is_default(name: str, record: tuple[RunConfig, Mapping[str, Any]]) -> bool:
    """Return whether an option has the value that a run's algorithm takes without it, or is none of the algorithm's."""
    config, summary = record
    options = config.recorded()
    value = options.pop(name, None)
    try:
        without = make_config(None, {key: x for key, x in options.items() if x is not None}, runs_code=False)
    except InvalidArgument:  # Other options need it.
        return False
    without = resolved(without, "rmse" in summary, written.weights_in(summary))
    return name not in config.recorded() or tables.text(without.recorded().get(name)) == tables.text(value)


def numbers_in(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a summary."""
    numbers = {name: x for name, x in summary.items() if isinstance(x, (int, float)) and not isinstance(x, bool)}
    return {name: float(x) for name, x in numbers.items() if math.isfinite(x)}


def columns_of(names: Sequence[str], records: Records, groups: Sequence[RunGroup]) -> dict[str, list[Any]]:
    """Return the columns of a table with a line a run: its name and group, its options, the numbers of its summary."""
    order = [(group.repeated.name, i) for group in groups for i in group.runs]
    options = [records[i][0].recorded() for _, i in order]
    numbers = [numbers_in(records[i][1]) for _, i in order]
    columns: dict[str, list[Any]] = {"run": [names[i] for _, i in order], "group": [name for name, _ in order]}
    for found in (options, numbers):
        for key in dict.fromkeys(key for row in found for key in row):
            columns[f"summary_{key}" if key in columns else key] = [row.get(key) for row in found]
    return columns


def _columns(names: Sequence[str], runs: Sequence[pathlib.Path]) -> dict[str, list[Any]]:
    records = [written.read_record(run) for run in runs]
    return columns_of(names, records, grouped(records, runs))


def rows_of(runs: Sequence[pathlib.Path]) -> list[dict[str, Any]]:
    """Return a record of each run: its folder, its options and the numbers of its summary."""
    columns = _columns([*map(str, runs)], runs)
    return [dict(zip(columns, row)) for row in zip(*columns.values())]


def load_runs(folder: str | os.PathLike[str]) -> Any:
    """Load the complete runs in a folder, to a depth of three, as one table with a row a run.

    Columns: run, its folder's name below `folder`; group, the options other than the seed by which it differs from the
    others; one for each option, and one for each number of `summary.json`.

    Returns:
      A pandas DataFrame; where pandas is not installed, a dictionary of arrays [runs], of numbers float64 with NaN for
      what a run lacks.

    Raises:
      InvalidArgument: there is no complete run.

    Example:
      >>> bfl.load_runs("rules")[["rule", "seed", "test_nll"]]  # doctest: +SKIP
    """
    if not isinstance(folder, (str, os.PathLike)):
        raise InvalidArgument(f"folder must be the path of a folder that holds runs, and is {shown(folder)}.")
    place = pathlib.Path(folder)
    runs = [run for run in find_runs(place) if written.is_done(run)]
    if not runs:
        raise InvalidArgument(f"There is no complete run in {shown(str(place))}: name a folder that holds runs.")
    columns = _columns([str(run.relative_to(place)) if run != place else run.name for run in runs], runs)
    try:
        import pandas
    except ImportError:
        is_number = lambda values: all(x is None or type(x) in (int, float) for x in values)
        return {name: np.array(x, float if is_number(x) else object) for name, x in columns.items()}
    return pandas.DataFrame(columns)
