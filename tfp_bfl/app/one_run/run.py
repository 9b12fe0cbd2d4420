"""One run from its configuration to its folder: data, training, evaluation, figures, report, SavedModel."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
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
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

import numpy as np
from rich.console import Console

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run import build, client_scores, ensembles, records
from tfp_bfl.app.one_run.progress import Reporter, reporter
from tfp_bfl.app.one_run.run_folder import OnRound, Row, free_folder, owned, recorder, write_results
from tfp_bfl.app.options.config import RunConfig, make_config
from tfp_bfl.app.options.own_model import NO_CODE, Code
from tfp_bfl.app.options.resolve import POINT, method, resolved, stated, title
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.faces import Later

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = Later("tensorflow")

logger = logging.getLogger(__name__)

# Of a prediction of the test set.
EXAMPLES_AT_ONCE = 500
_VERSIONED = ("tfp_bfl", "tensorflow", "tf_keras", "tensorflow_probability", "tensorflow_federated", "numpy")


def execute(
    config: RunConfig,
    output: Union[str, pathlib.Path, None] = None,
    *,
    console: Optional[Console] = None,
    progress: Optional[str] = None,
    code: Code = NO_CODE,
    on_round: Optional[OnRound] = None,
) -> pathlib.Path:
    """Runs a configuration and returns its folder.

    The folder holds config.yaml (`tfp-bfl run --config` on it repeats the run), metrics.jsonl (a line a
    round), checkpoints/ (from which `resume` goes on), predictions.npz (of the test set), figures/, report.html and
    saved_model/; pretraining.json and TensorBoard's event files, if asked for; and summary.json, once the run is
    complete; for fl_swag also server_state.npz, from which `revise` adds and removes clients; with hold_out
    held_out.npz, for `calibrate`; with evaluate_clients clients.jsonl, a line a client.

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
    with reporter(console or Console(quiet=True), progress, config.rounds * (config.ensemble or 1)) as tell:
        return _run(config, folder, tell, code, on_round)


def resume(
    folder: Union[str, pathlib.Path],
    *,
    console: Optional[Console] = None,
    progress: Optional[str] = None,
    model: Optional[str] = None,
    rule: Optional[str] = None,
    algorithm: Optional[str] = None,
    code: Code = NO_CODE,
    on_round: Optional[OnRound] = None,
) -> pathlib.Path:
    """Goes on with a run that broke off, from its last checkpoint, and returns its folder.

    Weights and metrics end as those of a run that was never stopped, bit for bit; times do not.

    Args:
      folder: of the run.
      console: as in `execute`.
      progress: as in `execute`.
      model, rule, algorithm: FILE.py:FUNCTION of the run, named again, as its code is run; None for names of the
        library.
      code: of a run whose model, rule or data were given in Python.
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
    own = (("model", model), ("rule", rule), ("algorithm", algorithm))
    named = {name: value for name, value in own if value}
    config = make_config(folder / "config.yaml", named)
    with reporter(console or Console(quiet=True), progress, config.rounds * (config.ensemble or 1)) as tell:
        return _run(config, folder, tell, code, on_round)


def _run(
    config: RunConfig, folder: Optional[pathlib.Path], tell: Reporter, code: Code, hook: Optional[OnRound]
) -> pathlib.Path:
    started = time.perf_counter()
    tell.phase(f"reading {config.data_name} and building {config.model_name}", lazily=True)
    own = build.load(config, code.data) if code.data or build.is_own(config) else None
    config = build.with_clients(config, own) if own else config
    folder = folder or free_folder(config, None)  # After the data, as what follows imports TensorFlow.
    engine = bfl.federated.check_engine(config.engine)
    if engine == "local":
        bfl.federated.share_cores(config.cohort_size or config.clients)
    sample = own.train if own else bfl.data.peek(config.dataset, data_dir=config.data_dir)
    # Reading is TensorFlow's work, building is Python's: side by side they take the time of the longer one.
    with concurrent.futures.ThreadPoolExecutor() as pool:
        read = pool.submit(_read, config, own)
        unlabelled = lambda: read.result()[2].unlabelled
        config, weights = build.settle(config, sample, code)
        process, trained = ensembles.processes(config, lambda x: build.process(x, sample, unlabelled, code))
        train, test, (clients, server, held_out, _, calibration, unseen) = read.result()
    bfl.federated.check_clients(process, clients)
    options = _prediction(config)
    bfl.federated.check_average_rounds(process, config.average_rounds, config.rounds)
    if weights != POINT or config.own_options().point_weights or config.ensemble:
        number = min(test.num_examples, EXAMPLES_AT_ONCE)
        bfl.evaluation.check_num_samples(options["num_samples"], number, test.num_outputs)
    every = client_scores.everybody(clients, unseen)
    shards = client_scores.shards(config, test, every)
    # It takes a while, and nothing but the end asks for it.
    threading.Thread(target=importlib.import_module, args=("tfp_bfl.plots",), daemon=True).start()

    shown = test.subset(min(config.evaluation_examples, test.num_examples), seed=config.seed)
    score = build.scorer(config, test)
    settled = functools.partial(resolved, regression=test.target is not None, weights=weights)
    with owned(folder, config, settled), _workers(engine) as runtime, _held(engine, clients, folder) as held:
        tell.announce(_in_words(config, weights, clients, test, engine))
        pretrained = None
        if server and held_out and not bfl.federated.Checkpoints(folder / "checkpoints", {}).rounds():
            tell.phase("pre-training at the server")
            here = {"engine": "local"} if engine == "ray" else {"engine": engine, "runtime": runtime}
            pretrained = _pretrain(config, sample, server, held_out, code, **here)
            words = _of_start(
                pretrained, build.model_fn(config, sample, code)(), lambda x: score(x, test.features, test.labels)
            )
            (folder / "pretraining.json").write_text(json.dumps(words) + "\n", encoding="utf-8")
        tell.phase("tracing, and the first round", lazily=True)
        with recorder(folder, config, tell, hook) as on_round:
            result = bfl.federated.simulate(
                trained,
                held,
                rounds=config.rounds,
                cohort_size=config.cohort_size,
                seed=config.seed,
                checkpoint_dir=folder / "checkpoints",
                evaluate=lambda model: score(model, shown.features, shown.labels).metrics,
                evaluate_every=config.evaluate_every,
                on_round=on_round,
                start=pretrained and pretrained.weights,
                runtime=runtime,
                engine=engine,
                checkpoint_every=config.checkpoint_every,
                keep_checkpoints=config.keep_checkpoints,
                dropout=config.dropout,
                popularity=config.popularity,
                max_retries=config.max_retries,
                batch_norm_examples=build.batch_norm_examples(config, server),
                average_rounds=config.average_rounds,
            )
        workers_bytes = sum(worker.peak_memory_bytes() for worker in runtime.workers) if runtime else 0
        tell.phase(f"predicting {test.num_examples:,} test examples")
        final = score(result.model, test.features, test.labels)
        apart = None
        if calibration:
            _, features, labels = calibration.examples(0)
            apart = records.predictions_of(bfl.evaluation.evaluate(result.model, features, labels, **options), labels)
        uncertainty = final.metrics["aleatoric"] + final.metrics["epistemic"]
        scores = {
            **final.metrics,
            "epistemic_share": final.metrics["epistemic"] / uncertainty if uncertainty else 0.0,
            "collapsed_in_round": result.collapsed,
            **records.privacy(config, result.rounds[-1], clients.sizes),
            **_permuted(result, shown, score),
            **_of_last_round(config, process, result, server, lambda x: score(x, test.features, test.labels)),
            **ensembles.scores(result, lambda x: score(x, test.features, test.labels)),
        }
        if shards:
            tell.phase("scores of the clients' own models")
            of_clients = client_scores.score(config, process, result, every, shards, **options)
            client_scores.write(folder, of_clients)
            scores.update(client_scores.summarise(of_clients, clients.num_clients))
        summary = {
            **scores,
            "method": method(stated(config, test.target is not None, weights)),
            **(json.loads((folder / "pretraining.json").read_text()) if server else {}),
            "train_seconds": sum(row["train_seconds"] for row in result.rounds),
            "ms_per_step": _ms_per_step(config, clients, result.rounds),
            **_exchanged(result.rounds),
            "worker_mb": round(workers_bytes / 2**20),
            "process_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10),
            "seconds": time.perf_counter() - started,
            "versions": _versions(),
            "warnings": [*result.warnings, *_no_better_than_chance(final.metrics, test, config)],
        }
        info = build.export_info(config, train, scores, weights)
        tell.phase("SavedModel, figures and report")
        write_results(folder, config, clients, test, final, result, summary, info, apart)
    return folder


def _permuted(
    result: bfl.federated.SimulationResult, shown: bfl.data.Source, score: Callable[..., Any]
) -> dict[str, float]:
    """Whether the standard deviations of the layers' weights mean anything; nothing for a model without them."""
    last = result.averaged.metrics if result.averaged else result.rounds[-1]
    if result.ensemble or not tf.nest.flatten(result.state.weights.posterior) or "stddev_log_ratio" not in last:
        return {}
    with bfl.evaluation.permuted_stddevs(result.model):
        permuted = score(result.model, shown.features, shown.labels).metrics
    scores = {
        f"permuted_{name}": permuted[name] for name in ("accuracy", "rmse", "test_nll", "ece") if name in permuted
    }
    return {"stddev_log_ratio": last["stddev_log_ratio"], "unpermuted_test_nll": last["test_nll"], **scores}


def _no_better_than_chance(metrics: dict[str, Any], test: bfl.data.Source, config: RunConfig) -> list[str]:
    """Return a warning in a list if the model predicts a constant, and log it."""
    if test.target is not None:
        return []
    share = float(np.bincount(test.labels).max() / test.num_examples)
    warning = bfl.federated.chance_warning(metrics["accuracy"], share, getattr(config, "learning_rate", None))
    if warning:
        logger.warning(warning)
    return [warning] if warning else []


def _of_last_round(
    config: RunConfig,
    process: bfl.federated.BayesianProcess,
    result: bfl.federated.SimulationResult,
    server: Optional[bfl.data.Clients],
    score: Callable[[tf.keras.Model], Any],
) -> dict[str, float]:
    """Score the last round's model on the test set, beside the average of rounds; empty without an average."""
    if result.averaged is None:
        return {}
    weights = process.predictive_weights(result.state)
    examples = build.batch_norm_examples(config, server)
    metrics = score(bfl.models.predictive_model(process.model_fn(), weights, examples)).metrics
    return {"averaged_rounds": result.averaged.rounds, **{f"last_round_{name}": x for name, x in metrics.items()}}


def _read(config: RunConfig, own: Optional[bfl.data.OwnData]) -> tuple[bfl.data.Source, bfl.data.Source, build.Shares]:
    """The training data, the test data, and who has which of the former."""
    train, test, given, _ = own or build.load(config)
    return train, test, build.shares(config, train, given)


def _in_words(config: RunConfig, weights: str, clients: bfl.data.Clients, test: bfl.data.Source, engine: str) -> str:
    """What begins, and with how much."""
    sizes = clients.sizes
    return (
        f"{title(config, weights)} with {sizes.min():,} to {sizes.max():,} examples, {sizes.sum():,} together; "
        f"{test.num_examples:,} to test; {config.rounds:,} rounds, engine {engine}"
    )


def _prediction(config: RunConfig) -> dict[str, Any]:
    return {"num_samples": ensembles.num_samples(config), "seed": config.seed, "precision": config.evaluation_precision}


def _workers(engine: str) -> contextlib.AbstractContextManager[Any]:
    """The runtime of an engine that has one; None for another."""
    if engine == "ray":
        return bfl.federated.ray_runtime()
    return bfl.federated.local_workers() if engine == "tff" else contextlib.nullcontext()


@contextlib.contextmanager
def _held(engine: str, clients: bfl.data.Clients, folder: pathlib.Path) -> Iterator[bfl.data.ClientData]:
    """The clients as an engine takes them: for a cluster in files, which are gone after the last round."""
    if engine != "ray":
        yield clients
        return
    yield bfl.data.write_clients(clients, folder / "client_files")
    shutil.rmtree(folder / "client_files")


def _versions() -> dict[str, str]:
    """Of the packages that a run's numbers depend on, as far as they are installed."""
    found = {}
    for name in _VERSIONED:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _pretrain(
    config: RunConfig,
    sample: bfl.data.Source,
    server: bfl.data.Clients,
    held_out: bfl.data.Clients,
    code: Code,
    **engine: Any,
) -> bfl.federated.Pretrained:
    """The server's weights, trained on most of its share and chosen by the accuracy on what is held out."""
    _, features, labels = held_out.examples(0)
    process = build.pretraining(config, sample, code)
    evaluate = bfl.evaluation.evaluator(features, labels, **_prediction(config))
    return bfl.federated.pretrain(process, server, evaluate, seed=config.seed, **engine)


def _of_start(
    pretrained: bfl.federated.Pretrained, model: tf.keras.Model, score: Callable[[tf.keras.Model], Any]
) -> dict[str, float]:
    """What pre-training came to, on what chose its epoch and on the test set: what the clients then add to."""
    bfl.models.assign_weights(model, pretrained.weights)
    of_test = score(model).metrics
    return {
        "pretrained_epochs": pretrained.epoch,
        "pretrained_accuracy": pretrained.accuracy,
        "pretrained_test_accuracy": of_test["accuracy"],
        "pretrained_test_nll": of_test["test_nll"],
    }


def _ms_per_step(config: RunConfig, clients: bfl.data.Clients, rounds: list[Row]) -> float:
    """Median over the rounds, the first (which traces) left out; a cohort counts as its share of all clients' steps."""
    options = config.own_options()
    steps = sum(options.steps(int(size)) for size in clients.sizes)
    share = (config.cohort_size or clients.num_clients) / clients.num_clients
    seconds = sorted(row["train_seconds"] for row in rounds[1:] or rounds)
    return 1000 * seconds[len(seconds) // 2] / (steps * share)


def _exchanged(rounds: list[Row]) -> dict[str, float]:
    """MB that went to and from clients in all rounds, and weights that a client did without in the last; if counted."""
    last = rounds[-1]
    ways = [way for way in ("upload", "download") if f"{way}_bits" in last]
    exchanged = {f"{way}_mb": sum(row[f"{way}_bits"] for row in rounds) / (8 * 2**20) for way in ways}
    if last.get("pruned_weights"):
        exchanged["pruned_weights"] = last["pruned_weights"] / (last["num_clients"] - last["num_faulty"])
    return exchanged
