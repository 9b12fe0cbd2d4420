"""Exact heads as the contract suite takes them."""

import numpy as np
import tensorflow as tf

from tfp_bfl import algorithms
from tfp_bfl.algorithms.heads import softmax
from tfp_bfl.algorithms.heads.classes import NUM_DRAWS
from tfp_bfl.algorithms.heads.posterior import HeadSettings, fit, fit_softmax, sent
from tfp_bfl.algorithms.heads.step import HeadState, Search
from tfp_bfl.algorithms.heads.sums import HeadMessage
from tfp_bfl.algorithms.heads.work import head_sums

from .method import ALIKE, SEED, Method, fold, mlp


def head(name):
    """The head of the sums over the clients, and of softmax the weights 0 of its first round."""
    model_fn, settings = mlp("deterministic"), HeadSettings(name)
    options = {"batch_size": 8, "held_back": 0.2}

    def summed(results):
        times = lambda result: lambda x: float(result.num_examples) * np.float64(x)
        parts = [tf.nest.map_structure(times(r), r.weights) for r in results]
        return tf.nest.map_structure(lambda *x: sum(x), *parts)

    def found_of(total, num_draws):
        if name != "softmax":
            return fit(total.features, settings, num_draws)
        shape, precision = total.gradient.shape, np.float64(0.01 * total.features.counts.sum())
        return fit_softmax(softmax.basis_of(total.features), np.zeros(shape), np.zeros((2, 2)), precision)

    def pool(results, anchor):
        total = summed(results)
        found = found_of(total, 16)
        state = HeadState(np.int32(1), total.features, np.zeros(62), ())
        if name == "softmax":
            zeros, one = np.zeros(total.gradient.shape), np.float64(1)
            precision = np.float64(0.01 * total.features.counts.sum())
            basis = softmax.basis_of(total.features)
            search = Search(basis, zeros, zeros, one, precision, np.zeros((2, 2)), np.float64(0))
            message = HeadMessage(zeros, np.zeros((16, *zeros.shape), np.float32))
            state = state._replace(search=search, message=message)
        else:
            state = state._replace(message=HeadMessage(found.mean, sent(found.posterior, fold(0, -2))))
        mean = np.float32(found.mean)
        return state, anchor._replace(point=(*anchor.point[:-2], mean[:-1], mean[-1]))

    def alone(result, anchor):
        return anchor._replace(posterior=found_of(summed([result]), NUM_DRAWS).posterior, point=anchor.point[:-2])

    build = lambda: algorithms.head(model_fn, head=name, seed=SEED, **options)
    work = head_sums(model_fn, gradients=name == "softmax", **options)
    rounds = 20 if name == "softmax" else 2
    metrics = {"upload_bits": 3 * 64 * 600}
    return Method(model_fn, build, work, lambda sizes: sizes, pool, alone, ALIKE, rounds=rounds, metrics=metrics)
