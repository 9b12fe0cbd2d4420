"""Laplace's approximation, an exact last layer, FedLap and FedLap-Cov as the contract suite takes them."""

import numpy as np
import tensorflow as tf

from tfp_bfl import algorithms, posterior
from tfp_bfl.algorithms.factors.laplace_work import laplace_factors
from tfp_bfl.algorithms.factors.step import Dual, PointDual
from tfp_bfl.algorithms.laplace.posterior import Expansion, Head, linear_head
from tfp_bfl.algorithms.laplace.posterior import laplace as laplace_posterior
from tfp_bfl.algorithms.laplace.shared import SharedCurvature
from tfp_bfl.algorithms.laplace.step import LastLayer
from tfp_bfl.algorithms.laplace.work import laplace as laplace_work
from tfp_bfl.algorithms.laplace.work import laplace_weights

from .method import ALIKE, SEED, SIZES, Method, mlp, of_points, unflat


def laplace(structure):
    """The mean is the server's own weights; the precision is the prior's plus the sum over clients."""
    model_fn, options = mlp("deterministic"), {"structure": structure, "batch_size": 8}
    number = len(laplace_weights(model_fn(), structure))

    def alone(result, anchor):
        sent = tf.nest.map_structure(np.asarray, result.weights)
        mean = anchor.point[len(anchor.point) - number :]
        found = laplace_posterior(mean, sent.curvature, sent.gradient, float(sent.nll), temperature=0.01)
        return anchor._replace(posterior=found.posterior, point=anchor.point[: len(anchor.point) - number])

    def pool(results, anchor):
        return tf.nest.map_structure(lambda *x: tf.stack(x), *(r.weights for r in results)), anchor

    build = lambda: algorithms.laplace(model_fn, seed=SEED, **options)
    work = laplace_work(model_fn, **options)
    return Method(model_fn, build, work, pool, alone, np.ones_like, ALIKE, rounds=1, moves=False)


def dense(curvature):
    """The matrix [D, D] of a curvature's sums over all clients."""
    if not isinstance(curvature, SharedCurvature):
        return curvature
    size = int((2 * len(curvature.rows)) ** 0.5)
    gram = np.zeros([size, size])
    gram[np.triu_indices(size)] = curvature.rows
    return np.kron(gram + np.triu(gram, 1).T, curvature.columns / gram[-1, -1])


def last_layer(structure="last_layer"):
    """One Newton step of the last layer, by the sums over clients in NumPy; the temperature does not move the mode."""
    model_fn, stddev, heat = mlp("deterministic"), 0.5, 0.8
    options = {"prior_stddev": stddev, "temperature": heat, "structure": structure}
    flat = lambda leaves: np.concatenate([np.ravel(np.float64(x)) for x in leaves])

    def summed(results):
        add = lambda *x: np.sum(np.stack(x), 0, np.float64)
        total = lambda field: tf.nest.map_structure(add, *(getattr(r.weights, field) for r in results))
        return total("curvature"), sum(flat(r.weights.gradient) for r in results), total("nll"), total("num_examples")

    def pool(results, anchor):
        rows = tf.nest.map_structure(lambda *x: np.stack(x), *(r.weights for r in results))
        at, (curvature, gradient, nll, _) = flat(anchor.point[-2:]), summed(results)
        curvature = dense(curvature)
        mean = np.linalg.solve(curvature + np.eye(len(at)) / stddev**2, curvature @ at - gradient)
        value = nll + 0.5 * float(at @ at) / stddev**2
        state = LastLayer(rows, at, at, np.float64(value), np.float64(1 / stddev**2))
        head = tuple(np.float32(x) for x in unflat(mean, anchor.point[-2:]))
        return state, anchor._replace(point=(*anchor.point[:-2], *head))

    def alone(result, anchor):
        curvature, gradient, nll, number = summed([result])
        sums = Expansion(curvature, gradient, nll, flat(anchor.point[-2:]), number)
        found = linear_head(sums, anchor.point[-2:], Head(prior_stddev=stddev, temperature=heat))
        return anchor._replace(posterior=found.posterior, point=anchor.point[:-2])

    build = lambda: algorithms.last_layer(model_fn, seed=SEED, batch_size=8, **options)
    work = laplace_work(model_fn, structure=structure, batch_size=8, dtype=tf.float64)
    return Method(model_fn, build, work, pool, alone, np.ones_like, ALIKE, rounds=6)


def fed_lap(covariance):
    """The mean of the clients' Gaussians and the product of their sites, in natural parameters."""
    model_fn, rho, damping, stddev = mlp("deterministic"), 0.5, 0.3, 2.0
    options = {"covariance": covariance, "step_size": rho, "damping": damping}
    options |= {"batch_size": 8, "local_epochs": 2, "learning_rate": 0.02, "optimizer_fn": "adam"}
    clients_of_all, prior = len(SIZES), 1 / stddev**2

    def pool(results, anchor):
        start = np.concatenate([np.ravel(x) for x in anchor.point]).astype(np.float64)
        gains = [sum(np.float64(getattr(r.weights, part)) for r in results) for part in ("precision", "shift")]
        product = [prior + damping * rho * gains[0], damping * rho * gains[1]]
        share = 1 / (1 + clients_of_all * rho)
        mean = [prior + gains[0] / clients_of_all, prior * start + gains[1] / clients_of_all]
        precision, shift = ((1 - share) * m + share * p for m, p in zip(mean, product))
        numbers = np.int32(clients_of_all), np.int32(len(results))
        state = PointDual(np.float32(precision), Dual(*map(np.float32, product), *numbers))
        return state, of_points(unflat(shift / precision, anchor.point), anchor)

    def alone(result, anchor):
        state, weights = pool([result], anchor)
        if not covariance:
            return weights
        variance = tuple(np.float32(x) for x in unflat(1 / state.precision, anchor.point))
        return weights._replace(posterior=posterior.MeanField(weights.point, variance), point=())

    own = laplace_factors(model_fn, prior_precision=prior, **options)

    def started():
        """The work, sent the first precision, which the server has from the prior."""
        run, size = own(), sum(v.shape.num_elements() for v in model_fn().trainable_variables)
        return lambda message, *given: run(message._replace(extra=tf.fill([size], prior)), *given)

    build, work = (
        lambda: algorithms.fed_lap(model_fn, seed=SEED, prior_stddev=stddev, **options),
        own._replace(build=started),
    )
    return Method(model_fn, build, work, pool, alone, np.ones_like, rounds=20)
