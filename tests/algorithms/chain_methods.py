"""Chains as the contract suite takes them: rounds whose noise is known by its seed."""

import math

import numpy as np
import tensorflow as tf

from tfp_bfl import algorithms, federated
from tfp_bfl.algorithms.chains.client_settings import memory_rate
from tfp_bfl.algorithms.chains.local_langevin import Surrogate, conducive_langevin, coupled_langevin
from tfp_bfl.algorithms.chains.step import Coupled, Descent
from tfp_bfl.algorithms.chains.work import stochastic_gradient
from tfp_bfl.weights import Anchor

from .method import ALIKE, SEED, SIZES, Method, fold, mlp, of_points, unflat

POINT, STEP, THINNING = "deterministic", 5e-4, federated.Thinning(1, most=40)
OF_CHAINS = {"weigh": np.ones_like, "data": ALIKE, "rounds": 100}

# Bits of three clients' 101 weights, each way.
UNCOMPRESSED = {"participants": 3, **dict.fromkeys(("upload_bits", "upload_bound", "download_bits"), 3 * 32 * 101)}


def sent(work, content):
    """Return the work of a client with further content of the server's message."""

    def build():
        run = work()
        return lambda message, *args: run(message._replace(extra=content(message.weights)), *args)

    return work._replace(build=build)


BY_CLIENT = {"compressor": ("quantiser:4", "none", "sparsifier:0.5"), "participation": (1.0, 0.75, 0.9)}


def qlsd(**settings):
    """A step by the clients' gradients, whose anchor is the first weights, and the noise of the first round.

    With settings by client the results are scaled gradients."""
    given = {"estimator": "anchored", "compressor": "quantiser:4", "batch_size": 8, **settings}
    model_fn, rate = mlp(POINT), memory_rate(mlp(POINT), **given)
    seeds = tf.random.experimental.stateless_split(fold(0, -2), 5)
    work = stochastic_gradient(model_fn, memory_rate=rate, **given)

    def pool(results, anchor):
        sent = [r.weights for r in results]
        total, change = (
            ([x.gradient for x in sent], [x.memory for x in sent]) if settings else (sent, [rate * x for x in sent])
        )
        total, change = np.sum(total, 0), np.sum(change, 0)
        gradient = unflat(len(SIZES) / len(results) * total, anchor.point)
        noise = [tf.random.stateless_normal(x.shape, seeds[i + 1]).numpy() for i, x in enumerate(anchor.point)]
        moved = [
            w - STEP * (g + np.float64(w) / 4) + math.sqrt(2 * STEP) * e
            for w, g, e in zip(anchor.point, gradient, noise)
        ]
        state = Descent(anchor.point, np.int32(1), np.float32(change), np.int32(3), np.int32(len(results)))
        return state, of_points(moved, anchor)

    most = {"participants": 3, "upload_bits": 3 * 32 * 200, "upload_bound": 3 * 32 * 200, "download_bits": 3 * 64 * 200}
    return Method(
        model_fn,
        lambda: algorithms.qlsd(model_fn, step_size=STEP, prior_stddev=2.0, thinning=THINNING, seed=SEED, **given),
        sent(work, lambda weights: Anchor(weights.point, tf.constant(0))),
        pool,
        metrics=most,
        **OF_CHAINS,
    )


def dg_sgld():
    """A draw about the mean of the clients' weights, which all began at the server's."""
    given, rho = {"step_size": 1e-3, "coupling": 1e-3, "local_steps": 3, "batch_size": 8}, 1e-3
    model_fn, work = mlp(POINT), coupled_langevin(mlp(POINT), **given)

    def pool(results, anchor):
        moved = np.sum([r.weights for r in results], 0)
        precision = len(SIZES) / rho + 1 / 4
        start = np.concatenate([np.ravel(x) for x in anchor.point])
        noise = tf.random.stateless_normal(start.shape, fold(0, -2)).numpy()
        drawn = (len(SIZES) * start + moved) / rho / precision + noise / math.sqrt(precision)
        state = Coupled(anchor.point, np.float32(moved), np.int32(len(SIZES)))
        return state, of_points(unflat(drawn, anchor.point), anchor)

    return Method(
        model_fn,
        lambda: algorithms.dg_sgld(model_fn, prior_stddev=2.0, thinning=THINNING, seed=SEED, **given),
        sent(work, lambda weights: weights.point),
        pool,
        metrics=UNCOMPRESSED,
        **OF_CHAINS,
    )


def fsgld():
    """Clients' changes, of which a cohort of several gives the mean."""
    size = 30 * 3 + 3 + 3 * 2 + 2
    surrogates = [Surrogate(np.full(size, 0.1 * k), np.full(size, 1.0 + k)) for k in range(len(SIZES))]
    given = {"step_size": STEP, "local_steps": 3, "batch_size": 8}
    model_fn = mlp(POINT)

    def pool(results, anchor):
        mean = np.mean([r.weights for r in results], 0)
        moved = [w + x for w, x in zip(anchor.point, unflat(mean, anchor.point))]
        return np.int32(len(results)), of_points(moved, anchor)

    return Method(
        model_fn,
        lambda: algorithms.fsgld(model_fn, surrogates, prior_stddev=2.0, thinning=THINNING, seed=SEED, **given),
        conducive_langevin(model_fn, surrogates, prior_precision=0.25, **given),
        pool,
        metrics=UNCOMPRESSED,
        **OF_CHAINS,
    )
