"""Flower's clients. The simulation's actors import this module, so that what it keeps, they keep between clients."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import arguments
import models
import numpy as np
import tensorflow as tf
from flwr.client import Client, NumPyClient
from flwr.common import Context


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of every client; `reuse_model` keeps one compiled model per actor instead of building one per call."""

    data: str
    model: str
    kind: str
    batch_size: int
    reuse_model: bool


class KerasClient(NumPyClient):
    """One local epoch of Keras' own training."""

    def __init__(self, model: tf.keras.Model, features: np.ndarray, labels: np.ndarray, batch_size: int) -> None:
        self._model = model
        self._features = features
        self._labels = labels
        self._batch_size = batch_size

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        self._model.set_weights(parameters)
        history = self._model.fit(self._features, self._labels, batch_size=self._batch_size, epochs=1, verbose=0)
        return self._model.get_weights(), len(self._labels), {"nll": history.history["nll"][0]}


def client_fn(work: Work, context: Context) -> Client:
    """Return the client of a node, with a new optimizer."""
    clients = _clients(work.data, work.model)
    if work.reuse_model:
        model = _kept_model(work.model, work.kind, int(clients.sizes[0]))
        for variable in model.optimizer.variables:
            variable.assign(tf.zeros_like(variable))
    else:
        model = _compiled_model(work.model, work.kind, int(clients.sizes[0]))
    features, labels = clients.examples(context.node_config["partition-id"])
    return KerasClient(model, features, labels, work.batch_size).to_client()


@functools.cache
def _clients(path: str, model: str) -> arguments.Clients:
    return arguments.read(path, model)


@functools.cache
def _kept_model(model: str, kind: str, num_examples: int) -> tf.keras.Model:
    result = _compiled_model(model, kind, num_examples)
    result.optimizer.build(result.trainable_variables)
    return result


def _compiled_model(model: str, kind: str, num_examples: int) -> tf.keras.Model:
    """Return the compiled model. Keras adds the layers' KL to the loss: with weight 1 / n, the negative ELBO per
    example.
    """
    result = models.build(model, kind, kl_weight=1 / num_examples)
    result.compile(
        tf.keras.optimizers.Adam(arguments.LEARNING_RATE),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[tf.keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="nll")],
    )
    return result
