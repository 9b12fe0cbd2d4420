"""Sums of a client with random effects in TensorFlow (`glm.effects`)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfp_bfl.glm.effects import MODE_STEPS, MOST_LOG, TOLERANCE, Layout, grid
from tfp_bfl.glm.families import Terms
from tfp_bfl.glm.graphs.families import TERMS, counts, pack, squares, times
from tfp_bfl.glm.rows import Rows


def sums(rows: Rows, parameters: tf.Tensor, family: str, layout: Layout, nodes: int) -> tf.Tensor:
    """Return the packed sums of `glm.effects.client_sums`.

    Args:
      rows: of the client, as tensors.
      parameters: theta [size].
      family: the name of the outcome's distribution.
      layout: of theta.
      nodes: of the quadrature along each dimension of v.
    """
    z, factor, log_stddev = _columns(rows, layout), _factor(parameters, layout), _log_stddev(parameters, layout)
    fixed = times(rows.design, parameters[: layout.num_coefficients]) + rows.offset
    along = tf.matmul(z, factor)
    terms = lambda eta: _terms(family, rows.outcome, log_stddev, eta)
    mode, root = _mode(terms, fixed, along)
    points, log_weights = grid(len(layout.columns), nodes)
    at = mode + tf.matmul(points, root, transpose_b=True)
    of_each = terms(fixed + tf.matmul(at, along, transpose_b=True))
    log_joint = tf.reduce_sum(of_each.log_likelihood, 1) - 0.5 * tf.reduce_sum(at**2, 1)
    log_joint += log_weights + 0.5 * np.sum(points**2, 1) + tf.reduce_sum(tf.math.log(tf.linalg.diag_part(root)))
    marginal = tf.reduce_logsumexp(log_joint)
    shares = tf.exp(log_joint - marginal)
    scores = _scores(rows, z, at, of_each, layout, log_stddev)
    gradient = times(scores, shares, transposed=True)
    information = _information(rows, z, at, of_each, layout, shares, scores, log_stddev)
    return pack(*counts(rows, family), marginal, gradient, information - squares(scores - gradient, shares))


def precisions(rows: Rows, points: tf.Tensor, layout: Layout) -> tf.Tensor:
    """Return the information on the coefficients of `glm.effects.precisions` [m, p, p].

    Args:
      rows: of the client, as tensors.
      points: parameters theta [m, size].
      layout: of theta.
    """
    x, z = rows.design, _columns(rows, layout)
    factors, variances = _factor(points, layout), tf.exp(2 * _log_stddev(points, layout))[:, tf.newaxis, tf.newaxis]
    along = tf.matmul(tf.matmul(x, z, transpose_a=True), factors)
    inner = tf.matmul(factors, tf.matmul(tf.matmul(z, z, transpose_a=True), factors), transpose_a=True)
    inner += variances * np.eye(len(layout.columns))
    explained = tf.matmul(along, tf.linalg.solve(inner, tf.linalg.matrix_transpose(along)))
    return (tf.matmul(x, x, transpose_a=True) - explained) / variances


def _columns(rows: Rows, layout: Layout) -> tf.Tensor:
    return tf.gather(rows.design, layout.columns, axis=1)


def _factor(parameters: tf.Tensor, layout: Layout) -> tf.Tensor:
    """Return L of parameters [..., size], [..., d, d]."""
    p, places, d = layout.num_coefficients, layout.pairs, len(layout.columns)
    none = tf.zeros_like(parameters[..., 0])
    entry = lambda a, b: parameters[..., p + places.index((a, b))] if b <= a else none
    return tf.stack([tf.stack([entry(a, b) for b in range(d)], -1) for a in range(d)], -2)


def _log_stddev(parameters: tf.Tensor, layout: Layout) -> tf.Tensor:
    if not layout.has_dispersion:
        return tf.zeros_like(parameters[..., -1])
    return tf.clip_by_value(parameters[..., -1], np.float64(-MOST_LOG), np.float64(MOST_LOG))


def _terms(family: str, outcome: tf.Tensor, log_stddev: tf.Tensor, eta: tf.Tensor) -> Terms:
    terms = TERMS[family](eta, outcome)
    if family != "gaussian":
        return terms
    precision, constant = tf.exp(-2 * log_stddev), log_stddev + 0.5 * np.log(2 * np.pi)
    return Terms(precision * terms.log_likelihood - constant, precision * terms.score, precision * terms.weight)


def _mode(terms: Callable[[tf.Tensor], Terms], fixed: tf.Tensor, z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the mode of v [d], and a root of the inverse of the information there [d, d]; NaN beyond float64."""
    unit = np.eye(z.shape[1])

    def advance(
        count: tf.Tensor, v: tf.Tensor, best: tf.Tensor, step: tf.Tensor, is_last: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        t = terms(fixed + times(z, v))
        value = tf.reduce_sum(t.log_likelihood) - 0.5 * tf.reduce_sum(v**2)
        is_lower = value < best - 1e-12 * tf.abs(best)
        information = squares(z, t.weight) + unit
        ascent = times(z, t.score, transposed=True) - v
        newton = tf.linalg.solve(_finite(information), ascent[:, tf.newaxis])[:, 0]
        newton = _nan_unless_finite(information, newton)
        is_last = ~is_lower & (tf.tensordot(newton, times(information, newton), 1) < TOLERANCE)
        ahead = tf.where(is_lower, v - step / 2, v + newton)
        return count + 1, ahead, tf.where(is_lower, best, value), tf.where(is_lower, step / 2, newton), is_last

    start = tf.zeros(z.shape[1], tf.float64)
    begin = (tf.constant(0), start, tf.constant(-np.inf, tf.float64), start, tf.constant(False))
    v = tf.while_loop(lambda count, v, best, step, is_last: (count < MODE_STEPS) & ~is_last, advance, begin)[1]
    information = squares(z, terms(fixed + times(z, v)).weight) + unit
    lower = tf.linalg.cholesky(_finite(information))
    root = tf.linalg.matrix_transpose(tf.linalg.triangular_solve(lower, tf.constant(unit)))
    return v, _nan_unless_finite(information, root)


def _is_finite(information: tf.Tensor) -> tf.Tensor:
    return tf.reduce_all(tf.math.is_finite(information))


def _finite(information: tf.Tensor) -> tf.Tensor:
    """Return a matrix that can be factored: the unit matrix in place of one that is beyond float64."""
    return tf.where(_is_finite(information), information, np.eye(information.shape[0]))


def _nan_unless_finite(information: tf.Tensor, result: tf.Tensor) -> tf.Tensor:
    return tf.where(_is_finite(information), result, tf.constant(np.nan, tf.float64))


def _scores(rows: Rows, z: tf.Tensor, v: tf.Tensor, terms: Terms, layout: Layout, log_stddev: tf.Tensor) -> tf.Tensor:
    """Return the gradient of sum_i log p(y_i | v) by theta, for each node [Q, size]."""
    of_z, of_v = _of_pairs(z, v, layout)
    parts = [tf.matmul(terms.score, rows.design), tf.matmul(terms.score, of_z) * of_v]
    if layout.has_dispersion:
        parts.append((_squares(terms, log_stddev) - counts(rows, "gaussian")[0])[:, tf.newaxis])
    return tf.concat(parts, 1)


def _information(
    rows: Rows,
    z: tf.Tensor,
    v: tf.Tensor,
    terms: Terms,
    layout: Layout,
    shares: tf.Tensor,
    scores: tf.Tensor,
    log_stddev: tf.Tensor,
) -> tf.Tensor:
    """Return the expectation over v of minus the second derivatives of sum_i log p(y_i | v) by theta [size, size]."""
    of_z, of_v = _of_pairs(z, v, layout)
    shared = shares[:, tf.newaxis] * of_v
    across = tf.matmul(rows.design, of_z * tf.matmul(terms.weight, shared, transpose_a=True), transpose_a=True)
    between = tf.einsum("ia,ic,iac->ac", of_z, of_z, tf.einsum("qi,qa,qc->iac", terms.weight, shared, of_v))
    fixed = squares(rows.design, times(terms.weight, shares, transposed=True))
    result = tf.concat([tf.concat([fixed, across], 1), tf.concat([tf.transpose(across), between], 1)], 0)
    if not layout.has_dispersion:
        return result
    last = 2 * times(scores[:, :-1], shares, transposed=True)
    corner = 2 * tf.reduce_sum(shares * _squares(terms, log_stddev))
    below = tf.concat([last, corner[tf.newaxis]], 0)[tf.newaxis]
    return tf.concat([tf.concat([result, last[:, tf.newaxis]], 1), below], 0)


def _of_pairs(z: tf.Tensor, v: tf.Tensor, layout: Layout) -> tuple[tf.Tensor, tf.Tensor]:
    """Return z_ia [n, pairs] and v_c [Q, pairs], whose products are the derivatives of the predictor by L."""
    first, second = zip(*layout.pairs)
    return tf.gather(z, first, axis=1), tf.gather(v, second, axis=1)


def _squares(terms: Terms, log_stddev: tf.Tensor) -> tf.Tensor:
    """Return sum_i r_i^2 / s^2 for each node, of Gaussian terms [Q]."""
    return tf.reduce_sum(terms.score**2, 1) * tf.exp(2 * log_stddev)
