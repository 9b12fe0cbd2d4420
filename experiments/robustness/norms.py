"""How far honest clients move in a round, to choose clip's bound by: `python -m experiments.robustness.norms`."""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf

import tfp_bfl as bfl
from experiments.robustness.config import CLIENTS, DATASET, PARTITION, ROUNDS, RULES, TRAINING
from experiments.robustness.run import model


def norms(rule: str, seed: int = 0) -> list[np.ndarray]:
    """`change_norm` of each client in each round, without an attack: ROUNDS x [K]. Rounds as the process has them."""
    source = bfl.data.load(DATASET)
    clients = source.partition(bfl.data.parse_partition(PARTITION, CLIENTS), seed=seed)
    whole = bfl.rules.whole_model(bfl.rules.RULES[rule]())
    work = bfl.clients.variational(functools.partial(model, source.element_shape, seed), **TRAINING)()
    start = model(source.element_shape, seed)
    weights, moved, floor = bfl.models.get_weights(start), [], bfl.models.min_stddev(start)
    for number in range(ROUNDS):
        message = bfl.models.ServerMessage(weights, tf.constant(number))
        examples = [tf.nest.map_structure(tf.constant, clients.examples(k)) for k in range(CLIENTS)]
        local = [work(message, e, tf.constant([number, k])).weights for k, e in enumerate(examples)]
        moved.append(np.array([bfl.models.change_norm(q, weights) for q in local]))
        total = functools.reduce(whole.merge, [whole.summarise(q, weights, tf.constant(1.0)) for q in local])
        weights = whole.pool(total, weights)
        weights = weights._replace(posterior=bfl.posterior.floor_variance(weights.posterior, floor))
    return moved


if __name__ == "__main__":
    for name in RULES:
        medians = " ".join(f"{np.median(row):.2f}" for row in norms(name))
        print(f"{name}: median norm of each round {medians}", flush=True)
