"""The work that is timed: the same clients for the library and for its peers."""

from __future__ import annotations

import numpy as np

import tfp_bfl as bfl

DATASETS = {"lenet": "fashion_mnist", "resnet20": "cifar10"}


def make_clients(model: str, num_clients: int, examples: int) -> bfl.data.Clients:
    """Clients with as many examples each, one after another from the train split, from its start again at its end."""
    source = bfl.data.load(DATASETS[model], split="train")
    rows = np.arange(num_clients * examples).reshape(num_clients, examples) % source.num_examples
    return bfl.data.Clients(source, list(rows))


def make_process(model: str, kind: str, clients: bfl.data.Clients, batch_size: int = 32, precision: str = "float32"):
    """One local epoch of Adam at 1e-3, averaged by the number of examples."""

    def model_fn():
        return bfl.models.MODELS[model](kind=kind, input_shape=clients.source.element_shape, precision=precision)

    rule = bfl.rules.naive_weighted_average()
    return bfl.algorithms.variational(model_fn, rule, element_spec=clients.element_spec, batch_size=batch_size)
