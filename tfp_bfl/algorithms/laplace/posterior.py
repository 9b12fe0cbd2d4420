"""Laplace's approximation: the Gaussian at a mode, with the curvature of the log posterior as its precision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np

from tfp_bfl.errors import InvalidArgument, check_number
from tfp_bfl.posterior.low_rank import LowRank
from tfp_bfl.posterior.mean_field import MeanField
from tfp_bfl.tensors import Array, TensorTree

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

    Raises:
      InvalidArgument: a prior_stddev or a temperature not above 0, or groups for a full curvature.

    Source: MacKay 1992; Immer et al. 2021 (arXiv:2104.04975), eq. 8, with the Gauss-Newton matrix as the curvature.
    """
    heat = float(check_number(temperature, "temperature"))
    if prior_stddev is not None:
        check_number(prior_stddev, "prior_stddev")
    w, slope = _flat(mode), _flat(gradient)
    full = not isinstance(curvature, (tuple, list))
    if full and groups is not None and len(set(groups)) > 1:
        raise InvalidArgument("A prior for each group of weights is for a diagonal curvature: leave groups out.")
    vectors = None
    if full:
        matrix = np.asarray(curvature, np.float64)
        eigenvalues, vectors = np.linalg.eigh((matrix + matrix.T) / (2 * heat))
        slope = vectors.T @ slope
    else:
        eigenvalues = _flat(cast("Sequence[Array]", curvature)) / heat
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


def _flat(leaves: Sequence[Array]) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(x, np.float64)) for x in leaves])


def _shaped(flat: np.ndarray, like: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Return vectors [..., D] as arrays like `like` after the same leading axes."""
    parts = np.split(flat, np.cumsum([x.size for x in like])[:-1], -1)
    return tuple(part.reshape(*flat.shape[:-1], *x.shape).astype(np.float32) for part, x in zip(parts, like))
