"""The trials of one method: `tfp-bfl tune`."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from tfp_bfl.app.one_run.build import check_models
from tfp_bfl.app.one_run.datasets import is_own, load, with_clients
from tfp_bfl.app.one_run.pipeline import Finished
from tfp_bfl.app.options.config import make_config
from tfp_bfl.app.options.own_model import OPTIONS as CODE
from tfp_bfl.app.options.own_model import names_code
from tfp_bfl.bench import cell, tuning
from tfp_bfl.bench.applicable import check_clients, check_score, why_not
from tfp_bfl.bench.plan import OF_FEDERATION, SCORES, share_of
from tfp_bfl.bench.spaces import Space, Values, parse_space
from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.files import name as path_name
from tfp_bfl.files.writing import write_whole

_OPTIONS, _BEST = "options.yaml", "best.yaml"


def parse_spaces(texts: Sequence[str]) -> dict[str, Space]:
    """Return option -> space of texts such as "learning-rate=0.001..0.3 log" or "optimizer=adam,sgd".

    Raises:
      InvalidArgument: there is none, a text has another form, or an option is named twice or does not exist.
    """
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
    output: pathlib.Path,
    config_file: str | None,
    options: Mapping[str, Any],
    spaces: Sequence[str],
    *,
    trials: int,
    score: str,
    share: str,
) -> list[str]:
    """Run the remaining trials of a method, write the best configuration, and return what they found, line by line.

    Args:
      output: the folder, a new one or that of the same trials.
      config_file: YAML file with options; None for none.
      options: of all trials.
      spaces: as of `parse_spaces`.
      trials: their number.
      score: "nll", "accuracy" or "rmse".
      share: of each client's training examples that is held out.

    Raises:
      InvalidArgument: an option, a space or the data don't fit, or the folder is of something else. Nothing has been
        written then.
      MissingDependency: optuna is not installed.
      Error: every trial failed.
    """
    space = parse_spaces(spaces)
    lookup(dict.fromkeys(SCORES), score, "score")
    held = share_of(share, "share")
    for name in space:
        if name in options:
            raise InvalidArgument(f"{name} is given and tuned: leave one of both out.")
    base = make_config(config_file, dict(options))
    edges = [{name: value} for name, each in space.items() for value in each.edges]
    every = [base, *(make_config(config_file, {**options, **values}) for values in edges)]
    tuning.check_optuna()
    check_score(score, base)
    for config in every:
        reason = why_not(config)
        if reason is not None:
            raise InvalidArgument(f"Trials do not serve these data: {reason}")
    digests = check_clients([("", config) for config in every], held)
    record = yaml.safe_dump(
        {
            **base.recorded(),
            "spaces": {name: str(each) for name, each in space.items()},
            "trials": trials,
            "score": score,
            "share": held,
            **({"data": sorted(digests.values())} if digests else {}),
        },
        sort_keys=False,
    )
    _check_folder(output, record)
    check_models(("", config) for config in every)
    output.mkdir(parents=True, exist_ok=True)
    write_whole(output / _OPTIONS, record)

    def attempt(values: Values) -> Finished:
        return cell.run_trial(cell.Task(make_config(config_file, {**options, **values}), None, {}, held))

    chosen = tuning.tune(output, space, trials, base.seed, score, attempt)
    best = make_config(config_file, {**options, **chosen.values})
    if is_own(best):  # The record states the number of clients, which a run compares with that of the data.
        best = with_clients(best, load(best))
    write_whole(output / _BEST, best.record())
    words = ", ".join(f"{name} {x:.4g}" if isinstance(x, float) else f"{name} {x}" for name, x in chosen.values.items())
    code = "".join(f" --{x} {getattr(best, x)}" for x in CODE if names_code(getattr(best, x)))
    return [
        f"{chosen.trials} trials; the best, with {words or 'the defaults'}, has {score} {chosen.score:.4f} on held-out "
        "training examples.",
        f"To train with it on all of them: tfp-bfl run --config {path_name(output / _BEST)}{code}",
    ]


def _check_folder(output: pathlib.Path, record: str) -> None:
    """Check that the folder is new, or of the same trials."""
    if not output.exists():
        return
    if not output.is_dir() or (any(output.iterdir()) and not (output / _OPTIONS).is_file()):
        raise InvalidArgument(f"{path_name(output)} is no folder of trials: give --output a new one.")
    if (output / _OPTIONS).is_file() and (output / _OPTIONS).read_text(encoding="utf-8", errors="replace") != record:
        raise InvalidArgument(f"{path_name(output)} has trials of other options or data: give --output another folder.")
