"""Options of simulations: small objects, and the keywords that stand for their fields."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from tfp_bfl import keras
from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.federated.draws import Thinning
from tfp_bfl.weights import ModelWeights

if TYPE_CHECKING:
    from tfp_bfl.federated.engines import MakeEngine

Path = str | os.PathLike
Row = dict[str, Any]
Evaluate = Callable[[keras.Model], dict[str, float]]


class Cohorts(NamedTuple):
    """State which clients take part in a round.

    Fields:
      size: Number of clients in a round, drawn by the seed; None for all of them, or, with differential privacy, for
        the cohort size of the process's `Privacy`: each client is then drawn independently.
      popularity: Concentration of the Dirichlet distribution of the clients' probabilities of being drawn
        (`data.cohort`); None for equal probabilities.
      dropout: Probability that a client of a cohort does not answer, drawn by the seed.
      max_retries: Number of new cohorts that are tried in a round without a sound client, where clients are drawn;
        chains stop instead.
    """

    size: int | None = None
    popularity: float | None = None
    dropout: float = 0.0
    max_retries: int = 3


class Checkpointing(NamedTuple):
    """State where and when a run is saved.

    Fields:
      folder: Folder of the checkpoints, which hold state and metrics; None for no checkpoints. A run of the same
        process, clients and seed resumes from the last one, and ends with the same numbers, bit for bit, as a run that
        was not interrupted.
      every: Number of rounds between checkpoints; the last round is always saved, also if the next one fails.
      keep: Number of checkpoints on disk; older ones are deleted.
      about: Name -> words: what else a checkpoint must agree with, such as a digest of the data on which `evaluate`
        scores.
    """

    folder: Path | None = None
    every: int = 1
    keep: int = 3
    about: Mapping[str, str] = MappingProxyType({})


class Monitor(NamedTuple):
    """State what is computed and called after a round.

    Fields:
      evaluate: Function from the model to metrics that are added to the round's, such as
        `tfp_bfl.evaluation.evaluator(features, labels)`.
      every: Number of rounds between evaluations; the last round is always evaluated.
      evaluate_cohort: Function from (model, features, labels) to metrics on the data of the round's clients; their
        names get the prefix `cohort_` in the round's metrics.
      on_round: Function that is called with the metrics of each round of this call.
      stop: Function from a round's metrics to whether it was the last, whatever `rounds` says.
      progress: Whether to show a bar of the rounds, with scores and the time left, in a notebook or on the standard
        error.
    """

    evaluate: Evaluate | None = None
    every: int = 1
    evaluate_cohort: Callable[[keras.Model, Any, Any], dict[str, float]] | None = None
    on_round: Callable[[Row], None] | None = None
    stop: Callable[[Row], bool] | None = None
    progress: bool = False


class Prediction(NamedTuple):
    """State how the weights of the rounds become the model that predicts.

    Fields:
      average_rounds: Number of last rounds to average: the result's model is their average
        (`averaging.RoundAverage`). None or 1: the last round's model.
      draws: Thinning of a chain, the rounds of which are samples of a posterior; None for the process's own. The
        samples predict together, and with checkpoints each is written once.
      batch_norm_examples: Examples of the server [N, ...], for posteriors over all weights of a model with BatchNorm
        (`weights.predictive_model`).
    """

    average_rounds: int | None = None
    draws: Thinning | None = None
    batch_norm_examples: Any = None


class Backend(NamedTuple):
    """State what computes the rounds.

    Fields:
      engine: "tff", "local" or "ray": workers of TensorFlow Federated, this process or a Ray cluster; None for tff
        where TensorFlow Federated is installed. They give the same numbers to the rounding of sums. Or "compiled", this
        process with rounds that XLA compiles: faster for small models, with other draws of the same distributions. Each
        engine resumes from the others' checkpoints. Or a function (process, runtime) that returns a context with an
        `engines.Engine`.
      runtime: Workers of `engines.tff.local_workers`, `engines.tff.remote_workers` or `engines.ray.ray_runtime`;
        None to start and stop a worker here.
      max_restarts: Number of local workers that are started again in a round, after they died; the round is then
        repeated.
    """

    engine: str | MakeEngine | None = None
    runtime: Any = None
    max_restarts: int = 3


class SimulationSettings(NamedTuple):
    """Hold all options of a simulation."""

    cohorts: Cohorts = Cohorts()
    seed: int | None = None
    checkpoints: Checkpointing = Checkpointing()
    monitor: Monitor = Monitor()
    start: ModelWeights | None = None
    prediction: Prediction = Prediction()
    engine: Backend = Backend()


class Keywords(TypedDict, total=False):
    """Fields of the option objects as keywords of `simulate`."""

    cohort_size: int | None
    popularity: float | None
    dropout: float
    max_retries: int
    checkpoint_dir: Path | None
    checkpoint_every: int
    keep_checkpoints: int
    evaluate: Evaluate | None
    evaluate_every: int
    evaluate_cohort: Callable[[keras.Model, Any, Any], dict[str, float]] | None
    on_round: Callable[[Row], None] | None
    stop: Callable[[Row], bool] | None
    progress: bool
    average_rounds: int | None
    draws: Thinning | None
    batch_norm_examples: Any
    runtime: Any
    max_restarts: int


class CohortKeywords(TypedDict, total=False):
    """Fields of `Cohorts` as keywords of `simulate_chains`."""

    cohort_size: int | None
    popularity: float | None


class Options(Keywords, total=False):
    """Options of `simulate` that other drivers pass on: its objects, and the fields of these as keywords."""

    cohorts: Cohorts | int | None
    seed: int | None
    checkpoints: Checkpointing | Path | None
    monitor: Monitor | Evaluate | None
    start: ModelWeights | None
    prediction: Prediction | None


# Fields of `Settings` that other drivers pass on.
PASSED_ON = tuple(name for name in SimulationSettings._fields if name != "engine")
# The keywords that stand for the fields of each object, in their order.
_KEYWORDS = {
    "cohorts": ("cohort_size", "popularity", "dropout", "max_retries"),
    "checkpoints": ("checkpoint_dir", "checkpoint_every", "keep_checkpoints"),
    "monitor": ("evaluate", "evaluate_every", "evaluate_cohort", "on_round", "stop", "progress"),
    "prediction": ("average_rounds", "draws", "batch_norm_examples"),
    "engine": ("engine", "runtime", "max_restarts"),
}
# Keyword -> its object and field.
_FIELDS = {
    keyword: (name, field)
    for name, keywords in _KEYWORDS.items()
    for keyword, field in zip(keywords, getattr(SimulationSettings(), name)._fields)
    if keyword != name
}


def settings_of(
    function: Callable[..., Any], given: Mapping[str, Any], objects: Sequence[str] = SimulationSettings._fields
) -> SimulationSettings:
    """Return the options of a call of a function, which has these fields of `SimulationSettings` as objects.

    Options are given by name: such fields, and keywords that stand for fields of their objects. In the place of an
    object may stand the value of its first field.
    """
    defaults = SimulationSettings()._asdict()
    settings = {name: _as_object(name, given.get(name), default) for name, default in defaults.items()}
    fields = {keyword: field for keyword, field in _FIELDS.items() if field[0] in objects}
    known = {**inspect.signature(function).parameters, **dict.fromkeys(objects), **fields}
    for keyword, value in given.items():
        lookup(known, keyword, f"option of {function.__name__}")
        if keyword not in fields:
            continue
        name, field = fields[keyword]
        if getattr(settings[name], field) != getattr(defaults[name], field):
            raise InvalidArgument(f"{keyword} is the field {field!r} of {name}, and both are given: leave one out.")
        settings[name] = settings[name]._replace(**{field: value})
    return SimulationSettings(**settings)


def _as_object(name: str, value: Any, default: Any) -> Any:
    kind = type(default)
    if default is None or isinstance(value, kind):
        return value
    if value is None:
        return default
    if isinstance(value, tuple) or kind is Prediction:
        raise InvalidArgument(f"{name} must be {kind.__name__}(...), but is {shown(value)}.")
    return kind(value)
