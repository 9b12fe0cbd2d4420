"""The data of a cell, and the process that trains on them."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np

import tfp_bfl as bfl
from experiments.global_posterior.config import COMMON, METHODS, VARIANTS

OF_MODEL = ("kind", "prior_stddev", "initial_stddev")


class Data(NamedTuple):
    """Whose examples train, fit a temperature, test, and come from elsewhere; the latter and `held_out` may be None."""

    clients: Any
    held_out: Any
    test: Any
    elsewhere: Any


@functools.cache
def load(name: str, split: str) -> Any:
    return bfl.data.load(name, split=split)


def some(source: Any, number: int | None) -> Any:
    """Features and labels of as many examples of a source, the same in all cells."""
    return source if number is None else source.subset(number, seed=0)


def data_of(options: dict[str, Any]) -> Data:
    """The data of a cell: clients by its partition and seed, less what the server sets aside."""
    train, variant = load(options["dataset"], "train"), VARIANTS[options.get("variant", "all")]
    seed = options["seed"]
    if variant.get("shuffled"):
        train = dataclasses.replace(train, labels=np.random.default_rng(seed).permutation(train.labels))
    clients = train.partition(bfl.data.parse_partition(options["partition"], COMMON["clients"]), seed=seed)
    held_out = elsewhere = None
    if "server_share" in options:
        server, clients = clients.set_aside(options["server_share"], seed=seed)
        held_out = server.examples(0)
    if "examples_per_client" in options:
        number = round(options["examples_per_client"] * variant.get("share_of_examples", 1))
        clients = clients.limit(number, seed=seed)
    if "elsewhere" in options:
        elsewhere = some(load(options["elsewhere"], "test"), options["elsewhere_examples"]).features
    return Data(clients, held_out, some(load(options["dataset"], "test"), options.get("test_examples")), elsewhere)


def local_epochs(options: dict[str, Any]) -> int:
    own = {**COMMON, **options, **VARIANTS[options.get("variant", "all")]}
    return own["local_epochs"]


def process_of(options: dict[str, Any], clients: Any) -> bfl.BayesianProcess:
    """The process of a cell's method for its clients."""
    method = dict(METHODS[options["method"]])
    recipe = getattr(bfl.algorithms, method.pop("recipe"))
    of_model = {"kind": "flipout", **{name: method.pop(name) for name in OF_MODEL if name in method}}
    if recipe is bfl.algorithms.variational:
        method.setdefault("rule", "log_linear_pool")
    source = clients.source

    def model_fn() -> Any:
        return bfl.models.lenet(
            input_shape=source.element_shape, num_classes=source.num_classes, seed=options["seed"], **of_model
        )

    training = {"local_epochs": local_epochs(options), "batch_size": COMMON["batch_size"]}
    return recipe(model_fn, **method, **training, element_spec=clients.element_spec)
