"""Gaussian posteriors from sums over examples: Laplace's approximation at a mode, and that of a linear last layer.

The temperature T is that of a cold posterior of the joint, p(w | D)^(1 / T), prior included:

q(w) = N(w*, T P^-1),   w* = argmax log p(D | w) + log p(w),   P = H + 1 / t^2

T scales the covariance alone. Mode, prior, noise and marginal likelihood are those of T = 1.
"""

import inspect
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import tensorflow as tf

from tfp_bfl.algorithms.laplace.evidence import fit_regression, fitted_precision
from tfp_bfl.algorithms.laplace.shared import Directions, SharedCurvature, directions, times
from tfp_bfl.errors import InvalidArgument, check_number
from tfp_bfl.posterior.kronecker import Kronecker
from tfp_bfl.posterior.low_rank import LowRank
from tfp_bfl.posterior.mean_field import MeanField
from tfp_bfl.posterior.vectors import unflatten
from tfp_bfl.tensors import Array, Scalar, TensorTree


class Laplace(NamedTuple):
    """Laplace's approximation of a posterior over D weights.

    Fields:
      posterior: a `MeanField` for a diagonal curvature, a `LowRank` with D rows for a full one, a `Kronecker` for a
        shared one; float32 leaves.
      prior_stddev: t of each group of weights [G].
      log_marginal_likelihood: in nats.
      effective_parameters: sum_d h_d / (h_d + 1 / t^2), with the eigenvalues h_d of the curvature; between 0 and D.
      distance: sqrt(g^T P^-1 g / D), with the gradient g of the negative log likelihood: the root mean square distance
        to its mode, in posterior standard deviations at temperature 1. 0 at a mode.
      noise_stddev: of Gaussian labels (`linear_head`); None for others.
    """

    posterior: MeanField | LowRank | Kronecker
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

    q(w) = N(w*, T P^-1),   P = diag(1 / t^2) + H

    log Z = -nll + sum_d (log(1 / t_d^2) - w*_d^2 / t_d^2) / 2 - log det P / 2

    log Z approximates the log marginal likelihood log p(D). Its maximum over t is unique: with the eigenvalues h of
    H and the precision a = 1 / t^2, d log Z / d log a = (sum_d h_d / (h_d + a) - a ||w*||^2) / 2 decreases in a.

    Args:
      mode: w*, a sequence of arrays [...].
      curvature: H of the negative log likelihood: its diagonal as a sequence of arrays like `mode`, the matrix [D, D]
        over the arrays of `mode`, flattened one after another, or a `SharedCurvature` for kernel and bias.
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
    diagonal = isinstance(curvature, (tuple, list)) and not isinstance(curvature, SharedCurvature)
    if not diagonal and groups is not None and len(set(groups)) > 1:
        raise InvalidArgument("A prior for each group of weights is for a diagonal curvature: leave groups out.")
    axes = None if diagonal else directions(curvature)
    if axes is None:
        eigenvalues = np.maximum(as_vector(cast("Sequence[Array]", curvature)), 0.0)
    else:
        eigenvalues, slope = np.asarray(axes.values), np.asarray(axes.along(slope))
    group = np.repeat([0] * len(mode) if groups is None else groups, [np.size(x) for x in mode])
    squares = np.bincount(group, w**2)
    if prior_stddev is None:
        prior = np.array([fitted_precision(eigenvalues[group == g], s) for g, s in enumerate(squares)])
    else:
        prior = np.full(len(squares), 1 / prior_stddev**2)
    each = prior[group]
    precision = eigenvalues + each
    evidence = -nll + 0.5 * float(np.sum(np.log(each / precision)) - squares @ prior)
    return Laplace(
        gaussian_of(mode, precision / heat, axes, isinstance(curvature, SharedCurvature)),
        1 / np.sqrt(prior),
        evidence,
        float(np.sum(eigenvalues / precision)),
        math.sqrt(float(np.mean(slope**2 / precision))),
    )


def gaussian_of(
    mean: Sequence[Array], precision: np.ndarray, axes: Directions | None, shared: bool = False
) -> MeanField | LowRank | Kronecker:
    """Return the Gaussian with precisions [D] of the weights, or along eigenvectors; weights in none are constants."""
    mean = tuple(np.asarray(x, np.float32) for x in mean)
    shaped = lambda x: tuple(np.float32(part) for part in unflatten(x, mean))
    if axes is None:
        return MeanField(mean, shaped(1 / precision))
    rows, columns = (np.asarray(x) for x in axes[1:])
    if shared:
        stddev = 1 / np.sqrt(precision.reshape(len(rows), -1))
        return Kronecker(mean, *(np.float32(x) for x in (rows, columns, stddev)))
    # Sigma = a I + V (1 / precision - a) V^T: any a below the smallest variance serves.
    independent = 0.5 / precision.max()
    deviations = (rows * np.sqrt(1 / precision - independent)).T
    diagonal = np.where(rows.any(1), independent, _CONSTANT_VARIANCE)
    return LowRank(mean, shaped(diagonal), shaped(deviations))


def as_vector(leaves: Sequence[Array]) -> np.ndarray:
    """Return arrays as one vector, one after another, in float64."""
    return np.concatenate([np.ravel(np.asarray(x, np.float64)) for x in leaves])


# The head of a model that also returns the log variance has one noise for all examples, a constant.
_CONSTANT_VARIANCE = 1e-12


class Head(NamedTuple):
    """Settings of the posterior of a last layer, and of Laplace's approximation, for which noise is none.

    Fields:
      gaussian: labels are numbers, N(y; f_0, s^2): the expansion is of s = 1. False for labels of classes.
      prior_stddev: t of the prior N(0, t^2) of each weight; None for the maximum of the marginal likelihood.
      noise_stddev: s of Gaussian labels; None for the maximum of the marginal likelihood.
      temperature: T.
    """

    gaussian: bool = False
    prior_stddev: float | None = None
    noise_stddev: float | None = None
    temperature: float = 1.0


# The option of the recipes that make a posterior from sums.
PRIOR = (inspect.signature(Head).parameters["prior_stddev"],)


class Expansion(NamedTuple):
    """A negative log likelihood as a quadratic function of D weights.

    nll(w) = nll + gradient^T d + d^T curvature d / 2,   d = w - at

    Fields:
      curvature: [D, D], or a `SharedCurvature`.
      gradient: [D].
      nll: in nats, a scalar.
      at: [D].
      num_examples: a scalar.
    """

    curvature: Any
    gradient: tf.Tensor
    nll: tf.Tensor
    at: tf.Tensor
    num_examples: tf.Tensor


class Solution(NamedTuple):
    """The Gaussian N(mean, V diag(1 / precision) V^T).

    Fields:
      mean: [D].
      axes: V, the eigenvectors of the curvature of the likelihood, with its eigenvalues at noise 1.
      precision: [D].
      prior_precision: 1 / t^2, a scalar.
      noise_precision: 1 / s^2, a scalar; 1 for classes.
      log_marginal_likelihood: in nats, a scalar.
    """

    mean: tf.Tensor
    axes: Directions
    precision: tf.Tensor
    prior_precision: tf.Tensor
    noise_precision: tf.Tensor
    log_marginal_likelihood: tf.Tensor


def solve(expansion: Expansion, head: Head) -> Solution:
    """Compute the posterior of the weights of which the likelihood is quadratic, in TensorFlow and float64.

    P = 1 / t^2 + b H,   mean = P^-1 b (H at - gradient)

    with b = 1 / s^2 (1 for classes). Without t or s, they are the maximum of the marginal likelihood
    (`evidence.fit_regression`); for classes that of `evidence.fitted_precision` at the weights `at`: far from them the
    expansion is none of the likelihood. Both have one maximum at the mode.

    Source: MacKay 1992; Bishop 2006, sections 3.5 and 4.4.
    """
    axes = directions(expansion.curvature)
    at, gradient, nll, number = (tf.cast(x, tf.float64) for x in (expansion.at, expansion.gradient, *expansion[2::2]))
    pushed = times(expansion.curvature, at)
    shift, h = axes.along(pushed - gradient), axes.values
    constant = nll - tf.tensordot(gradient, at, 1) + 0.5 * tf.tensordot(at, pushed, 1)
    if head.gaussian:
        # Of labels with noise 1, nll = sum of squares / 2 + N log(2 pi) / 2.
        squares = 2 * constant - number * math.log(2 * math.pi)
        a, b, evidence = fit_regression(h, tf.square(shift), squares, number, (head.prior_stddev, head.noise_stddev))
    else:
        b, given = tf.ones([], tf.float64), head.prior_stddev
        a = fitted_precision(h, tf.reduce_sum(tf.square(at))) if given is None else b / given**2
        evidence = 0.5 * tf.reduce_sum(tf.math.log(a / (a + h)) + tf.square(shift) / (a + h)) - constant
    precision = a + b * h
    return Solution(axes.back(b * shift / precision), axes, precision, a, b, evidence)


def active(expansion: Expansion, num_outputs: int, head: Head) -> Expansion:
    """Return the expansion over the weights of the outputs that the likelihood depends on: of Gaussian labels the
    first, otherwise all.
    """
    if not head.gaussian or num_outputs == 1:
        return expansion
    rows, of_all = lambda x: x[::num_outputs], expansion.curvature
    shared = isinstance(of_all, SharedCurvature)
    first = of_all._replace(columns=of_all.columns[:1, :1]) if shared else of_all[::num_outputs, ::num_outputs]
    return expansion._replace(curvature=first, gradient=rows(expansion.gradient), at=rows(expansion.at))


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

    Args:
      expansion: over kernel [F, C] and bias [C], flattened one after another.
      like: arrays of the shapes of kernel and bias.
      head: the settings. Of Gaussian labels the first output is the mean; a second output is the log variance, and
        becomes constant.

    Returns:
      A `Laplace`. `distance` is the length of the step from the expansion's weights: 0 for Gaussian labels.
    """
    num_outputs = int(np.shape(like[1])[0])
    part, shared = active(expansion, num_outputs, head), isinstance(expansion.curvature, SharedCurvature)
    solution = tf.nest.map_structure(np.asarray, solve(part, head))
    mean = unflatten(whole(tf.constant(solution.mean), solution.noise_precision, num_outputs, head), list(like))
    outputs, axes = np.eye(num_outputs, 1 if head.gaussian else num_outputs), solution.axes
    if shared:
        axes = axes._replace(columns=outputs @ axes.columns)
    elif head.gaussian:
        axes = axes._replace(rows=np.kron(axes.rows, outputs))
    q = gaussian_of(mean, solution.precision / head.temperature, axes, shared)
    step = np.asarray(solution.axes.along(solution.mean - np.asarray(part.at, np.float64)))
    return Laplace(
        q,
        1 / np.sqrt(solution.prior_precision)[np.newaxis],
        float(solution.log_marginal_likelihood),
        float(np.sum(1 - solution.prior_precision / solution.precision)),
        0.0 if head.gaussian else math.sqrt(float(np.mean(step**2 * solution.precision))),
        float(1 / np.sqrt(solution.noise_precision)) if head.gaussian else None,
    )
