"""Newton's method by sums of clients: each step is one message to every client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy.linalg

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.glm.checks import check_determined, separating
from tfp_bfl.glm.sums import Sums

# The squared distance to the maximum, in posterior standard deviations, at which the last step is taken.
_TOLERANCE, _FLAT_TOLERANCE = 1e-13, 1e-10
MOST_MESSAGES = 25
# A change of the log posterior that rounding explains.
_ROUNDING = 1e-12


class Maximum(NamedTuple):
    """The maximum of a log posterior.

    Fields:
      coefficients: [p].
      information: of the rows and the prior there [p, p].
      sums: of the rows at `sums_at`, the coefficients of the last message, from which one step led to the maximum.
      messages: the number of messages to each client.
      sums_at: [p].
    """

    coefficients: np.ndarray
    information: np.ndarray
    sums: Sums
    messages: int
    sums_at: np.ndarray


def solve(information: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Return information^-1 gradient, by Cholesky's factor of the information scaled to a unit diagonal.

    Raises:
      LinAlgError: the information is not positive definite.
    """
    diagonal = np.diag(information)
    if not np.all(diagonal > 0):
        raise np.linalg.LinAlgError("The diagonal is not positive.")
    scale = 1 / np.sqrt(diagonal)
    factor = scipy.linalg.cho_factor(information * np.outer(scale, scale))
    scaled = gradient * (scale if np.ndim(gradient) == 1 else scale[:, np.newaxis])
    solution = scipy.linalg.cho_solve(factor, scaled)
    return solution * (scale if np.ndim(gradient) == 1 else scale[:, np.newaxis])


def inverse(information: np.ndarray) -> np.ndarray:
    """Return the covariance of an information matrix, symmetric to the bit."""
    covariance = solve(information, np.eye(len(information)))
    return (covariance + covariance.T) / 2


def _step(information: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Return a step that ascends also where the information has negative eigenvalues: by their absolute values."""
    try:
        return solve(information, gradient)
    except (np.linalg.LinAlgError, ValueError):
        values, vectors = np.linalg.eigh(information)
        sizes = np.maximum(np.abs(values), 1e-6 * np.max(np.abs(values)))
        return vectors @ ((vectors.T @ gradient) / sizes)


def maximise(
    ask: Callable[[np.ndarray], Sums],
    first: Sums,
    precision: np.ndarray,
    names: Sequence[str],
    messages: int = 1,
    start: np.ndarray | None = None,
) -> Maximum:
    """Return the maximum of sum_k log p(y_k | b) - sum_j precision_j b_j^2 / 2.

        b <- b + (information + diag(precision))^-1 (gradient - precision b)

    A step that lowers the log posterior, or overflows there, is halved. The steps end where the squared length of the
    next one, in posterior standard deviations, is below 1e-13; this last step is taken without another message.

    Args:
      ask: coefficients -> the sums of all clients there; one message.
      first: sums whose weighted least squares are the first step; they must determine all coefficients.
      precision: of the Gaussian prior with mean 0 [p]; 0 for a flat one.
      names: of the coefficients [p].
      messages: how many were sent before.
      start: the first coefficients [p]; None for the least squares of `first`.

    Raises:
      InvalidArgument: the rows and the prior do not determine the coefficients, or the likelihood has no maximum.
    """
    prior = np.diag(precision)
    most, tolerance = messages + MOST_MESSAGES, _TOLERANCE
    if start is None:
        check_determined(first.information + prior, names, first.num_rows)
        start = solve(first.information + prior, first.gradient)
    else:  # Variances near 0 have a flat maximum, to which steps converge slowly.
        most, tolerance = messages + 4 * MOST_MESSAGES, _FLAT_TOLERANCE
    coefficients, previous, best, sums = start, np.zeros(len(precision)), -np.inf, first
    while messages < most:
        sums, messages = ask(coefficients), messages + 1
        value = sums.log_likelihood - 0.5 * float(precision @ coefficients**2)
        information, gradient = sums.information + prior, sums.gradient - precision * coefficients
        is_finite = np.isfinite(value) and np.all(np.isfinite(gradient)) and np.all(np.isfinite(information))
        if not is_finite or value <= best - _ROUNDING * abs(best):
            coefficients = (coefficients + previous) / 2
            continue
        step = _step(information, gradient)
        previous, best = coefficients, value
        coefficients = coefficients + step
        if abs(gradient @ step) < tolerance:
            return Maximum(coefficients, information, sums, messages, previous)
    if np.any(precision > 0) and np.all(precision > 0):
        raise InvalidArgument(f"Newton's steps did not converge in {messages} messages: rescale the columns.")
    raise separating(previous, first, names, is_constant=sums.num_events in (0, sums.num_rows))
