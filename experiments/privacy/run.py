"""Accuracy and calibration against epsilon, and what else hides or shortens: `python -m experiments.privacy.run`.

A cell trains with differential privacy of clients or of examples, with whole numbers for secure sums, with compressed
messages, or with none of them, and scores the pooled model on MNIST's test images.
"""

from __future__ import annotations

import functools
import pathlib
from typing import Any

import click
import numpy as np
import tensorflow as tf

import tfp_bfl as bfl
from experiments.cells import Study, study_options, write_summary
from experiments.privacy.config import COLUMNS, MANY, PARTIES, SENT, Options, Sent, cell_name, cells
from experiments.privacy.tables import costs, extra_losses
from experiments.tables import write
from tfp_bfl.federated.round import types_of
from tfp_bfl.privacy import Privacy, composed_epsilon, example_steps
from tfp_bfl.sites.party import result_spec

HERE = pathlib.Path(__file__).parent
COSTS = {"costs_1000_clients": MANY, "costs_5_parties": PARTIES}


def pooled(source: bfl.data.Source, size: int) -> bfl.data.Source:
    """Return images as tables of the means of squares: [N, size^2], so that there are fewer weights to hide."""
    number, side = source.num_examples, source.features.shape[1] // size
    means = source.features.reshape(number, size, side, size, side).mean((2, 4), dtype=np.float32).reshape(number, -1)
    table = (means / np.float32(255) - np.float32(0.13)) / np.float32(0.3)
    return bfl.data.Source(source.name, source.split, table, source.labels, source.class_names)


# The defaults when the records were made.
TRAINING = {"optimizer": "adam", "temperature": 0.05}


@functools.lru_cache(maxsize=1)
def data_of(dataset: str, size: int) -> tuple[bfl.data.Source, bfl.data.Source]:
    train, test = (pooled(bfl.data.load(dataset, split=split), size) for split in ("train", "test"))
    return train, test


def privacy_of(options: Options) -> Options:
    """Return the mechanism of differential privacy of clients or examples; without noise, training is the same."""
    if options["federation"] == PARTIES:
        hidden = {"inference": "backprop", **TRAINING}
        if options["noise"] is not None:
            hidden["example_privacy"] = bfl.training.ExamplePrivacy(options["clip_norm"], options["noise"])
        return hidden
    if options["noise"] is None:
        return dict(TRAINING)
    settings = Privacy(options["clip_norm"], options["noise"], options["cohort_size"], options["delta"])
    return {"privacy": settings, **TRAINING}


def epsilon_of(options: Options, last: Options) -> float | None:
    if options["federation"] != PARTIES or options["noise"] is None:
        return last.get("epsilon")
    epochs = options["rounds"] * options["local_epochs"]
    steps = example_steps(options["noise"], options["examples_per_client"], options["batch_size"], epochs)
    return composed_epsilon([steps], options["delta"])


def sent_of(options: Options) -> Sent:
    return SENT[options["sent"]] if "sent" in options else Sent()


def bytes_sent(
    process: bfl.federated.BayesianProcess, options: Options, result: bfl.federated.SimulationResult
) -> float:
    """Return the bytes of a client's message without container and report: of its code, or of its arrays."""
    if "upload_bits" in result.rounds[-1]:
        return float(np.mean([row["upload_bits"] / row["num_clients"] / 8 for row in result.rounds]))
    sent = result.state.weights  # A client's have the same types.
    if sent_of(options).secure_sums is not None:
        message = types_of(process.round.broadcast, types_of(process.round.initialize)).message
        scalar = tf.TensorSpec([], tf.int32)
        sent = types_of(process.round.take, message, result_spec(process), scalar, scalar).statistics
    return float(sum(np.prod(x.shape) * np.dtype(x.dtype.name).itemsize for x in tf.nest.flatten(sent)))


def score(options: Options) -> Options:
    """Train, and score on the test images."""
    train, test = data_of(options["dataset"], options["pooled_to"])
    number, seed, sent = options["clients"], options["seed"], sent_of(options)
    kept = train.subset(number * options["examples_per_client"], seed=seed)
    clients = kept.partition(bfl.data.iid(number), seed=seed)
    flipout = {"initial_stddev": options["initial_stddev"]} if options["kind"] == "flipout" else {}
    shape, hidden = train.element_shape, (options["hidden"],)
    process = bfl.algorithms.variational(
        lambda: bfl.models.mlp(options["kind"], shape, train.num_classes, hidden=hidden, seed=seed, **flipout),
        "naive_weighted_average" if options["method"] == "FedAvg" else options["method"],
        "equal",
        **privacy_of(options),
        **{name: getattr(sent, name) for name in ("secure_sums", "compressor", "error_memory")},
        **{name: options[name] for name in ("local_epochs", "batch_size", "learning_rate")},
        element_spec=clients.element_spec,
    )
    rounds = round(sent.share_of_rounds * options["rounds"])
    given = {"cohort_size": options["cohort_size"], "seed": seed, "engine": "local"}
    result = bfl.simulate(process, clients, rounds, **given)
    last = result.rounds[-1]
    metrics = bfl.evaluation.evaluate(result.model, test.features, test.labels, seed=seed).metrics
    weights = sum(x.size for x in tf.nest.flatten(result.state.weights))
    return {
        **{name: float(metrics[name]) for name in COLUMNS.values()},
        "epsilon": epsilon_of(options, last),
        "clipped": float(np.mean([row.get("clipped_clients", 0) / row["num_clients"] for row in result.rounds])),
        "numbers": int(weights),
        "upload_bytes": bytes_sent(process, options, result),
    }


def run_cell(folder: pathlib.Path, options: Options) -> None:
    write_summary(folder, options, lambda: score(options))


def describe(summary: dict[str, Any]) -> str:
    """Return a cell's result in a line."""
    if "failed" in summary:
        return summary["failed"]
    return f"accuracy {summary['accuracy']:.3f}, epsilon {summary['epsilon']} ({summary['seconds']:.0f} s)"


@click.command()
@study_options("privacy", HERE / "results")
def main(study: Study) -> None:
    """Run the cells that are not done, and write the tables."""
    every = {cell_name(options): options for options in cells()}
    study.run(every, run_cell, describe)
    if not study.listed:
        summaries = list(study.records(every).values())
        for name, federation in COSTS.items():
            write(costs(summaries, federation), study.results / name)
            write(extra_losses(summaries, federation), study.results / f"extra_{name}")


if __name__ == "__main__":
    main()
