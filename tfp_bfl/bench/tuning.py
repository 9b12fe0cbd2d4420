"""Trials: the choice of a method's options on held-out training rows, in a benchmark and by `tfp-bfl tune`."""

import json
import logging
import math
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from tfp_bfl.app.one_run.build import check_models
from tfp_bfl.app.one_run.datasets import is_own, load, with_clients
from tfp_bfl.app.one_run.pipeline import Finished
from tfp_bfl.app.one_run.trackers import TrackerError
from tfp_bfl.app.options.config import make_config
from tfp_bfl.app.options.own_model import OPTIONS as CODE
from tfp_bfl.app.options.own_model import names_code
from tfp_bfl.bench import cell, cells
from tfp_bfl.bench.cells import Options
from tfp_bfl.bench.plan import OF_FEDERATION, BenchMethod, Plan
from tfp_bfl.bench.sweep import DEFAULTS, Space, Values, parse_space
from tfp_bfl.errors import Error, InvalidArgument, MissingDependency, WorkerError, shown
from tfp_bfl.files import name as path_name
from tfp_bfl.files.packages import check_installed
from tfp_bfl.files.writing import locked, write_whole
from tfp_bfl.labels import ALIASES

TRIALS = "trials.jsonl"
# The options of the trials of a benchmark's method, those of `tune`, and its result.
OPTIONS, _OF_TUNE, _BEST = "options.json", "options.yaml", "best.yaml"
# Scores of which more is better.
_MORE = ("accuracy",)
_MOST_LETTERS = 300

# Chosen values of options -> the record of a trial.
Try = Callable[[Values], Finished]


class Chosen(NamedTuple):
    """The values of a method's best trial, {} for the defaults, its score, None without trials, their number, and the
    seconds of all of them.
    """

    values: dict[str, Any]
    score: Any
    trials: int
    seconds: float


def parse_spaces(texts: Sequence[str]) -> dict[str, Space]:
    """Return option -> space of texts such as "learning-rate=0.001..0.3 log" or "optimizer=adam,sgd"."""
    spaces: dict[str, Space] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        if not equals:
            raise InvalidArgument(f"--space is {shown(text)}, but must be such as 'learning-rate=0.001..0.3 log'.")
        if name in spaces:
            raise InvalidArgument(f"--space names {name} twice: name each option once.")
        if name in ("seed", "output", "hold_out", *OF_FEDERATION):
            raise InvalidArgument(f"--space is of {name}, which is not tuned: leave it out.")
        is_list = "," in values or ".." not in values
        spaces[name] = parse_space([x.strip() for x in values.split(",")] if is_list else values, name)
    if not spaces:
        raise InvalidArgument("There is nothing to tune: give --space, such as 'learning-rate=0.001..0.3 log'.")
    return spaces


def tune_run(
    output: pathlib.Path, config_file: str | None, options: Mapping[str, Any], spaces: Sequence[str], **settings: Any
) -> tuple[list[str], Chosen]:
    """Run the remaining trials of a method, write the best configuration, and return what they found, in lines too.

    The folder is new, or that of the same trials. `settings` are `trials`, `score` and `hold_out` of a `Plan`.
    """
    space = parse_spaces(spaces)
    for name in space:
        if name in options:
            raise InvalidArgument(f"{name} is given and tuned: leave one of both out.")
    base, pair = make_config(config_file, dict(options)), ("", "")
    method, seed = BenchMethod(options, space), base.seed
    plan = Plan(settings={"": {}}, methods={"": method}, seeds=[seed], trial_seed=seed, file=config_file, **settings)
    configs = plan.named([pair])
    check_optuna()
    plan.check_task("")
    if (why := plan.why_not(*pair)) is not None:
        raise InvalidArgument(f"Trials do not serve these data: {why}")
    digests = plan.check_data([pair])
    record = {
        **base.recorded(),
        "spaces": {name: str(each) for name, each in space.items()},
        **{"trials": plan.trials, "score": plan.score, "share": plan.hold_out},
        **({"data": sorted(digests.values())} if digests else {}),
    }
    path, text = output / _OF_TUNE, yaml.safe_dump(record, sort_keys=False)
    check_folder(output, text)
    check_models(configs)
    output.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
    chosen = choose(plan, *pair, output)
    best = plan.config(*pair, seed, chosen.values)
    if is_own(best):  # The record states the number of clients, which a run compares with that of the data.
        best = with_clients(best, load(best))
    write_whole(output / _BEST, best.record())
    words = ", ".join(f"{name} {x:.4g}" if isinstance(x, float) else f"{name} {x}" for name, x in chosen.values.items())
    code = "".join(f" --{x} {getattr(best, x)}" for x in CODE if names_code(getattr(best, x)))
    lines = [
        f"{chosen.trials} trials; the best, with {words or 'the defaults'}, has {plan.score} {chosen.score:.4f} on "
        "held-out training examples.",
        f"To train with it on all of them: tfp-bfl run --config {path_name(output / _BEST)}{code}",
    ]
    recorded = best.recorded()  # A list of texts is a space, too: as the option reads them.
    return lines, chosen._replace(values={name: recorded[name] for name in chosen.values})


def check_folder(output: pathlib.Path, record: str) -> None:
    """Check that the folder is new, or of the same trials."""
    cells.check_output(output, "trials", _OF_TUNE)
    path = output / _OF_TUNE
    if path.is_file() and path.read_text(encoding="utf-8", errors="replace") != record:
        raise InvalidArgument(f"{path_name(output)} has trials of other options or data: give --output another folder.")


def check_optuna() -> None:
    """Raise MissingDependency if the package optuna is not installed."""
    check_installed("optuna", "A choice by trials")


def check_trials(folder: pathlib.Path, options: Options) -> None:
    """Raise InvalidArgument if a folder has trials of other options, or a file of its trials is damaged."""
    path = folder / OPTIONS
    if cells.is_done(folder):
        cells.read_summary(folder)
    if path.is_file() and cells.read_written(path) != json.loads(json.dumps(dict(options))):
        raise InvalidArgument(f"{path_name(folder)} has trials of other options: give another --output, or delete it.")


def choose(plan: Plan, setting: str, method: str, folder: pathlib.Path, options: Options = DEFAULTS) -> Chosen:
    """Return the values that trials choose for a method of a plan in a setting, as `tune`."""
    named = lambda values: ",".join(f"{name}={x:.4g}" if isinstance(x, float) else f"{name}={x}" for name, x in values)
    place = lambda values: folder / "trials" / (re.sub("[/:]", "-", named(values.items())) or "defaults")
    task = lambda values: cell.task_of(plan, setting, method, plan.trial_seed, values, place(values))
    attempt = lambda values: cell.run_trial(task(values))
    return tune(folder, plan, plan.methods[method].space, attempt, options)


def tune(
    folder: pathlib.Path, plan: Plan, space: Mapping[str, Space], attempt: Try, options: Options = DEFAULTS
) -> Chosen:
    """Return the values of the best of some trials, which a folder stores: interrupted trials resume with the next one.

    The first trial has the method's defaults. Half of the others are drawn from the search space at random, the rest by
    the tree-structured Parzen estimator of optuna (Bergstra et al. 2011), all by the seed. A trial that fails, or has a
    score that is not finite, counts as the worst. Of several processes at one folder the first works, the others wait.
    Trials of other `options` in the folder are refused. Error if every trial failed.
    """
    if not space:
        return Chosen({}, None, 0, 0.0)
    check_trials(folder, options)
    with locked(folder / ".lock"):
        if not cells.is_done(folder):
            cells.write_json(folder / OPTIONS, dict(options))
            cells.write_json(folder / cells.SUMMARY, _run_trials(folder, plan, space, attempt))
    found = cells.read_summary(folder)
    if found["best"] is None:
        raise Error(f"Every trial failed, the first of them with: {found['reason']}")
    return Chosen(found["best"], found["score"], found["trials"], found["seconds"])


def _run_trials(folder: pathlib.Path, plan: Plan, space: Mapping[str, Space], attempt: Try) -> dict[str, Any]:
    """Run the trials that are not stored, and return the summary of all."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    logging.getLogger("optuna").setLevel(logging.ERROR)
    sign, key = -1.0 if plan.score in _MORE else 1.0, ALIASES.get(plan.score, plan.score)
    of = lambda row: row.get("scores", {}).get(key, math.nan)
    sampler = optuna.samplers.TPESampler(seed=plan.trial_seed, n_startup_trials=max(1, plan.trials // 2))
    study = optuna.create_study(sampler=sampler)
    rows = read_trials(folder)
    if rows:
        write_whole(folder / TRIALS, "".join(json.dumps(row) + "\n" for row in rows))
    worst = 1e9
    for number in range(plan.trials):
        asked = study.ask() if number else None
        values = {name: each.suggest(asked, name) for name, each in space.items()} if asked else {}
        if number < len(rows):
            row = rows[number]
            if row["values"] != json.loads(json.dumps(values)):
                raise InvalidArgument(f"{folder / TRIALS} holds trials of another search space: delete that folder.")
        else:
            try:
                row = {"values": dict(values), **attempt(values)._asdict()}
            except Exception as error:
                if not is_result(error):
                    raise
                row = {"values": dict(values), "failed": reason(error)}
            finally:
                cells.forget_models()
            rows.append(row)
            with open(folder / TRIALS, "a", encoding="utf-8") as lines:
                lines.write(json.dumps(row) + "\n")
        if asked:
            found = sign * of(row)
            study.tell(asked, found if math.isfinite(found) else worst)
    sound = [row for row in rows if math.isfinite(of(row))]
    best = min(sound, key=lambda row: sign * of(row), default=None)
    return {
        "best": best and best["values"],
        "score": best and of(best),
        "trials": len(rows),
        "seconds": sum(row.get("cost", {}).get("seconds", 0.0) for row in rows),
        "reason": next((row["failed"] for row in rows if "failed" in row), f"no {plan.score} was finite."),
    }


def is_result(error: Exception) -> bool:
    """Return whether an error is the result of a method, such as divergence, and not a fault of machine or program."""
    of_machine = (MissingDependency, TrackerError, WorkerError)
    return isinstance(error, (Error, ValueError, ArithmeticError)) and not isinstance(error, of_machine)


def reason(error: BaseException) -> str:
    """Return an error as a record has it: the first line, cut in the middle if it is long, since advice comes last."""
    text = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
    line = text.strip().partition("\n")[0]
    half = (_MOST_LETTERS - 5) // 2
    return line if len(line) <= _MOST_LETTERS else f"{line[:half]} ... {line[-half:]}"


def read_trials(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Return the trials of a folder that are complete; the last line of a broken run may be cut off."""
    path, rows = folder / TRIALS, list[dict[str, Any]]()
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except ValueError:
            break
        if not isinstance(row, dict) or not isinstance(row.get("values"), dict):
            break
        rows.append(row)
    return rows
