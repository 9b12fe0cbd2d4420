"""One run from its configuration to its folder: data, training, evaluation, figures, report, SavedModel."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import pathlib
import resource
import shutil
import threading
import time
from collections.abc import Iterator
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run import build, client_scores, datasets, drift, ensembles, records
from tfp_bfl.app.one_run.job import Job, prepare
from tfp_bfl.app.one_run.progress import Reporter, reporter
from tfp_bfl.app.one_run.run_folder import OnRound, Row, free_folder, owned, recorder, write_results
from tfp_bfl.app.options import class_weights
from tfp_bfl.app.options.config import RunConfig, make_config
from tfp_bfl.app.options.own_model import NO_CODE, Code
from tfp_bfl.app.options.resolve import method, stated
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.faces import Later

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = Later("tensorflow")

logger = logging.getLogger(__name__)

PRETRAINING = "pretraining.json"
_VERSIONED = ("tfp_bfl", "tensorflow", "tf_keras", "tensorflow_probability", "tensorflow_federated", "numpy")


def execute(
    config: RunConfig,
    output: str | pathlib.Path | None = None,
    *,
    console: Console | None = None,
    progress: str | None = None,
    code: Code = NO_CODE,
    on_round: OnRound | None = None,
) -> pathlib.Path:
    """Run a configuration and return its folder.

    The folder holds config.yaml (`tfp-bfl run --config` on it repeats the run), metrics.jsonl (a line a
    round), checkpoints/ (for `resume`), predictions.npz (of the test set),
    training_histograms.npz (for `drift`; not with differential privacy), figures/, report.html and
    saved_model/; pretraining.json and TensorBoard's event files, if asked for; and summary.json, once the run is
    complete; for fl_swag and partitioned_vi also clients.npz, from which `revise` adds and removes clients; with
    hold_out held_out.npz, for `calibrate`; with evaluate_clients clients.jsonl, a line a client.

    Args:
      config: what to run.
      output: the folder; None for the configuration's, and if that has none, a new one under runs/.
      console: where progress is shown; None for nowhere.
      progress: of `progress.FORMS`; None for a bar in a terminal and lines elsewhere.
      code: a model, a rule and data in the place of those that the configuration names.
      on_round: called after each round with its metrics, by name.

    Raises:
      InvalidArgument: the folder exists, the dataset doesn't, the model can't take its examples, or a client would be
        left without any, or with fewer than the algorithm needs. Nothing has been written then.
    """
    output = output or config.output
    folder = free_folder(config, output) if output else None  # Its name without `output` needs TensorFlow.
    with reporter(console or Console(quiet=True), progress, config.rounds * (config.ensemble or 1)) as status:
        return _run(config, folder, status, code, on_round)


def resume(
    folder: str | pathlib.Path,
    *,
    console: Console | None = None,
    progress: str | None = None,
    model: str | None = None,
    rule: str | None = None,
    algorithm: str | None = None,
    dataset: str | None = None,
    code: Code = NO_CODE,
    on_round: OnRound | None = None,
) -> pathlib.Path:
    """Resume an interrupted run from its last checkpoint, and return its folder.

    Weights and metrics end as those of a run that was never stopped, bit for bit; times do not.

    Args:
      folder: of the run.
      console: as in `execute`.
      progress: as in `execute`.
      model, rule, algorithm, dataset: FILE.py:FUNCTION of the run, named again, as its code is run; None for names
        of the library.
      code: for a run with a model, rule or data from Python.
      on_round: as in `execute`.

    Raises:
      InvalidArgument: it is not a run's folder, the run is complete or still going on, or its checkpoints are of
        another version of this library, or all damaged. Nothing has been changed then.
    """
    folder = pathlib.Path(folder)
    if not (folder / "config.yaml").is_file():
        raise InvalidArgument(f"{folder} is not the folder of a run: it has no config.yaml.")
    if (folder / "summary.json").exists():
        raise InvalidArgument(f"The run in {folder} is complete: there is nothing to resume.")
    own = (("model", model), ("rule", rule), ("algorithm", algorithm), ("dataset", dataset))
    named = {name: value for name, value in own if value}
    config = make_config(folder / "config.yaml", named, code=code)
    with reporter(console or Console(quiet=True), progress, config.rounds * (config.ensemble or 1)) as status:
        return _run(config, folder, status, code, on_round)


def _run(
    config: RunConfig, folder: pathlib.Path | None, status: Reporter, code: Code, hook: OnRound | None
) -> pathlib.Path:
    started = time.perf_counter()
    status.phase(f"reading {config.data_name} and building {config.model_name}", lazily=True)
    user_data = datasets.load(config, code.data) if code.data or datasets.is_own(config) else None
    config = datasets.with_clients(config, user_data) if user_data else config
    folder = folder or free_folder(config, None)  # After the data, as what follows imports TensorFlow.
    job = prepare(config, user_data, code)
    # It takes a while, and nothing but the end asks for it.
    threading.Thread(target=importlib.import_module, args=("tfp_bfl.plots",), daemon=True).start()
    from tfp_bfl.app.one_run import baselines  # Which imports TensorFlow.

    with owned(folder, job.config, job.settled), _workers(job.engine) as runtime, _held(job, folder) as held:
        status.announce(job.in_words())
        for note in job.notes:
            status.note(note)
        for warning in job.warnings:
            logger.warning(warning)
        start = _pretrained(job, folder, status, runtime)
        status.phase("tracing, and the first round", lazily=True)
        with recorder(folder, job.config, status, hook) as on_round:
            result = _simulated(job, held, folder / "checkpoints", on_round, start, runtime)
        workers_bytes = sum(worker.peak_memory_bytes() for worker in runtime.workers) if runtime else 0
        status.phase(f"predicting {job.test.num_examples:,} test examples")
        final = job.score(result.model)
        # Ranges, features and histograms of examples have no noise, and no accountant counts them.
        is_private = records.is_private(job.config, job.process)
        apart, unusual = job.apart(result.model), None if is_private else job.unusual(result.model)
        scores = {**_scores(job, result, final.metrics), **baselines.sensitivity_in(final, job.test)}
        simple, weight = baselines.baselines(job.clients, job.test), job.config.class_weight
        if job.shards:
            status.phase("scores of the clients")
        of_clients, warnings = client_scores.scored(job, result, final, apart, folder)
        summary = {
            **scores,
            "baselines": {each.name: each.metrics for each in simple},
            **baselines.of_classes_in(final, job.test),
            **of_clients,
            "method": {
                **job.config.parameters,
                **method(stated(job.config, job.weights, job.process.settings)),
            },
            "trained": job.process.settings,
            **({"class_weights": class_weights.by_class(weight, job.clients)} if weight else {}),
            **(json.loads((folder / PRETRAINING).read_text()) if job.shares.server else {}),
            "train_seconds": sum(row["train_seconds"] for row in result.rounds),
            "ms_per_step": _ms_per_step(job.config, job.clients, result.rounds),
            **_exchanged(result.rounds),
            "worker_mb": round(workers_bytes / 2**20),
            "process_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10),
            "seconds": time.perf_counter() - started,
            "versions": _versions(),
            **({"data": bfl.data.digest(user_data)} if user_data else {}),
            **({"notes": list(job.notes)} if job.notes else {}),
            "warnings": [
                *job.warnings,
                *result.warnings,
                *_compared(job, final, simple),
                *warnings,
            ],
        }
        info = build.export_info(job.config, job.train, scores, job.weights, job.process.settings)
        status.phase("SavedModel, figures and report")
        if not is_private:
            drift.record(folder, job.clients, job.train)
        write_results(folder, job.config, job.clients, job.test, final, result, summary, info, apart, unusual)
    return folder


def _compared(job: Job, final: bfl.evaluation.Evaluation, simple: list[bfl.evaluation.Baseline]) -> list[str]:
    """Return the warnings of a model that is no better than predictions without features.

    Probabilities of a training with class weights are of another population, and are not compared.
    """
    from tfp_bfl.app.one_run import baselines  # Which imports TensorFlow.

    if job.config.class_weight is not None:
        return []
    # Of rare classes a good model has the accuracy of the most frequent one, and a better NLL.
    is_better = baselines.is_better(final, simple[0], job.test)
    chance = [] if is_better else _no_better_than_chance(final.metrics, job.test, job.config)
    return [*chance, *baselines.worse_than(final, simple, job.test)]


def _simulated(
    job: Job,
    clients: bfl.data.ClientData,
    folder: pathlib.Path,
    on_round: OnRound,
    start: bfl.models.ModelWeights | None,
    runtime: object,
) -> bfl.federated.SimulationResult:
    """Run the rounds."""
    config, test = job.config, {"test data": f"{job.test.num_examples} examples ({job.test.sha256()[:8]})"}
    return bfl.federated.simulate(
        job.trained,
        clients,
        rounds=config.rounds,
        cohorts=bfl.federated.Cohorts(config.cohort_size, config.popularity, config.dropout, config.max_retries),
        seed=config.seed,
        checkpoints=bfl.federated.Checkpointing(folder, config.checkpoint_every, config.keep_checkpoints, test),
        monitor=bfl.federated.Monitor(job.evaluate, config.evaluate_every, on_round=on_round),
        start=start,
        prediction=bfl.federated.Prediction(config.average_rounds, batch_norm_examples=job.batch_norm_examples),
        engine=bfl.federated.Backend(job.engine, runtime),
    )


def _pretrained(job: Job, folder: pathlib.Path, status: Reporter, runtime: object) -> bfl.models.ModelWeights | None:
    """Pre-train at the server, record the scores, and return the weights.

    Return None without pre-training, or if rounds have begun.
    """
    server, held_out = job.shares.server, job.shares.held_out
    if not server or not held_out or bfl.federated.Checkpoints(folder / "checkpoints", {}).rounds():
        return None
    status.phase("pre-training at the server")
    _, features, labels = held_out.examples(0)
    engine: dict[str, Any] = {"engine": "local"} if job.engine == "ray" else {"engine": job.engine, "runtime": runtime}
    pretrained = bfl.federated.pretrain(
        build.pretraining(job.config, job.sample, job.code),
        server,
        bfl.evaluation.evaluator(features, labels, **job.prediction),
        seed=job.config.seed,
        **engine,
    )
    model = build.model_fn(job.config, job.sample, job.code)()
    bfl.models.assign_weights(model, pretrained.weights)
    of_test = job.score(model).metrics
    words = {
        "pretrained_epochs": pretrained.epoch,
        "pretrained_accuracy": pretrained.accuracy,
        "pretrained_test_accuracy": of_test["accuracy"],
        "pretrained_test_nll": of_test["test_nll"],
    }
    (folder / PRETRAINING).write_text(json.dumps(words) + "\n", encoding="utf-8")
    return pretrained.weights


def _scores(job: Job, result: bfl.federated.SimulationResult, metrics: dict[str, Any]) -> dict[str, Any]:
    """Return all scores of the result's model; `metrics` are those on the test set."""
    uncertainty = metrics["aleatoric"] + metrics["epistemic"]
    return {
        **metrics,
        "epistemic_share": metrics["epistemic"] / uncertainty if uncertainty else 0.0,
        "collapsed_in_round": result.collapsed,
        **records.privacy(job.config, result.rounds[-1], job.clients.sizes, job.process),
        **_permuted(job, result),
        **_of_last_round(job, result),
        **{name: x for name in bfl.models.DropoutRates._fields if (x := result.rounds[-1].get(name)) is not None},
        **ensembles.scores(result, job.score),
    }


def _permuted(job: Job, result: bfl.federated.SimulationResult) -> dict[str, float]:
    """Return the scores with permuted standard deviations of the layers' weights; nothing for a model without them."""
    last = result.averaged.metrics if result.averaged else result.rounds[-1]
    if result.ensemble or not tf.nest.flatten(result.state.weights.posterior) or "stddev_log_ratio" not in last:
        return {}
    with bfl.evaluation.permuted_stddevs(result.model):
        permuted = job.evaluate(result.model)
    scores = {
        f"permuted_{name}": permuted[name] for name in ("accuracy", "rmse", "test_nll", "ece") if name in permuted
    }
    return {"stddev_log_ratio": last["stddev_log_ratio"], "unpermuted_test_nll": last["test_nll"], **scores}


def _no_better_than_chance(metrics: dict[str, Any], test: bfl.data.Source, config: RunConfig) -> list[str]:
    """Return a warning in a list if the model predicts a constant, and log it."""
    if test.target is not None:
        of_mean = test.target.stddev * float(np.sqrt(np.mean(np.square(test.labels, dtype=np.float64))))
        warning = bfl.federated.constant_warning(metrics["rmse"], of_mean)
    else:
        share = float(np.bincount(test.labels).max() / test.num_examples)
        warning = bfl.federated.chance_warning(metrics["accuracy"], share, getattr(config, "learning_rate", None))
    if warning:
        logger.warning(warning)
    return [warning] if warning else []


def _of_last_round(job: Job, result: bfl.federated.SimulationResult) -> dict[str, float]:
    """Score the last round's model on the test set, beside the average of rounds; empty without an average."""
    if result.averaged is None:
        return {}
    weights = job.process.predictive_weights(result.state)
    model = bfl.models.predictive_model(job.process.model_fn(), weights, job.batch_norm_examples)
    metrics = job.score(model).metrics
    return {"averaged_rounds": result.averaged.rounds, **{f"last_round_{name}": x for name, x in metrics.items()}}


def _workers(engine: str) -> contextlib.AbstractContextManager[Any]:
    """Return the runtime of an engine that has one; None for another."""
    if engine == "ray":
        return bfl.engines.ray.ray_runtime()
    return bfl.engines.tff.local_workers() if engine == "tff" else contextlib.nullcontext()


@contextlib.contextmanager
def _held(job: Job, folder: pathlib.Path) -> Iterator[bfl.data.ClientData]:
    """Return the clients as an engine takes them: for a cluster in files, which are gone after the last round."""
    if job.engine != "ray":
        yield job.clients
        return
    yield bfl.data.write_clients(job.clients, folder / "client_files")
    shutil.rmtree(folder / "client_files")


def _versions() -> dict[str, str]:
    """Return the versions of the installed packages that a run's numbers depend on."""
    versions = {}
    for name in _VERSIONED:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def _ms_per_step(config: RunConfig, clients: bfl.data.Clients, rounds: list[Row]) -> float:
    """Return the median over the rounds, the first (which traces) left out; a cohort counts as its share of all
    clients' steps.
    """
    options = config.own_options()
    steps = sum(options.steps(int(size)) for size in clients.sizes)
    share = (config.cohort_size or clients.num_clients) / clients.num_clients
    seconds = sorted(row["train_seconds"] for row in rounds[1:] or rounds)
    return 1000 * seconds[len(seconds) // 2] / (steps * share)


def _exchanged(rounds: list[Row]) -> dict[str, float]:
    """Return the MB to and from clients in all rounds, and a client's pruned weights in the last round; if counted."""
    last = rounds[-1]
    ways = [way for way in ("upload", "download") if f"{way}_bits" in last]
    exchanged = {f"{way}_mb": sum(row[f"{way}_bits"] for row in rounds) / (8 * 2**20) for way in ways}
    if last.get("pruned_weights"):
        exchanged["pruned_weights"] = last["pruned_weights"] / (last["num_clients"] - last["num_faulty"])
    return exchanged
