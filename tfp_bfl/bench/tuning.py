"""The choice of a method's options by trials on held-out training rows, the same number for each method."""

from __future__ import annotations

import functools
import json
import logging
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tfp_bfl.app.one_run.pipeline import Finished
from tfp_bfl.bench.cells import SUMMARY, Options, forget_models, is_done, read_summary, read_written, run_once
from tfp_bfl.bench.spaces import DEFAULTS, Space, Values
from tfp_bfl.errors import Error, InvalidArgument, MissingDependency, WorkerError
from tfp_bfl.files import name as path_name
from tfp_bfl.files.writing import write_whole
from tfp_bfl.labels import ALIASES

TRIALS = "trials.jsonl"
# Scores of which more is better.
_MORE = ("accuracy",)
_MOST_LETTERS = 300

# Chosen values of options -> the record of a trial.
Try = Callable[[Values], Finished]
# The options of the trials in a folder.
OPTIONS = "options.json"


class Chosen(NamedTuple):
    """The result of the trials of a method.

    Fields:
      values: option -> value of the best trial; {} for the defaults.
      score: of the best trial; None without trials.
      trials: how many there were.
      seconds: of all of them.
    """

    values: dict[str, Any]
    score: Any
    trials: int
    seconds: float


def check_optuna() -> None:
    """Raise MissingDependency if the package optuna is not installed."""
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise MissingDependency(
            "Trials need the package optuna: install it with pip install '.[bench]' (in a clone of tfp_bfl), or give "
            "trials of methods with nothing tuned."
        ) from None


def check_trials(folder: pathlib.Path, options: Options) -> None:
    """Check that a folder has no trials of other options.

    Raises:
      InvalidArgument: it has, or a file of its trials is damaged.
    """
    path = folder / OPTIONS
    if is_done(folder):
        read_summary(folder)
    if path.is_file() and read_written(path) != json.loads(json.dumps(dict(options))):
        raise InvalidArgument(f"{path_name(folder)} has trials of other options: give another --output, or delete it.")


def tune(
    folder: pathlib.Path,
    space: Mapping[str, Space],
    trials: int,
    seed: int,
    score: str,
    attempt: Try,
    options: Options = DEFAULTS,
) -> Chosen:
    """Return the values of the best of some trials, which a folder stores: interrupted trials resume with the next one.

    The first trial has the method's defaults. Half of the others are drawn from the search space at random, the rest by
    the tree-structured Parzen estimator of optuna (Bergstra et al. 2011), all by the seed. A trial that fails, or has a
    score that is not finite, counts as the worst. Of several processes at one folder the first works, the others wait.

    Args:
      folder: of the trials.
      space: option -> values; {} for no trials.
      trials: their number, with the one of the defaults.
      seed: of the draws.
      score: by which they are compared.
      attempt: runs one.
      options: all that decides the trials.

    Raises:
      InvalidArgument: the folder has trials of other options.
      Error: every trial failed; the message has the reason of the first.
    """
    if not space:
        return Chosen({}, None, 0, 0.0)
    check_trials(folder, options)
    work = functools.partial(_work, folder, space, trials, seed, score, attempt, options)
    run_once(folder, work, goes_on=True, lock=folder / ".lock")
    found = read_summary(folder)
    if found["best"] is None:
        raise Error(f"Every trial failed, the first of them with: {found['reason']}")
    return Chosen(found["best"], found["score"], found["trials"], found["seconds"])


def _work(
    folder: pathlib.Path,
    space: Mapping[str, Space],
    trials: int,
    seed: int,
    score: str,
    attempt: Try,
    options: Options,
) -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    logging.getLogger("optuna").setLevel(logging.ERROR)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / OPTIONS, json.dumps(dict(options), indent=1) + "\n")
    sign, key = -1.0 if score in _MORE else 1.0, ALIASES.get(score, score)
    of = lambda row: row.get("scores", {}).get(key, math.nan)
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=max(1, trials // 2))
    study = optuna.create_study(sampler=sampler)
    rows = read_trials(folder)
    if rows:
        write_whole(folder / TRIALS, "".join(json.dumps(row) + "\n" for row in rows))
    worst = 1e9
    for number in range(trials):
        asked = study.ask() if number else None
        values = {name: each.suggest(asked, name) for name, each in space.items()} if asked else {}
        if number < len(rows):
            row = rows[number]
            if row["values"] != json.loads(json.dumps(values)):
                raise InvalidArgument(f"{folder / TRIALS} holds trials of another search space: delete that folder.")
        else:
            row = _attempted(attempt, values)
            rows.append(row)
            with open(folder / TRIALS, "a", encoding="utf-8") as lines:
                lines.write(json.dumps(row) + "\n")
        if asked:
            found = sign * of(row)
            study.tell(asked, found if math.isfinite(found) else worst)
    sound = [row for row in rows if math.isfinite(of(row))]
    best = min(sound, key=lambda row: sign * of(row), default=None)
    summary = {
        "best": best and best["values"],
        "score": best and of(best),
        "trials": len(rows),
        "seconds": sum(row.get("cost", {}).get("seconds", 0.0) for row in rows),
        "reason": next((row["failed"] for row in rows if "failed" in row), f"no {score} was finite."),
    }
    write_whole(folder / SUMMARY, json.dumps(summary, indent=1) + "\n")


def _attempted(attempt: Try, values: Values) -> dict[str, Any]:
    try:
        return {"values": dict(values), **attempt(values)._asdict()}
    except Exception as error:
        if not is_result(error):
            raise
        return {"values": dict(values), "failed": reason(error)}
    finally:
        forget_models()


def is_result(error: Exception) -> bool:
    """Return whether an error is the result of a method, such as divergence, and not a fault of machine or program."""
    of_machine = (MissingDependency, WorkerError)
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
