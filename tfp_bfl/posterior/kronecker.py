"""The Gaussian of a dense layer with factors for its rows and its columns, such as the matrix-normal distribution."""

import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.posterior.mean_field import MeanField
from tfp_bfl.tensors import Array


class Kronecker(NamedTuple):
    """A Gaussian posterior over the kernel [F, C] and the bias [C] of a dense layer, as one matrix W [F + 1, C].

    W = M + L (S * Z) R^T,   Z ~ N(0, I)

    With S = a b^T this is the matrix-normal distribution with the row covariance L diag(a^2) L^T and the column
    covariance R diag(b^2) R^T. It has (F + 1)^2 + C^2 numbers in place of the ((F + 1) C)^2 of a full covariance.

    Fields:
      mean: M, kernel [F, C] and bias [C]: a tuple.
      rows: L [F + 1, P], of which the last row belongs to the bias.
      columns: R [C, Q].
      stddev: S [P, Q].
    """

    mean: Any
    rows: Any
    columns: Any
    stddev: Any


def factor(q: Kronecker) -> tf.linalg.LinearOperator:
    """Return A of the covariance A A^T of all weights [D, D], D = (F + 1) C, the kernel's row by row and then the bias.

    A = (L (x) R) diag(S), S row by row.
    """
    turned = [tf.linalg.LinearOperatorFullMatrix(x, is_non_singular=True, is_square=True) for x in (q.rows, q.columns)]
    scale = tf.linalg.LinearOperatorDiag(tf.reshape(q.stddev, [-1]), is_non_singular=True)
    return tf.linalg.LinearOperatorComposition([tf.linalg.LinearOperatorKronecker(turned), scale])


def sample(q: Kronecker, seed: tf.Tensor, num_samples: int | None = None) -> Any:
    """Draw from it (`posterior.sample`)."""
    shape = tf.concat([[] if num_samples is None else [num_samples], tf.shape(q.stddev)], 0)
    noise = q.stddev * tf.random.stateless_normal(shape, seed, dtype=q.stddev.dtype)
    change = tf.linalg.matmul(tf.einsum("fp,...pq->...fq", q.rows, noise), q.columns, transpose_b=True)
    kernel, bias = q.mean
    return kernel + change[..., :-1, :], bias + change[..., -1, :]


def marginals(q: Kronecker) -> MeanField:
    """Return the mean-field Gaussian of its means and variances (`posterior.marginals`)."""
    variance = tf.matmul(tf.square(q.rows) @ tf.square(q.stddev), tf.square(q.columns), transpose_b=True)
    return MeanField(tuple(q.mean), (variance[:-1], variance[-1]))


def upper(matrix: tf.Tensor) -> tf.Tensor:
    """Return the upper triangle of a symmetric matrix [F, F], row by row [F (F + 1) / 2]."""
    return tf.gather(tf.reshape(matrix, [-1]), np.flatnonzero(np.triu(np.ones(matrix.shape, bool))))


def symmetric(triangle: Array) -> tf.Tensor:
    """Return symmetric matrices [..., F, F] of their upper triangles [..., F (F + 1) / 2], the inverse of `upper`."""
    number = triangle.shape[-1]
    size = math.isqrt(2 * number)
    places = np.zeros([size, size], np.int32)
    places[np.triu_indices(size)] = np.arange(number)
    return tf.gather(triangle, np.maximum(places, places.T), axis=-1)


def eigh(matrix: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return eigenvalues and eigenvectors, of which the largest entry is positive: rounding does not flip signs."""
    values, vectors = tf.linalg.eigh((matrix + tf.transpose(matrix)) / 2)
    places = tf.argmax(tf.abs(vectors), 0, output_type=tf.int32)
    largest = tf.gather_nd(vectors, tf.stack([places, tf.range(tf.shape(places)[0])], 1))
    return tf.maximum(values, 0.0), vectors * tf.where(largest < 0, -tf.ones_like(largest), tf.ones_like(largest))
