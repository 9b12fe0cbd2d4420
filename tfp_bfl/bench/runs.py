"""The runs in folders: their progress in a list, groups of those that differ in their seeds alone, tables of scores.

A table has a row a group of runs and a column a score, as CSV, Markdown or LaTeX.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import math
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tfp_bfl.app.one_run import records as written
from tfp_bfl.app.options.config import RunConfig, fields, make_config
from tfp_bfl.app.options.given_data import recorded
from tfp_bfl.app.options.own_model import names_code
from tfp_bfl.app.options.resolve import resolved
from tfp_bfl.bench.cells import ORDER
from tfp_bfl.data import is_own
from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.faces import Later
from tfp_bfl.files import read_regular
from tfp_bfl.files.tables import FORMATS, Rows, note_in, to_csv
from tfp_bfl.labels import ALIASES, duration

if TYPE_CHECKING:
    from tfp_bfl.plots import score_tables, tables
    from tfp_bfl.plots.page import Table
    from tfp_bfl.plots.score_tables import Repeated
else:  # With TensorFlow, which refusals do without.
    score_tables, tables = Later("tfp_bfl.plots.score_tables"), Later("tfp_bfl.plots.tables")

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
        inside = [] if (folder / "config.yaml").exists() else [run for run in find_runs(folder) if written.is_done(run)]
        runs += inside or [folder]
    return runs


def described(folder: pathlib.Path) -> list[str]:
    """Return a head and a line for each run; none where there is no run."""
    rows = [_row(folder, run) for run in find_runs(folder)]
    return written.in_columns([_HEAD, *rows]).split("\n") if rows else []


def _row(folder: pathlib.Path, run: pathlib.Path) -> tuple[str, ...]:
    name, scores = str(run.relative_to(folder)) if run != folder else run.name, ("", "", "")
    try:
        config = make_config(run / "config.yaml", {}, runs_code=False)
    except InvalidArgument:
        return (name, "not readable", *[""] * (len(_HEAD) - 2))
    with contextlib.suppress(InvalidArgument, ValueError, TypeError, KeyError):
        (summary,) = written.read_json(run / "summary.json", "summary", written.MOST_SUMMARY_BYTES)
        scores = written.score(summary), f"{summary['test_nll']:.4f}", duration(summary["seconds"])
    return (name, _state(run, config), config.method, config.data_name, config.model_name, str(config.seed), *scores)


def _state(run: pathlib.Path, config: RunConfig) -> str:
    if written.is_done(run):
        return "done"
    state, rounds = "interrupted after", 0
    with contextlib.suppress(InvalidArgument):
        rounds = len(read_regular(run / "metrics.jsonl", "file of metrics", written.MOST_ROUNDS_BYTES).splitlines())
    with open(run / "config.yaml", "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:  # A process works on the run and holds the lock of its configuration.
            state = "at"
    return f"{state} round {rounds}/{config.rounds * (config.ensemble or 1)}"


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
        groups.append(RunGroup(score_tables.Repeated(name, scores, data), runs, first))
    return groups


def _names(records: Sequence[tuple[RunConfig, Mapping[str, Any]]], options: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a name for each of several groups: the options by which they differ and that were chosen.

    An option was chosen if at least one group has another value than its algorithm takes by default.
    """
    every = list(dict.fromkeys(name for values in options for name in values))
    differing = [name for name in every if len({tables.text(values.get(name)) for values in options}) > 1]
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


class Style(NamedTuple):
    """Hold what a table shows, as of `reports.report`. A row is named by options that no other row has, such as
    "rule=conflation" or "algorithm=fed_opt,kind=deterministic".
    """

    columns: Sequence[str] | None = None
    digits: int | None = None
    percent: bool = False
    rows: Mapping[str, str] = {}


DEFAULT = Style()


def parse_rows(items: Sequence[str]) -> dict[str, str]:
    """Return row -> label of texts such as "rule=conflation as Conflation"; a row without a label has its own name."""
    labels: dict[str, str] = {}
    for item in items:
        row, _, label = (part.strip() for part in item.partition(" as "))
        if "=" not in row:
            raise InvalidArgument(f'--row is {shown(item)}, but must be such as "rule=conflation as Conflation".')
        if row in labels:
            raise InvalidArgument(f"--row names {shown(row)} twice: name each row once.")
        labels[row] = label or row
    return labels


def table_text(groups: Sequence[RunGroup], suffix: str, style: Style = DEFAULT) -> str:
    """Return the table of groups of runs in the format of a suffix of `files.tables.FORMATS`.

    In the default style a second table has the paired differences to the first group. In .csv all numbers stand with
    all digits, a line a group. What is no column, or not one row, is refused.
    """
    if suffix == ".csv" and (style.digits is not None or style.percent):
        raise InvalidArgument("digits and percent are of .md and .tex, and a .csv holds all digits: leave them out.")
    places = {_place(groups, row): label for row, label in style.rows.items()}
    if len(places) < len(style.rows):
        raise InvalidArgument("rows names a row twice: name each of them once.")
    rows = [groups[i].repeated._replace(name=label) for i, label in places.items()]
    rows += [group.repeated for i, group in enumerate(groups) if i not in places]
    keys = score_tables.keys_of(rows)
    if style.columns is not None:
        known = dict.fromkeys(key for group in groups for own in group.repeated.scores.values() for key in own)
        keys = [ALIASES.get(name.strip(), name.strip()) for name in style.columns]
        for name in keys:
            lookup(known, name, "column", "in any run")
        if len(set(keys)) < len(keys):
            raise InvalidArgument("columns names a column twice: name each of them once.")
    if suffix == ".csv":
        columns = [f"{key}_{part}" for key in keys for part in ("mean", "sd", "difference", "low", "high")]
        of = lambda group: [x for key in keys for x in score_tables.digits(group, rows[0], key)]
        lines = [[group.name, str(len(group.scores)), *of(group)] for group in rows]
        return to_csv([["group", "seeds", *columns], *lines])
    table = score_tables.scores(rows, keys, score_tables.ScoreForm(style.digits, style.percent))
    numbers = sorted({len(group.scores) for group in rows})
    if style != DEFAULT and len(numbers) == 1:
        table = table._replace(rows=table.rows[1:])  # Without the number of seeds.
    parts = [FORMATS[suffix](_transposed(table))]
    if style == DEFAULT and any(score_tables.compare(other, rows[0], key) for other in rows[1:] for key in keys):
        parts.append(FORMATS[suffix](_transposed(score_tables.differences(rows, keys))))
    return "\n".join([*parts, note_in(suffix, _note(rows, numbers))])


def write_tables(folders: Sequence[pathlib.Path], output: pathlib.Path) -> None:
    """Write results.csv, .md and .tex of runs that are done, and runs.csv, into a folder. Old ones are replaced."""
    records = [written.read_record(folder) for folder in folders]
    groups = grouped(records)
    for suffix in FORMATS:
        path = (output / "results").with_suffix(suffix)
        path.write_text(table_text(groups, suffix), encoding="utf-8")
    columns = _columns([folder.name for folder in folders], records, groups)
    as_text = lambda x: "" if x is None else x if isinstance(x, str) else json.dumps(x)
    rows = [[*columns], *([*map(as_text, row)] for row in zip(*columns.values()))]
    (output / "runs.csv").write_text(to_csv(rows), encoding="utf-8")


def _columns(
    names: Sequence[str], records: Sequence[tuple[RunConfig, Mapping[str, Any]]], groups: Sequence[RunGroup]
) -> dict[str, list[Any]]:
    """Return the columns of a table with a line a run: its name and group, its options, the numbers of its summary."""
    order = [(group.repeated.name, i) for group in groups for i in group.runs]
    options = [records[i][0].recorded() for _, i in order]
    numbers = [numbers_in(records[i][1]) for _, i in order]
    columns: dict[str, list[Any]] = {"run": [names[i] for _, i in order], "group": [name for name, _ in order]}
    for found in (options, numbers):
        for key in dict.fromkeys(key for row in found for key in row):
            columns[f"summary_{key}" if key in columns else key] = [row.get(key) for row in found]
    return columns


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
    records = [written.read_record(run) for run in runs]
    names = [str(run.relative_to(place)) if run != place else run.name for run in runs]
    columns = _columns(names, records, grouped(records))
    try:
        import pandas
    except ImportError:
        is_number = lambda values: all(x is None or type(x) in (int, float) for x in values)
        return {name: np.array(x, float if is_number(x) else object) for name, x in columns.items()}
    return pandas.DataFrame(columns)


def _note(rows: Sequence[Repeated], numbers: Sequence[int]) -> str:
    """Return what stands below a table: what its numbers are, and when a score is bold."""
    if numbers == [1]:
        return "One seed each." + (" Nothing is bold: comparisons need two seeds or more." if len(rows) > 1 else "")
    over = f"over {numbers[0]} seeds" if len(numbers) == 1 else "over the seeds"
    bold = (
        " Bold: better than every other row; the 95 % intervals of the paired differences over the same seeds "
        "(Student's t) exclude 0."
    )
    return f"Mean ± standard deviation {over}.{bold if len(rows) > 1 else ''}"


def _place(groups: Sequence[RunGroup], row: str) -> int:
    """Return the number of the one group that a row names."""
    exact = [i for i, group in enumerate(groups) if group.repeated.name == row]
    if len(exact) == 1:
        return exact[0]
    wanted = dict(part.partition("=")[::2] for part in row.split(","))
    wanted = {name.strip().replace("-", "_"): value.strip() for name, value in wanted.items()}
    for name in wanted:
        lookup(fields(), name, "option")
    has = lambda options, name, value: name in options and value in (str(options[name]), tables.text(options[name]))
    places = [i for i, g in enumerate(groups) if all(has(g.options, name, x) for name, x in wanted.items())]
    if len(places) != 1:
        names = "; ".join(groups[i].repeated.name for i in places or range(len(groups)))
        problem = f"is {len(places)} rows" if places else "is none"
        raise InvalidArgument(f"The row {shown(row)} {problem}: name one of {names}.")
    return places[0]


def _transposed(table: Table) -> Rows:
    """Return a line a group, as papers have it."""
    head = [table.title if table.title != "Results" else "", *(name for name, _ in table.rows)]
    columns = zip(*(cells for _, cells in table.rows))
    bold = lambda cell: f"**{cell.text}**" if cell.is_best else cell.text
    return [head, *([name, *map(bold, cells)] for name, cells in zip(table.head[1:], columns))]
