"""One run of a benchmark: training, what follows it, scores on held-out or test rows, cost and trajectory."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.bench import scores
from tfp_bfl.app.bench.predictions import Parts, Predicted, predict, predict_personal, set_aside, test_parts
from tfp_bfl.app.one_run import build, datasets
from tfp_bfl.app.one_run.after import FinishedRun, check_exact, check_one_network, fit
from tfp_bfl.app.one_run.baselines import baselines
from tfp_bfl.app.one_run.job import Job, prepare
from tfp_bfl.app.options.afterwards import after_options
from tfp_bfl.app.options.algorithms import algorithm_options
from tfp_bfl.app.options.config import RunConfig
from tfp_bfl.app.options.own_model import NO_CODE
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.logs import quiet

if TYPE_CHECKING:
    from tfp_bfl import keras

_MB = 2**20
# Of evaluations between rounds, and of out-of-distribution examples.
_MOST_EXAMPLES = 1000


class Task(NamedTuple):
    """The work of a cell.

    Fields:
      config: of the run.
      then: what follows the training; None for nothing.
      then_options: of that.
      hold_out: share of each client's examples that are held out.
      ood: dataset of out-of-distribution examples; None for none.
      evaluations: number of evaluations between rounds.
    """

    config: RunConfig
    then: str | None
    then_options: Mapping[str, Any]
    hold_out: float
    ood: str | None = None
    evaluations: int = 1


class _Trained(NamedTuple):
    job: Job
    held: Parts
    test: Parts | None
    result: bfl.federated.SimulationResult
    model: keras.Model
    is_personal: bool
    upload: float
    download: float
    seconds: list[float]
    warnings: list[str]
    digest: str | None
    temperature: float | None

    def predict(self, parts: Parts) -> Predicted:
        """Return the predictions of the method for rows."""
        if self.is_personal:
            return predict_personal(self.job, self.result, parts)
        return predict(self.job, self.model, parts)


class _Clock:
    """Measures the CPU seconds of all threads that rounds take, without evaluations; a busy machine does not count."""

    def __init__(self, evaluate: Callable[[keras.Model], dict[str, float]]) -> None:
        self._evaluate, self._evaluated = evaluate, 0.0
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
        self._last, self._evaluated = now, 0.0

    def add_rest(self) -> None:
        """Take the time of what followed the last round, such as Laplace's approximation."""
        self._rest = time.process_time() - self._last

    def seconds(self) -> list[float]:
        """Return the seconds up to the end of each round; a first one, which traces, counts as the mean of others."""
        others = [seconds for is_first, seconds in self._rounds if not is_first]
        each = [float(np.mean(others)) if is_first and others else seconds for is_first, seconds in self._rounds]
        ends: list[float] = np.cumsum(each).tolist()
        return [*ends[:-1], ends[-1] + self._rest]


def run_trial(task: Task) -> dict[str, Any]:
    """Train, and return the scores of the held-out training rows (`scores.selection`), and the seconds.

    With data that may name clients, "data" has their digest.

    Raises:
      InvalidArgument: the options don't fit the data.
      Error: the training failed.
    """
    started = time.perf_counter()
    trained = _train(task, evaluate=False)
    found = scores.selection(trained.predict(trained.held))
    of_data = {} if trained.digest is None else {"data": trained.digest}
    return {**found, "seconds": time.perf_counter() - started, **of_data}


def run_final(task: Task) -> dict[str, Any]:
    """Train, and return about, scores, cost and trajectory of a record (docs/bench.md).

    Raises:
      InvalidArgument: the options don't fit the data.
      Error: the training failed.
    """
    before, started = _memory(reset=True), time.perf_counter()
    trained = _train(task, evaluate=True)
    job = trained.job
    assert trained.test is not None
    test, held = trained.predict(trained.test), None
    if job.test.target is None:
        held = trained.predict(trained.held)
        found = scores.of_classes(test, held)
        found |= _foreign(task, trained, test)
    else:
        found = scores.of_numbers(test)
    # Controls: predictions without features, linear models, and standard deviations at other weights.
    names = {"linear model": "linear_nll", "linear model with client intercepts": "hierarchical_nll"}
    controls = baselines(job.clients, job.test)
    found |= {names.get(each.name, "constant_nll"): each.metrics["test_nll"] for each in controls}
    found |= _permuted(trained)
    about = {
        "rounds": job.config.rounds,
        "dataset": job.train.name,
        "model": job.config.model_name,
        "clients": job.clients.num_clients,
        "examples": int(job.clients.sizes.sum()),
        "test_examples": job.test.num_examples,
        "task": "classification" if job.test.target is None else "regression",
    }
    if trained.digest is not None:
        about["data"] = trained.digest
    if trained.temperature is not None:
        about["posterior_temperature"] = trained.temperature
    if job.test.target is None:
        about["heterogeneity"] = scores.heterogeneity(job.clients.label_counts())
    cost = {
        "train_seconds": trained.seconds[-1],
        "seconds": time.perf_counter() - started,
        "upload_mb": trained.upload,
        "download_mb": trained.download,
        "peak_mb": max(0.0, _memory() - before),  # Memory before may be given back meanwhile.
    }
    record = {"about": about, "scores": _finite(found), "cost": cost, "trajectory": _trajectory(trained, found)}
    of_clients = scores.of_clients(trained.test, test, held) if trained.test.names else []
    record |= {"clients": of_clients} if of_clients else {}
    return {**record, "warnings": [*trained.warnings, *bfl.evaluation.client_warnings(of_clients)]}


def _train(task: Task, evaluate: bool) -> _Trained:
    """Train on what is not held out, and do what follows."""
    config = task.config
    user_data = datasets.load(config) if datasets.is_own(config) else None
    config = datasets.with_clients(config, user_data) if user_data else config
    held: list[Parts] = []

    def keep(clients: bfl.data.Clients) -> bfl.data.Clients:
        rest, part = set_aside(clients, task.hold_out, config.seed)
        held.append(part)
        return rest

    # Before the process is built: recipes may fit something to the clients' examples.
    job = prepare(config, user_data, NO_CODE, keep)
    test = test_parts(job) if evaluate else None
    every = max(1, config.rounds // task.evaluations)
    shown = job.test.subset(min(_MOST_EXAMPLES, job.test.num_examples), seed=config.seed)
    score = build.scorer(job.config, job.test)
    clock = _Clock(lambda model: score(model, shown.features, shown.labels).metrics)
    # Records have the warnings of the cells, and trials repeat them.
    with quiet("tfp_bfl"):
        result = bfl.federated.simulate(
            job.trained,
            job.clients,
            rounds=config.rounds,
            cohorts=bfl.federated.Cohorts(config.cohort_size, config.popularity, config.dropout, config.max_retries),
            seed=config.seed,
            monitor=bfl.federated.Monitor(clock.evaluate if evaluate else None, every, on_round=clock.on_round),
            prediction=bfl.federated.Prediction(config.average_rounds, batch_norm_examples=job.batch_norm_examples),
            engine=job.engine,
        )
        after = _afterwards(task, job, result) if task.then is not None else None
        clock.add_rest()
    warnings = [*job.warnings, *result.warnings]
    upload, download = _megabytes(job, result) if evaluate else (0.0, 0.0)
    model, temperature = result.model, None
    if after is not None:
        last, sums = after
        model, temperature, warnings = last.model, sums.settings.temperature, [*warnings, *last.warnings]
        more, clients = len(last.rounds) / _MB, job.clients.num_clients
        # Each round sends the sums of all clients anew.
        upload += more * sum(int(np.asarray(x).nbytes) for x in _leaves(sums.rows))
        download += more * clients * sum(np.asarray(x).nbytes for x in _leaves(result.state.weights))
    is_personal = algorithm_options(job.config.algorithm).adapts
    digest = bfl.data.digest(user_data) if user_data else None
    cost = upload, download, clock.seconds()
    return _Trained(job, held[0], test, result, model, is_personal, *cost, warnings, digest, temperature)


def _afterwards(
    task: Task, job: Job, result: bfl.federated.SimulationResult
) -> tuple[bfl.federated.SimulationResult, Any]:
    """Return the rounds of Laplace's approximation or of the last layer after the training, and the clients' sums."""
    check_one_network(job.config, str(task.then), job.process)
    check_exact(job.config, str(task.then), "This", job.process)
    weights = result.averaged.weights if result.averaged else job.process.predictive_weights(result.state)
    if _leaves(weights.posterior) or job.config.kind != "deterministic":
        raise InvalidArgument(f"{task.then} follows a training of point weights: use kind deterministic.")
    data = bfl.data.OwnData(job.train, job.test, job.clients)
    run = FinishedRun(pathlib.Path(), job.config, data, job.clients, job.process.model_fn, weights)
    return fit(run, after_options(str(task.then), task.then_options))


def _foreign(task: Task, trained: _Trained, test: Predicted) -> dict[str, float]:
    """Return AUROC of out-of-distribution examples; nothing without any, or with personal models."""
    if task.ood is None or trained.is_personal:
        return {}
    job = trained.job
    other = bfl.data.load(task.ood, split="test", data_dir=job.config.data_dir)
    other = other.subset(min(_MOST_EXAMPLES, other.num_examples), seed=job.config.seed)
    labels = np.zeros(other.num_examples, np.int32)
    found = bfl.evaluation.evaluate(trained.model, other.features, labels, **job.prediction)
    return scores.foreign(test, found.entropy, found.epistemic)


def _permuted(trained: _Trained) -> dict[str, float]:
    """Return the NLL with permuted standard deviations of the weights; nothing for a model without them."""
    result, job = trained.result, trained.job
    if trained.is_personal or trained.model is not result.model or result.ensemble or result.draws is not None:
        return {}
    if not _leaves(result.state.weights.posterior):
        return {}
    with bfl.evaluation.permuted_stddevs(trained.model):
        return {"permuted_nll": job.score(trained.model).metrics["test_nll"]}


def _trajectory(trained: _Trained, found: Mapping[str, float]) -> list[dict[str, float]]:
    """Return the scores of the model after rounds, with the seconds and megabytes up to there.

    Where the rounds' model is not the one that predicts, as of ensembles, personal models, chains, averages of rounds
    and what follows a training, the last point alone: the final scores at the whole cost.
    """
    rows, points = trained.result.rounds, []
    total = trained.upload + trained.download
    is_rounds = trained.model is trained.result.model and not trained.is_personal and trained.result.ensemble is None
    if is_rounds and trained.result.draws is None and trained.result.averaged is None:
        for number, (row, seconds) in enumerate(zip(rows[:-1], trained.seconds), 1):
            names = [name for name in ("test_nll", "accuracy", "rmse") if name in row]
            if names:
                point = {name.replace("test_", ""): float(row[name]) for name in names}
                points.append({"round": number, "seconds": seconds, "mb": number * total / len(rows), **_finite(point)})
    last = {name: found[name] for name in ("nll", "accuracy", "rmse") if name in found}
    return [*points, {"round": len(rows), "seconds": trained.seconds[-1], "mb": total, **_finite(last)}]


def _megabytes(job: Job, result: bfl.federated.SimulationResult) -> tuple[float, float]:
    """Return the megabytes from and to the clients in all rounds: counted where messages are compressed."""
    from tfp_bfl.federated.round import types_of
    from tfp_bfl.sites.party import result_spec

    counted = [
        sum(row[f"{way}_bits"] for row in result.rounds) / (8 * _MB) if f"{way}_bits" in result.rounds[-1] else None
        for way in ("upload", "download")
    ]
    taking_part = sum(row["num_clients"] for row in result.rounds) / _MB
    asked = taking_part + sum(row.get("num_dropped", 0) for row in result.rounds) / _MB
    upload, download = counted
    if upload is None:
        answer = result_spec(job.process)
        upload = taking_part * _spec_bytes((answer.weights, answer.extra))
    if download is None:
        message = types_of(job.process.round.broadcast, types_of(job.process.round.initialize)).message
        download = asked * _spec_bytes((message.weights, message.told))
    return upload, download


def _spec_bytes(spec: object) -> int:
    return sum(int(np.prod([n or 1 for n in x.shape])) * x.dtype.size for x in _leaves(spec))


def _leaves(structure: object) -> list[Any]:
    import tensorflow as tf

    return list(tf.nest.flatten(structure))


def _finite(found: Mapping[str, float]) -> dict[str, float]:
    return {name: float(x) for name, x in found.items() if np.isfinite(x)}


def _memory(reset: bool = False) -> float:
    """Return the peak of the process's memory in MB; with `reset` the memory in use, where the peak begins anew.

    Where the system has no /proc, the peak since the process began.
    """
    try:
        if reset:
            pathlib.Path("/proc/self/clear_refs").write_text("5")
        lines = pathlib.Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**10
    except (OSError, StopIteration):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
