"""Bayesian ridge regression of one-hot labels on features: the exact matrix-normal posterior."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl.algorithms.heads.sums import ClassSums, eigh, symmetric, with_intercept

_GRIDS, _POINTS = 5, 65


class Ridge(NamedTuple):
    """The posterior of W [F, C] and the intercept b in y = x^T W + b + e, e ~ N(0, s^2 I), in float64.

    Fields:
      mean: of W, with b as the last row [F + 1, C].
      centre: the mean of the features [F].
      vectors, values: of the centred Gram matrix, [F, F] and [F].
      penalty: s^2 / t^2, of the prior W ~ N(0, t^2).
      noise: s^2.
      num_examples: a scalar.
      log_marginal_likelihood: of the labels, the intercept integrated out under a flat prior, in nats.
    """

    mean: Any
    centre: Any
    vectors: Any
    values: Any
    penalty: Any
    noise: Any
    num_examples: Any
    log_marginal_likelihood: Any


def fit_ridge(sums: ClassSums, stddev: float | None = None) -> Ridge:
    """Compute the posterior of ridge regression from the sums over all examples.

    W = (X^T X + s^2 / t^2)^-1 X^T Y,   Cov(vec W) = s^2 (X^T X + s^2 / t^2)^-1 (x) I_C

    with X and Y centred: the intercept has a flat prior. Without `stddev` = t, t and s maximise the marginal
    likelihood of the labels; with it, s does. `penalty` = 0 is the limit of a wide prior.

    Source: Bishop 2006, section 3.5; MacKay 1992.
    """
    counts, size = sums.counts, sums.totals.shape[1]
    number, classes = tf.reduce_sum(counts), counts.shape[0]
    centre, shares = tf.reduce_sum(sums.totals, 0) / number, counts / number
    gram = symmetric(sums.gram, size) - number * centre[:, tf.newaxis] * centre
    cross = tf.transpose(sums.totals) - centre[:, tf.newaxis] * counts
    values, vectors = eigh(gram)
    along = tf.matmul(vectors, cross, transpose_a=True)
    squares, free = number - tf.reduce_sum(counts * shares), (number - 1) * classes

    def evidence(log_penalty: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return log p(Y) and s^2 for each of some penalties [M]."""
        penalty = tf.exp(log_penalty)[:, tf.newaxis]
        left = squares - tf.reduce_sum(tf.reduce_sum(tf.square(along), 1) / (values + penalty), 1)
        noise = tf.maximum(left, 1e-9 * squares + 1e-300) / free
        if stddev is not None:
            noise = penalty[:, 0] * stddev**2
        shrunk = classes * tf.reduce_sum(tf.math.log(penalty / (values + penalty)), 1)
        return (shrunk - free * tf.math.log(2 * math.pi * noise) - left / noise) / 2, noise

    middle = tf.math.log(tf.maximum(tf.reduce_mean(values), 1e-12))
    low, high = middle - 25.0, middle + 12.0
    best = low
    for _ in range(_GRIDS):
        grid = tf.linspace(low, high, _POINTS)
        place = tf.argmax(evidence(grid)[0], output_type=tf.int32)
        best, low, high = grid[place], grid[tf.maximum(place - 1, 0)], grid[tf.minimum(place + 1, _POINTS - 1)]
    log_evidence, noise = evidence(best[tf.newaxis])
    kernel = vectors @ (along / (values + tf.exp(best))[:, tf.newaxis])
    mean = tf.concat([kernel, (shares - tf.linalg.matvec(kernel, centre, transpose_a=True))[tf.newaxis]], 0)
    return Ridge(mean, centre, vectors, values, tf.exp(best), noise[0], number, log_evidence[0])


def row_factors(fit: Ridge) -> tuple[tf.Tensor, tf.Tensor]:
    """Return L [F + 1, F + 1] and d [F + 1] with the row covariance L diag(d^2) L^T of W and b."""
    variances = tf.concat([fit.noise / (fit.values + fit.penalty), [fit.noise / fit.num_examples]], 0)
    return with_intercept(fit.vectors, fit.centre), tf.sqrt(variances)
