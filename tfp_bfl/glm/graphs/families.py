"""The families of outcomes in TensorFlow: the terms of each row, and the sums of a client."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfp_bfl.glm.families import LARGE, Terms
from tfp_bfl.glm.rows import Rows


def _gaussian(eta: tf.Tensor, outcome: tf.Tensor) -> Terms:
    residual = outcome - eta
    return Terms(-0.5 * residual**2, residual, tf.ones_like(eta))


def _bernoulli(eta: tf.Tensor, outcome: tf.Tensor) -> Terms:
    p = tf.sigmoid(eta)
    return Terms(outcome * eta - tf.math.softplus(eta), outcome - p, p * tf.sigmoid(-eta))


def _poisson(eta: tf.Tensor, outcome: tf.Tensor) -> Terms:
    rate = tf.exp(tf.minimum(eta, np.float64(LARGE)))
    return Terms(outcome * eta - rate - tf.math.lgamma(outcome + 1), outcome - rate, rate)


def _log_odds(p: tf.Tensor) -> tf.Tensor:
    return tf.math.log(p) - tf.math.log1p(-p)


# Each as in `glm.families.FAMILIES`.
TERMS = {"gaussian": _gaussian, "bernoulli": _bernoulli, "poisson": _poisson}
_STARTS = {
    "gaussian": tf.zeros_like,
    "bernoulli": lambda outcome: _log_odds((outcome + 0.5) / 2),
    "poisson": lambda outcome: tf.math.log(outcome + 0.1),
}


def pack(*leaves: tf.Tensor) -> tf.Tensor:
    """Return all numbers of some tensors in one tensor [n]."""
    return tf.concat([tf.reshape(tf.cast(leaf, tf.float64), [-1]) for leaf in leaves], 0)


def counts(rows: Rows, family: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the number of rows, and of events."""
    num_rows = tf.cast(tf.shape(rows.design)[0], tf.float64)
    return num_rows, num_rows if family == "gaussian" else tf.reduce_sum(rows.outcome)


def times(matrix: tf.Tensor, vector: tf.Tensor, transposed: bool = False) -> tf.Tensor:
    """Return a matrix, or its transpose, times a vector."""
    return tf.linalg.matvec(matrix, vector, transpose_a=transposed)


def squares(matrix: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Return the sum over rows of weight x x' [p, p].

    Args:
      matrix: rows x [n, p].
      weight: [n].
    """
    return tf.matmul(matrix * weight[:, tf.newaxis], matrix, transpose_a=True)


def sums(rows: Rows, coefficients: tf.Tensor, family: str) -> tf.Tensor:
    """Return the packed sums of `glm.sums.client_sums`.

    Args:
      rows: of the client, as tensors.
      coefficients: [p].
      family: the name of the outcome's distribution.
    """
    terms = TERMS[family](times(rows.design, coefficients) + rows.offset, rows.outcome)
    value, gradient = tf.reduce_sum(terms.log_likelihood), times(rows.design, terms.score, transposed=True)
    return pack(*counts(rows, family), value, gradient, squares(rows.design, terms.weight))


def first_sums(rows: Rows, family: str) -> tf.Tensor:
    """Return the packed sums of `glm.sums.first_sums`.

    Args:
      rows, family: as of `sums`.
    """
    eta = _STARTS[family](rows.outcome)
    terms = TERMS[family](eta, rows.outcome)
    working = eta - rows.offset + terms.score / terms.weight
    gradient = times(rows.design, terms.weight * working, transposed=True)
    value = tf.reduce_sum(terms.log_likelihood)
    return pack(*counts(rows, family), value, gradient, squares(rows.design, terms.weight))
