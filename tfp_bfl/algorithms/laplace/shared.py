"""Curvatures over the weights of a last layer: a matrix, or two that are shared by rows and columns of the layer."""

from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl.posterior.kronecker import eigh, symmetric


class SharedCurvature(NamedTuple):
    """Sums over N examples that stand for the curvature sum_i x_i x_i^T (x) S_i; exact if all S_i are equal.

    H = G (x) sum_i S_i / N,   G = sum_i x_i x_i^T,   x with a 1 behind, so that N is the last entry of G

    Fields:
      rows: the upper triangle of G, row by row [(F + 1) (F + 2) / 2].
      columns: sum_i S_i, the Fisher information of the outputs [C, C].

    Source: Martens and Grosse 2015 (arXiv:1503.05671); Ritter et al. 2018 for Laplace's approximation.
    """

    rows: Any
    columns: Any


class Directions(NamedTuple):
    """Eigenvalues [D] and eigenvectors V = rows [R, R] (x) columns [Q, Q] of a curvature over weights [R, Q]."""

    values: Any
    rows: Any
    columns: Any

    def along(self, x: tf.Tensor) -> tf.Tensor:
        """Return V^T x [D]."""
        return tf.reshape(tf.transpose(self.rows) @ tf.reshape(x, [self.rows.shape[0], -1]) @ self.columns, [-1])

    def back(self, x: tf.Tensor) -> tf.Tensor:
        """Return V x [D]."""
        return tf.reshape(self.rows @ tf.reshape(x, [self.rows.shape[0], -1]) @ tf.transpose(self.columns), [-1])


def factors(curvature: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Return G [..., R, R] and S [..., Q, Q] of the curvature G (x) S in float64; of a matrix itself and 1."""
    if not isinstance(curvature, SharedCurvature):
        return tf.cast(curvature, tf.float64), tf.ones([1, 1], tf.float64)
    rows, columns = symmetric(tf.cast(curvature.rows, tf.float64)), tf.cast(curvature.columns, tf.float64)
    return rows, tf.math.divide_no_nan(columns, rows[..., -1:, -1:])


def directions(curvature: Any) -> Directions:
    """Compute the eigenvectors of a matrix [D, D], or of a `SharedCurvature`."""
    (g, rows), (s, columns) = map(eigh, factors(curvature))
    return Directions(tf.reshape(g[:, tf.newaxis] * s, [-1]), rows, columns)


def times(curvature: Any, x: tf.Tensor) -> tf.Tensor:
    """Return H x [..., D] of curvatures with leaves [..., .] and x [D]."""
    rows, columns = factors(curvature)
    product = rows @ tf.reshape(x, [rows.shape[-1], columns.shape[-1]]) @ columns
    return tf.reshape(product, tf.concat([tf.shape(product)[:-2], tf.reshape(tf.size(x), [1])], 0))


def trace(curvature: Any) -> float:
    """Return the trace of a matrix, of a `SharedCurvature`, or of a diagonal in leaves."""
    if isinstance(curvature, tuple) and not isinstance(curvature, SharedCurvature):
        return float(sum(tf.reduce_sum(x) for x in curvature))
    rows, columns = map(tf.linalg.trace, factors(curvature))
    return float(rows * columns)
