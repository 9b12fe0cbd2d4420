"""A run from Python: the folder, report and record that the command line gives."""

import functools
import json
import os
import pathlib
from inspect import Parameter
from typing import Any, NamedTuple

from rich.console import Console

from tfp_bfl.app.one_run import after
from tfp_bfl.app.one_run.records import in_a_line
from tfp_bfl.app.one_run.run import OnRound, execute
from tfp_bfl.app.one_run.run import resume as go_on
from tfp_bfl.app.options.afterwards import AFTER, after_options, split_after
from tfp_bfl.app.options.config import fields, make_config, read_yaml
from tfp_bfl.app.options.given_data import GivenData, check_no_test_data, made_by
from tfp_bfl.app.options.own_model import GIVEN, Code, names_code
from tfp_bfl.display import shows
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files import Path
from tfp_bfl.keywords import show
from tfp_bfl.options.methods import ALGORITHMS


class _Run(NamedTuple):
    folder: pathlib.Path
    summary: dict[str, Any]


@shows(lambda run: {"folder": run.folder, "scores": in_a_line(run.summary), "report": run.folder / "report.html"})
class Run(_Run):
    """A complete run: its folder, with what `tfp-bfl run` writes, and its summary, the last model's scores and times.

    `data` are those that the program gave, for `report`; None for data that were named.
    """

    data: GivenData | None = None


def run(
    output: Path | None = None,
    *,
    model: object = None,
    rule: object = None,
    algorithm: object = None,
    dataset: object = None,
    test_data: object = None,
    config: Path | None = None,
    resume: Path | None = None,
    progress: str | None = "none",
    on_round: OnRound | None = None,
    **options: object,
) -> Run:
    """Train, evaluate, export and report a model, as `tfp-bfl run` does.

        found = bfl.run("my_run", dataset="digits", rule="linear_pool", rounds=20)
        found.summary["accuracy"]
        bfl.run("hospitals", dataset="patients.csv", label="diagnosis", client_column="hospital", model=my_model)

    Args:
      output: the run folder, a new one; None for a new one under runs/.
      model: a name, "FILE.py:FUNCTION", or a function that builds a Keras model that gives logits; it gets those of
        input_shape, num_classes, kind, seed, prior_stddev, initial_stddev, min_stddev and dropout_rate that it takes.
      rule: a name, "FILE.py:FUNCTION", a `rules.Rule`, or a function without arguments that returns one.
      algorithm: a name ("laplace", "last_layer" and "head" with the option start, a complete run),
        "FILE.py:FUNCTION", or a function of a model function and options that returns a process, as those of
        `tfp_bfl.algorithms`.
      dataset: a name or a path; or data in memory (`data.read_own`): a `data.Source`, `data.Clients`, arrays
        (features, labels) or (features, labels, clients), or a table such as a pandas DataFrame, with the options
        label and client_column as of a file; or a function that returns such data, or {"train": ..., "test": ...}.
      test_data: a path, or a test set in memory in the form of the training data; a fifth of each class if None.
      config: a YAML file with options, such as the config.yaml of another run; those given here win.
      resume: the folder of an interrupted run. No other argument is accepted, except its model, rule, algorithm and
        data, if they were not names.
      progress: "lines", "bar", "phases", "json" or "none", on the standard error.
      on_round: called after each round with its metrics by name, as for a tracker: docs/many_runs.md.
      **options: of `tfp-bfl run`, with "_" for "-": docs/command_line.md.

    Raises:
      InvalidArgument: as the command line answers with status 2; nothing has been written then.
    """
    both = (("model", model), ("rule", rule), ("algorithm", algorithm))
    if "start" in options or (algorithm in AFTER and algorithm not in ALGORITHMS):
        every = {**options, **{name: x for name, x in (*both, ("dataset", dataset)) if x is not None}}
        start, name, parts, own = split_after(every)
        folder = pathlib.Path(output or after.free_folder(str(start), name))
        return Run(folder, after.find_posterior(str(start), folder, after_options(name, own), parts))
    file = config or (resume and pathlib.Path(resume) / "config.yaml")
    settings = {**(read_yaml(file) if file and dataset is not None else {}), **options}
    given = _given_data(dataset, test_data, settings)
    code = Code(*(None if isinstance(x, str) else x for x in (model, rule, algorithm)))._replace(data=given)
    console = Console(stderr=True, quiet=progress == "none")
    shown: dict[str, Any] = {"console": console, "progress": progress, "code": code, "on_round": on_round}
    if resume is not None:
        if (
            options
            or config
            or output
            or (given is None and (test_data or not names_code(dataset)) and (dataset or test_data))
        ):
            raise InvalidArgument(
                "resume continues a run with its recorded options: give only its model, rule, algorithm and data in "
                "memory."
            )
        names: dict[str, Any] = {name: x for name, x in (*both, ("dataset", dataset)) if isinstance(x, str)}
        folder = go_on(resume, **names, **shown)
    else:
        named = {name: x if isinstance(x, str) else GIVEN for name, x in both if x is not None}
        own = _options_of(given, settings) if given else _as_text(dataset=dataset, test_data=test_data)
        every = {name: x for name, x in {**options, **named, **own}.items() if x is not None}
        folder = execute(make_config(config, every, code=code), output, **shown)
    result = Run(folder, json.loads((folder / "summary.json").read_text(encoding="utf-8")))
    result.data = given
    return result


_keyword = functools.partial(Parameter, kind=Parameter.KEYWORD_ONLY)
show(run, [_keyword(name, default=x.default, annotation=x.annotation) for name, x in fields().items()])


def _given_data(dataset: object, test_data: object, settings: dict[str, Any]) -> GivenData | None:
    """Return data in memory, or those of a function, which gets the settings that it takes; None for a name or path."""
    if callable(dataset):
        check_no_test_data(test_data)
        return made_by(dataset, settings)
    is_path = lambda x: isinstance(x, (str, os.PathLike))
    if test_data is not None and is_path(test_data) != (dataset is None or is_path(dataset)):
        raise InvalidArgument("One of dataset and test_data is in memory, the other a path: give both in one form.")
    return None if dataset is None or is_path(dataset) else GivenData(dataset, test_data)


def _as_text(**paths: Any) -> dict[str, Any]:
    return {name: x if x is None else os.fspath(x) for name, x in paths.items()}


def _options_of(given: GivenData, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a run that say what data in memory are: the record of the data, and their task."""
    named = {name: None if x == "none" and name != "label" else x for name, x in settings.items()}
    return {"dataset": given.record(named), "task": named.get("task") or given.task or "classification"}
