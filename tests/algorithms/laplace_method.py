"""Laplace's approximation as the contract suite takes it."""

import numpy as np
import tensorflow as tf

from tfp_bfl import algorithms, clients, posterior

from .method import ALIKE, SEED, Method, mlp


def laplace(structure):
    """The mean is the server's own weights; the precision is the prior's plus the sum over clients."""
    model_fn, options = mlp("deterministic"), {"structure": structure, "batch_size": 8}
    number = len(clients.laplace_weights(model_fn(), structure))

    def alone(result, anchor):
        sent = tf.nest.map_structure(np.asarray, result.weights)
        mean = anchor.point[len(anchor.point) - number :]
        found = posterior.laplace(mean, sent.curvature, sent.gradient, float(sent.nll))
        return anchor._replace(posterior=found.posterior, point=anchor.point[: len(anchor.point) - number])

    def pool(results, anchor):
        return tf.nest.map_structure(lambda *x: tf.stack(x), *(r.weights for r in results)), anchor

    build = lambda: algorithms.laplace(model_fn, seed=SEED, **options)
    work = clients.laplace(model_fn, **options)
    return Method(model_fn, build, work, np.ones_like, pool, alone, ALIKE, rounds=1, metrics={}, moves=False)
