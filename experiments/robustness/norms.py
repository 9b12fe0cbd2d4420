"""Distances that honest clients move, compared with the bounds: `python -m experiments.robustness.norms`.

Of the norm the median, to choose clip's bound by; of the rest the largest over clients and rounds.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

import tfp_bfl as bfl
from experiments.robustness.config import CLIENTS, DATASET, PARTITIONS, ROUNDS, RULES, TRAINING
from experiments.robustness.run import model


class Honest(NamedTuple):
    """The messages of the clients in a round.

    Fields:
      norm: `change_norm` [K].
      change: `root_mean_square_change` [K].
      magnitude: the largest mean, standard deviation or point weight, a number.
      stddev: the smallest standard deviation over the model's floor, a number.
    """

    norm: np.ndarray
    change: np.ndarray
    magnitude: float
    stddev: float


def honest(rule: str, seed: int = 0, partition: str = "iid", rounds: int = ROUNDS) -> list[Honest]:
    """Return each round without an attack. Rounds as the process has them."""
    source = bfl.data.load(DATASET)
    clients = source.partition(bfl.data.parse_partition(partition, CLIENTS), seed=seed)
    whole = bfl.rules.whole_model(bfl.rules.RULES[rule]())
    work = bfl.clients.variational(functools.partial(model, source.element_shape, seed), **TRAINING)()
    start = model(source.element_shape, seed)
    weights, found, floor = bfl.weights.get_weights(start), [], bfl.weights.min_stddev(start)
    for number in range(rounds):
        message = bfl.weights.ServerMessage(weights, tf.constant(number))
        examples = [tf.nest.map_structure(tf.constant, clients.examples(k)) for k in range(CLIENTS)]
        local = [work(message, e, tf.constant([number, k])).weights for k, e in enumerate(examples)]
        largest = lambda structure: max(float(tf.reduce_max(tf.abs(x))) for x in tf.nest.flatten(structure))
        variances = [q.posterior.variance for q in local]
        found.append(
            Honest(
                np.array([bfl.weights.change_norm(q, weights) for q in local]),
                np.array([bfl.weights.root_mean_square_change(q, weights) for q in local]),
                max(max(largest((q.posterior.mean, q.point)) for q in local), largest(variances) ** 0.5),
                min(float(tf.reduce_min(x)) for x in tf.nest.flatten(variances)) ** 0.5 / floor,
            )
        )
        total = functools.reduce(whole.merge, [whole.summarise(q, weights, tf.constant(1.0)) for q in local])
        weights = whole.pool(total, weights).weights
        weights = weights._replace(posterior=bfl.posterior.floor_variance(weights.posterior, floor))
    return found


if __name__ == "__main__":
    for where in PARTITIONS["flipout"]:
        for name in RULES:
            rows = honest(name, partition=where)
            medians = " ".join(f"{np.median(row.norm):.2f}" for row in rows)
            farthest = max(row.change.max() / np.median(row.change) for row in rows)
            largest, smallest = max(row.magnitude for row in rows), min(row.stddev for row in rows)
            bounds = f"largest {largest:.2g}, change over the median's {farthest:.2g}, sd over the floor {smallest:.2g}"
            print(f"{where}, {name}: {bounds}, median norm of each round {medians}", flush=True)
