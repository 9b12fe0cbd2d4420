"""Gaussian posteriors from sums over examples: Laplace's approximation at a mode, and that of a linear last layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import numpy as np
import tensorflow as tf

from tfp_bfl.errors import InvalidArgument, check_number
from tfp_bfl.posterior.low_rank import LowRank
from tfp_bfl.posterior.mean_field import MeanField
from tfp_bfl.posterior.vectors import unflatten
from tfp_bfl.tensors import Array, Scalar, TensorTree

# Bounds of a fitted prior standard deviation.
SMALLEST_STDDEV, LARGEST_STDDEV = 1e-4, 1e4
_BISECTIONS = 100


class Laplace(NamedTuple):
    """Laplace's approximation of a posterior over D weights.

    Fields:
      posterior: a `MeanField` for a diagonal curvature, a `LowRank` with D rows for a full one; float32 leaves.
      prior_stddev: t of each group of weights [G].
      log_marginal_likelihood: in nats.
      effective_parameters: sum_d h_d / (h_d + T / t^2), with the eigenvalues h_d of the curvature; between 0 and D.
      distance: sqrt(g^T (H + T diag(1 / t^2))^-1 g / D), with the gradient g of the negative log likelihood: the root
        mean square distance to its mode, in posterior standard deviations at temperature 1. 0 at a mode.
      noise_stddev: of Gaussian labels (`linear_head`); None for others.
    """

    posterior: MeanField | LowRank
    prior_stddev: np.ndarray
    log_marginal_likelihood: float
    effective_parameters: float
    distance: float
    noise_stddev: float | None = None


def laplace(
    mode: Sequence[Array],
    curvature: TensorTree,
    gradient: Sequence[Array],
    nll: float,
    *,
    prior_stddev: float | None = None,
    groups: Sequence[int] | None = None,
    temperature: float = 1.0,
) -> Laplace:
    """Compute the Gaussian posterior at a mode w* from sums over all examples.

    q(w) = N(w*, P^-1),   P = diag(1 / t^2) + H / T

    log Z = -nll / T + sum_d (log(1 / t_d^2) - w*_d^2 / t_d^2) / 2 - log det P / 2

    log Z approximates the log marginal likelihood log p(D). Its maximum over t is unique: with the eigenvalues h of
    H / T and the precision a = 1 / t^2, d log Z / d log a = (sum_d h_d / (h_d + a) - a ||w*||^2) / 2 decreases in a.
    At T other than 1 the likelihood^(1 / T) is not normalised, so that log Z compares priors, and not temperatures.

    Args:
      mode: w*, a sequence of arrays [...].
      curvature: H of the negative log likelihood: its diagonal as a sequence of arrays like `mode`, or the matrix
        [D, D] over the arrays of `mode`, flattened one after another.
      gradient: of the negative log likelihood at w*, like `mode`.
      nll: the negative log likelihood at w*, in nats.
      prior_stddev: t of all weights; None for the maximum of log Z, between 1e-4 and 1e4.
      groups: the number of each array's group, from 0 on; the groups have a t each. None for one t. Of a diagonal only.
      temperature: T.

    Source: MacKay 1992; Immer et al. 2021 (arXiv:2104.04975), eq. 8, with the Gauss-Newton matrix as the curvature.
    """
    heat = float(check_number(temperature, "temperature"))
    if prior_stddev is not None:
        check_number(prior_stddev, "prior_stddev")
    w, slope = as_vector(mode), as_vector(gradient)
    full = not isinstance(curvature, (tuple, list))
    if full and groups is not None and len(set(groups)) > 1:
        raise InvalidArgument("A prior for each group of weights is for a diagonal curvature: leave groups out.")
    vectors = None
    if full:
        matrix = np.asarray(curvature, np.float64)
        eigenvalues, vectors = np.linalg.eigh((matrix + matrix.T) / (2 * heat))
        slope = vectors.T @ slope
    else:
        eigenvalues = as_vector(cast("Sequence[Array]", curvature)) / heat
    eigenvalues = np.maximum(eigenvalues, 0.0)
    group = np.repeat([0] * len(mode) if groups is None else groups, [np.size(x) for x in mode])
    squares = np.bincount(group, w**2)
    if prior_stddev is None:
        prior = np.array([_fitted_precision(eigenvalues[group == g], s) for g, s in enumerate(squares)])
    else:
        prior = np.full(len(squares), 1 / prior_stddev**2)
    each = prior[group]
    precision = eigenvalues + each
    evidence = -nll / heat + 0.5 * float(np.sum(np.log(each / precision)) - squares @ prior)
    return Laplace(
        gaussian_of(mode, precision, vectors),
        1 / np.sqrt(prior),
        evidence,
        float(np.sum(eigenvalues / precision)),
        math.sqrt(float(np.mean(slope**2 / (heat * precision)))),
    )


def _fitted_precision(eigenvalues: np.ndarray, square: float) -> float:
    """Return the precision a at which sum_d h_d / (h_d + a) = a ||w||^2, by bisection in log a."""
    low, high = -2 * math.log(LARGEST_STDDEV), -2 * math.log(SMALLEST_STDDEV)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        a = math.exp(middle)
        if float(np.sum(eigenvalues / (eigenvalues + a))) > a * square:
            low = middle
        else:
            high = middle
    return math.exp((low + high) / 2)


def gaussian_of(mode: Sequence[Array], precision: np.ndarray, vectors: np.ndarray | None) -> MeanField | LowRank:
    """Return the Gaussian at a mode with precisions [D] of the weights, or along the columns of `vectors` [D, D]."""
    mean = tuple(np.asarray(x, np.float32) for x in mode)
    if vectors is None:
        return MeanField(mean, _shaped(1 / precision, mean))
    # Sigma = a I + V (1 / precision - a) V^T: any a below the smallest variance serves.
    independent = 0.5 / precision.max()
    rows = (vectors * np.sqrt(1 / precision - independent)).T
    return LowRank(mean, _shaped(np.full(len(precision), independent), mean), _shaped(rows, mean))


def as_vector(leaves: Sequence[Array]) -> np.ndarray:
    """Return arrays as one vector, one after another, in float64."""
    return np.concatenate([np.ravel(np.asarray(x, np.float64)) for x in leaves])


def _shaped(flat: np.ndarray, like: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Return vectors [..., D] as arrays like `like` after the same leading axes."""
    parts = np.split(flat, np.cumsum([x.size for x in like])[:-1], -1)
    return tuple(part.reshape(*flat.shape[:-1], *x.shape).astype(np.float32) for part, x in zip(parts, like))


# The head of a model that also returns the log variance has one noise for all examples, a constant.
_CONSTANT_VARIANCE = 1e-12
_GRIDS, _POINTS = 7, 65


class Head(NamedTuple):
    """Settings of the posterior of a last layer, and of Laplace's approximation, for which noise is none.

    Fields:
      gaussian: labels are numbers, N(y; f_0, s^2): the expansion is of s = 1. False for labels of classes.
      prior_stddev: t of the prior N(0, t^2) of each weight; None for the maximum of the marginal likelihood.
      noise_stddev: s of Gaussian labels; None for the maximum of the marginal likelihood.
      temperature: T, which narrows or widens the posterior around its mean: mean, prior and noise are those of T = 1.
    """

    gaussian: bool = False
    prior_stddev: float | None = None
    noise_stddev: float | None = None
    temperature: float = 1.0


class Expansion(NamedTuple):
    """A negative log likelihood as a quadratic function of D weights.

    nll(w) = nll + gradient^T d + d^T curvature d / 2,   d = w - at

    Fields:
      curvature: [D, D].
      gradient: [D].
      nll: in nats, a scalar.
      at: [D].
      num_examples: a scalar.
    """

    curvature: tf.Tensor
    gradient: tf.Tensor
    nll: tf.Tensor
    at: tf.Tensor
    num_examples: tf.Tensor


class Solution(NamedTuple):
    """The Gaussian N(mean, V diag(1 / precision) V^T).

    Fields:
      mean: [D].
      vectors: V, the eigenvectors of the curvature [D, D].
      precision: [D].
      curvature: of the likelihood along the eigenvectors [D].
      prior_precision: 1 / t^2, a scalar.
      noise_precision: 1 / s^2, a scalar; 1 for classes.
      log_marginal_likelihood: in nats, a scalar.
    """

    mean: tf.Tensor
    vectors: tf.Tensor
    precision: tf.Tensor
    curvature: tf.Tensor
    prior_precision: tf.Tensor
    noise_precision: tf.Tensor
    log_marginal_likelihood: tf.Tensor


def solve(expansion: Expansion, head: Head) -> Solution:
    """Compute the posterior of the weights of which the likelihood is quadratic, in TensorFlow and float64.

    P = 1 / t^2 + b H,   mean = P^-1 b (H at - gradient)

    with b = 1 / s^2 (1 for classes). Without t or s, they are the maximum of the marginal likelihood

    log Z = (sum_d log(a / p_d) - b c + r^T P^-1 r - N log(2 pi / b)) / 2,   a = 1 / t^2

    with the precisions p_d along the eigenvectors, r = b (H at - gradient) and c the sum of squared labels. The
    maximum over one number is found by a grid of its logarithm that is refined; of two, s^2 = (c - r_1^T (H + l)^-1
    r_1) / N maximises for each ratio l = a / b. For classes, -nll at w = 0 stands for the terms with c and N, and
    a maximises (sum_d log(a / p_d) - a ||at||^2) / 2: far from `at` the expansion is none of the likelihood. Both have
    one maximum at the mode.

    Source: MacKay 1992; Bishop 2006, sections 3.5 and 4.4.
    """
    matrix = tf.cast(expansion.curvature, tf.float64)
    eigenvalues, vectors = tf.linalg.eigh((matrix + tf.transpose(matrix)) / 2)
    h = tf.maximum(eigenvalues, 0.0)
    at, gradient, nll, number = (tf.cast(x, tf.float64) for x in (expansion.at, expansion.gradient, *expansion[2::2]))
    pushed = tf.linalg.matvec(matrix, at)
    shift = tf.linalg.matvec(vectors, pushed - gradient, transpose_a=True)
    constant = nll - tf.tensordot(gradient, at, 1) + 0.5 * tf.tensordot(at, pushed, 1)
    # Of labels with noise 1, nll = sum of squares / 2 + N log(2 pi) / 2.
    squares = 2 * constant - number * math.log(2 * math.pi)

    def evidence(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        """Compute log Z for each pair of a [M] and b [M]."""
        precision = a[:, tf.newaxis] + b[:, tf.newaxis] * h
        explained = tf.reduce_sum(tf.square(b[:, tf.newaxis] * shift) / precision, 1)
        complexity = tf.reduce_sum(tf.math.log(a[:, tf.newaxis] / precision), 1)
        of_labels = 2 * constant * tf.ones_like(b)
        if head.gaussian:
            of_labels = b * squares + number * (math.log(2 * math.pi) - tf.math.log(b))
        return 0.5 * (complexity + explained - of_labels)

    def at_present(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        precision = a[:, tf.newaxis] + b[:, tf.newaxis] * h
        complexity = tf.reduce_sum(tf.math.log(a[:, tf.newaxis] / precision), 1)
        return 0.5 * (complexity - a * tf.reduce_sum(tf.square(at)))

    a, b = _maximum(evidence if head.gaussian else at_present, h, shift, squares / number, number, head)
    precision = a + b * h
    mean = tf.linalg.matvec(vectors, b * shift / precision)
    return Solution(mean, vectors, precision, b * h, a, b, evidence(a[tf.newaxis], b[tf.newaxis])[0])


def _maximum(
    evidence: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    h: tf.Tensor,
    shift: tf.Tensor,
    square: tf.Tensor,
    number: tf.Tensor,
    head: Head,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the precisions of the prior and of the noise: as given, or the maximum of the evidence."""
    bounds = -2 * math.log(LARGEST_STDDEV), -2 * math.log(SMALLEST_STDDEV)
    one = tf.ones([], tf.float64)
    fits_noise = head.gaussian and head.noise_stddev is None
    given_a = one if head.prior_stddev is None else one / head.prior_stddev**2
    given_b = one if head.noise_stddev is None else one / head.noise_stddev**2

    def pairs(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        if not fits_noise:
            return x, given_b * tf.ones_like(x)
        if head.prior_stddev is not None:
            return given_a * tf.ones_like(x), x
        left = square - tf.reduce_sum(tf.square(shift) / (h + x[:, tf.newaxis]), 1) / number
        b = 1 / tf.maximum(left, 1e-12 * square + 1e-300)
        return x * b, b

    if head.prior_stddev is not None and not fits_noise:
        return given_a, given_b
    low, high = (tf.constant(x, tf.float64) for x in bounds)
    x = low
    for _ in range(_GRIDS):
        grid = tf.linspace(low, high, _POINTS)
        best = tf.argmax(evidence(*pairs(tf.exp(grid))), output_type=tf.int32)
        x, low, high = grid[best], grid[tf.maximum(best - 1, 0)], grid[tf.minimum(best + 1, _POINTS - 1)]
    a, b = pairs(tf.exp(x)[tf.newaxis])
    return a[0], b[0]


def active(expansion: Expansion, num_outputs: int, head: Head) -> Expansion:
    """Return the expansion over the weights of the outputs that the likelihood depends on: of Gaussian labels the
    first, otherwise all.
    """
    if not head.gaussian or num_outputs == 1:
        return expansion
    rows = lambda x: x[::num_outputs]
    matrix = expansion.curvature[::num_outputs, ::num_outputs]
    return expansion._replace(curvature=matrix, gradient=rows(expansion.gradient), at=rows(expansion.at))


def whole(mean: tf.Tensor, noise_precision: Scalar, num_outputs: int, head: Head) -> tf.Tensor:
    """Return weights of `active` [D] as those of all outputs; the second is the logarithm of the noise variance."""
    if not head.gaussian or num_outputs == 1:
        return mean
    others = tf.zeros([tf.shape(mean)[0], num_outputs - 1], mean.dtype)
    filled = tf.reshape(tf.concat([mean[:, tf.newaxis], others], 1), [-1])
    # The last row holds the biases.
    place = tf.one_hot(tf.size(filled) - num_outputs + 1, tf.size(filled), dtype=mean.dtype)
    return filled - place * tf.math.log(tf.cast(noise_precision, mean.dtype))


def linear_head(expansion: Expansion, like: Sequence[Array], head: Head) -> Laplace:
    """Compute the posterior of a last layer f = x W + bias from sums over all examples.

    For Gaussian labels it is the exact posterior, wherever the expansion is taken. For classes it is one Newton step
    from the weights of the expansion, and Laplace's approximation with the curvature there; at the mode the step is 0.
    With the temperature T the precision is 1 / t^2 + b H / T, around the mean of T = 1.

    Args:
      expansion: over kernel [F, C] and bias [C], flattened one after another.
      like: arrays of the shapes of kernel and bias.
      head: the settings. Of Gaussian labels the first output is the mean; a second output is the log variance, and
        becomes constant.

    Returns:
      A `Laplace` with a `LowRank` posterior. `distance` is the length of the step from the expansion's weights: 0 for
      Gaussian labels.
    """
    num_outputs = int(np.shape(like[1])[0])
    part = active(expansion, num_outputs, head)
    solution = Solution(*(np.asarray(x) for x in solve(part, head)))
    shapes = [np.zeros([*np.shape(x)[:-1], 1 if head.gaussian else num_outputs]) for x in like]
    precision = solution.prior_precision + solution.curvature / head.temperature
    q = gaussian_of([np.asarray(x) for x in unflatten(solution.mean, shapes)], precision, solution.vectors)
    assert isinstance(q, LowRank)
    if head.gaussian and num_outputs > 1:
        mean = whole(tf.constant(solution.mean), solution.noise_precision, num_outputs, head)
        others = [(0, 0), (0, num_outputs - 1)]
        widen = lambda x, value: np.pad(x, [(0, 0)] * (x.ndim - 1) + others[1:], constant_values=np.float32(value))
        q = LowRank(
            tuple(np.float32(x) for x in unflatten(mean, list(like))),
            tuple(widen(x, _CONSTANT_VARIANCE) for x in q.diagonal),
            tuple(widen(x, 0.0) for x in q.deviations),
        )
    step = solution.vectors.T @ (solution.mean - np.asarray(part.at, np.float64))
    return Laplace(
        q,
        1 / np.sqrt(solution.prior_precision)[np.newaxis],
        float(solution.log_marginal_likelihood),
        float(np.sum(solution.curvature / solution.precision)),
        0.0 if head.gaussian else math.sqrt(float(np.mean(step**2 * solution.precision))),
        float(1 / np.sqrt(solution.noise_precision)) if head.gaussian else None,
    )


def moved(expansion: Expansion, to: tf.Tensor) -> Expansion:
    """Return the same quadratic function, expanded at other weights [D].

    Args:
      expansion: or one with leaves [K, ...], at one `at` [D].
      to: [D].
    """
    by = to - expansion.at
    pushed = tf.linalg.matvec(expansion.curvature, by)
    nll = expansion.nll + tf.tensordot(expansion.gradient + 0.5 * pushed, by, 1)
    return expansion._replace(gradient=expansion.gradient + pushed, nll=nll, at=to)
