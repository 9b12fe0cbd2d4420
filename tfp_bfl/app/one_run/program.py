"""A run from Python: the folder, report and record that the command line gives."""

from __future__ import annotations

import json
import pathlib
from typing import Any, NamedTuple, Optional, Union

from rich.console import Console

from tfp_bfl.app.one_run.run import OnRound, execute
from tfp_bfl.app.one_run.run import resume as go_on
from tfp_bfl.app.options.config import make_config
from tfp_bfl.app.options.own_model import GIVEN, Code
from tfp_bfl.errors import InvalidArgument


class Run(NamedTuple):
    """A complete run.

    Fields:
      folder: with what `tfp-bfl run` writes: report.html, saved_model/, metrics.jsonl, config.yaml, ...
      summary: the scores of its last model, and times.
    """

    folder: pathlib.Path
    summary: dict[str, Any]


def run(
    output: Union[str, pathlib.Path, None] = None,
    *,
    model: Any = None,
    rule: Any = None,
    algorithm: Any = None,
    config: Union[str, pathlib.Path, None] = None,
    resume: Union[str, pathlib.Path, None] = None,
    progress: Optional[str] = "none",
    on_round: Optional[OnRound] = None,
    **options: Any,
) -> Run:
    """Trains, evaluates, exports and reports a model, as `tfp-bfl run` does.

        found = bfl.run("my_run", dataset="digits", rule="linear_pool", rounds=20)
        found.summary["accuracy"]
        bfl.run("hospitals", dataset="patients.csv", label="diagnosis", client_column="hospital", model=my_model)

    Args:
      output: the run folder, a new one; None for a new one under runs/.
      model: a name, "FILE.py:FUNCTION", or a function that builds a Keras model that gives logits; it gets those of
        input_shape, num_classes, kind, seed, prior_stddev, initial_stddev, min_stddev and dropout_rate that it takes.
      rule: a name, "FILE.py:FUNCTION", a `rules.Rule`, or a function without arguments that returns one.
      algorithm: a name, "FILE.py:FUNCTION", or a function of a model function and options that returns a process, as
        those of `tfp_bfl.algorithms`.
      config: a YAML file with options, such as the config.yaml of another run; those given here win.
      resume: the folder of a run that broke off, to go on with; takes nothing else but its model, rule and algorithm,
        if they were not names.
      progress: "lines", "bar", "phases", "json" or "none", on the standard error.
      on_round: called after each round with its metrics by name, as for a tracker: docs/many_runs.md.
      **options: of `tfp-bfl run`, with "_" for "-": docs/command_line.md.

    Raises:
      InvalidArgument: as the command line answers with status 2; nothing has been written then.
    """
    both = (("model", model), ("rule", rule), ("algorithm", algorithm))
    code = Code(*(None if isinstance(x, str) else x for x in (model, rule, algorithm)))
    console = Console(stderr=True, quiet=progress == "none")
    shown: dict[str, Any] = {"console": console, "progress": progress, "code": code, "on_round": on_round}
    if resume is not None:
        if options or config or output:
            raise InvalidArgument(
                "resume goes on with a run as it was begun: leave all else out but its model, rule and algorithm."
            )
        names: dict[str, Any] = {name: x for name, x in both if isinstance(x, str)}
        folder = go_on(resume, **names, **shown)
    else:
        named = {name: x if isinstance(x, str) else GIVEN for name, x in both if x is not None}
        given = {name: x for name, x in {**options, **named}.items() if x is not None}
        folder = execute(make_config(config, given), output, **shown)
    return Run(folder, json.loads((folder / "summary.json").read_text(encoding="utf-8")))
