"""Predictions of an exported model for images and rows of tables, as text for people or programs."""

from __future__ import annotations

import functools
import io
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.data.names import as_names
from tfp_bfl.data.rows import read_clients
from tfp_bfl.data.series import SeriesColumns, series_columns
from tfp_bfl.data.tables import is_table_file
from tfp_bfl.errors import InvalidArgument, check_count, shown
from tfp_bfl.files import Path
from tfp_bfl.files import name as name_of
from tfp_bfl.files.tables import to_csv

# Examples at once; the weight samples are the same for all.
BATCH_SIZE = 250
# Memory grows with S, while the Monte Carlo error falls as 1 / sqrt(S).
MOST_SAMPLES = 10_000
_IMAGE = 3


class Row(NamedTuple):
    """A model's prediction for one image, or one row of a table.

    Fields:
      example: path of the image, or path[i] for the i-th example of an archive or a table.
      label, confidence: name or number of the most probable class, and its probability.
      entropy, epistemic, aleatoric: as `tfp_bfl.evaluation.summarise` gives them.
      abstain: whether the entropy, or the measure that a calibrated model uses, exceeds the threshold.
      set: names of the classes in a calibrated model's prediction set, joined by "|"; otherwise the label.
      unusual: above 1 for an example unlike the training data; None for a model without this output.
      client: that the row, or the image's folder, names; None without sets of single clients, or without such names.
    """

    example: str
    label: str
    confidence: float
    entropy: float
    epistemic: float
    aleatoric: float
    abstain: bool
    set: str = ""
    unusual: float | None = None
    client: str | None = None


class NumberRow(NamedTuple):
    """A model's prediction of a number for one image or row, in the units of its training labels.

    `low` and `high` are the ends of the central 90 % interval, `epistemic` and `aleatoric` the parts of the variance;
    `abstain` is whether the standard deviation exceeds the threshold. Other fields are as of `Row`.
    """

    example: str
    mean: float
    stddev: float
    low: float
    high: float
    epistemic: float
    aleatoric: float
    abstain: bool
    unusual: float | None = None


AnyRow = Row | NumberRow


class Predictions(NamedTuple):
    """The predictions for the examples of some files, one at least.

    `kind` is "image", or "row" of a table: the name of the first column, in all formats. There are (name, reason) of
    images that could not be read, and notes on categories and empty cells that the training data did not have.
    """

    kind: str
    rows: Sequence[AnyRow]
    failures: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, of which the model has values."""
        return (self.kind, *(name for name, x in self.rows[0]._asdict().items() if x is not None and name != "example"))

    def records(self) -> list[dict[str, Any]]:
        """Return a mapping from the names of the columns to values, for each row."""
        return [dict(zip(self.columns, [x for x in row if x is not None])) for row in self.rows]


def predict(
    model: Path,
    images: Path | Sequence[Path],
    num_samples: int | None = None,
    seed: int | None = None,
    max_uncertainty: float | None = None,
    separator: str | None = None,
) -> Predictions:
    """Predict images, or rows of a table, with a SavedModel of this library.

    Args:
      model: the folder that `tfp_bfl.export.save` wrote, or the folder of a run.
      images: paths as of `tfp_bfl.data.read_images`; images are resized as in training, where `image_size` was given.
        For a model of a table's rows, .csv, .tsv or .parquet files with the columns that the model was trained on.
      num_samples: S, at most 10,000; None for the number that a calibrated model was calibrated with, otherwise 20.
      seed: random seed of the samples; None for 0.
      max_uncertainty: abstention threshold on the entropy, on the uncertainty of the calibration, or on the standard
        deviation of a regression model; None for the threshold of a calibrated model, otherwise no threshold.
      separator: column separator of .csv files (`tfp_bfl.data.read_own`); None for the separator of the header.

    An option that has no effect on such a model or such files is refused.
    """
    if num_samples is not None and check_count(num_samples, "num_samples") > MOST_SAMPLES:
        raise InvalidArgument(f"num_samples is {shown(num_samples)}, but may be at most {MOST_SAMPLES}.")
    folder = bfl.export.find(model)
    info = bfl.export.read_info(folder)
    check_draws(info, {"num_samples": num_samples, "seed": seed})
    regresses = bfl.export.target_of(info) is not None
    if max_uncertainty is not None and not 0 <= max_uncertainty <= (np.inf if regresses else 1):
        raise InvalidArgument(
            f"max_uncertainty is {max_uncertainty}, but must be "
            + ("at least 0." if regresses else "between 0 and 1: entropies are normalised.")
        )
    facts: Any = info.model
    calibration = bfl.export.calibration_of(info)
    loaded = bfl.export.load(folder)
    notes: list[str] = []
    examples = read_examples(info, images, separator, notes)
    own = Sets.of(calibration, info, images, examples.names, separator, notes) if calibration else None
    names = info.class_names or [str(c) for c in range(facts["num_classes"])]
    given: dict[str, Any] = {"num_samples": num_samples, "seed": seed, "max_uncertainty": max_uncertainty}
    given["set_limit"] = None if own is None else own.limits.astype(np.float32)
    answer = answers(loaded.serve, examples.pixels, **{name: x for name, x in given.items() if x is not None})
    as_rows = _as_numbers if regresses else functools.partial(_as_rows, names=names, own=own)
    rows: Sequence[AnyRow] = as_rows(examples.names, answer)
    return Predictions("image" if len(facts["input_shape"]) == _IMAGE else "row", rows, examples.failures, notes)


def answers(function: Any, examples: np.ndarray, **inputs: Any) -> dict[str, np.ndarray]:
    """Return the outputs of a function of an exported model for examples and inputs, of which it gets some at once."""
    part = lambda x, i: x[i : i + BATCH_SIZE] if np.ndim(x) else x
    starts = range(0, len(examples), BATCH_SIZE)
    parts = [function(part(examples, i), **{name: part(x, i) for name, x in inputs.items()}) for i in starts]
    return {name: np.concatenate([part[name].numpy() for part in parts]) for name in parts[0]}


def check_draws(info: bfl.export.Info, given: Mapping[str, int | None]) -> None:
    """Check that num_samples and seed, None where they are not given, have an effect on a model."""
    for name, value in given.items():
        if value is not None and not (info.model or {"stochastic": True})["stochastic"]:
            raise InvalidArgument(f"{name} has no effect on a model with point weights: leave it out.")


class Sets(NamedTuple):
    """The client that each row, or the folder of an image, names [N], and the limit of its prediction sets [N]."""

    clients: np.ndarray
    limits: np.ndarray

    @classmethod
    def of(
        cls,
        calibration: bfl.export.Calibration,
        info: bfl.export.Info,
        paths: Any,
        names: Sequence[str],
        separator: str | None,
        notes: list[str],
    ) -> Sets | None:
        """Return the limits of examples; None where the model has no sets of clients, or the examples name none.

        The client of an image is the innermost folder of its path that has the name of one; without such a folder, the
        folder that it lies in.
        """
        limits = {row["client"]: row["set_limit"] for row in calibration.clients or () if "set_limit" in row}
        column = str((info.configuration or {}).get("client_column") or "clients")
        columns = {name for name, *_ in bfl.export.columns_of(info)}
        used = columns | {feature.name for feature in bfl.export.features_of(info)}
        if not limits or column in used:
            return None
        paths = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        if columns:
            found = [read_clients(path, column, separator, series_of(info)) for path in paths]
        else:
            folders = [as_names(pathlib.Path(name).parts[-2::-1]) or ("",) for name in names]
            inner = [next((x for x in parts if x in limits), None) for parts in folders]
            found = [np.array([x or parts[0] for x, parts in zip(inner, folders)], object) if any(inner) else None]
        if any(clients is None for clients in found):
            return None
        clients = np.concatenate([x for x in found if x is not None])
        others = calibration.set_limit if calibration.unseen_set_limit is None else calibration.unseen_set_limit
        if new := sum(name not in limits for name in clients):
            of = "all clients together" if calibration.unseen_set_limit is None else "clients never seen"
            notes.append(f"{new:,} rows are of clients without own prediction sets, and have those of {of}.")
        return cls(clients, np.array([limits.get(name, others) for name in clients]))


def stated_by(model: Path) -> str:
    """Return the method and the posterior temperature of a model in a sentence; "" if its export states none."""
    sentence = bfl.export.statement(bfl.export.read_info(bfl.export.find(model)).configuration)
    return f"{sentence}." if sentence else ""


def _as_rows(which: Sequence[str], answer: dict[str, np.ndarray], names: Sequence[str], own: Sets | None) -> list[Row]:
    return [
        Row(
            example=which[i],
            label=names[int(answer["label"][i])],
            confidence=float(answer["probabilities"][i].max()),
            **{name: float(answer[name][i]) for name in ("entropy", "epistemic", "aleatoric")},
            abstain=bool(answer["abstain"][i]),
            set="|".join(names[c] for c in np.flatnonzero(answer["set"][i]).tolist()),
            unusual=float(answer["unusual"][i]) if "unusual" in answer else None,
            client=None if own is None else str(own.clients[i]),
        )
        for i in range(len(which))
    ]


def _as_numbers(which: Sequence[str], answer: dict[str, np.ndarray]) -> list[NumberRow]:
    names = [name for name in NumberRow._fields if name in answer]
    return [
        NumberRow(example=example, **{name: answer[name][i].item() for name in names})
        for i, example in enumerate(which)
    ]


def read_examples(
    info: bfl.export.Info, paths: Any, separator: str | None = None, notes: list[str] | None = None
) -> bfl.data.Images:
    """Read images, or rows of tables, as a model accepts them."""
    shape: Any = (info.model or {})["input_shape"]
    if len(shape) == _IMAGE:
        if separator is not None:
            raise InvalidArgument("separator is of tables, and the model takes images: leave it out.")
        resize = (info.configuration or {}).get("image_size") is not None
        return bfl.data.read_images(paths, tuple(shape), resize)
    return _rows(paths, info, separator, [] if notes is None else notes)


def _rows(paths: Any, info: bfl.export.Info, separator: str | None, notes: list[str]) -> bfl.data.Images:
    """Read the rows of tables in the form of `read_images`; `notes` gets sentences on unknown categories."""
    columns = [bfl.data.Column(*column) for column in bfl.export.columns_of(info)]
    if not columns:
        shape: Any = (info.model or {})["input_shape"]
        raise InvalidArgument(f"The model takes rows of {shown(shape)} numbers without names: call it from Python.")
    paths = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    for path in paths:
        if not is_table_file(path):
            raise InvalidArgument(f"{shown(str(path))} is no table, but the model takes rows of one: give a .csv file.")
    features = bfl.export.features_of(info)
    encoded = [bfl.data.read_encoded(path, features, columns, separator, series_of(info)) for path in paths]
    notes += [f"In {name_of(path)}: {note}" for path, x in zip(paths, encoded) for note in x.notes]
    numbered = zip(paths, (x.names or range(len(x.rows)) for x in encoded))
    names = [f"{name_of(path)}[{i}]" for path, each in numbered for i in each]
    return bfl.data.Images(tuple(names), np.concatenate([x.rows for x in encoded]), ())


def series_of(info: bfl.export.Info) -> SeriesColumns | None:
    """Return the columns of a long table that a model's run names, and T; None for a model of other examples."""
    settings, shape = info.configuration or {}, (info.model or {})["input_shape"]
    return series_columns(settings.get("series_column"), settings.get("time_column"), shape[0])


def as_table(predictions: Predictions) -> str:
    """Format rows for people, as wide as their content: lines of a pipe or a file are not cut."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    records = predictions.records()
    if all(record.get("set", "") in ("", record.get("label")) for record in records):
        records = [{name: x for name, x in record.items() if name != "set"} for record in records]
    for name, value in records[0].items():
        table.add_column(name, justify="right" if isinstance(value, float) else "left", no_wrap=True)
    digits = _DIGITS if isinstance(predictions.rows[0], Row) else {}
    for record in records:
        # As plain text: square brackets in a path are no markup.
        table.add_row(*(Text(_in_words(value, digits.get(name, ".4g"))) for name, value in record.items()))
    text = io.StringIO()
    width = 100 + max(sum(cell_len(x) for x in record.values() if isinstance(x, str)) for record in records)
    Console(file=text, width=width, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip("\n").split("\n"))


def _in_words(value: object, digits: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:{digits}}"
    return str(value)


# Digits of probabilities, and of traces, which are small.
_DIGITS = {"confidence": ".3f", "entropy": ".3f", "epistemic": ".4f", "aleatoric": ".4f", "unusual": ".2f"}
FORMATS: dict[str, Callable[[Predictions], str]] = {
    "table": as_table,
    "csv": lambda found: to_csv([found.columns, *(row.values() for row in found.records())]).rstrip("\n"),
    "json": lambda found: json.dumps(found.records(), indent=2),
}
