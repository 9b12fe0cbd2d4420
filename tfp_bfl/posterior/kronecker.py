"""The Gaussian of a dense layer with factors for its rows and its columns, such as the matrix-normal distribution."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl.posterior.mean_field import MeanField


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
