"""FedAvg in one round by SGD with momentum, where the clients of FL-SWAG train by plain SGD."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tfp_bfl as bfl
from experiments.fl_swag import controls, methods
from experiments.fl_swag.config import BASELINE
from experiments.fl_swag.federation import Cell, federation
from tfp_bfl.evaluation import Evaluation


def run_fedavg(cell: Cell, pretrained: pathlib.Path) -> tuple[list[methods.Row], dict[str, Any]]:
    """Score equal and weighted means of the clients' last weights, and the equal mean with one fitted temperature."""
    with bfl.engines.tff.local_workers() as runtime:
        data = federation(cell, pretrained, runtime)
    held = controls.held(data, cell["last_layer"])
    started = time.perf_counter()
    ends = last_weights(cell, held)
    seconds = time.perf_counter() - started
    net = methods.network(data, cell["last_layer"], cell["num_samples"])
    sizes = np.asarray(data.clients.sizes, np.float64)
    equal, by_size = (methods.average(ends, shares / shares.sum()) for shares in (np.ones(len(ends)), sizes))
    score = lambda weights: methods.evaluate(net, methods.fixed(weights))
    scaled = lambda: controls.scaled(score(equal), controls.temperature(held, equal))
    rows = [
        _timed(BASELINE, lambda: score(equal)),
        _timed(f"w{BASELINE}", lambda: score(by_size)),
        _timed(f"{BASELINE}, one temperature", lambda: methods.mixture([scaled()], np.ones(1), net.labels)),
    ]
    return rows, {"server": data.server, "train_seconds": seconds, "sizes": data.clients.sizes.tolist()}


def last_weights(cell: Cell, held: controls.Held) -> list[tuple[tf.Tensor, ...]]:
    """Return each client's weights after its epochs from the common start."""
    process = bfl.algorithms.fed_opt(
        lambda: tf.keras.models.clone_model(held.model),
        optimizer="momentum",
        learning_rate=cell["learning_rate"],
        local_epochs=cell["local_epochs"],
        batch_size=cell["batch_size"],
    )
    start = bfl.weights.get_weights(held.model)
    features, labels = np.concatenate(held.inputs), np.concatenate(held.labels).astype(np.int32)
    names = tuple(str(c) for c in range(held.model.output_shape[-1]))
    source = bfl.data.Source("clients", "train", features, labels, names)
    ends = np.cumsum([len(own) for own in held.labels])
    found = []
    for rows in np.split(np.arange(len(labels)), ends[:-1]):
        one = bfl.data.Clients(source, [rows])
        result = bfl.simulate(process, one, rounds=1, seed=cell["seed"], start=start, engine="local")
        found.append(tuple(tf.constant(w) for w in result.state.weights.point))
    return found


def _timed(method: str, make: Callable[[], Evaluation]) -> methods.Row:
    started = time.perf_counter()
    evaluation = make()
    return methods.Row(method, None, evaluation, time.perf_counter() - started)
