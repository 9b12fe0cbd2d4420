"""The data of a cell, and the process that trains on them."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import tfp_bfl as bfl
from experiments.global_posterior.config import COMMON, METHODS, PUBLISHED_METHODS, VARIANTS
from tfp_bfl.data.equal_partitions import draw_labels

OF_MODEL = ("kind", "prior_stddev", "initial_stddev")


class Data(NamedTuple):
    """The data of a cell: training clients, held-out, test and out-of-distribution examples; the second and last may be
    None.
    """

    clients: Any
    held_out: Any
    test: Any
    elsewhere: Any


@functools.cache
def load(name: str, split: str) -> Any:
    """Return a dataset; for a name that ends in "_255", a table of unscaled pixels."""
    source = bfl.data.load(name.removesuffix("_255"), split=split)
    if not name.endswith("_255"):
        return source
    return dataclasses.replace(source, features=source.features.reshape(source.num_examples, -1).astype(np.float32))


def some(source: Any, number: int | None) -> Any:
    """Return features and labels of as many examples of a source, the same in all cells."""
    return source if number is None else source.subset(number, seed=0)


def data_of(options: dict[str, Any]) -> Data:
    """Return the data of a cell: clients by its partition and seed, less what the server sets aside."""
    train, variant = load(options["dataset"], "train"), VARIANTS[options.get("variant", "all")]
    seed = options["seed"]
    if variant.get("shuffled"):
        train = dataclasses.replace(train, labels=np.random.default_rng(seed).permutation(train.labels))
    if options["partition"] == "unequal":
        clients = unequal(train, options["examples"], seed)
    else:
        clients = train.partition(bfl.data.parse_partition(options["partition"], COMMON["clients"]), seed=seed)
    held_out = elsewhere = None
    if "server_share" in options:
        server, clients = clients.set_aside(options["server_share"], seed=seed)
        held_out = server.examples(0)
    if "examples_per_client" in options:
        number = round(options["examples_per_client"] * variant.get("share_of_examples", 1))
        clients = clients.limit(number, seed=seed)
    if "elsewhere" in options:
        elsewhere = in_the_middle(
            some(load(options["elsewhere"], "test"), options["elsewhere_examples"]).features, train
        )
    return Data(clients, held_out, some(load(options["dataset"], "test"), options.get("test_examples")), elsewhere)


def in_the_middle(images: np.ndarray, source: Any) -> np.ndarray:
    """Return images [N, h, w, 1 or C] amid black, in the shape and type of a source's."""
    if len(source.element_shape) == 1:  # A table of the pixels of images of the same size.
        return images.reshape(len(images), -1).astype(source.features.dtype)
    larger = np.zeros((len(images), *source.element_shape), source.features.dtype)
    top, left = ((whole - own) // 2 for whole, own in zip(source.element_shape, images.shape[1:3]))
    larger[:, top : top + images.shape[1], left : left + images.shape[2]] = images
    return larger


def unequal(source: Any, number: int, seed: int) -> Any:
    """Return clients with sizes from Dirichlet(1) over `number` examples and class fractions from Dirichlet(0.5)."""
    rng = np.random.default_rng(seed)
    members = [rng.permutation(np.flatnonzero(source.labels == c)) for c in range(source.num_classes)]
    parts = []
    for size in np.ceil(number * rng.dirichlet(np.ones(COMMON["clients"]))).astype(int):
        counts = draw_labels(np.array([len(rows) for rows in members]), size, 0.5, rng)
        parts.append(np.concatenate([rows[:n] for rows, n in zip(members, counts)]))
        members = [rows[n:] for rows, n in zip(members, counts)]
    return bfl.data.Clients(source, parts)


def local_epochs(options: dict[str, Any]) -> int:
    own = {**COMMON, **options, **VARIANTS[options.get("variant", "all")]}
    return own["local_epochs"]


def cosine(rate: float, rounds: int) -> Any:
    """Return a learning rate that falls to nothing over the rounds: rate (1 + cos(pi r / rounds)) / 2."""
    return lambda done: rate * 0.5 * (1 + tf.cos(np.pi * tf.cast(done, tf.float32) / rounds))


def process_of(options: dict[str, Any], clients: Any, held_out: Any) -> bfl.federated.BayesianProcess:
    """Return the process of a cell's method for its clients; FedBE's server teaches on what is held out, without
    labels.
    """
    published = options["partition"] == "unequal"
    method = dict((PUBLISHED_METHODS if published else METHODS)[options["method"]])
    recipe = getattr(bfl.algorithms, method.pop("recipe"))
    of_model = {"kind": "flipout", **{name: method.pop(name) for name in OF_MODEL if name in method}}
    if recipe is bfl.algorithms.variational:
        method.setdefault("rule", "log_linear_pool")
    if recipe is bfl.algorithms.fed_be:
        method["features"] = held_out.features
    # The defaults when the records were made.
    before = (
        {"learning_rate": 1e-2} if recipe is bfl.algorithms.fed_be else {"optimizer": "adam", "learning_rate": 1e-3}
    )
    method = {**before, **method}
    source = clients.source

    if published:
        of_model |= {"hidden": (200, 100), "activation": "sigmoid"}
        method["learning_rate"] = cosine(method.get("learning_rate", 1e-3), options["rounds"])

    def model_fn() -> Any:
        build = bfl.models.MODELS[options.get("model", "lenet")]
        return build(input_shape=source.element_shape, num_classes=source.num_classes, seed=options["seed"], **of_model)

    training = {"local_epochs": local_epochs(options), "batch_size": COMMON["batch_size"]}
    return recipe(model_fn, **method, **training, element_spec=clients.element_spec)
