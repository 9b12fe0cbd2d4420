"""The federation of a cell: its clients, the scored examples, the model and the initial weights."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import tfp_bfl as bfl
from experiments.fl_swag.config import HOLDOUT, PRETRAINING
from experiments.fl_swag.pretraining import load_pretrained, pretrain
from tfp_bfl.bench.cells import run_once
from tfp_bfl.data import Clients, Source
from tfp_bfl.weights import ModelWeights

Cell = dict[str, Any]


class Federation(NamedTuple):
    """A cell's data and model.

    Fields:
      clients: who trains.
      features, labels: what is scored, [N, ...] and [N].
      model_fn: builds the model.
      start: its weights before the round.
      server: the summary of the pre-training; empty without.
    """

    clients: Clients
    features: np.ndarray
    labels: np.ndarray
    model_fn: Callable[[], tf.keras.Model]
    start: ModelWeights
    server: dict[str, Any]


@functools.lru_cache(maxsize=4)
def source(name: str, split: str, limit: int | None = None) -> Source:
    """Return a split of a dataset, or so many of its examples."""
    whole = bfl.data.load(name, split=split)
    return whole if limit is None else whole.subset(limit, 0)


def clients_of(cell: Cell) -> Clients:
    """Return the cell's partition of all training data."""
    if cell["alike"]:
        partition = bfl.data.iid(cell["clients"])
    else:
        partition = bfl.data.noniid_datasets(cell["clients"], cell["other_interest"], cell["min_examples"])
    examples = source(cell["dataset"], "train", cell["limit"])
    if cell["shuffled"]:
        examples = dataclasses.replace(
            examples, labels=np.random.default_rng(cell["seed"]).permutation(examples.labels)
        )
    return examples.partition(partition, seed=cell["seed"])


def model(cell: Cell, seed: int) -> tf.keras.Model:
    """Return the cell's model, its initial weights by the seed."""
    train = source(cell["dataset"], "train", cell["limit"])
    if cell["model"] == "logistic_regression":
        return bfl.models.mlp("deterministic", train.element_shape, train.num_classes, hidden=(), seed=seed)
    build = {"lenet": bfl.models.lenet, "resnet20": bfl.models.resnet20}[cell["model"]]
    return build("deterministic", train.element_shape, train.num_classes, seed=seed)


def federation(cell: Cell, folder: pathlib.Path, runtime: bfl.engines.tff.Runtime) -> Federation:
    """Split the data; pre-train if the cell needs a trained network that is not in the folder yet.

    The server's share is taken from all clients alike. Where hyper-parameters are chosen, what is scored is not the
    test set but the server's validation share or, without a server's share, examples that the clients go without.
    """
    clients, seed = clients_of(cell), cell["seed"]
    validation, server = clients, {}
    if cell["server"]:
        settings = PRETRAINING[cell["server"]]
        own_seed = seed if settings["seed"] is None else settings["seed"]
        own, clients = clients.set_aside(settings["share"], own_seed)
        validation, own = own.set_aside(settings["validation"], own_seed)
        path = folder / f"{cell['dataset']},{cell['server']},seed={own_seed}"
        run_once(path, lambda: pretrain(path, settings, lambda: model(cell, own_seed), own, validation, runtime))
        start, server = load_pretrained(path, model(cell, own_seed))
    elif cell["holdout"]:
        validation, clients = clients.set_aside(HOLDOUT, seed)
    if not cell["server"] or cell["start"] == "initial":
        start = bfl.weights.get_weights(model(cell, seed))
    if cell["holdout"]:
        _, features, labels = validation.examples(0)
    else:
        test = source(cell["dataset"], "test")
        features, labels = test.features, test.labels
    return Federation(clients, features, labels, functools.partial(model, cell, seed), start, server)
