"""The driver of simulations: rounds over a cohort of clients, with metrics, evaluation and a model at the end."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.contracts import ServerState
from tfp_bfl.data import ClientData, Parties
from tfp_bfl.display import shows
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.federated.attempts import Attempted, Attempts
from tfp_bfl.federated.averaging import Averaged, RoundAverage, average_of
from tfp_bfl.federated.checkpoints import Checkpoints, Record, digest_of
from tfp_bfl.federated.checks import check_settings, work_warning
from tfp_bfl.federated.draws import Draws
from tfp_bfl.federated.engines import ENGINES, Engine, MakeEngine
from tfp_bfl.federated.ensemble import Ensemble, Members, simulate_members
from tfp_bfl.federated.notices import (
    collapse_warning,
    cores_warning,
    has_collapsed,
    one_shot_warning,
    start_warning,
    warnings_after,
)
from tfp_bfl.federated.options import (
    Backend,
    Checkpointing,
    Cohorts,
    Evaluate,
    Monitor,
    Path,
    Prediction,
    Row,
    SimulationSettings,
    settings_of,
)
from tfp_bfl.federated.process import BayesianProcess
from tfp_bfl.federated.progress import bar
from tfp_bfl.posterior import Samples, Spread, marginals, spread
from tfp_bfl.privacy import everyone_clipped_warning, taking_part_warning
from tfp_bfl.weights import ModelWeights, predictive_model, scaling_bytes

if TYPE_CHECKING:
    from typing import Unpack

    from tfp_bfl.federated.options import Keywords

logger = logging.getLogger(__name__)


_SHOWN = ("accuracy", "rmse", "test_nll", "nll", "stddev_median", "num_clients", "num_examples")


@shows(
    lambda result: {
        "model": f"{result.model.name} with {result.model.count_params():,} numbers",
        "rounds": len(result.rounds),
        "last round": {name: x for row in result.rounds[-1:] for name, x in row.items() if name in _SHOWN},
        "averaged": result.averaged and "the last rounds, in model",
        "draws": result.draws and "of a chain, in model",
        "warnings": " ".join(result.warnings),
    }
)
class SimulationResult(NamedTuple):
    """The result of a simulation.

    Fields:
      model: the Keras model with the last round's weights, or their average over the last rounds.
      state, rounds: the last state, and each round's metrics, plain numbers; of an `Ensemble` those of all members.
      collapsed: the round in which the posterior standard deviations collapsed, else None.
      draws: of a chain, the rounds that were kept; None without any.
      warnings: whole sentences on the posterior; they have been logged too.
      averaged: with `average_rounds`, the average and its scores (`rounds[-1]` holds the last round's); else None.
      ensemble: of an `Ensemble`, the members' results and the scores of `model`; else None.
    """

    model: keras.Model
    state: ServerState
    rounds: list[dict[str, Any]]
    collapsed: int | None
    draws: Samples | None = None
    warnings: Sequence[str] = ()
    averaged: Averaged | None = None
    ensemble: Members | None = None


def simulate(
    process: BayesianProcess | Ensemble,
    clients: ClientData | Parties,
    rounds: int,
    cohorts: Cohorts | int | None = None,
    seed: int | None = None,
    checkpoints: Checkpointing | Path | None = None,
    monitor: Monitor | Evaluate | None = None,
    start: ModelWeights | None = None,
    prediction: Prediction | None = None,
    engine: Backend | str | MakeEngine | None = None,
    **options: Unpack[Keywords],
) -> SimulationResult:
    """Run a process for a number of rounds, and return the model with the pooled posterior and all rounds' metrics.

    All random numbers are functions of the seed, the round, the client and the step: they depend neither on the number
    of workers nor on where a run was interrupted. With differential privacy, noise and cohorts follow from a secret
    seed besides, which the operating system gives and checkpoints alone hold. Faulty clients are left out of their
    round, and named in its metrics and the log.

    Args:
      process: of `tfp_bfl.algorithms`; of an `Ensemble` each member in turn (`algorithms.ensemble`).
      clients: who holds what (`tfp_bfl.data`).
      rounds: Number of rounds in all.
      cohorts: Clients of a round: a `Cohorts`, or the number of clients in a round; None for all of them.
      seed: Random seed of the cohorts and of the clients' noise, from 0 to 2^31 - 1; None for the process's. The
        initial weights follow from the process's seed alone.
      checkpoints: Where and when the run is saved, and resumed from: a `Checkpointing`, or its folder; None for no
        checkpoints.
      monitor: Evaluation and callbacks after rounds: a `Monitor`, or a function from the model to metrics, which are
        added to each round's.
      start: Weights before the first round, such as pre-trained ones; None for the process's own.
      prediction: How the rounds become the model that predicts: a `Prediction`; None for the last round's weights, or
        the process's own thinning of a chain.
      engine: What computes the rounds: a `Backend`, or the name of an engine, "tff", "local", "compiled" or "ray"; None
        for tff where TensorFlow Federated is installed.
      **options: fields of these objects as keywords: cohort_size, popularity, dropout and max_retries of `Cohorts`;
        checkpoint_dir, checkpoint_every and keep_checkpoints of `Checkpointing`; evaluate, evaluate_every,
        evaluate_cohort, on_round, stop and progress of `Monitor`; average_rounds, draws and batch_norm_examples of
        `Prediction`; runtime and max_restarts of `Backend`.

    Raises:
      InvalidArgument: options out of range, or that do not fit the process, clients, checkpoints or each other.
      MissingDependency: the engine is tff, and TensorFlow Federated is not installed.
      Diverged: the server's weights are not finite after its step. The rounds before are kept.
      Error: every client of a round was faulty, in every attempt.
      WorkerError: a worker died, and could not be replaced.

    Example:
      >>> train = bfl.data.load("breast_cancer")
      >>> clients = train.partition(bfl.data.iid(num_clients=4), seed=0)
      >>> model_fn = lambda: bfl.models.mlp("flipout", input_shape=train.element_shape, num_classes=2)
      >>> process = bfl.algorithms.variational(model_fn)
      >>> result = bfl.simulate(process, clients, rounds=2, seed=0, engine="local")
      >>> [row["round"] for row in result.rounds], result.model.output_shape
      ([1, 2], (None, 2))
    """
    objects = {"cohorts": cohorts, "checkpoints": checkpoints, "monitor": monitor, "prediction": prediction}
    settings = settings_of(simulate, {**objects, "seed": seed, "start": start, "engine": engine, **options})
    # Not by isinstance, which asks a process for TensorFlow Federated's class.
    if type(process) is Ensemble:
        return simulate_members(_simulate, process, clients, rounds, settings)
    return _simulate(process, clients, rounds, settings)  # type: ignore[arg-type]


def secret_seed() -> np.ndarray:
    """Return a seed, int32 [2], from the operating system, for noise that hides clients or examples.

    `simulate` draws one before the first round. A program that calls `initialize` and `next` of a private process
    gives it to the first state; equal seeds give equal noise.

    Example:
      >>> bfl.federated.secret_seed().shape
      (2,)
    """
    return np.frombuffer(os.urandom(8), np.int32)


def _simulate(
    process: BayesianProcess, clients: ClientData | Parties, rounds: int, settings: SimulationSettings
) -> SimulationResult:
    run = _Simulation(process, clients, rounds, check_settings(process, clients, rounds, settings))
    with run.engine() as engine:
        run.begin(engine)
        try:
            with run.bar() as shown:
                while run.goes_on:
                    shown(run.advance())
        finally:
            run.save()
    return run.result()


class _Simulation:
    """One simulation, with the settings of `check_settings`."""

    def __init__(
        self, process: BayesianProcess, clients: ClientData | Parties, rounds: int, settings: SimulationSettings
    ):
        self._process, self._clients, self._rounds = process, clients, rounds
        self._settings, self._monitor = settings, settings.monitor
        folder, draws = settings.checkpoints.folder, settings.prediction.draws
        self._checkpoints = self._store(folder) if folder else None
        self._draws = draws and Draws(draws, folder and pathlib.Path(folder) / "draws")
        self._seed, self._num_averaged = int(settings.seed or 0), settings.prediction.average_rounds or 1
        self._warnings: list[str] = []
        for warning in _warnings_before(process, clients, rounds):
            self._warn(warning)
        self._saved, self._stopped = 0, False
        self._model: keras.Model | None = None
        self._predicted: tuple[ServerState, ModelWeights] | None = None

    def engine(self) -> Any:
        """Return the context of the engine."""
        engine, runtime, _ = self._settings.engine
        return (ENGINES[engine] if isinstance(engine, str) else engine)(self._process, runtime)  # type: ignore[misc]

    def begin(self, engine: Engine) -> None:
        """Make the state before the first round of this call: of a checkpoint, where there is one."""
        process, clients, settings = self._process, self._clients, self._settings
        state = engine.initialize()._replace(seed=np.int32(self._seed))
        if not isinstance(state.noise, tuple):
            state = state._replace(noise=secret_seed())
        if settings.start is not None:
            state = process.set_model_weights(state, tf.nest.map_structure(np.asarray, settings.start))
        first_stddev = float(spread(state.weights.posterior).stddev_median)
        checkpoint = self._checkpoints.latest(state, process.state_spec) if self._checkpoints else None
        start = "" if settings.start is None else digest_of(settings.start)
        state, record = checkpoint or (state, Record(first_stddev=first_stddev, start=start))
        self._warn(start_warning(record.start, start))
        self._warn(cores_warning(record.concurrent_calls, engine.concurrent_calls))
        record.concurrent_calls = engine.concurrent_calls
        done = int(state.round)
        if done > self._rounds:
            raise InvalidArgument(
                f"{settings.checkpoints.folder} holds a run of {done} rounds: ask for that many or more."
            )
        self._state = process.with_clients(state, range(clients.num_clients), clients.sizes, self._rounds)
        self._record = record
        if self._draws:
            self._draws.restore({n: x for n, x in record.draws.items() if int(n) <= done}, state.weights)
        drawn_by = int.from_bytes(np.asarray(state.noise).tobytes(), "little") if process.privacy else self._seed
        self._attempts = Attempts(process, engine, clients, settings.cohorts, drawn_by, settings.engine.max_restarts)
        self._average: RoundAverage | None = None
        if self._num_averaged > 1:
            self._average = average_of(process, self._num_averaged, self._rounds, self._predictive(state))
        if self._average and checkpoint:
            self._average.restore(done, record.average_from, record.sums)
        record.average_from, record.sums = (self._average.first, self._average.sums) if self._average else (None, [])
        self._saved = done if checkpoint else 0

    @property
    def goes_on(self) -> bool:
        """Whether there is another round."""
        return not self._stopped and int(self._state.round) < self._rounds

    def bar(self) -> contextlib.AbstractContextManager[Callable[[Mapping[str, Any]], None]]:
        """Return the context of the bar that shows the rounds, or of none."""
        done = int(self._state.round)
        return bar(self._rounds, done) if self._monitor.progress else contextlib.nullcontext(lambda row: None)

    def advance(self) -> dict[str, Any]:
        """Run the next round, with all that follows it, and return its metrics."""
        started, number, monitor, record = time.perf_counter(), int(self._state.round) + 1, self._monitor, self._record
        outcome = self._attempts.run(self._state)
        row = {"round": number, **_row(outcome), "train_seconds": time.perf_counter() - started}
        if self._draws:
            self._draws.add(number, outcome.state.weights)
            record.draws = self._draws.digests
        if number == self._rounds or ((monitor.evaluate or monitor.evaluate_cohort) and number % monitor.every == 0):
            row.update(self._scores(number, outcome, "stddev_median" in row))
        row["seconds"] = time.perf_counter() - started
        if record.collapsed is None and has_collapsed(row, record.first_stddev):
            record.collapsed = number
            logger.warning(collapse_warning(number))
        record.rows.append(row)
        if self._average:  # Not before: a checkpoint after an error holds sums and state of one round.
            self._average.add(number, functools.partial(self._predictive, outcome.state))
            record.sums = self._average.sums
        self._state = outcome.state
        if number % self._settings.checkpoints.every == 0 or number == self._rounds:
            self.save()
        if monitor.on_round:
            monitor.on_round(row)
        self._stopped = bool(monitor.stop and monitor.stop(row))
        return row

    def save(self) -> None:
        """Write a checkpoint, unless the last one is of this round."""
        done = int(self._state.round)
        if self._checkpoints and done > self._saved:
            self._checkpoints.save(self._state, self._record)
            self._saved = done

    def result(self) -> SimulationResult:
        """Return what the run leaves."""
        process, state, record, average = self._process, self._state, self._record, self._average
        weights = average.weights() if average else self._predictive(state)
        model, averaged = self._built(weights), None
        if average:
            scores = _plain(self._monitor.evaluate(model) if self._monitor.evaluate else {})
            metrics = {**_spread_of(weights, process.limits.min_stddev), **scores}
            averaged = Averaged(self._num_averaged, weights, metrics)
        if record.collapsed:
            self._warnings.append(collapse_warning(record.collapsed))
        for warning in warnings_after(record.rows, process.server_step.needs):
            self._warn(warning)
        self._warn(process.privacy and everyone_clipped_warning(process.privacy, record.rows))
        self._warn(process.server_step.needs.notice(*tf.nest.map_structure(np.asarray, (state.step, state.weights))))
        warnings = [*self._warnings, *self._attempts.warnings.values()]
        draws = self._draws.samples() if self._draws else None
        return SimulationResult(model, state, record.rows, record.collapsed, draws, warnings, averaged)

    def _store(self, folder: Path) -> Checkpoints:
        size, popularity, dropout, _ = self._settings.cohorts
        sampling = f"cohorts of {size or 'all'}, dropout {dropout:g}"
        sampling += "" if popularity is None else f", popularity {popularity:g}"
        about, keep = self._settings.checkpoints.about, self._settings.checkpoints.keep
        of_run = {"clients": self._clients.description, "sampling": sampling}
        return Checkpoints(folder, {**self._process.description, **of_run, **about}, keep)

    def _scores(self, number: int, outcome: Attempted, has_spread: bool) -> Row:
        process, monitor, row = self._process, self._monitor, {}
        if process.privacy:
            row["epsilon"] = process.privacy.epsilon(self._clients.num_clients, number)
        weights = self._predictive(outcome.state)
        model = self._built(weights)
        if not has_spread:
            row.update(_spread_of(weights))
        scores = monitor.evaluate(model) if monitor.evaluate else {}
        if monitor.evaluate_cohort:
            scores = {**scores, **_on_cohort(monitor.evaluate_cohort, model, self._clients, outcome)}
        return {**row, **_plain(scores)}

    def _predictive(self, state: ServerState) -> ModelWeights:
        # The result is that of the last round's scores: a posterior may take as long as a round.
        if self._predicted is None or self._predicted[0] is not state:
            weights = self._process.predictive_weights(state)
            self._predicted = state, self._draws.predictive(weights) if self._draws else weights
        return self._predicted[1]

    def _built(self, weights: ModelWeights) -> keras.Model:
        self._model = self._model or self._process.model_fn()
        examples = self._settings.prediction.batch_norm_examples
        return scaling_bytes(predictive_model(self._model, weights, examples))

    def _warn(self, warning: str | None) -> None:
        if warning:
            logger.warning(warning)
            self._warnings.append(warning)


def _warnings_before(process: BayesianProcess, clients: ClientData | Parties, rounds: int) -> list[str]:
    """Return what there is to know of a run before it begins."""
    num_clients = clients.num_clients
    warnings = [one_shot_warning(process.description["rule"], rounds)] if process.one_shot and rounds > 1 else []
    warnings += process.notices if rounds > 1 and num_clients > 1 else ()
    always = process.privacy and taking_part_warning(process.privacy, num_clients)
    return [*warnings, *filter(None, (always, work_warning(process, clients)))]


def _plain(scores: Row) -> Row:
    return {name: np.asarray(x).tolist() for name, x in scores.items()}


def _on_cohort(evaluate: Any, model: keras.Model, clients: Any, outcome: Attempted) -> dict[str, float]:
    present = np.asarray(outcome.metrics["clients"]["client"]).tolist()
    parts = [clients.examples(k) for k in present]
    features, labels = (np.concatenate([getattr(part, name) for part in parts]) for name in ("features", "labels"))
    return {f"cohort_{name}": x for name, x in evaluate(model, features, labels).items()}


def _spread_of(weights: ModelWeights, floor: float = 0.0) -> dict[str, float]:
    """Return the spread of a posterior that is over point weights: the round itself reports that of the layers' own."""
    found = spread(marginals(weights.posterior), floor)._asdict()
    return {name: float(x) for name, x in found.items() if math.isfinite(x)}


def _row(outcome: Attempted) -> dict[str, Any]:
    """Return a round's metrics as plain numbers; faulty clients by their number with the reason."""
    row = {name: np.asarray(x).item() for name, x in outcome.metrics.items() if name != "clients"}
    # JSON has no NaN: a model without a posterior has no spread, and any other metric has no value.
    row = {name: value if math.isfinite(value) else None for name, value in row.items()}
    row = {name: value for name, value in row.items() if value is not None or name not in Spread._fields}
    row["num_clients"] += len(outcome.left_out)
    row["num_faulty"] += len(outcome.left_out)
    row["faulty_clients"] = {str(client): reason for client, reason in outcome.faulty.items()}
    return {**row, "num_dropped": outcome.num_dropped, "retries": outcome.retries, "restarts": outcome.restarts}
