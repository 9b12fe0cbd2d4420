"""Algorithms that correct the drift of clients, and `default`, as the contract suite takes them."""

import functools

import numpy as np

from tests.kit import flat
from tfp_bfl import algorithms
from tfp_bfl.algorithms.default import AdaptiveSteps
from tfp_bfl.algorithms.drift import Corrected

from .chain_methods import sent
from .method import ALIKE, SEED, SIZES, Method, half_way, mlp, unflat
from .personal_methods import shares_of

WORK = {"batch_size": 8, "local_epochs": 2, "learning_rate": 0.1, "optimizer_fn": "sgd", "temperature": 0.1}
ALPHA = 0.1
NUM_WEIGHTS = 30 * 3 + 3 + 3 * 2 + 2


def values(weights):
    return np.float64(flat((*weights.posterior.mean, *weights.point)))


def with_values(vector, like):
    leaves = unflat(vector, (*like.posterior.mean, *like.point))
    leaves, number = tuple(np.float32(x) for x in leaves), len(like.posterior.mean)
    return like._replace(posterior=like.posterior._replace(mean=leaves[:number]), point=leaves[number:])


def averaged(results, anchor):
    """Means and point weights by size, and the mean of precisions."""
    shares, variances = shares_of(results), zip(*(r.weights.posterior.variance for r in results))
    mean = sum(b * values(r.weights) for b, r in zip(shares, results))
    variance = tuple(np.float32(1 / sum(b / np.float64(v) for b, v in zip(shares, x))) for x in variances)
    return with_values(mean, anchor._replace(posterior=anchor.posterior._replace(variance=variance)))


def method(build, pool, kind, server, metrics):
    """A method whose server tells its clients `server` in the first round."""
    work = sent(build().client_work, lambda weights: server)
    return Method(mlp(kind), build, work, pool, data=ALIKE, rounds=60, metrics=metrics)


def scaffold(kind):
    build = lambda: algorithms.scaffold(mlp(kind), seed=SEED, **WORK)

    def pool(results, anchor):
        share = sum(int(r.num_examples) for r in results) / sum(SIZES)
        control = share * sum(b * np.float64(r.extra) for b, r in zip(shares_of(results), results))
        return Corrected(np.float32(control), np.float32(share), np.bool_(True), ()), averaged(results, anchor)

    return method(build, pool, kind, np.zeros(NUM_WEIGHTS, np.float32), {"control_change": 100})


def fed_dyn(kind):
    build = lambda: algorithms.fed_dyn(mlp(kind), alpha=ALPHA, seed=SEED, **WORK)

    def pool(results, anchor):
        share, mean = sum(int(r.num_examples) for r in results) / sum(SIZES), averaged(results, anchor)
        gradient = -ALPHA * share * (values(mean) - values(anchor))
        return Corrected(np.float32(gradient), np.float32(share), np.bool_(True)), with_values(
            values(mean) - gradient / ALPHA, mean
        )

    return method(build, pool, kind, (), {})


def fed_nova(kind):
    build = lambda: algorithms.fed_nova(mlp(kind), seed=SEED, **WORK)

    def pool(results, anchor):
        factor = 1 + sum(b * float(r.extra) for b, r in zip(shares_of(results), results))
        mean = averaged(results, anchor)
        return (), with_values(values(anchor) + factor * (values(mean) - values(anchor)), mean)

    return method(build, pool, kind, (), {"relative_steps": 10})


def default():
    """Nearly to the pool, and a tenth of a step of Adam, which is of one size in all weights at first.

    The pool is far, so that the gradient of no weight is as small as Adam's epsilon.
    """
    work = {name: x for name, x in WORK.items() if name != "optimizer_fn"}
    build = lambda: algorithms.default(mlp("flipout"), seed=SEED, **work)
    kernels, biases = np.repeat([np.sqrt(2 / 30), np.sqrt(2 / 3)], [90, 6]), np.full(5, 0.1)

    def pool(results, anchor):
        begin, pooled = values(anchor), averaged(results, anchor)
        gradient = (begin - values(pooled)) / WORK["learning_rate"]
        mean, square = 0.3 * gradient, 0.01 * np.square(gradient)
        step = 0.1 * 0.1 * np.r_[kernels, biases] * 0.1 / 0.3 * mean / (np.sqrt(square) + 1e-7)
        adam = {"step": np.int32(1), "accumulator": np.float32(mean), "preconditioner": np.float32(square)}
        # Four steps of a client of mean size, with momentum 0.9.
        carried = sum(0.7**j for j in range(1, 5)) / 0.3 / sum(10 * (1 - 0.9**j) for j in range(1, 5))
        state = AdaptiveSteps(np.int32(0), adam, np.float32(carried))
        return state, with_values(0.05 * begin + 0.95 * values(pooled) - step, pooled)

    most = len(SIZES) * (32 * NUM_WEIGHTS + 8 * len(kernels) + 32 * 2)
    metrics = {**dict.fromkeys(("upload_bits", "upload_bound"), most), "download_bits": 2 * most}
    return method(build, pool, "flipout", (), metrics)._replace(rounds=20)


def under_optimizer(make, **options):
    recipe = functools.partial(getattr(algorithms, make.__name__), mlp("flipout"), seed=SEED, **options, **WORK)
    return half_way(make("flipout"), recipe)


DRIFT = {
    "scaffold, deterministic": functools.partial(scaffold, "deterministic"),
    "scaffold, flipout": functools.partial(scaffold, "flipout"),
    "fed_dyn, flipout": functools.partial(fed_dyn, "flipout"),
    "fed_nova, flipout": functools.partial(fed_nova, "flipout"),
    "default, flipout": default,
    "fed_dyn under a server optimizer, flipout": functools.partial(under_optimizer, fed_dyn, alpha=ALPHA),
    "fed_nova under a server optimizer, flipout": functools.partial(under_optimizer, fed_nova),
}
