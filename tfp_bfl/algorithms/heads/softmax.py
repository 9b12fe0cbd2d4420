"""Softmax regression on features: steps of Boehning's bound to the mode, and a shared curvature there."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl.algorithms.heads.sums import ClassSums, with_intercept
from tfp_bfl.posterior.kronecker import eigh, symmetric


class Basis(NamedTuple):
    """The directions in which the bound on the curvature is diagonal, over weights [F + 1, C] of raw features.

    Fields:
      vectors: B [F + 1, F + 1]: weights are W = B V, and |V|^2 is the squared length of the weights on standardised
        features.
      values: g [F + 1], with B^T G B = diag(g).
    """

    vectors: Any
    values: Any


def basis_of(sums: ClassSums) -> Basis:
    """Compute the basis from the sums over all examples. Constant features keep their scale."""
    number = tf.reduce_sum(sums.counts)
    centre = tf.reduce_sum(sums.totals, 0) / number
    scatter = symmetric(sums.gram) - number * centre[:, tf.newaxis] * centre
    variance = tf.linalg.diag_part(scatter) / number
    known = variance > 1e-12 * (tf.reduce_mean(variance) + tf.square(centre))
    scale = tf.where(known, tf.math.rsqrt(tf.where(known, variance, 1.0)), 1.0)
    values, vectors = eigh(scatter * scale * scale[:, tf.newaxis])
    return Basis(with_intercept(vectors * scale[:, tf.newaxis], centre), tf.concat([values, [number]], 0))


def descend(basis: Basis, at: tf.Tensor, gradient: tf.Tensor, prior_precision: tf.Tensor) -> tf.Tensor:
    """Return weights V [F + 1, C] of the basis after a step of the bound from `at`.

    V <- at - (g / 2 + a)^-1 (B^T gradient + a at)

    The Hessian of the negative log likelihood is at most (I - 11^T / C) / 2 (x) G, and so at most I / 2 (x) G.

    Source: Boehning 1992, "Multinomial logistic regression algorithm".
    """
    slope = tf.matmul(basis.vectors, gradient, transpose_a=True) + prior_precision * at
    return at - slope / (basis.values / 2 + prior_precision)[:, tf.newaxis]


def shared_curvature(basis: Basis, fisher: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return eigenvectors Q [C, C] and curvatures [F + 1, C] of G (x) S, S = Q diag(s) Q^T the mean Fisher information.

    sum_i x_i x_i^T (x) S_i ~ G (x) sum_i S_i / N

    Source: Martens and Grosse 2015 (arXiv:1503.05671); Ritter et al. 2018 for Laplace's approximation.
    """
    values, vectors = eigh(fisher / basis.values[-1])
    return vectors, basis.values[:, tf.newaxis] * values
