"""Many runs: options varied over values and seeds, each run a cell that is done once; and search spaces of options."""

import functools
import itertools
import json
import math
import pathlib
import re
import shutil
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from rich.console import Console

from tfp_bfl.app.one_run.records import in_short
from tfp_bfl.app.options.config import RunConfig, make_config
from tfp_bfl.app.options.own_model import OPTIONS as CODE
from tfp_bfl.app.options.own_model import names_code
from tfp_bfl.app.options.resolve import resolved
from tfp_bfl.bench import cells as runner
from tfp_bfl.bench.runs import grouped
from tfp_bfl.data.equal_partitions import GIVEN
from tfp_bfl.errors import Error, InvalidArgument, shown
from tfp_bfl.files import FIGURES

MOST_CELLS = 10_000
# Option -> the values that it takes.
Varied = dict[str, list[str]]
# Between alternatives, and between options of one alternative: blanks before a name and its "=".
_NAME = r"(?=-{0,2}[A-Za-z][\w-]*\s*=)"
_OR, _NEXT = re.compile(rf"\s+or\s+{_NAME}"), re.compile(rf"\s+{_NAME}")
NAMES = "name"  # Of a file: names of rows.
# What a sweep itself says, or what is no property of a run.
_NOT_VARIED = {"seed": "--seeds 0..4", "output": "--output"}


def parse_seeds(text: str) -> list[int]:
    """Read "0..4", "0,1,7" or both, as "0..4,10"; InvalidArgument for another form, or a seed that is named twice."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        ends = [first, last] if dots else [first]
        if not all(end.isascii() and end.isdigit() and len(end) < 10 for end in ends):
            raise InvalidArgument(f"seeds is {shown(text)}, but must be such as 0..4 or 0,1,7.")
        numbers = range(int(ends[0]), int(ends[-1]) + 1)
        if not numbers or len(seeds) + len(numbers) > MOST_CELLS:
            raise InvalidArgument(f"seeds is {shown(text)}, but {part} must go up, to {MOST_CELLS} seeds at most.")
        seeds += numbers
    if len(set(seeds)) < len(seeds):
        raise InvalidArgument(f"seeds is {shown(text)}, but a seed must not be named twice.")
    return seeds


def parse_varied(items: Sequence[str]) -> list[Varied]:
    """Return option -> values for each combination of alternatives, of texts such as "rule=linear_pool,conflation".

    A text holds one option or several, "algorithm=fed_opt,scaffold batch-size=16", and alternatives with "or" between
    them: "rule=linear_pool,conflation or algorithm=fed_opt". Semicolons stand between values that hold commas.
    `make_cells` checks the names, some of which may be parameters of code.
    """
    combinations: list[Varied] = [{}]
    for item in items:
        alternatives = [_parse_one(part) for part in _OR.split(item)]
        combinations = [_joined(before, alternative) for before in combinations for alternative in alternatives]
    return combinations


def _parse_one(text: str) -> Varied:
    varied: Varied = {}
    for item in _NEXT.split(text):
        name, equals, rest = item.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        values = [value.strip() for value in rest.split(";" if ";" in rest else ",")]
        if not equals or not all(values):
            raise InvalidArgument(f"--vary is {shown(item)}, but must be such as rule=linear_pool,conflation.")
        if name in _NOT_VARIED:
            raise InvalidArgument(f"--vary is of {name}, which is not varied: give {_NOT_VARIED[name]}.")
        if len(set(values)) < len(values):
            raise InvalidArgument(f"--vary names a value of {name} twice: name each value once.")
        varied = _joined(varied, {name: values})
    return varied


def _joined(varied: Varied, more: Varied) -> Varied:
    for name in more:
        if name in varied:
            raise InvalidArgument(f"--vary names {name} twice: name all its values at once, or part them by 'or'.")
    return {**varied, **more}


def make_cells(
    config_file: str | None, given: Mapping[str, Any], groups: Sequence[Varied], seeds: Sequence[int]
) -> dict[str, RunConfig]:
    """Return name -> configuration of each run: of each group every combination of the values, by every seed.

    `given` are options of the runs of all groups, which none of them varies, and override those of the file.
    """
    for name in given:
        if name == "seed" or all(name in varied for varied in groups):
            raise InvalidArgument(f"{name} is given and varied: leave --{name.replace('_', '-')} out.")
    number = len(seeds) * sum(math.prod(map(len, varied.values())) for varied in groups)
    if number > MOST_CELLS:
        raise InvalidArgument(f"These are {number} runs, but a sweep has {MOST_CELLS} at most.")
    cells: dict[str, RunConfig] = {}
    for options in (dict(zip(varied, x)) for varied in groups for x in itertools.product(*varied.values())):
        for seed in seeds:
            # By slashes and colons no folder is called.
            parts = [f"{name}={value}" for name, value in {**options, "seed": seed}.items()]
            name = ",".join(parts).replace("/", "_").replace(":", "_")
            if name in cells or len(name.encode()) > 200:
                raise InvalidArgument(f"{shown(name)} would be the folder of two runs, or is too long for one.")
            try:
                cells[name] = make_config(config_file, {**given, **options, "seed": seed}, aside=NAMES)
            except InvalidArgument as error:
                several = len(groups) > 1 or not options.keys().isdisjoint(CODE)  # With options of their own.
                raise InvalidArgument(f"{name}: {error}" if several else str(error)) from None
    return cells


def sweep(
    cells: Mapping[str, RunConfig],
    output: str | pathlib.Path,
    *,
    jobs: int = 1,
    progress: str | None = None,
    names: Mapping[str, str] | None = None,
    figures: Sequence[str] = (*FIGURES,),
) -> pathlib.Path:
    """Run the remaining cells, resume interrupted ones, and write tables and a page over all.

    The folder holds a run folder for each cell; results.csv, .md and .tex with means, standard deviations and paired
    differences over the seeds; runs.csv with a line a run; learning curves in several formats of `figures`; and
    report.html. `names` is name -> row of tables and figures.

    `jobs` runs are side by side, each in a process with its share of the cores. `progress` is that of each run, as in
    `execute`; None for its phases.
    """
    from tfp_bfl.app.one_run import datasets
    from tfp_bfl.app.one_run.build import check_models

    output = pathlib.Path(output)
    runner.check_output(output, "a sweep", runner.ORDER)
    digests = datasets.check(("", config) for config in cells.values())
    rows: dict[str, str] = {}
    if names:
        from tfp_bfl.bench.run_tables import named

        groups = named(grouped([(_resolved(x), {}) for x in cells.values()]), names)
        rows = {[*cells][i]: x.repeated.name for x in groups for i in x.runs if x.repeated.name in names}
    settled = {name: settled_options(config) for name, config in cells.items()}
    # Kinds of models that are not given are as the models had them.
    kind_of = lambda folder: {"kind": None} if cells[folder.name].kind is None else {}
    held = lambda folder: (there := options_of_run(folder)) and {**there, **kind_of(folder)}
    runner.check_cells(settled, output, held)
    for name in filter(lambda name: runner.is_done(output / name), cells):
        now = digests.get(datasets.key(cells[name]))
        runner.check_data_of(output / name, runner.read_summary(output / name).get("data"), now, output / name)
    check_models((f"{name}: ", config) for name, config in cells.items())
    from tfp_bfl.bench.reports import report
    from tfp_bfl.bench.run_tables import write_tables

    output.mkdir(parents=True, exist_ok=True)
    (output / runner.ORDER).write_text("".join(f"{x}\t{rows.get(x, '')}\n" for x in cells), encoding="utf-8")
    every = {name: _given(config.recorded()) for name, config in cells.items()}
    work = functools.partial(run_or_resume, progress=progress or "phases")
    failure = None
    try:
        runner.run_cells(every, output, work, in_short, jobs=jobs, goes_on=True)
    except Error as error:
        failure = error
    folders = [output / name for name in cells if runner.is_done(output / name)]
    if folders:  # Finished runs are reported, whatever became of the rest.
        write_tables(folders, output, figures)
        (output / "report.html").unlink(missing_ok=True)
        report(folders, output / "report.html")
    if failure:
        raise failure
    return output


def run_or_resume(folder: pathlib.Path, options: Mapping[str, Any], progress: str = "none") -> None:
    """Run a configuration in a folder, or resume its interrupted run; options as `RunConfig.recorded` returns them."""
    from tfp_bfl.app.one_run.run import execute, resume

    console = _Named(folder.name, stderr=True, quiet=progress == "none")
    if (folder / "config.yaml").is_file():
        code = {name: options[name] for name in CODE if names_code(options.get(name))}
        resume(folder, console=console, progress=progress, **code)
    else:
        shutil.rmtree(folder, ignore_errors=True)  # Ended before it wrote what it is.
        execute(make_config(None, _given(options)), folder, console=console, progress=progress)
    runner.forget_models()


def options_of_run(folder: pathlib.Path) -> dict[str, Any] | None:
    """Return the `settled_options` of a run folder; None where there is none."""
    path = folder / "config.yaml"
    is_written = path.is_file() and path.stat().st_size
    return settled_options(make_config(path, {}, runs_code=False)) if is_written else None


def settled_options(config: RunConfig) -> dict[str, Any]:
    """Return the options by which runs are compared: those given, and the defaults that the algorithm fills in."""
    return _given(_resolved(config).recorded())


def _resolved(config: RunConfig) -> RunConfig:
    from tfp_bfl.app.one_run.datasets import regresses

    return resolved(config, regresses(config))


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given options without those that follow from the data."""
    return {name: x for name, x in options.items() if name != "clients" or options["partition"] != GIVEN}


class _Named(Console):
    """A console that says which run a line is of."""

    def __init__(self, run: str, **options: Any) -> None:
        super().__init__(**options)
        self._run = run

    def print(self, *objects: Any, **options: Any) -> None:
        text = str(objects[0]) if objects else ""
        if text.startswith("{"):
            super().print(json.dumps({"run": self._run, **json.loads(text)}), **options)
        else:
            super().print(f"{self._run}: {text}", **options)


Value = str | int | float | bool | None
# Option -> value.
Values = Mapping[str, Value]
DEFAULTS: Values = MappingProxyType({})


class Space(NamedTuple):
    """The values among which trials choose: an interval, of which the logarithm is drawn where `log` is, or a list."""

    low: Any = None
    high: Any = None
    log: bool = False
    values: tuple[Value, ...] = ()

    @property
    def edges(self) -> tuple[Value, ...]:
        """Both ends, or all values of a list: what a check of the space has to try."""
        return self.values or (self.low, self.high)

    def suggest(self, trial: Any, name: str) -> Any:
        """Return the value of an `optuna` trial."""
        if self.values:
            return trial.suggest_categorical(name, self.values)
        if isinstance(self.low, int):
            return trial.suggest_int(name, self.low, self.high, log=self.log)
        return trial.suggest_float(name, self.low, self.high, log=self.log)

    def __str__(self) -> str:
        """Return the form that `parse_space` reads."""
        if self.values:
            return ", ".join(map(str, self.values))
        return f"{self.low}..{self.high}{' log' if self.log else ''}"


def parse_space(text: object, what: str) -> Space:
    """Read "0.001..0.3 log" or "1..5", whole numbers between whole ends, or a list of values, of the option `what`.

    Example:
      >>> parse_space("0.001..0.3 log", "learning_rate")
      Space(low=0.001, high=0.3, log=True, values=())
    """
    form = f"The search space of {what} is {shown(text)}, but must be such as '0.001..0.3 log', '1..5' or [adam, sgd]."
    if isinstance(text, (list, tuple)):
        plain = all(x is None or isinstance(x, (str, int, float, bool)) for x in text)
        if not plain or not text or len(set(map(str, text))) < len(text):
            raise InvalidArgument(form)
        return Space(values=tuple(text))
    if not isinstance(text, str):
        raise InvalidArgument(form)
    interval, _, scale = text.strip().partition(" ")
    first, dots, last = interval.partition("..")
    if scale.strip() not in ("", "log") or not dots:
        raise InvalidArgument(form)
    try:
        low, high = _number(first), _number(last)
    except ValueError:
        raise InvalidArgument(form) from None
    if isinstance(low, float) or isinstance(high, float):
        low, high = float(low), float(high)
    log = bool(scale.strip())
    if not (math.isfinite(low) and math.isfinite(high)) or low >= high or (log and low <= 0):
        above = " above 0" if log else ""
        raise InvalidArgument(f"The search space of {what} is {shown(text)}, but must go up from a number{above}.")
    return Space(low, high, log)


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)
