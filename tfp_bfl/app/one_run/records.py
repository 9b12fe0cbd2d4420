"""The records of a run, of an ensemble too: configuration, summary, rounds and predictions, read from its folder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import pathlib
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl import files
from tfp_bfl.app.options.config import RunConfig, make_config
from tfp_bfl.app.options.given_data import recorded
from tfp_bfl.app.options.own_model import OPTIONS as CODE
from tfp_bfl.app.options.own_model import names_code
from tfp_bfl.app.options.resolve import at_last, stated
from tfp_bfl.data.equal_partitions import GIVEN
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.faces import keras, tf
from tfp_bfl.files import Path, read_regular
from tfp_bfl.files.arrays import read_arrays
from tfp_bfl.labels import duration
from tfp_bfl.options.fits import is_private as is_private

if TYPE_CHECKING:  # What draws is imported when something is drawn.
    from tfp_bfl.plots.page import About

UNCERTAINTIES = ("entropy", "aleatoric", "epistemic", "mutual_information")
# Of a prediction of a number.
NUMBERS = ("mean", "stddev", "aleatoric", "epistemic", "low", "high")
# Written last: that it is there says that a run, a cell or trials are complete.
SUMMARY = "summary.json"
# Predictions of what nobody trained on, besides the test set.
HELD_OUT = "held_out.npz"
# Those of the test set.
PREDICTIONS = "predictions.npz"
MOST_SUMMARY_BYTES = 2**25  # With the scores of 100,000 clients.
MOST_ROUNDS_BYTES = 2**28
_MOST_NAMES_BYTES = 2**24  # With the headers of the arrays.
_MOST_CLASSES = 12  # In the title block of a report.
# What a report draws or rounds, of a summary or a round.
_NUMBERS = (
    *("round", "accuracy", "rmse", "coverage", "nll", "test_nll", "ece", "epistemic_share"),
    *("stddev_q05", "stddev_median", "stddev_q95"),
    *("seconds", "train_seconds", "ms_per_step", "worker_mb", "process_mb"),
    *("upload_mb", "download_mb", "pruned_weights"),
)


def names_in(clients: bfl.data.Clients) -> list[str]:
    """Return the name that the rows give each of two clients or more; [] unless each has a different one."""
    return list(clients.client_names) if clients.num_clients > 1 else []


def is_done(folder: pathlib.Path) -> bool:
    """Return whether the work of a folder was finished."""
    return (folder / SUMMARY).exists()


def config_in(folder: pathlib.Path) -> RunConfig:
    """Return the configuration of a run, whose code is not run."""
    return make_config(folder / "config.yaml", {}, runs_code=False)


def state_of(run: pathlib.Path, config: RunConfig) -> str:
    """Return the state of a run: done, at a round, or interrupted after one."""
    if is_done(run):
        return "done"
    state, rounds = "interrupted after", 0
    with contextlib.suppress(InvalidArgument):
        rounds = read_regular(run / "metrics.jsonl", "file of metrics", MOST_ROUNDS_BYTES).count(b"\n")
    with open(run / "config.yaml", "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:  # A process works on the run and holds the lock of its configuration.
            state = "at"
    return f"{state} round {rounds}/{config.rounds * (config.ensemble or 1)}"


def in_columns(rows: Sequence[Sequence[str]], align: Callable[[str, int], str] = str.ljust) -> str:
    """Return the rows of a table as lines, each column as wide as its content."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(map(align, row, widths)).rstrip() for row in rows)


def config_with_code(run: Path, code: Mapping[str, str]) -> RunConfig:
    """Return the configuration of a run with code that may be run, option -> FILE.py:FUNCTION that is named again."""
    path = pathlib.Path(run) / "config.yaml"
    there = config_in(pathlib.Path(run))
    for option in code:
        value = getattr(there, option)
        if not names_code(value):
            raise InvalidArgument(
                f"The {option} of {files.name(run)} is {shown(value)}, and no code: leave --{option} out."
            )
    return make_config(path, dict(code))


def weights_in(summary: Mapping[str, Any]) -> str | None:
    """Return what the weights of a run's model are, as `resolve.weights_of`; None for a run that recorded none."""
    recorded = summary.get("method")
    return recorded.get("weights") if isinstance(recorded, Mapping) else None


def score(summary: Mapping[str, Any]) -> str:
    """Return the accuracy in a summary, or the RMSE of a regression."""
    return f"accuracy {summary['accuracy']:.4f}" if "accuracy" in summary else f"RMSE {summary['rmse']:.4g}"


def in_short(summary: Mapping[str, Any]) -> str:
    """Return the first scores in a summary, and the time."""
    return f"{score(summary)}  NLL {summary['test_nll']:.4f}  ({duration(summary['seconds'])})"


def in_a_line(summary: Mapping[str, Any]) -> str:
    """Return the scores of a run's model in one line."""
    last = (
        f"ECE {summary['ece']:.4f}"
        if "ece" in summary
        else f"{bfl.evaluation.COVERAGE:.0%} intervals cover {summary['coverage']:.1%}"
    )
    share = f"epistemic fraction {summary['epistemic_share']:.1%}  ({duration(summary['seconds'])})"
    return f"{score(summary)}  NLL {summary['test_nll']:.4f}  {last}  {share}"


def passes_of(config: RunConfig, num_examples: int) -> tuple[int, int]:
    """Return batch size and epochs of a run's first round, of which privacy of examples is accounted for.

    Clients without batches release a sum over all examples, once.
    """
    return (config.batch_size, config.local_epochs) if config.has("batch_size") else (num_examples, 1)


def privacy(
    config: RunConfig,
    last: Mapping[str, Any],
    sizes: Iterable[int],
    process: bfl.federated.BayesianProcess | None = None,
) -> dict[str, float]:
    """Return the epsilon of clients, and the largest of a client's examples; nothing without differential privacy.

    The delta is that of the process where the algorithm is the user's.
    """
    epsilons = {} if last.get("epsilon") is None else {"epsilon": last["epsilon"]}
    if config.example_clip_norm:
        sizes = list(sizes)
        batch_size, epochs = passes_of(config, max(sizes))
        settings = batch_size, epochs * (config.rounds if config.has("batch_size") else 1), config.privacy_delta
        of_examples = bfl.privacy.largest_example_epsilon(config.example_noise, sizes, *settings)
        epsilons |= {} if of_examples is None else {"example_epsilon": of_examples}
    own = process.privacy if process else None
    return {**epsilons, "delta": own.delta if own else config.privacy_delta} if epsilons else {}


def truth(test: bfl.data.Source) -> np.ndarray:
    """Return the labels as predictions are of them: numbers in their own units."""
    return in_units(test.labels, test.target)


def in_units(labels: np.ndarray, target: bfl.data.Column | None) -> np.ndarray:
    """Return labels as predictions are of them: classes, or numbers in the units of their target, in float64."""
    return labels if target is None else target.mean + target.scale * np.asarray(labels, np.float64)


def about(
    folder: pathlib.Path,
    config: RunConfig,
    summary: Mapping[str, Any],
    test: bfl.data.Source,
    clients: bfl.data.Clients,
) -> About:
    """Return the title block of a run's report."""
    from tfp_bfl.plots.page import About

    given = recorded(config.dataset)
    parts = [
        given.name + ", in memory" if given else config.dataset,
        f"test data {config.test_data}" if config.test_data and not given else "",
        f"{sum(clients.sizes):,} training and {test.num_examples:,} test examples",
        f"clients by {config.client_column}" if config.client_column else "",
    ]
    names = [*test.class_names[:_MOST_CLASSES], *["..."] * (test.num_classes > _MOST_CLASSES)]
    column = f"{config.label}, " if test.columns and bfl.data.is_own(config.dataset) else ""
    classes = f"{column}{test.num_classes} classes: {', '.join(map(str, names))}"
    return About(
        data=", ".join(filter(None, parts)),
        outcome=f"{test.target.name}, a number" if test.target else classes,
        date=str(summary.get("date") or ""),
        version=str((summary.get("versions") or {}).get("tfp_bfl", "")),
        command=repeat(folder, config),
    )


def repeat(folder: pathlib.Path, config: RunConfig) -> str:
    """Return the command that repeats a run; "" for one on data in memory."""
    code = [f"--{name}={x}" for name in CODE if names_code(x := getattr(config, name, None))]
    command = ["tfp-bfl", "run", "--config", str(folder / "config.yaml"), *code]
    return "" if recorded(config.dataset) else shlex.join(command)


def results(
    name: str,
    config: RunConfig,
    summary: Mapping[str, Any],
    rounds: Sequence[Mapping[str, Any]],
    predictions: Mapping[str, np.ndarray],
    test: bfl.data.Source,
    clients: bfl.data.Clients,
    folder: pathlib.Path,
) -> bfl.plots.RunResults:
    """Return the contents of the report of a run in a folder; `predictions` are the arrays of its predictions.npz."""
    settings = stated(config, weights_in(summary), at_last(summary.get("trained") or {}, rounds))
    return bfl.plots.RunResults(
        name=name,
        config=settings,
        statement=bfl.export.statement(settings),
        about=about(folder, config, summary, test, clients),
        summary=summary,
        rounds=over_members(rounds),
        probabilities=predictions.get("probabilities"),
        labels=predictions["labels"],
        uncertainties={key: predictions[key] for key in UNCERTAINTIES if key in predictions},
        numbers={key: predictions[key] for key in NUMBERS} if test.target else None,
        class_names=test.class_names,
        features=test.features,
        label_counts=clients.label_counts(),
        client_names=names_in(clients) if config.partition == GIVEN else (),
        warnings=list(dict.fromkeys(summary.get("warnings") or [])),
    )


def read_record(folder: pathlib.Path) -> tuple[RunConfig, dict[str, Any]]:
    """Return the configuration and the summary of a complete run."""
    if not (folder / "config.yaml").is_file():
        raise InvalidArgument(f"{files.name(folder)} is not the folder of a run: it has no config.yaml.")
    if not (folder / "summary.json").exists():
        raise InvalidArgument(
            f"The run in {files.name(folder)} is not finished: go on with it by tfp-bfl run --resume, then report it."
        )
    for part in ("metrics.jsonl", "predictions.npz"):
        if not (folder / part).exists():
            raise InvalidArgument(
                f"{files.name(folder)} has no {part}, of which a report is made: name a folder that tfp-bfl run wrote."
            )
    config = config_in(folder)
    (summary,) = read_json(folder / "summary.json", "summary", MOST_SUMMARY_BYTES)
    return config, summary


def read_json(path: pathlib.Path, what: str, most: int) -> list[dict[str, Any]]:
    """Return the mapping that a file holds, or of a .jsonl those that its lines hold."""
    content = files.read_regular(path, what, most)
    try:
        parts = content.splitlines() if path.suffix == ".jsonl" else [content]
        values = [json.loads(part) for part in parts]
        if not all(isinstance(value, dict) and _is_sound(value) for value in values):
            raise ValueError
        return values
    except (ValueError, RecursionError):
        raise InvalidArgument(
            f"The {what} {files.name(path)} is damaged: it does not hold what a run writes."
        ) from None


def _is_sound(record: Mapping[str, Any]) -> bool:
    numbers = [record[name] for name in _NUMBERS if record.get(name) is not None]
    return all(isinstance(x, (int, float)) for x in numbers) and isinstance(record.get("faulty_clients", {}), dict)


def predictions_of(evaluation: Any, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Return the arrays of a file of predictions, from an `Evaluation` or a `RegressionEvaluation`; labels
    as of `truth`.
    """
    if isinstance(evaluation, bfl.evaluation.RegressionEvaluation):
        return {"labels": labels, **{name: getattr(evaluation, name) for name in NUMBERS}}
    return {
        "probabilities": evaluation.probabilities,
        "labels": labels,
        **{name: getattr(evaluation, name) for name in UNCERTAINTIES},
    }


def read_predictions(path: pathlib.Path, most_examples: int, num_classes: int) -> dict[str, np.ndarray]:
    """Return the arrays of a file of predictions, which has no more than those of so many examples take; of numbers,
    without classes, those of `NUMBERS`. Where the data name clients, also "client", places in "client_names".
    """
    names: tuple[str, ...] = ("probabilities", "labels", *UNCERTAINTIES) if num_classes else ("labels", *NUMBERS)
    most = 8 * most_examples * (num_classes + len(names) + 1) + _MOST_NAMES_BYTES
    arrays = read_arrays(path, "file of predictions", most, compressed=True)
    shapes = [arrays[name].shape if name in arrays else None for name in names]
    number = len(arrays["labels"]) if "labels" in arrays and arrays["labels"].ndim else 0
    wanted = [(number, num_classes) if name == "probabilities" else (number,) for name in names]
    if shapes != wanted or not all(
        np.issubdtype(arrays[name].dtype, np.number) and np.all(np.isfinite(arrays[name])) for name in names
    ):
        raise InvalidArgument(f"{files.name(path)} is not a run's file of predictions.")
    return {name: arrays[name] for name in (*names, *_named(arrays, number, path))}


def _named(arrays: Mapping[str, np.ndarray], number: int, path: pathlib.Path) -> tuple[str, ...]:
    """Return the names of the arrays with the client of each row; () where the file has none."""
    if "client" not in arrays:
        return ()
    client, names = arrays["client"], arrays.get("client_names", np.zeros(0))
    are_whole = client.shape == (number,) and client.dtype.kind == "i" and names.ndim == 1 and names.dtype.kind == "U"
    if not are_whole or np.any(client < 0) or np.any(client >= len(names)):
        raise InvalidArgument(f"{files.name(path)} does not name the client of each row as a run does.")
    return ("client", "client_names")


# The mean of these scores over the members is reported beside the ensemble's scores.
_SCORES = ("accuracy", "rmse", "test_nll", "ece", "coverage")


def processes(
    config: RunConfig, build: Callable[[RunConfig], bfl.federated.BayesianProcess]
) -> tuple[bfl.federated.BayesianProcess, Any]:
    """Return the process of the first member, and what `simulate` runs: the same, or all members."""
    if config.ensemble is None:
        process = build(config)
        return process, process
    make = lambda seed: build(config.model_copy(update={"seed": seed}))
    ensemble = bfl.algorithms.ensemble(make, config.ensemble, config.seed)
    return ensemble.processes[0], ensemble


def num_samples(config: RunConfig) -> int:
    """Return the number of weight samples of a prediction: equally many of each member."""
    members = config.ensemble or 1
    return -(-config.num_samples // members) * members


def place(config: RunConfig, row: Mapping[str, Any]) -> int:
    """Return the number of a round in the run, from 1, the rounds of all members counted."""
    return int(row.get("member", 0)) * config.rounds + int(row["round"])


def over_members(rounds: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each round: of an ensemble with the mean of each number over the members."""
    if not any("member" in row for row in rounds):
        return [dict(row) for row in rounds]
    by_round: dict[int, list[Mapping[str, Any]]] = {}
    for row in rounds:
        by_round.setdefault(int(row["round"]), []).append(row)
    return [{**_mean(rows), "round": number} for number, rows in sorted(by_round.items())]


def _mean(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    is_number = lambda x: isinstance(x, (int, float)) and not isinstance(x, bool)
    names = [name for name, x in rows[0].items() if name != "member" and is_number(x)]
    faulty = {client: reason for row in rows for client, reason in (row.get("faulty_clients") or {}).items()}
    means = {name: float(np.mean([row[name] for row in rows])) for name in names if all(name in row for row in rows)}
    return {**means, "faulty_clients": faulty}


def member_scores(result: bfl.federated.SimulationResult, score: Callable[[keras.Model], Any]) -> dict[str, float]:
    """Return the number and the size of the members, and the means of their own scores; nothing without an ensemble."""
    if result.ensemble is None:
        return {}
    results = result.ensemble.results
    each_score = [score(member.model).metrics for member in results]
    num_bytes = sum(np.asarray(x).nbytes for member in results for x in tf.nest.flatten(member.state.weights))
    means = {name: float(np.mean([each[name] for each in each_score])) for name in _SCORES if name in each_score[0]}
    return {
        "members": len(results),
        "weights_mb": num_bytes / 2**20,
        **{f"member_{name}": x for name, x in means.items()},
    }
