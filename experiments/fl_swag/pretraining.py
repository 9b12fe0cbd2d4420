"""The pre-trained network of all clients: trained by the server on its data, and stored in a folder."""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tfp_bfl as bfl
from tfp_bfl.bench.cells import SUMMARY
from tfp_bfl.data import Clients
from tfp_bfl.weights import ModelWeights


def pretrain(
    folder: pathlib.Path,
    settings: dict[str, Any],
    model_fn: Callable[[], tf.keras.Model],
    own: Clients,
    validation: Clients,
    runtime: bfl.engines.tff.Runtime,
) -> None:
    """Train with Adam, halving the rate every `half_life` epochs; write the weights of the best epoch."""
    rate, half_life = settings["learning_rate"], settings["half_life"]
    process = bfl.algorithms.variational(
        model_fn,
        rule=bfl.rules.naive_weighted_average(),
        local_epochs=1,
        optimizer="adam",
        learning_rate=lambda epoch: rate * 0.5 ** tf.cast(epoch // half_life, tf.float32),
    )
    _, features, labels = validation.examples(0)
    started = time.perf_counter()
    trained = bfl.federated.pretrain(
        process,
        own,
        bfl.evaluation.evaluator(features, labels),
        settings["epochs"],
        patience=settings["epochs"],
        runtime=runtime,
    )
    folder.mkdir(parents=True, exist_ok=True)
    leaves = tf.nest.flatten(trained.weights)
    np.savez(folder / "weights.npz", **{str(i): np.asarray(leaf) for i, leaf in enumerate(leaves)})
    summary = {
        "accuracy": trained.accuracy,
        "epoch": trained.epoch,
        "epochs": len(trained.rounds),
        "examples": int(own.sizes[0]),
        "validation_examples": len(labels),
        "training_nll": trained.rounds[trained.epoch - 1]["nll"],
        "seconds": time.perf_counter() - started,
    }
    (folder / SUMMARY).write_text(json.dumps(summary))


def load_pretrained(folder: pathlib.Path, model: tf.keras.Model) -> tuple[ModelWeights, dict[str, Any]]:
    """Return the weights that `pretrain` wrote, and its summary."""
    like = bfl.weights.get_weights(model)
    with np.load(folder / "weights.npz") as arrays:
        leaves = [tf.constant(arrays[str(i)]) for i in range(len(arrays))]
    return tf.nest.pack_sequence_as(like, leaves), json.loads((folder / SUMMARY).read_text())
