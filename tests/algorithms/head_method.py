"""Exact heads as the contract suite takes them."""

import numpy as np
import tensorflow as tf

from tfp_bfl import algorithms
from tfp_bfl.algorithms.heads import softmax
from tfp_bfl.algorithms.heads.classes import NUM_DRAWS
from tfp_bfl.algorithms.heads.posterior import HeadSettings, fit, fit_softmax, sent
from tfp_bfl.algorithms.heads.step import HeadState
from tfp_bfl.algorithms.heads.sums import HeadMessage
from tfp_bfl.algorithms.heads.work import head_sums

from .method import ALIKE, SEED, Method, fold, mlp


def head(name):
    """The head of the sums over the clients, and of softmax the first step from weights 0."""
    model_fn, settings = mlp("deterministic"), HeadSettings(name)
    options = {"batch_size": 8, "held_back": 0.2}

    def summed(results):
        times = lambda result: lambda x: float(result.num_examples) * np.float64(x)
        parts = [tf.nest.map_structure(times(r), r.weights) for r in results]
        return tf.nest.map_structure(lambda *x: sum(x), *parts)

    def search_of(total):
        return softmax.begin(softmax.empty(*total.gradient.shape), total.features, None)

    def found_of(total, num_draws):
        if name != "softmax":
            return fit(total.features, settings, num_draws)
        search = search_of(total)
        return fit_softmax(search.basis, search.mode, search.fisher, search.precision)

    def pool(results, anchor):
        total = summed(results)
        found = found_of(total, 16)
        message = HeadMessage(found.mean, sent(found.posterior, fold(0, -2)))
        search = search_of(total) if name == "softmax" else ()
        state = HeadState(np.int32(1), total.features, np.zeros(62), message, search)
        mean = np.float32(found.mean)
        return state, anchor._replace(point=(*anchor.point[:-2], mean[:-1], mean[-1]))

    def alone(result, anchor):
        return anchor._replace(posterior=found_of(summed([result]), NUM_DRAWS).posterior, point=anchor.point[:-2])

    build = lambda: algorithms.head(model_fn, head=name, seed=SEED, **options)
    work = head_sums(model_fn, gradients=name == "softmax", **options)
    rounds = 20 if name == "softmax" else 2
    metrics = {"upload_bits": 3 * 64 * 600}
    return Method(model_fn, build, work, pool, alone, data=ALIKE, rounds=rounds, metrics=metrics)
