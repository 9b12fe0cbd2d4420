"""Reports of runs: their folders read back, and their models held against images from elsewhere."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np
import tensorflow as tf

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl import files
from tfp_bfl.app import build, ensembles
from tfp_bfl.app.config import RunConfig, make_config
from tfp_bfl.app.groups import grouped, score, table_text
from tfp_bfl.app.resolve import stated, title
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files.arrays import read_arrays
from tfp_bfl.files.tables import FORMATS

if TYPE_CHECKING:  # What draws is imported when something is drawn.
    from tfp_bfl.plots import RunResults

UNCERTAINTIES = ("entropy", "aleatoric", "epistemic")
# Of a prediction of a number.
NUMBERS = ("mean", "stddev", "aleatoric", "epistemic", "low", "high")
# Predictions of what nobody trained on, besides the test set.
HELD_OUT = "held_out.npz"
_MOST_SUMMARY_BYTES = 2**20
_MOST_ROUNDS_BYTES = 2**28
_MOST_HEADER_BYTES = 2**16
_BATCH = 500
# What a report draws or rounds, of a summary or a round.
_NUMBERS = (
    *(
        "round",
        "accuracy",
        "rmse",
        "coverage",
        "nll",
        "test_nll",
        "ece",
        "epistemic_share",
        "stddev_q05",
        "stddev_median",
        "stddev_q95",
    ),
    *("seconds", "train_seconds", "ms_per_step", "worker_mb", "process_mb"),
    *("upload_mb", "download_mb", "pruned_weights"),
)


def write(
    folders: Sequence[Union[str, pathlib.Path]],
    output: Union[str, pathlib.Path],
    ood: Optional[str] = None,
) -> pathlib.Path:
    """Writes one page about complete runs, side by side; of runs that differ in their seeds alone the first is shown,
    and their scores as mean and standard deviation.

    Args:
      folders: of the runs.
      output: a new HTML file; or .csv, .md or .tex, of the table of scores alone.
      ood: a dataset whose images the runs' models were not made for, such as "mnist" for one of Fashion-MNIST; of its
        test split as many, drawn by the run's seed, as the run's own test set has at most.

    Raises:
      InvalidArgument: `output` exists or can't be made, a folder is not that of a complete run or named twice, a run's
        dataset is not the one that it was made of, or the images of `ood` are not of the shape and type of the runs'
        own. Nothing has been written then.
    """
    path = pathlib.Path(output)
    if os.path.lexists(path):
        raise InvalidArgument(f"{files.name(path)} exists already: give --output a new file, nothing is overwritten.")
    paths = [pathlib.Path(folder) for folder in folders]
    if len({path.resolve() for path in paths}) < len(paths):
        raise InvalidArgument("A run is named twice: name each of them once.")
    records = [read_record(path) for path in paths]
    groups = grouped(records)
    if path.suffix in FORMATS:
        if ood:
            raise InvalidArgument("--ood is of pages, and a table holds the runs' own scores: leave it out.")
        return _write_text(path, table_text([group.repeated for group in groups], path.suffix))
    repeated = any(len(group.runs) > 1 for group in groups)
    if repeated:  # One run stands for each.
        firsts = [group.runs[0] for group in groups]
        paths, records = [paths[i] for i in firsts], [records[i] for i in firsts]
    names = [group.repeated.name for group in groups] if repeated else _names(paths)
    sources = {build.data_key(config): build.load(config) for config, _ in records}
    other = _other(ood, records, sources) if ood else None
    runs = [_read_results(path, name, *record, sources) for path, name, record in zip(paths, names, records)]
    if other:
        runs = [
            run._replace(out_of_distribution=_predict(folder / "saved_model", other, config, len(run.labels)))
            for run, folder, (config, _) in zip(runs, paths, records)
        ]
    datasets = sorted({data.train.name for data in sources.values()})
    (config, summary), *_ = records
    warnings = []
    if len(datasets) > 1:
        warnings.append(f"The runs are of different datasets, {', '.join(datasets)}: their scores do not compare.")
    try:
        return bfl.plots.write_report(
            path,
            runs,
            title=title(config, weights_in(summary))
            if len(runs) == 1
            else f"{len(folders)} runs on {' and '.join(datasets)}",
            warnings=warnings,
            out_of_distribution=ood or "",
            repeated=[group.repeated for group in groups] if repeated else (),
        )
    except OSError as error:
        raise InvalidArgument(f"The report {files.name(path)} can't be written: {error.strerror}.") from None


def _write_text(path: pathlib.Path, text: str) -> pathlib.Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(f"The table {files.name(path)} can't be written: {error.strerror}.") from None
    return path


def weights_in(summary: Mapping[str, Any]) -> Optional[str]:
    """Return what the weights of a run's model are, as `resolve.weights_of`; None for a run that recorded none."""
    recorded = summary.get("method")
    return recorded.get("weights") if isinstance(recorded, Mapping) else None


def in_a_line(summary: Mapping[str, Any]) -> str:
    """What a run's model scores."""
    last = (
        f"ECE {summary['ece']:.4f}"
        if "ece" in summary
        else f"{bfl.evaluation.COVERAGE:.0%} intervals hold {summary['coverage']:.1%}"
    )
    share = f"epistemic share {summary['epistemic_share']:.1%}  ({summary['seconds']:.0f} s)"
    return f"{score(summary)}  NLL {summary['test_nll']:.4f}  {last}  {share}"


def privacy(config: RunConfig, last: Mapping[str, Any], fewest: int) -> dict[str, float]:
    """The epsilon of clients, and that of the examples of the client who has the fewest; nothing where none are hidden.

    Args:
      config: of the run.
      last: row of its rounds.
      fewest: examples of a client.

    Raises:
      MissingDependency: the package dp-accounting is not installed.
    """
    found = {} if last.get("epsilon") is None else {"epsilon": last["epsilon"]}
    if config.example_clip_norm:
        epochs = config.rounds * config.local_epochs
        told = bfl.privacy.example_steps(config.example_noise, fewest, config.batch_size, epochs)
        of_examples = bfl.privacy.composed_epsilon([told], config.privacy_delta)
        found |= {} if of_examples is None else {"example_epsilon": of_examples}
    return {**found, "delta": config.privacy_delta} if found else {}


def truth(test: bfl.data.Source) -> np.ndarray:
    """The labels as predictions are of them: numbers in their own units."""
    return test.labels if test.target is None else test.target.mean + test.target.stddev * test.labels


def results(
    name: str,
    config: RunConfig,
    summary: Mapping[str, Any],
    rounds: Sequence[Mapping[str, Any]],
    predictions: Mapping[str, np.ndarray],
    test: bfl.data.Source,
    clients: bfl.data.Clients,
) -> RunResults:
    """What a report shows of a run; `predictions` are the arrays of its predictions.npz."""
    collapsed = summary.get("collapsed_in_round")
    told = [bfl.federated.collapse_warning(collapsed)] if collapsed else []  # Older runs say no more.
    settings = stated(config, test.target is not None, weights_in(summary))
    return bfl.plots.RunResults(
        name=name,
        config=settings,
        statement=bfl.export.statement(settings),
        summary=summary,
        rounds=ensembles.over_members(rounds),
        probabilities=predictions.get("probabilities"),
        labels=predictions["labels"],
        uncertainties={key: predictions[key] for key in UNCERTAINTIES if key in predictions},
        numbers={key: predictions[key] for key in NUMBERS} if test.target else None,
        class_names=test.class_names,
        features=test.features,
        label_counts=clients.label_counts(),
        warnings=list(dict.fromkeys([*told, *(summary.get("warnings") or [])])),
    )


def _names(paths: Sequence[pathlib.Path]) -> list[str]:
    """The folders' last names, or the whole paths where those are not all different."""
    short = [path.resolve().name for path in paths]
    return short if len(set(short)) == len(short) else [str(path) for path in paths]


def read_record(folder: pathlib.Path) -> tuple[RunConfig, dict[str, Any]]:
    """The configuration and the summary of a complete run.

    Raises:
      InvalidArgument: the folder is not that of one.
    """
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
    config = make_config(folder / "config.yaml", {}, runs_code=False)
    (summary,) = _read_json(folder / "summary.json", "summary", _MOST_SUMMARY_BYTES)
    # Older runs called it as the rounds call that of the training.
    return config, {"test_nll" if name == "nll" else name: value for name, value in summary.items()}


def _read_json(path: pathlib.Path, what: str, most: int) -> list[dict[str, Any]]:
    """The mapping that a file holds, or of a .jsonl those that its lines hold."""
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


def _read_results(
    folder: pathlib.Path, name: str, config: RunConfig, summary: dict[str, Any], sources: Mapping[Any, Any]
) -> RunResults:
    train, test, given, _ = sources[build.data_key(config)]
    rounds = _read_json(folder / "metrics.jsonl", "file of metrics", _MOST_ROUNDS_BYTES)
    predictions = _read_predictions(folder / "predictions.npz", test)
    if not np.array_equal(predictions["labels"], truth(test)):
        raise InvalidArgument(
            f"The predictions in {files.name(folder)} are not of the test set that {config.dataset} has here: report "
            "the run where it was made, or give it the same data."
        )
    clients = build.shares(config, train, given).clients
    return results(name, config, summary, rounds, predictions, test, clients)


def predictions_of(evaluation: Any, labels: np.ndarray) -> dict[str, np.ndarray]:
    """What a file of predictions holds, of an `Evaluation` or a `RegressionEvaluation`; labels as of `truth`."""
    if isinstance(evaluation, bfl.evaluation.RegressionEvaluation):
        return {"labels": labels, **{name: getattr(evaluation, name) for name in NUMBERS}}
    return {
        "probabilities": evaluation.probabilities,
        "labels": labels,
        **{name: getattr(evaluation, name) for name in UNCERTAINTIES},
    }


def read_predictions(path: pathlib.Path, most_examples: int, num_classes: int) -> dict[str, np.ndarray]:
    """The arrays of a file of predictions, which has no more than those of so many examples take; of numbers, without
    classes, those of `NUMBERS`.

    Raises:
      InvalidArgument: it is none.
    """
    names = ("probabilities", "labels", *UNCERTAINTIES) if num_classes else ("labels", *NUMBERS)
    most = 8 * most_examples * (num_classes + len(names)) + _MOST_HEADER_BYTES
    found = read_arrays(path, "file of predictions", most, compressed=True)
    shapes = [found[name].shape if name in found else None for name in names]
    number = len(found["labels"]) if "labels" in found and found["labels"].ndim else 0
    wanted = [(number, num_classes) if name == "probabilities" else (number,) for name in names]
    if shapes != wanted or not all(
        np.issubdtype(found[name].dtype, np.number) and np.all(np.isfinite(found[name])) for name in names
    ):
        raise InvalidArgument(f"{files.name(path)} is not a run's file of predictions.")
    return {name: found[name] for name in names}


def _read_predictions(path: pathlib.Path, test: bfl.data.Source) -> dict[str, np.ndarray]:
    """The arrays of a run's predictions.npz."""
    found = read_predictions(path, test.num_examples, test.num_classes)
    if len(found["labels"]) != test.num_examples:
        raise InvalidArgument(f"{files.name(path)} is not a run's file of predictions of {test.name}'s test set.")
    return found


def _other(ood: str, records: Sequence[tuple[RunConfig, Any]], sources: Mapping[Any, Any]) -> bfl.data.Source:
    """The test split of the other dataset, whose examples all models must take."""
    own = [sources[build.data_key(config)].test for config, _ in records]
    for source in own:
        if source.name == ood:
            raise InvalidArgument(f"--ood {ood} is what a run was trained on: name another dataset of its shape.")
        if source.target is not None:
            raise InvalidArgument(f"--ood is of classifiers, and {source.name} has numbers for labels: leave it out.")
    other = bfl.data.load(ood, split="test", data_dir=records[0][0].data_dir)
    for source in own:
        if (other.element_shape, other.features.dtype) != (source.element_shape, source.features.dtype):
            raise InvalidArgument(
                f"--ood {ood} has examples {_form(other)}, but those of {source.name} are {_form(source)}: name a "
                "dataset of that form."
            )
    return other


def _form(source: bfl.data.Source) -> str:
    return f"{source.features.dtype} {list(source.element_shape)}"


def _predict(model: pathlib.Path, other: bfl.data.Source, config: RunConfig, most: int) -> dict[str, np.ndarray]:
    """The uncertainties of a run's model, by the weight samples of its own predictions."""
    features = other.subset(min(most, other.num_examples), seed=config.seed).features
    loaded = bfl.export.load(model)  # Whose variables live as long as it does.
    parts = [
        loaded.predict(tf.constant(features[start : start + _BATCH]), num_samples=config.num_samples, seed=config.seed)
        for start in range(0, len(features), _BATCH)
    ]
    return {key: np.concatenate([part[key].numpy() for part in parts]) for key in UNCERTAINTIES}
