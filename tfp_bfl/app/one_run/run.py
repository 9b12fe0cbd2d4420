"""One run from its configuration to its folder: data, training, evaluation, figures, report, SavedModel."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import pathlib
import shutil
import threading
import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run import build, client_scores, datasets, drift, pipeline, records, trackers
from tfp_bfl.app.one_run.job import Job, prepare
from tfp_bfl.app.one_run.run_folder import OnRound, Reporter, Row, free_folder, owned, recorder, reporter, write_results
from tfp_bfl.app.options.config import RunConfig, make_config
from tfp_bfl.app.options.own_model import NO_CODE, Code
from tfp_bfl.app.options.resolve import at_last
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files import Path
from tfp_bfl.machine import peak_memory
from tfp_bfl.options.methods import method_of

logger = logging.getLogger(__name__)

PRETRAINING = "pretraining.json"


def execute(
    config: RunConfig,
    output: Path | None = None,
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
    saved_model/; pretraining.json and tensorboard/, if asked for; and summary.json, once the run is
    complete; for fl_swag and partitioned_vi also clients.npz, from which `revise` adds and removes clients; with
    hold_out held_out.npz, for `calibrate`; with evaluate_clients clients.jsonl, a line a client.

    The folder is `output`, or the configuration's, or else a new one under runs/. `progress` is of `choices.FORMS`,
    None for a bar in a terminal and lines elsewhere, on the console if there is one. `code` stands in the place of what
    the configuration names. `on_round` is called after each round with its metrics, by name.
    """
    output = output or config.output
    folder = free_folder(config, output) if output else None  # Its name without `output` needs TensorFlow.
    with reporter(console or Console(quiet=True), progress, config.rounds * (config.ensemble or 1)) as status:
        return _run(config, folder, status, code, on_round)


def resume(
    folder: Path,
    *,
    console: Console | None = None,
    progress: str | None = None,
    code: Code = NO_CODE,
    on_round: OnRound | None = None,
    **named: str,
) -> pathlib.Path:
    """Resume an interrupted run from its last checkpoint, and return its folder.

    Weights and metrics end as those of a run that was never stopped, bit for bit; times do not. Parts of the run that
    were given from Python are given again as `code`, those that are FILE.py:FUNCTION by their option in `named`.
    """
    folder = pathlib.Path(folder)
    if not (folder / "config.yaml").is_file():
        raise InvalidArgument(f"{folder} is not the folder of a run: it has no config.yaml.")
    if (folder / "summary.json").exists():
        raise InvalidArgument(f"The run in {folder} is complete: there is nothing to resume.")
    config = make_config(folder / "config.yaml", named, code=code)
    with reporter(console or Console(quiet=True), progress, config.rounds * (config.ensemble or 1)) as status:
        return _run(config, folder, status, code, on_round)


def _run(
    config: RunConfig, folder: pathlib.Path | None, status: Reporter, code: Code, hook: OnRound | None
) -> pathlib.Path:
    started = time.perf_counter()
    trackers.check(config.tracker)
    status.phase(f"reading {config.data_name} and building {config.model_name}", lazily=True)
    user_data = datasets.load(config, code.data) if code.data or datasets.is_own(config) else None
    config = datasets.with_clients(config, user_data) if user_data else config
    folder = folder or free_folder(config, None)  # After the data, as what follows imports TensorFlow.
    job = prepare(config, user_data, code)
    # It takes a while, and nothing but the end asks for it.
    threading.Thread(target=importlib.import_module, args=("tfp_bfl.plots",), daemon=True).start()

    with (
        trackers.tracking(job.config, folder) as tracker,
        owned(folder, job.config, job.settled),
        _workers(job.engine) as runtime,
        _held(job, folder) as held,
    ):
        status.announce(job.in_words())
        for note in job.notes:
            status.note(note)
        for warning in job.warnings:
            logger.warning(warning)
        start = _pretrained(job, folder, status, runtime)
        status.phase("tracing, and the first round", lazily=True)
        with recorder(folder, job.config, status, tracker.round, *([hook] if hook else [])) as on_round:
            monitor = bfl.federated.Monitor(job.evaluate, job.config.evaluate_every, on_round=on_round)
            checkpoints = folder / "checkpoints"
            result = pipeline.train(job, monitor, clients=held, folder=checkpoints, start=start, runtime=runtime)
        workers_bytes = sum(worker.peak_memory_bytes() for worker in runtime.workers) if runtime else 0
        status.phase(f"predicting {job.test.num_examples:,} test examples")
        final = job.score(result.model)
        # Ranges, features and histograms of examples have no noise, and no accountant counts them.
        is_private = records.is_private(job.config, job.process)
        apart, unusual = job.apart(result.model), None if is_private else job.unusual(result.model)
        scores = {**_scores(job, result, final.metrics), **pipeline.sensitivity_in(final, job.test)}
        simple = pipeline.baselines(job.clients, job.test)
        if job.shards:
            status.phase("scores of the clients")
        last, pruned = result.rounds[-1], result.rounds[-1].get("pruned_weights")  # Of all clients.
        of_clients, warnings = client_scores.scored(job, result, final, apart, folder)
        finished = pipeline.Finished(
            options=job.config.recorded(),
            about={
                **pipeline.about(job, user_data),
                **(json.loads((folder / PRETRAINING).read_text()) if job.shares.server else {}),
            },
            scores={
                **scores,
                "baselines": {each.name: each.metrics for each in simple},
                **pipeline.of_classes_in(final, job.test),
                **of_clients,
            },
            cost={
                "train_seconds": sum(row["train_seconds"] for row in result.rounds),
                "ms_per_step": _ms_per_step(job.config, job.clients, result.rounds),
                **pipeline.exchanged(result.rounds),
                **({"pruned_weights": pruned / (last["num_clients"] - last["num_faulty"])} if pruned else {}),
                "worker_mb": round(workers_bytes / 2**20),
                "process_mb": round(peak_memory()),
                "seconds": time.perf_counter() - started,
            },
            rounds=result.rounds,
            warnings=[*job.warnings, *result.warnings, *pipeline.compared(job, final, simple), *warnings],
        )
        trained = at_last(job.process.settings, result.rounds)
        info = build.export_info(job.config, job.train, scores, job.weights, trained)
        status.phase("SavedModel, figures and report")
        if not is_private:
            drift.record(folder, job.clients, job.train)
        write_results(folder, job, final, result, finished, info, apart, unusual)
        tracker.scores(finished.summary())
    return folder


def _pretrained(job: Job, folder: pathlib.Path, status: Reporter, runtime: object) -> bfl.weights.ModelWeights | None:
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
    bfl.weights.assign_weights(model, pretrained.weights)
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
    uncertainty, rates = metrics["aleatoric"] + metrics["epistemic"], bfl.algorithms.personal.step.DropoutRates._fields
    return {
        **metrics,
        "epistemic_share": metrics["epistemic"] / uncertainty if uncertainty else 0.0,
        "collapsed_in_round": result.collapsed,
        **records.privacy(job.config, result.rounds[-1], job.clients.sizes, job.process),
        **_permuted(job, result),
        **_of_last_round(job, result),
        **{name: x for name in rates if (x := result.rounds[-1].get(name)) is not None},
        **records.member_scores(result, job.score),
    }


def _permuted(job: Job, result: bfl.federated.SimulationResult) -> dict[str, float]:
    """Return the scores with permuted standard deviations beside those of the same examples without."""
    last = result.averaged.metrics if result.averaged else result.rounds[-1]
    found = pipeline.permuted(result, job.evaluate) if "stddev_log_ratio" in last else {}
    before = {"stddev_log_ratio": last["stddev_log_ratio"], "unpermuted_test_nll": last["test_nll"]} if found else {}
    return {**before, **found}


def _of_last_round(job: Job, result: bfl.federated.SimulationResult) -> dict[str, float]:
    """Score the last round's model on the test set, beside the average of rounds; empty without an average."""
    if result.averaged is None:
        return {}
    weights = job.process.predictive_weights(result.state)
    model = bfl.weights.predictive_model(job.process.model_fn(), weights, job.batch_norm_examples)
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


def _ms_per_step(config: RunConfig, clients: bfl.data.Clients, rounds: list[Row]) -> float:
    """Return the median over the rounds, the first (which traces) left out; a cohort counts as its share of all
    clients' steps.
    """
    steps = sum(method_of(config.algorithm).steps(config, int(size)) for size in clients.sizes)
    share = (config.cohort_size or clients.num_clients) / clients.num_clients
    seconds = sorted(row["train_seconds"] for row in rounds[1:] or rounds)
    return 1000 * seconds[len(seconds) // 2] / (steps * share)
