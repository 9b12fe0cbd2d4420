"""Softmax regression on features: steps to the mode by a shared curvature, and Laplace's approximation there."""

from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl.algorithms.heads.sums import ClassSums, varying, with_intercept
from tfp_bfl.algorithms.laplace.evidence import LARGEST_STDDEV, SMALLEST_STDDEV, fitted_precision
from tfp_bfl.posterior.kronecker import eigh, symmetric

# Earlier gradients that a step combines, and the factor of the curvature in a step.
_MEMORY, _DAMPING = 5, 1.5
# Of Boehning's bound: the smallest curvature of a step, and the smallest mean of all that is used at all.
_LEAST, _LEAST_MEAN = 1 / 28, 1 / 256


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
    known = varying(variance, centre)
    scale = tf.where(known, tf.math.rsqrt(tf.where(known, variance, 1.0)), 1.0)
    values, vectors = eigh(scatter * scale * scale[:, tf.newaxis])
    return Basis(with_intercept(vectors * scale[:, tf.newaxis], centre), tf.concat([values, [number]], 0))


def shared_curvature(basis: Basis, fisher: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return eigenvectors Q [C, C] and curvatures [F + 1, C] of G (x) S, S = Q diag(s) Q^T the mean Fisher information.

    sum_i x_i x_i^T (x) S_i ~ G (x) sum_i S_i / N

    Source: Martens and Grosse 2015 (arXiv:1503.05671); Ritter et al. 2018 for Laplace's approximation.
    """
    values, vectors = eigh(fisher / basis.values[-1])
    return vectors, basis.values[:, tf.newaxis] * values


class Search(NamedTuple):
    """The state of the search for the mode, over weights V [F + 1, C] of a `Basis`.

    Fields:
      basis: fixed by the sums of the first round.
      mode: V after the last step, at which clients compute the next gradient.
      best, slope: V with the shortest gradient so far, and the gradient of the negative log likelihood there.
      points, slopes: differences of earlier V and gradients from the best ones of their round [M, F + 1, C].
      fisher: sum of the Fisher information at `best` [C, C].
      precision: a = 1 / t^2 of the prior.
      distance: of `best` by a Newton step, in posterior standard deviations (root mean square over the weights).
    """

    basis: Basis
    mode: Any
    best: Any
    slope: Any
    points: Any
    slopes: Any
    fisher: Any
    precision: Any
    distance: Any


def empty(width: int, num_classes: int) -> Search:
    """Return a search before the first round, for weights [F + 1, C]."""
    zeros = lambda *shape: tf.zeros(shape, tf.float64)
    v, memory, one = zeros(width, num_classes), zeros(_MEMORY, width, num_classes), tf.ones([], tf.float64)
    fisher = zeros(num_classes, num_classes)
    return Search(Basis(zeros(width, width), zeros(width)), v, v, v, memory, memory, fisher, one, one)


def begin(search: Search, sums: ClassSums, stddev: float | None) -> Search:
    """Return the search after a step from V = 0, where the sums determine gradient and Hessian."""
    basis, number, num_classes = basis_of(sums), tf.reduce_sum(sums.counts), sums.counts.shape[0]
    rows = tf.concat([tf.transpose(sums.totals), sums.counts[tf.newaxis]], 0)
    gradient = tf.reduce_sum(rows, 1, keepdims=True) / num_classes - rows
    fisher = number * (tf.eye(num_classes, dtype=tf.float64) - 1 / num_classes) / num_classes
    search = search._replace(basis=basis, slope=tf.matmul(basis.vectors, gradient, True), fisher=fisher)
    return _moved(search, tf.constant(True), stddev, is_first=True)


def advance(search: Search, gradient: tf.Tensor, fisher: tf.Tensor, stddev: float | None) -> Search:
    """Return the search after a step by the gradient of the negative log likelihood at its `mode` [F + 1, C].

    V <- V_best - d,   d = D^-1 (s - Y c) + X c,   D = G (x) max(3/2 S, 1/56) + a,   c = argmin |D^-1/2 (s - Y c)|

    with s the gradient of the negative log posterior at V_best and X, Y earlier differences of V and s: Anderson's
    acceleration. S is the mean Fisher information, and max is along its eigenvectors. If the gradient at `mode` is not
    shorter than s in the norm of A^-1, A = G / 2 (x) I + a, the step is A^-1 s instead, by Boehning's bound A of the
    Hessian, which always shortens it. If 3/2 tr S is less than 1/256 of the trace of the bound, most rows are
    predicted well, and S does not stand for the curvature of the others. Then a stays, and the step is

        A^-1 s + r (d - A^-1 s),   r = min(1, |A^-1 s| / (sqrt(2) |d - A^-1 s|)),   |x|^2 = x^T A x

    by which the objective falls by |A^-1 s|^2 / 4 or more.

    Source: Walker and Ni 2011, "Anderson acceleration for fixed-point iterations"; Boehning 1992.
    """
    slope = tf.matmul(search.basis.vectors, gradient, transpose_a=True)
    bound, a = search.basis.values[:, tf.newaxis] / 2 + search.precision, search.precision
    length = lambda v, of: tf.reduce_sum(tf.square(of + a * v) / bound)
    shorter = length(search.mode, slope) < length(search.best, search.slope)
    shorter |= ~_is_known(search)
    add = lambda memory, difference: tf.concat([memory[1:], difference[tf.newaxis]], 0)
    search = search._replace(
        points=add(search.points, search.mode - search.best),
        slopes=add(search.slopes, slope - search.slope),
        best=tf.where(shorter, search.mode, search.best),
        slope=tf.where(shorter, slope, search.slope),
        fisher=tf.where(shorter, fisher, search.fisher),
    )
    return _moved(search, shorter, stddev)


def _is_known(search: Search) -> tf.Tensor:
    """Return whether the mean Fisher information stands for the curvature."""
    bound = search.basis.values[-1] * (search.fisher.shape[0] - 1) / 2
    return _DAMPING * tf.linalg.trace(search.fisher) >= _LEAST_MEAN * bound


def _moved(search: Search, shorter: tf.Tensor, stddev: float | None, is_first: bool = False) -> Search:
    """Return the search after a step from its best weights; the prior precision is fitted unless `stddev` is given.

    The first step has the maximum a of the marginal likelihood, each later one a step of MacKay's iteration for it,
    a <- sum_d h_d / (h_d + a) / |V|^2: where most rows are predicted well, h and the maximum are far too small.
    """
    columns, curvatures = shared_curvature(search.basis, search.fisher)
    is_known = tf.constant(True) if is_first else _is_known(search)
    best, slope = search.best @ columns, search.slope @ columns
    # Of the mode of the quadratic model.
    square = lambda a: tf.reduce_sum(tf.square((curvatures * best - slope) / (curvatures + a)))
    if stddev is not None:
        a = tf.constant(stddev**-2.0, tf.float64)
    elif is_first:
        a = fitted_precision(curvatures, square)
    else:
        a = tf.reduce_sum(curvatures / (curvatures + search.precision)) / square(search.precision)
        a = tf.where(is_known, tf.clip_by_value(a, LARGEST_STDDEV**-2, SMALLEST_STDDEV**-2), search.precision)
    most = search.basis.values[:, tf.newaxis] / 2
    scale = a + (curvatures if is_first else tf.maximum(_DAMPING * curvatures, _LEAST * most))
    slope, bound = slope + a * best, a + most
    points = search.points @ columns
    slopes = search.slopes @ columns + a * points
    lengths = tf.sqrt(tf.reduce_sum(tf.square(slopes) / scale, [1, 2]))
    normed = tf.math.divide_no_nan(slopes, lengths[:, tf.newaxis, tf.newaxis])
    # The zeros before the first differences would make the matrix singular.
    products = tf.einsum("mfc,nfc->mn", normed / scale, normed) + 1e-10 * tf.eye(_MEMORY, dtype=tf.float64)
    along = tf.linalg.solve(products, tf.einsum("mfc,fc->m", normed / scale, slope)[:, tf.newaxis])[:, 0]
    c = tf.math.divide_no_nan(along, lengths)
    combine = lambda memory: tf.tensordot(c, memory, 1)
    safe = slope / bound
    further = (slope - combine(slopes)) / scale + combine(points) - safe
    ratio = tf.math.divide_no_nan(tf.reduce_sum(bound * safe**2), 2 * tf.reduce_sum(bound * further**2))
    share = tf.where(is_known, tf.ones_like(a), tf.minimum(tf.sqrt(ratio), 1.0))
    step = safe + tf.where(shorter, share, 0.0) * further
    distance = tf.sqrt(tf.reduce_mean(tf.square(slope) / (curvatures + a)))
    mode = search.best - tf.matmul(step, columns, transpose_b=True)
    return search._replace(mode=mode, precision=a, distance=distance)
