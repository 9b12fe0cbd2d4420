"""Facts about an exported model, in a JSON file beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.data import Feature
from tfp_bfl.data.encoding import parse_features
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.evaluation import is_stochastic
from tfp_bfl.evaluation.conformal import score_of
from tfp_bfl.weights import num_members

NAME = "info.json"
MOST_BYTES = 2**22
_FACTS = {
    "name": str,
    "input_shape": list,
    "num_classes": int,
    "stochastic": bool,
    "num_weights": int,
    "versions": dict,
}


class Info(NamedTuple):
    """Facts about a model; None where unknown.

    Fields:
      class_names: C names.
      configuration: of its training, such as that of a run.
      metrics: name -> number.
      data: of what it was trained on: dataset, split, num_examples, sha256 (`tfp_bfl.data.Source.sha256`), and of a
        run that was revised clients, those with a part in the model; of a client's own model client, its
        number, and client_in_training; unusual, the rate of false alarms of that output and the number of held-out
        examples; columns and target, how a table and what is regressed on were standardised;
        encoding, how the columns of a table with categories or empty cells became these columns; and metrics_on, the
        split that the metrics are of.
      calibration: what held-out examples say of it: number, temperature, limit (above which of which uncertainty it
        abstains, with what it keeps), sets (with which coverage, from which probability on).
      model: the model itself; `save` fills it: name, input_shape, num_classes, stochastic, num_weights, versions.
    """

    class_names: Sequence[str] | None = None
    configuration: Mapping[str, Any] | None = None
    metrics: Mapping[str, Any] | None = None
    data: Mapping[str, Any] | None = None
    calibration: Mapping[str, Any] | None = None
    model: Mapping[str, Any] | None = None


def describe(model: keras.Model, target: object = None) -> dict[str, Any]:
    """Return the field `model` of a Keras model's `Info`; num_classes is 0 where it has a target (`target_of`)."""
    shape = getattr(model, "output_shape", None)
    if target is not None and shape != (None, 2):
        raise InvalidArgument(
            f"The model gives outputs of shape {shown(shape)}, but for a target it must give mean and log variance, "
            "[B, 2]."
        )
    if not isinstance(shape, tuple) or len(shape) != 2 or not isinstance(shape[1], int) or shape[1] < 2:
        raise InvalidArgument(
            f"The model gives outputs of shape {shown(shape)}, but an export needs one that gives logits [B, C] of at "
            "least two classes."
        )
    return {
        "name": model.name,
        "input_shape": list(model.input_shape[1:]),
        "num_classes": 0 if target is not None else shape[1],
        "stochastic": is_stochastic(model),
        **({"members": num_members(model)} if num_members(model) > 1 else {}),
        "num_weights": sum(v.shape.num_elements() for v in model.variables),
        "versions": {"tfp_bfl": metadata.version("tfp_bfl"), "tensorflow": tf.__version__},
    }


def columns_of(info: Info) -> list[tuple[str, float, float]]:
    """Return (name, mean, divisor) of each column of the table that a model takes, in order; [] of other models.

    The divisor is the standard deviation, and 1 for a column that was constant in training.
    """
    columns = (info.data or {}).get("columns", [])
    number = lambda x: _is_number(x) and math.isfinite(x)
    well = isinstance(columns, list) and all(
        isinstance(c, (list, tuple)) and len(c) == 3 and _named(c[0]) and number(c[1]) and number(c[2]) and c[2] >= 0
        for c in columns
    )
    shape = (info.model or {}).get("input_shape")
    if not well or (columns and shape is not None and list(shape) != [len(columns)]):
        raise InvalidArgument(
            f"columns of info's data is {shown(columns)}, but must give a name, a mean and a standard deviation of at "
            "least zero of each column that the model takes."
        )
    return [(name, float(mean), float(stddev) or 1.0) for name, mean, stddev in columns]


# float32 rounds a number that is so many standard deviations from zero by 0.0006 or 0.06 of one.
_OFFSET, MOST_OFFSET = 1e4, 1e6


def offsets_of(info: Info, least: float = _OFFSET) -> dict[str, float]:
    """Return |mean| / stddev of the columns and of the target where it is above `least`, by name.

    float32 rounds such numbers visibly: 2^-24 |mean| is the largest rounding error. It is infinite for a standard
    deviation that float32 lacks.
    """
    constant = {name for name, _, stddev in (info.data or {}).get("columns", []) if not stddev}
    stated = [*columns_of(info), *([target] if (target := target_of(info)) else [])]
    offsets = {}
    for name, mean, divisor in stated:
        if name in constant:
            continue
        offset = abs(mean) / divisor if divisor >= np.finfo(np.float32).tiny else math.inf
        if offset > least:
            offsets[name] = offset
    return offsets


def features_of(info: Info) -> tuple[Feature, ...]:
    """Return the encoding of the table that a model accepts as it is; () of other models."""
    given, columns = (info.data or {}).get("encoding", []), columns_of(info)
    try:
        features = parse_features(given)
        names = [name for feature in features for name in feature.columns]
    except (TypeError, ValueError):
        features, names = (), []
    if given and names != [name for name, _, _ in columns]:
        raise InvalidArgument(
            f"encoding of info's data is {shown(given)}, but must describe the columns of the table in the order of "
            "`columns`."
        )
    return features


def target_of(info: Info) -> tuple[str, float, float] | None:
    """Return (name, mean, standard deviation) of the number that a model predicts; None for one of classes."""
    target = (info.data or {}).get("target")
    if target is None:
        return None
    finite = lambda x: _is_number(x) and math.isfinite(x)
    well = isinstance(target, (list, tuple)) and len(target) == 3 and _named(target[0])
    if not well or not (finite(target[1]) and finite(target[2]) and target[2] > 0):
        raise InvalidArgument(
            f"target of info's data is {shown(target)}, but must give a name, a mean and a standard deviation above "
            "zero."
        )
    if info.class_names or (info.model or {}).get("num_classes"):
        raise InvalidArgument("info has a target and classes, but a model predicts a number or a class.")
    return target[0], float(target[1]), float(target[2])


def has_unusual(info: Info) -> bool:
    """Return whether a model scores unusual examples: whether `info.data` states their threshold."""
    stated = (info.data or {}).get("unusual")
    if stated is None:
        return False
    if (
        not isinstance(stated, Mapping)
        or set(stated) != {"rate", "number"}
        or not all(map(_is_number, stated.values()))
        or not (0 < stated["rate"] <= 1 and isinstance(stated["number"], int) and stated["number"] > 0)
    ):
        raise InvalidArgument(
            f"unusual of info's data is {shown(stated)}, but must give a rate above 0 and at most 1, and a number."
        )
    return True


class Calibration(NamedTuple):
    """`Info.calibration`.

    Fields:
      number: of held-out examples.
      num_samples: weight samples of their predictions, and so of those that the limits are for.
      temperature: of the probabilities (`evaluation.at_temperature`).
      by: "entropy", of the probabilities at that temperature, or "epistemic".
      limit: above which the model abstains; None if no threshold has the accuracy that was asked for.
      coverage: the share of held-out examples below it; 1 without one.
      accuracy: of those.
      at_least: the accuracy that was asked for; None where a coverage was.
      confidence: in that accuracy.
      set_coverage: with which probability a prediction set holds the label.
      set_limit: the least score of a class in it (`evaluation.prediction_sets`).
      best_accuracy: the highest accuracy that can be promised with that confidence, where it is not the one that was
        asked for; None where there is a threshold.
      best_coverage: the share of held-out examples below the threshold of that promise.
      set_score: the name of the score: "probability", "aps" or "raps:PENALTY".
      clients: `evaluation.client_scores` of the test rows at that temperature, with the coverage of the sets; "kept"
        and "kept_accuracy" are of the rows below the threshold, "held_out" and "set_limit" of a client's own sets, with
        confidence `confidence`. None where the data name no clients.
      unseen_set_limit: `set_limit` for a client that was never seen; None without own sets, or with too few clients.
    """

    number: int
    num_samples: int
    temperature: float
    by: str
    limit: float | None
    coverage: float
    accuracy: float
    at_least: float | None
    confidence: float
    set_coverage: float
    set_limit: float
    best_accuracy: float | None = None
    best_coverage: float | None = None
    set_score: str = "probability"
    clients: Sequence[Mapping[str, Any]] | None = None
    unseen_set_limit: float | None = None


_NONE_ALLOWED = ("limit", "at_least", "best_accuracy", "best_coverage", "clients", "unseen_set_limit")


def calibration_of(info: Info) -> Calibration | None:
    """Return the result of `tfp-bfl calibrate`; None for a model that was not calibrated."""
    if info.calibration is None:
        return None
    calibration = {**Calibration._field_defaults, **info.calibration}
    text, clients = ("by", "set_score", "clients"), calibration["clients"]
    numbers = {
        name: x for name, x in calibration.items() if name not in text and (name not in _NONE_ALLOWED or x is not None)
    }
    well = set(calibration) == set(Calibration._fields) and calibration["by"] in ("entropy", "epistemic")
    well = well and (clients is None or (isinstance(clients, list) and all(map(_is_row, clients))))
    if (
        not well
        or not all(_is_number(x) and math.isfinite(x) for x in numbers.values())
        or calibration["temperature"] <= 0
    ):
        raise InvalidArgument(
            f"calibration of info is {shown(calibration)}, but must be what `tfp-bfl calibrate` finds: "
            f"{', '.join(Calibration._fields)}."
        )
    score_of(str(calibration["set_score"]))
    return Calibration(**calibration)


def _is_row(row: Any) -> bool:
    """Return whether a value is the row of a client: its name, and numbers."""
    rest = {name: x for name, x in row.items() if name != "client"} if isinstance(row, dict) else {}
    return bool(rest) and _named(row.get("client")) and all(_is_number(x) and math.isfinite(x) for x in rest.values())


def merged(new: Info | None, old: Info) -> Info:
    """Return `old`, with what `new` knows."""
    return Info._make(b if a is None else a for a, b in zip(new or Info(), old))


def check(info: object) -> Info:
    """Return what is given as `info`, if it is of the form that `Info` says; a metric that is not finite as None."""
    if not isinstance(info, Info):
        raise InvalidArgument(f"info is {shown(info)}, but must be a tfp_bfl.export.Info.")
    for name, value in info._asdict().items():
        if name != "class_names" and not (value is None or (isinstance(value, Mapping) and all(map(_named, value)))):
            raise InvalidArgument(f"{name} of info is {shown(value)}, but must be a mapping with names as keys.")
    if info.metrics is not None:
        if not all(_is_number(x) or x is None for x in info.metrics.values()):
            raise InvalidArgument(f"metrics of info is {shown(info.metrics)}, but must give a number for each name.")
        finite = {name: None if x is None or not math.isfinite(x) else x for name, x in info.metrics.items()}
        info = info._replace(metrics=finite)
    if info.class_names is not None:
        names = info.class_names
        if isinstance(names, str) or not isinstance(names, Sequence) or not all(map(_named, names)):
            raise InvalidArgument(f"class_names of info is {shown(names)}, but must be a list of printable names.")
        num_classes = (info.model or {}).get("num_classes", len(names))
        if len(names) != num_classes:
            raise InvalidArgument(f"info has {len(names)} class names, but the model has {num_classes} classes.")
    return info


def _named(name: object) -> bool:
    return isinstance(name, str) and name.isprintable()


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def to_json(info: Info) -> str:
    """Return the content of the file."""
    try:
        text = json.dumps(info._asdict(), indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"info must hold what JSON can hold: {error}.") from None
    if len(text) > MOST_BYTES:
        raise InvalidArgument(f"info is too large: as JSON it may have at most {MOST_BYTES} bytes.")
    return text


def from_json(content: bytes) -> Info:
    """Parse the text of a file."""
    try:
        values = json.loads(content.decode("ascii"))
        info = check(Info(**values))
        facts = dict(info.model or {})
        valid = {name: type(x) for name, x in facts.items() if name != "members"} == _FACTS
        valid = valid and type(facts.get("members", 2)) is int and facts.get("members", 2) >= 2
        features_of(info)
        calibration_of(info)
        has_unusual(info)
        valid = valid and bool(facts.get("num_classes")) == (target_of(info) is None)
        valid = valid and all(_named(facts["versions"].get(name)) for name in ("tfp_bfl", "tensorflow"))
    except (InvalidArgument, RecursionError, TypeError, ValueError):
        valid = False
    if not valid:
        raise InvalidArgument(f"its {NAME} does not say what an export's says")
    return info
