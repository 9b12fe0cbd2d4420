"""One run from its configuration to its folder: data, training, evaluation, figures, report, SavedModel."""

from __future__ import annotations

import concurrent.futures
import contextlib
import datetime
import json
import os
import pathlib
import time
from collections.abc import Iterator
from importlib import metadata
from typing import Any, Callable, Optional, Union

import numpy as np
import tensorflow as tf
import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.config import RunConfig
from tfp_bfl.errors import InvalidArgument

_VERSIONED = ("tfp_bfl", "tensorflow", "tensorflow_probability", "tensorflow_federated", "numpy")
_Row = dict[str, Any]

# Of what the server sets aside for pre-training, on which it sees when to stop.
VALIDATION_SHARE = 0.2


def execute(
    config: RunConfig, output: Union[str, pathlib.Path, None] = None, *, console: Optional[Console] = None
) -> pathlib.Path:
    """Runs a configuration and returns its folder.

    The folder holds config.yaml (in full: `tfp-bfl run --config` on it repeats the run), metrics.jsonl (a line a
    round), summary.json, predictions.npz (of the test set), figures/, report.html and saved_model/; with the option
    tensorboard also event files.

    Args:
      config: what to run.
      output: the folder; None for the configuration's, and if that has none, a new one under runs/.
      console: where progress is shown, if it is a terminal.

    Raises:
      InvalidArgument: the folder exists, the dataset doesn't, the model can't take its examples, or a client would be
        left without any. Nothing has been written then.
    """
    console = console or Console(quiet=True)
    started = time.perf_counter()
    folder = _free_folder(config, output)
    partition = bfl.data.parse_partition(config.partition, config.clients)
    sample = bfl.data.peek(config.dataset, data_dir=config.data_dir)
    # Reading is TensorFlow's work, building is Python's: side by side they take the time of the longer one.
    with concurrent.futures.ThreadPoolExecutor() as pool:
        splits = [
            pool.submit(bfl.data.load, config.dataset, split=split, data_dir=config.data_dir)
            for split in ("train", "test")
        ]
        process = _process(config, sample)
        train, test = (split.result() for split in splits)
    clients = train.partition(partition, seed=config.seed)
    if config.examples_per_client:
        clients = clients.limit(config.examples_per_client, seed=config.seed)
    server = held_out = None
    if config.pretrain_share:
        server, clients = clients.set_aside(config.pretrain_share, seed=config.seed)
        held_out, server = server.set_aside(VALIDATION_SHARE, seed=config.seed)

    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise InvalidArgument(
            f"The run folder {folder} can't be made ({error.strerror}): give --output another one."
        ) from None
    (folder / "config.yaml").write_text(yaml.safe_dump(_record(config), sort_keys=False))
    shown = test.subset(min(config.evaluation_examples, test.num_examples), seed=config.seed)
    options = {"num_samples": config.num_samples, "seed": config.seed}
    with bfl.federated.local_workers() as runtime, _recorder(folder, config, console) as on_round:
        pretrained = _pretrain(config, sample, server, held_out, runtime) if server and held_out else None
        result = bfl.federated.simulate(
            process,
            clients,
            rounds=config.rounds,
            cohort_size=config.cohort_size,
            seed=config.seed,
            evaluate=bfl.evaluation.evaluator(shown.features, shown.labels, **options),
            evaluate_every=config.evaluate_every,
            on_round=on_round,
            start=pretrained and pretrained.weights,
            runtime=runtime,
        )
        worker_mb = runtime.workers[0].peak_memory_bytes() / 2**20
    final = bfl.evaluation.evaluate(result.model, test.features, test.labels, **options)
    bfl.export.save(result.model, folder / "saved_model")
    uncertainty = final.metrics["aleatoric"] + final.metrics["epistemic"]
    summary = {
        **_renamed(final.metrics),
        "epistemic_share": final.metrics["epistemic"] / uncertainty if uncertainty else 0.0,
        "collapsed_in_round": result.collapsed,
        **({"pretrained_epochs": pretrained.epoch, "pretrained_accuracy": pretrained.accuracy} if pretrained else {}),
        "train_seconds": sum(row["train_seconds"] for row in result.rounds),
        "ms_per_step": _ms_per_step(config, clients, result.rounds),
        "worker_mb": round(worker_mb),
        "seconds": time.perf_counter() - started,
        "versions": {name: metadata.version(name) for name in _VERSIONED},
    }
    _write_results(folder, config, clients, test, final, result, summary)
    return folder


def _record(config: RunConfig) -> dict[str, Any]:
    """All that decides the result; the folder is where the record lies."""
    return config.model_dump(exclude={"output"})


def _free_folder(config: RunConfig, output: Union[str, pathlib.Path, None]) -> pathlib.Path:
    output = output or config.output
    if output is None:
        now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        output = pathlib.Path("runs") / f"{config.dataset}-{config.model}-{config.kind}-{config.rule}-{now}".replace(
            "/", "-"
        )
    folder = pathlib.Path(output)
    if os.path.lexists(folder):
        raise InvalidArgument(
            f"The run folder {folder} exists already: give --output a new one, nothing is overwritten."
        )
    return folder


def _pretrain(
    config: RunConfig, sample: bfl.data.Source, server: bfl.data.Clients, held_out: bfl.data.Clients, runtime: Any
) -> bfl.federated.Pretrained:
    """The server's weights, trained on most of its share and chosen by the accuracy on what is held out."""
    _, features, labels = held_out.examples(0)
    alone = {"rule": "naive_weighted_average", "weighting": "equal", "robust": None, "local_epochs": 1}
    process = _process(config.model_copy(update={**alone, "update_prior": False, "learning_rate_decay": 0.0}), sample)
    evaluate = bfl.evaluation.evaluator(features, labels, num_samples=config.num_samples, seed=config.seed)
    return bfl.federated.pretrain(process, server, evaluate, seed=config.seed, runtime=runtime)


def _process(config: RunConfig, source: bfl.data.Source) -> bfl.federated.BayesianProcess:
    options = {"normalization": config.normalization} if config.normalization else {}

    def model_fn() -> tf.keras.Model:
        return bfl.models.MODELS[config.model](
            kind=config.kind,
            input_shape=source.element_shape,
            num_classes=source.num_classes,
            prior_stddev=config.prior_stddev,
            initial_stddev=config.initial_stddev,
            min_stddev=config.min_stddev,
            dropout_rate=config.dropout_rate,
            precision=config.precision,
            seed=config.seed,
            **options,
        )

    return bfl.algorithms.variational(
        model_fn,
        rule=bfl.rules.RULES[config.rule](),
        weighting=config.weighting,
        robust=config.robust,
        element_spec=source.element_spec,
        local_epochs=config.local_epochs,
        batch_size=config.batch_size,
        learning_rate=bfl.clients.exponential_decay(
            config.learning_rate, config.learning_rate_decay, config.silent_rounds
        ),
        update_prior=config.update_prior,
        pretrained=bool(config.pretrain_share),
    )


@contextlib.contextmanager
def _recorder(folder: pathlib.Path, config: RunConfig, console: Console) -> Iterator[Callable[[_Row], None]]:
    """What happens after each round: a line in metrics.jsonl, the progress bar, TensorBoard's events."""
    progress = Progress(
        TextColumn("round"),
        MofNCompleteColumn(),
        BarColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[scores]}"),
        console=console,
        disable=not console.is_terminal,
    )
    writer = tf.summary.create_file_writer(str(folder / "tensorboard")) if config.tensorboard else None
    with progress, open(folder / "metrics.jsonl", "w", encoding="utf-8") as lines:
        task = progress.add_task("rounds", total=config.rounds, scores="")

        def on_round(row: _Row) -> None:
            lines.write(json.dumps(row) + "\n")
            lines.flush()
            if "accuracy" in row:
                progress.update(task, scores=f"accuracy {row['accuracy']:.3f}  NLL {row['test_nll']:.3f}")
            progress.advance(task)
            if writer:
                with writer.as_default(step=row["round"]):
                    for name, value in row.items():
                        if isinstance(value, (int, float)):
                            tf.summary.scalar(name, value)

        yield on_round
    if writer:
        writer.close()


def _renamed(metrics: dict[str, float]) -> dict[str, float]:
    return {"nll" if name == "test_nll" else name: value for name, value in metrics.items()}


def _ms_per_step(config: RunConfig, clients: bfl.data.Clients, rounds: list[_Row]) -> float:
    """Median over the rounds, the first (which traces) left out; a cohort counts as its share of all clients' steps."""
    steps = sum(-(-int(size) // config.batch_size) for size in clients.sizes) * config.local_epochs
    share = (config.cohort_size or clients.num_clients) / clients.num_clients
    seconds = sorted(row["train_seconds"] for row in rounds[1:] or rounds)
    return 1000 * seconds[len(seconds) // 2] / (steps * share)


def _write_results(
    folder: pathlib.Path,
    config: RunConfig,
    clients: bfl.data.Clients,
    test: bfl.data.Source,
    final: bfl.evaluation.Evaluation,
    result: bfl.federated.SimulationResult,
    summary: dict[str, Any],
) -> None:
    """summary.json, predictions.npz, the figures and the report that shows them."""
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    uncertainties = {"entropy": final.entropy, "aleatoric": final.aleatoric, "epistemic": final.epistemic}
    np.savez_compressed(
        folder / "predictions.npz", probabilities=final.probabilities, labels=test.labels, **uncertainties
    )
    figures = {
        "learning_curve": bfl.plots.learning_curve(result.rounds),
        "reliability_diagram": bfl.plots.reliability_diagram(final.probabilities, test.labels),
        "retention_curves": bfl.plots.retention_curves(final.probabilities, test.labels, uncertainties),
        "client_labels": bfl.plots.client_labels(clients.label_counts(), test.class_names),
        "uncertain_examples": bfl.plots.uncertain_examples(
            test.features, test.labels, final.probabilities, final.entropy, test.class_names
        ),
    }
    (folder / "figures").mkdir()
    for name, figure in figures.items():
        if figure is not None:
            figure.savefig(folder / "figures" / f"{name}.png", dpi=150)
    bfl.plots.write_report(
        folder / "report.html",
        title=f"{config.kind} {config.model} on {config.dataset}, {config.clients} clients, {config.rule}",
        config=_record(config),
        summary=summary,
        rounds=result.rounds,
        figures=figures,
        warnings=[bfl.federated.collapse_warning(result.collapsed)] if result.collapsed else [],
    )
