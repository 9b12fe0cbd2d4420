"""Facts about an exported model, in a JSON file beside it."""

import json
import math
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Annotated, Any, NamedTuple

import numpy as np
import pydantic
import tensorflow as tf
from pydantic import AfterValidator, Field, TypeAdapter

from tfp_bfl import keras
from tfp_bfl.data import Feature
from tfp_bfl.data.encoding import Printable, parse_features
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.evaluation import is_stochastic
from tfp_bfl.evaluation.conformal import score_of
from tfp_bfl.weights import num_members

NAME = "info.json"
MOST_BYTES = 2**22


def _row(row: dict[str, Any]) -> dict[str, Any]:
    """Check that a value is the row of a client or of a class: its name, and numbers."""
    what = "class" if "class" in row else "client"
    TypeAdapter(Printable).validate_python(row[what])
    TypeAdapter(Annotated[dict[str, _Finite], Field(min_length=2)]).validate_python({**row, what: 0.0})
    return row


_Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_Positive = Annotated[_Finite, Field(gt=0)]
_Count = Annotated[int, Field(strict=True, gt=0)]


class Info(NamedTuple):
    """Facts about a model; None where unknown.

    Fields:
      configuration: of its training, such as that of a run.
      data: of what it was trained on: dataset, split, num_examples, sha256 (`tfp_bfl.data.Source.sha256`), and of a run
        that was revised clients, those with a part in the model; of a client's own model client, its number, and
        client_in_training; unusual, the rate of false alarms of that output and the number of held-out examples;
        columns and target, how a table and what is regressed on were standardised; encoding, how the columns of a table
        with categories or empty cells became these columns; metrics_on, the split that the metrics are of; and
        scores, rows with the scores of classes and clients there (`scores_of`).
      calibration: what held-out examples say of it: number, temperature, limit (above which of which uncertainty it
        abstains, with what it keeps), sets (with which coverage, from which probability on).
      model: the model itself, which `save` describes.
    """

    class_names: Sequence[str] | None = None
    configuration: Mapping[str, Any] | None = None
    metrics: Mapping[str, Any] | None = None
    data: Mapping[str, Any] | None = None
    calibration: Mapping[str, Any] | None = None
    model: Mapping[str, Any] | None = None


class Calibration(NamedTuple):
    """`Info.calibration`.

    Fields:
      number, num_samples: of held-out examples, and weight samples of the predictions that the limits are for.
      temperature: of the probabilities (`evaluation.at_temperature`).
      by: "entropy", of the probabilities at that temperature, or "epistemic".
      limit: above which the model abstains; None if no threshold has the accuracy that was asked for.
      coverage, accuracy: the share of held-out examples below it, 1 without one, and the accuracy of those.
      at_least, confidence: the accuracy that was asked for, None where a coverage was, and the confidence in it.
      set_coverage: with which probability a prediction set holds the label.
      set_limit: the least score of a class in it (`evaluation.prediction_sets`).
      best_accuracy, best_coverage: the highest accuracy that can be promised with that confidence, and the share of
        held-out examples below its threshold; None where there is a threshold.
      set_score: the name of the score: "probability", "aps" or "raps:PENALTY".
      clients: `evaluation.client_scores` of the test rows at that temperature, with the coverage of the sets; "kept"
        and "kept_accuracy" are of the rows below the threshold, "held_out" and "set_limit" of a client's own sets, with
        confidence `confidence`. None where the data name no clients.
      unseen_set_limit: `set_limit` for a client that was never seen; None without own sets, or with too few clients.
    """

    number: _Count
    num_samples: _Count
    temperature: _Positive
    by: Annotated[str, Field(strict=True, pattern="^(entropy|epistemic)$")]
    limit: _Finite | None
    coverage: _Finite
    accuracy: _Finite
    at_least: _Finite | None
    confidence: _Finite
    set_coverage: _Finite
    set_limit: _Finite
    best_accuracy: _Finite | None = None
    best_coverage: _Finite | None = None
    set_score: Annotated[str, Field(strict=True)] = "probability"
    clients: list[Annotated[dict[str, Any], AfterValidator(_row)]] | None = None
    unseen_set_limit: _Finite | None = None


class _Versions(pydantic.BaseModel):
    tfp_bfl: Printable
    tensorflow: Printable


class _Facts(pydantic.BaseModel, extra="forbid", strict=True):
    """`Info.model`."""

    name: str
    input_shape: list[Any]
    num_classes: int
    stochastic: bool
    num_weights: int
    versions: _Versions
    members: Annotated[int, Field(ge=2)] = 2


class _Unusual(pydantic.BaseModel, extra="forbid"):
    rate: Annotated[_Positive, Field(le=1)]
    number: _Count


class _ScoreRows(pydantic.BaseModel, extra="forbid"):
    classes: list[Annotated[dict[str, Any], AfterValidator(_row)]] = []
    clients: list[Annotated[dict[str, Any], AfterValidator(_row)]] = []


_CALIBRATION = TypeAdapter(Calibration)
_COLUMNS = TypeAdapter(list[tuple[Printable, _Finite, Annotated[_Finite, Field(ge=0)]]])
_MAPPING = TypeAdapter(dict[Printable, Any] | None)
_METRICS = TypeAdapter(dict[str, Annotated[float, Field(strict=True)] | None] | None)
_NAMES = TypeAdapter(list[Printable] | None)
_SCORES = TypeAdapter(_ScoreRows | None)
_TARGET = TypeAdapter(tuple[Printable, _Finite, _Positive] | None)
_UNUSUAL = TypeAdapter(_Unusual | None)


def _parsed(form: TypeAdapter[Any], value: object, name: str, wanted: str) -> Any:
    try:
        return form.validate_python(value)
    except (ValueError, KeyError):
        raise InvalidArgument(f"{name} is {shown(value)}, but must {wanted}.") from None


def describe(model: keras.Model, target: object = None, backbone: keras.Model | None = None) -> dict[str, Any]:
    """Return the field `model` of a Keras model's `Info`; num_classes is 0 where it has a target (`target_of`).

    A `backbone` gives the model its inputs.
    """
    shape = getattr(model, "output_shape", None)
    if target is not None and shape != (None, 2):
        must = "for a target it must give mean and log variance, [B, 2]"
        raise InvalidArgument(f"The model gives outputs of shape {shown(shape)}, but {must}.")
    if not isinstance(shape, tuple) or len(shape) != 2 or not isinstance(shape[1], int) or shape[1] < 2:
        must = "an export needs one that gives logits [B, C] of at least two classes"
        raise InvalidArgument(f"The model gives outputs of shape {shown(shape)}, but {must}.")
    return {
        "name": model.name,
        "input_shape": list((backbone or model).input_shape[1:]),
        "num_classes": 0 if target is not None else shape[1],
        "stochastic": is_stochastic(model),
        **({"members": num_members(model)} if num_members(model) > 1 else {}),
        "num_weights": sum(v.shape.num_elements() for x in (model, backbone) if x for v in x.variables),
        "versions": {"tfp_bfl": metadata.version("tfp_bfl"), "tensorflow": tf.__version__},
    }


def columns_of(info: Info) -> list[tuple[str, float, float]]:
    """Return (name, mean, divisor) of each column of the table that a model takes, in order; [] of other models.

    The divisor is the standard deviation, and 1 for a column that was constant in training.
    """
    wanted = "give a name, a mean and a standard deviation of at least zero of each column that the model takes"
    given, name = (info.data or {}).get("columns", []), "columns of info's data"
    columns = _parsed(_COLUMNS, given, name, wanted)
    shape = (info.model or {}).get("input_shape")
    if columns and shape is not None and (list(shape)[-1:] != [len(columns)] or len(shape) > 2):
        raise InvalidArgument(f"{name} is {shown(given)}, but must {wanted}.")
    return [(name, mean, stddev or 1.0) for name, mean, stddev in columns]


# float32 rounds a number that is so many standard deviations from zero by 0.0006 or 0.06 of one.
_OFFSET, MOST_OFFSET = 1e4, 1e6


def offsets_of(info: Info, least: float = _OFFSET) -> dict[str, float]:
    """Return |mean| / stddev of the columns and of the target where it is above `least`, by name.

    float32 rounds such numbers visibly: 2^-24 |mean| is the largest rounding error. It is infinite for a standard
    deviation that float32 lacks.
    """
    constant = {name for name, _, stddev in (info.data or {}).get("columns", []) if not stddev}
    stated = [*columns_of(info), *([target] if (target := target_of(info)) else [])]
    of = lambda mean, divisor: abs(mean) / divisor if divisor >= np.finfo(np.float32).tiny else math.inf
    offsets = {name: of(mean, divisor) for name, mean, divisor in stated if name not in constant}
    return {name: offset for name, offset in offsets.items() if offset > least}


def features_of(info: Info) -> tuple[Feature, ...]:
    """Return the encoding of the table that a model accepts as it is; () of other models."""
    given, columns = (info.data or {}).get("encoding", []), columns_of(info)
    try:
        features = parse_features(given)
        names = [name for feature in features for name in feature.columns]
    except (TypeError, ValueError):
        features, names = (), []
    if given and names != [name for name, _, _ in columns]:
        must = "must describe the columns of the table in the order of `columns`"
        raise InvalidArgument(f"encoding of info's data is {shown(given)}, but {must}.")
    return features


def target_of(info: Info) -> tuple[str, float, float] | None:
    """Return (name, mean, standard deviation) of the number that a model predicts; None for one of classes."""
    wanted = "give a name, a mean and a standard deviation above zero"
    target: tuple[str, float, float] | None
    target = _parsed(_TARGET, (info.data or {}).get("target"), "target of info's data", wanted)
    if target is not None and (info.class_names or (info.model or {}).get("num_classes")):
        raise InvalidArgument("info has a target and classes, but a model predicts a number or a class.")
    return target


def has_unusual(info: Info) -> bool:
    """Return whether a model scores unusual examples: whether `info.data` states their threshold."""
    stated = (info.data or {}).get("unusual")
    return _parsed(_UNUSUAL, stated, "unusual of info's data", "give a rate of at most 1, and a number") is not None


def with_scores(info: Info, summary: Mapping[str, Any], most: int = 200) -> Info:
    """Return what is known of a model with the scores of classes and clients in the summary of its run.

    Without a few: rows after the first `most`, and all of a training with differential privacy, which does not cover
    them.
    """
    if any(summary.get(name) is not None for name in ("epsilon", "example_epsilon")):
        return info
    classes = [{"class": name, **row} for name, row in (summary.get("classes") or {}).items()]
    scores = {"classes": classes[:most], "clients": [*summary.get("clients", ())][:most]}
    text = lambda x: x if not isinstance(x, str) or x.isprintable() else ascii(x)
    is_sound = lambda x: isinstance(x, str) or (x is not None and math.isfinite(x))
    of = lambda rows: [{name: text(x) for name, x in row.items() if is_sound(x)} for row in rows if len(row) > 1]
    return info._replace(
        data={**(info.data or {}), "scores": {name: of(rows) for name, rows in scores.items() if rows}}
    )


def scores_of(info: Info) -> dict[str, list[dict[str, Any]]]:
    """Return the rows with the scores of "classes" and "clients", those of the calibration if it has some."""
    given, calibration = (info.data or {}).get("scores"), calibration_of(info)
    wanted = "have rows of classes and of clients, each with its name and numbers"
    found = _parsed(_SCORES, given, "scores of info's data", wanted) or _ScoreRows()
    clients = (calibration.clients if calibration else None) or found.clients
    return {name: rows for name, rows in (("class", found.classes), ("client", clients)) if rows}


def calibration_of(info: Info) -> Calibration | None:
    """Return the result of `tfp-bfl calibrate`; None for a model that was not calibrated."""
    if info.calibration is None:
        return None
    wanted = f"be what `tfp-bfl calibrate` finds: {', '.join(Calibration._fields)}"
    found: Calibration = _parsed(_CALIBRATION, dict(info.calibration), "calibration of info", wanted)
    score_of(found.set_score)
    return found


def merged(new: Info | None, old: Info) -> Info:
    """Return `old`, with what `new` knows."""
    return Info._make(b if a is None else a for a, b in zip(new or Info(), old))


def check(info: object) -> Info:
    """Return what is given as `info`, if it is of the form that `Info` says; a metric that is not finite as None."""
    if not isinstance(info, Info):
        raise InvalidArgument(f"info is {shown(info)}, but must be a tfp_bfl.export.Info.")
    for name in ("configuration", "metrics", "data", "calibration", "model"):
        _parsed(_MAPPING, getattr(info, name), f"{name} of info", "be a mapping with names as keys")
    _parsed(_METRICS, info.metrics, "metrics of info", "give a number for each name")
    names = _parsed(_NAMES, info.class_names, "class_names of info", "be a list of printable names")
    if info.metrics is not None:
        finite = {name: x if x is not None and math.isfinite(x) else None for name, x in info.metrics.items()}
        info = info._replace(metrics=finite)
    num_classes = (info.model or {}).get("num_classes", len(names or ()))
    if names is not None and len(names) != num_classes:
        raise InvalidArgument(f"info has {len(names)} class names, but the model has {num_classes} classes.")
    return info


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
        info = check(Info(**json.loads(content.decode("ascii"))))
        facts = _Facts.model_validate(dict(info.model or {}))
        features_of(info)
        scores_of(info)
        has_unusual(info)
        valid = bool(facts.num_classes) == (target_of(info) is None)
    except (RecursionError, TypeError, ValueError):
        valid = False
    if not valid:
        raise InvalidArgument(f"its {NAME} does not say what an export's says")
    return info
