"""Bayesian ridge regression of one-hot labels on features: the exact matrix-normal posterior."""

from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl.algorithms.heads.sums import ClassSums, with_intercept
from tfp_bfl.algorithms.laplace.evidence import fit_regression
from tfp_bfl.posterior.kronecker import eigh, symmetric

# Of one-hot labels: fewer rows than features often fit them exactly, and logits f / s^2 would grow without bound.
SMALLEST_NOISE_STDDEV = 0.05


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
    likelihood of the labels; with it, s does. s is at least `SMALLEST_NOISE_STDDEV`. `penalty` = 0 is the limit of a
    wide prior.

    Source: Bishop 2006, section 3.5; MacKay 1992.
    """
    counts = sums.counts
    number, classes = tf.reduce_sum(counts), counts.shape[0]
    centre, shares = tf.reduce_sum(sums.totals, 0) / number, counts / number
    gram = symmetric(sums.gram) - number * centre[:, tf.newaxis] * centre
    cross = tf.transpose(sums.totals) - centre[:, tf.newaxis] * counts
    values, vectors = eigh(gram)
    along = tf.matmul(vectors, cross, transpose_a=True)
    squares, free = number - tf.reduce_sum(counts * shares), (number - 1) * classes
    explained = tf.reduce_sum(tf.square(along), 1)
    fit = lambda noise: fit_regression(values, explained, squares, free, (stddev, noise), classes)
    fitted, most = fit(None), SMALLEST_NOISE_STDDEV**-2
    a, noise_precision, evidence = tf.cond(fitted[1] > most, lambda: fit(SMALLEST_NOISE_STDDEV), lambda: fitted)
    noise, penalty = 1 / noise_precision, a / noise_precision
    kernel = vectors @ (along / (values + penalty)[:, tf.newaxis])
    mean = tf.concat([kernel, (shares - tf.linalg.matvec(kernel, centre, transpose_a=True))[tf.newaxis]], 0)
    return Ridge(mean, centre, vectors, values, penalty, noise, number, evidence)


def row_factors(fit: Ridge) -> tuple[tf.Tensor, tf.Tensor]:
    """Return L [F + 1, F + 1] and d [F + 1] with the row covariance L diag(d^2) L^T of W and b."""
    variances = tf.concat([fit.noise / (fit.values + fit.penalty), [fit.noise / fit.num_examples]], 0)
    return with_intercept(fit.vectors, fit.centre), tf.sqrt(variances)
