"""One training of a benchmark: what follows it, scores on held-out or test rows, cost and evaluated rounds."""

from __future__ import annotations

import math
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run import backbone, client_scores, datasets, pipeline
from tfp_bfl.app.one_run.after import check_exact, check_one_network, fit
from tfp_bfl.app.one_run.client_scores import RowsByClient
from tfp_bfl.app.one_run.job import Job, prepare
from tfp_bfl.app.one_run.pipeline import MB, Finished, Predicted
from tfp_bfl.app.one_run.trackers import Tracking, tracking
from tfp_bfl.app.options.afterwards import after_options
from tfp_bfl.app.options.config import RunConfig
from tfp_bfl.app.options.own_model import NO_CODE
from tfp_bfl.bench import scores
from tfp_bfl.bench.scores import set_aside, test_parts
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.logs import quiet
from tfp_bfl.machine import recent_peak_memory

if TYPE_CHECKING:
    from tfp_bfl import keras
    from tfp_bfl.bench.plan import Plan
    from tfp_bfl.bench.sweep import Values

_MOST_EXAMPLES = 1000  # Of evaluations between rounds, and of out-of-distribution examples.


class Task(NamedTuple):
    """The work of a cell: its folder, by which a tracker names it, a training, what follows it, the share of each
    client's examples that is held out, a dataset of out-of-distribution examples, and the number of evaluations between
    rounds.
    """

    folder: pathlib.Path
    config: RunConfig
    then: str | None
    then_options: Mapping[str, Any]
    hold_out: float
    ood: str | None = None
    evaluations: int = 1


def task_of(plan: Plan, setting: str, method: str, seed: int, values: Values, folder: pathlib.Path) -> Task:
    """Return the work of a run of a plan with the values that a trial chose; `folder` names it."""
    own = plan.methods[method].then, plan.then_options(setting, method, values)
    config = plan.config(setting, method, seed, values)
    return Task(folder, config, *own, plan.hold_out, plan.oods.get(setting), plan.evaluations)


class _Trained(NamedTuple):
    job: Job
    held: RowsByClient
    test: RowsByClient | None
    result: bfl.federated.SimulationResult
    after: tuple[bfl.federated.SimulationResult, Any] | None
    seconds: list[float]
    about: dict[str, Any]
    warnings: list[str]

    @property
    def model(self) -> keras.Model:
        """The model that predicts for all clients."""
        return self.after[0].model if self.after else self.result.model

    @property
    def is_of_rounds(self) -> bool:
        """Whether the model of the rounds is the one that predicts."""
        result = self.result
        is_other = self.job.is_personal or result.ensemble is not None or result.draws is not None
        return self.after is None and not is_other

    def predict(self, parts: RowsByClient) -> Predicted:
        """Return the predictions of the method for rows."""
        return pipeline.predict(self.job, self.result, self.model, parts)


class _RoundsClock:
    """Measures the CPU seconds of all threads that rounds take, without evaluations; a busy machine does not count."""

    def __init__(self, evaluate: Callable[[keras.Model], dict[str, float]], tracker: Tracking) -> None:
        self._evaluate, self._evaluated, self._tracker = evaluate, 0.0, tracker
        self._last, self._rounds, self._rest = time.process_time(), list[tuple[bool, float]](), 0.0

    def evaluate(self, model: keras.Model) -> dict[str, float]:
        """Evaluate a model off the clock."""
        started = time.process_time()
        metrics = self._evaluate(model)
        self._evaluated += time.process_time() - started
        return metrics

    def on_round(self, row: Mapping[str, Any]) -> None:
        """Take the time at the end of a round."""
        now = time.process_time()
        self._rounds.append((row["round"] == 1, now - self._last - self._evaluated))
        self._tracker.round(row)
        self._last, self._evaluated = time.process_time(), 0.0

    def add_rest(self) -> None:
        """Take the time of what followed the last round, such as Laplace's approximation."""
        self._rest = time.process_time() - self._last

    def seconds(self) -> list[float]:
        """Return the seconds up to the end of each round; a first one, which traces, counts as the mean of others."""
        others = [seconds for is_first, seconds in self._rounds if not is_first]
        each = [float(np.mean(others)) if is_first and others else seconds for is_first, seconds in self._rounds]
        ends: list[float] = np.cumsum(each).tolist()
        return [*ends[:-1], ends[-1] + self._rest]


def run_trial(task: Task) -> Finished:
    """Train, and return the record with the scores of the held-out training rows (`scores.selection`).

    What does not fit the data is InvalidArgument, a training that fails Error.
    """
    started = time.perf_counter()
    with tracking(task.config, task.folder) as tracker:
        trained = _train(task, tracker, evaluate=False)
        found = scores.selection(trained.predict(trained.held))
        tracker.scores(found)
    cost = {"seconds": time.perf_counter() - started}
    return Finished(task.config.recorded(), trained.about, found, cost, warnings=trained.warnings)


def run_final(task: Task) -> Finished:
    """Train, and return the record with the scores of the test rows (docs/bench.md); errors as in `run_trial`."""
    with tracking(task.config, task.folder) as tracker:
        finished = _run_final(task, tracker)
        tracker.scores({**finished.scores, **finished.cost})
    return finished


def _run_final(task: Task, tracker: Tracking) -> Finished:
    before, started = recent_peak_memory(reset=True), time.perf_counter()
    trained = _train(task, tracker, evaluate=True)
    job, config = trained.job, trained.job.config
    assert trained.test is not None
    test, held, of_classes = trained.predict(trained.test), None, job.test.target is None
    about: dict[str, Any] = {
        **{"rounds": config.rounds, "dataset": job.train.name, "model": config.model_name},
        **{"clients": job.clients.num_clients, "examples": int(job.clients.sizes.sum())},
        **{"test_examples": job.test.num_examples, "task": "classification" if of_classes else "regression"},
    }
    if of_classes:
        held = trained.predict(trained.held)
        found = scores.of_classes(test, held)
        if task.ood is not None and not job.is_personal:
            other = bfl.data.load(task.ood, "test", config.data_dir, config.image_size)
            other = backbone.of_source(config, other)
            other = other.subset(min(_MOST_EXAMPLES, other.num_examples), seed=config.seed)
            labels = np.zeros(other.num_examples, np.int32)
            foreign = bfl.evaluation.evaluate(trained.model, other.features, labels, **job.prediction)
            found |= scores.foreign(test, foreign.entropy, foreign.epistemic)
        about["heterogeneity"] = scores.heterogeneity(job.clients.label_counts())
    else:
        found = scores.of_numbers(test)
    # Controls: predictions without features, linear models, and standard deviations at other weights.
    names = {
        **{"linear model": "linear_nll", "linear model with client intercepts": "hierarchical_nll"},
        "random features with client intercepts": "features_nll",
    }
    found |= {
        names.get(each.name, "constant_nll"): each.metrics["test_nll"]
        for each in pipeline.baselines(job.clients, job.test)
    }
    if trained.is_of_rounds:
        of_test = pipeline.permuted(trained.result, lambda model: job.score(model).metrics)
        found |= {name: x for name, x in of_test.items() if name == "permuted_test_nll"}
    sent = dict(zip(("upload_mb", "download_mb"), _megabytes(trained)))
    cost = {"cpu_seconds": trained.seconds[-1], "seconds": time.perf_counter() - started, **sent}
    cost["peak_mb"] = max(0.0, recent_peak_memory() - before)  # Memory before may be given back meanwhile.
    of_clients = []
    if trained.test.names:
        calibrated = held and {"probabilities": held.arrays["probabilities"], "labels": held.labels}
        of_clients = client_scores.of_predictions(trained.test, test.arrays, test.labels, calibrated)
    return Finished(
        task.config.recorded(),
        {**about, **trained.about},
        {**_finite(found), **({"clients": of_clients} if of_clients else {})},
        cost,
        _evaluated(trained, found, sum(sent.values())),
        [*trained.warnings, *bfl.evaluation.client_warnings(of_clients)],
    )


def _train(task: Task, tracker: Tracking, evaluate: bool) -> _Trained:
    """Train on what is not held out, and do what follows."""
    config = task.config
    user_data = datasets.load(config) if datasets.is_own(config) else None
    config = datasets.with_clients(config, user_data) if user_data else config
    held: list[RowsByClient] = []

    def keep(clients: bfl.data.Clients) -> bfl.data.Clients:
        rest, part = set_aside(clients, task.hold_out, config.seed)
        held.append(part)
        return rest

    # Before the process is built: recipes may fit something to the clients' examples.
    job = prepare(config, user_data, NO_CODE, keep)
    shown = job.test.subset(min(_MOST_EXAMPLES, job.test.num_examples), seed=config.seed)
    clock = _RoundsClock(job._replace(shown=shown).evaluate, tracker)
    every = max(1, config.rounds // task.evaluations)
    monitor = bfl.federated.Monitor(clock.evaluate if evaluate else None, every, on_round=clock.on_round)
    # Records have the warnings of the cells, and trials repeat them.
    with quiet("tfp_bfl"):
        result, after = pipeline.train(job, monitor), None
        if task.then is not None:
            check_one_network(job.config, task.then, job.process)
            check_exact(job.config, task.then, "This", job.process)
            weights = result.averaged.weights if result.averaged else job.process.predictive_weights(result.state)
            if _nbytes(weights.posterior):
                raise InvalidArgument(f"{task.then} follows a training of point weights: use kind deterministic.")
            after = fit(job, weights, after_options(task.then, task.then_options))
        clock.add_rest()
    of_sums = {"posterior_temperature": after[1].settings.head.temperature} if after else {}
    return _Trained(
        job,
        held[0],
        test_parts(job) if evaluate else None,
        result,
        after,
        clock.seconds(),
        {**pipeline.about(job, user_data), **of_sums},
        [*job.warnings, *result.warnings, *(after[0].warnings if after else ())],
    )


def _evaluated(trained: _Trained, found: Mapping[str, float], megabytes: float) -> list[dict[str, float]]:
    """Return the scores of the model after rounds, with the seconds and megabytes up to there.

    Where the rounds' model is not the one that predicts, as of ensembles, personal models, chains, averages of rounds
    and what follows a training, the last point alone: the final scores at the whole cost.
    """
    rows, names, points = trained.result.rounds, ("test_nll", "accuracy", "rmse"), []
    if trained.is_of_rounds and trained.result.averaged is None:
        for number, (row, seconds) in enumerate(zip(rows[:-1], trained.seconds), 1):
            point = {name: float(row[name]) for name in names if name in row}
            if point:
                at = {"round": number, "seconds": seconds, "mb": number * megabytes / len(rows)}
                points.append({**at, **_finite(point)})
    last = {name: found[name] for name in names if name in found}
    return [*points, {"round": len(rows), "seconds": trained.seconds[-1], "mb": megabytes, **_finite(last)}]


def _megabytes(trained: _Trained) -> tuple[float, float]:
    """Return the megabytes from and to the clients of a method, with what follows its rounds."""
    upload, download = megabytes(trained.job.process, trained.result.rounds)
    if trained.after is not None:
        more, clients = len(trained.after[0].rounds) / MB, trained.job.clients.num_clients
        # Each round sends the sums of all clients anew.
        upload += more * _nbytes(trained.after[1].rows)
        download += more * clients * _nbytes(trained.result.state.weights)
    return upload, download


def megabytes(process: bfl.federated.BayesianProcess, rounds: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Return the megabytes from and to the clients in all rounds: counted where messages are compressed."""
    from tfp_bfl.federated.round import types_of
    from tfp_bfl.sites.party import result_spec

    taking_part = sum(row["num_clients"] for row in rounds) / MB
    asked = taking_part + sum(row.get("num_dropped", 0) for row in rounds) / MB
    counted = pipeline.exchanged(rounds)
    upload, download = counted.get("upload_mb"), counted.get("download_mb")
    if upload is None:
        answer = result_spec(process)
        upload = taking_part * _nbytes((answer.weights, answer.extra))
    if download is None:
        message = types_of(process.round.broadcast, types_of(process.round.initialize)).message
        download = asked * _nbytes((message.weights, message.extra))
    return upload, download


def _nbytes(structure: object) -> int:
    """Return the bytes of arrays or of their specifications, in which an open axis counts as one."""
    import tensorflow as tf

    leaves = [x if hasattr(x, "shape") else np.asarray(x) for x in tf.nest.flatten(structure)]
    return sum(math.prod(1 if n is None else n for n in x.shape) * tf.as_dtype(x.dtype).size for x in leaves)


def _finite(found: Mapping[str, float]) -> dict[str, float]:
    return {name: float(x) for name, x in found.items() if np.isfinite(x)}
