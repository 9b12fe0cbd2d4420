"""Posteriors from sums of clients: Newton's method, each step of which is one message to every client.

`gaussian_of_sums` needs no steps; `expand` corrects mean and covariance of a skewed posterior to second order,
and `make_robust` replaces the covariance.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy.linalg

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.glm.checks import check_determined, few_events, separating
from tfp_bfl.glm.families import FAMILIES
from tfp_bfl.glm.posterior import CLIENTS, Posterior
from tfp_bfl.glm.sums import Sums

Ask = Callable[[np.ndarray], Sums]

# The squared distance to the maximum, in posterior standard deviations, at which the last step is taken.
_TOLERANCE, _FLAT_TOLERANCE = 1e-13, 1e-10
MOST_MESSAGES = 25
# Of further parameters in a step: logarithms and logits.
_LONGEST = 2.0
# A change of the log posterior that rounding explains.
_ROUNDING = 1e-12
# The squared length of a step, in posterior standard deviations, after which the value may fall by quadrature's error
# if the next step is shorter, and after which the steps end if it is not.
_NEAR, _QUADRATURE = 1e-2, 1e-4
_DISPERSION_STEPS, _CHANGE = 200, 1e-13
# In posterior standard deviations: large beside rounding, small beside the scale of the fourth derivative.
_DIFFERENCE = 0.1
# In posterior standard deviations and variances: the next order is about the square of this one.
_LARGEST = 0.75
_TOO_SKEWED = (
    "The posterior is too skewed for moments to second order: its maximum and curvature are given. More events or a "
    "narrower prior would help; a Markov chain is exact."
)
# Robust variances from fewer of them come with a warning.
_FEW_CLIENTS = 20


class Maximum(NamedTuple):
    """The maximum of a log posterior.

    Fields:
      coefficients, information: there, of the rows and the prior.
      sums: of the rows at `sums_at`, the coefficients of the last message, from which one step led to the maximum.
      messages: the number of messages to each client.
    """

    coefficients: np.ndarray
    information: np.ndarray
    sums: Sums
    messages: int
    sums_at: np.ndarray


def solve(information: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Compute information^-1 gradient, by Cholesky's factor of the information scaled to a unit diagonal.

    An information that is not positive definite is a LinAlgError.
    """
    diagonal = np.diag(information)
    if not np.all(diagonal > 0):
        raise np.linalg.LinAlgError("The diagonal is not positive.")
    scale = 1 / np.sqrt(diagonal)
    factor = scipy.linalg.cho_factor(information * np.outer(scale, scale))
    of_rows = scale if np.ndim(gradient) == 1 else scale[:, np.newaxis]
    return scipy.linalg.cho_solve(factor, gradient * of_rows) * of_rows


def inverse(information: np.ndarray) -> np.ndarray:
    """Compute the covariance of an information matrix, symmetric to the bit."""
    covariance = solve(information, np.eye(len(information)))
    return (covariance + covariance.T) / 2


def _step(information: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Compute a step that ascends also where the information has negative eigenvalues: by their absolute values."""
    try:
        return solve(information, gradient)
    except (np.linalg.LinAlgError, ValueError):
        values, vectors = np.linalg.eigh(information)
        sizes = np.maximum(np.abs(values), 1e-6 * np.max(np.abs(values)))
        return vectors @ ((vectors.T @ gradient) / sizes)


def maximise(
    ask: Ask,
    first: Sums,
    precision: np.ndarray,
    names: Sequence[str],
    messages: int = 1,
    start: np.ndarray | None = None,
    further: int = 0,
) -> Maximum:
    """Find the maximum of sum_k log p(y_k | b) - sum_j precision_j b_j^2 / 2.

        b <- b + (information + diag(precision))^-1 (gradient - precision b)

    A step that lowers the log posterior, or overflows there, is halved. The steps end where the squared length of the
    next one, in posterior standard deviations, is below 1e-13; this last step is taken without another message. With a
    start, that is with random effects, shorter and shorter steps decide after one below 1e-2, in place of the value.

    Args:
      ask: coefficients -> the sums of all clients there; one message.
      first: sums whose weighted least squares are the first step; they must determine all coefficients.
      precision: of the Gaussian prior with mean 0 [p]; 0 for a flat one.
      names: of the coefficients, for errors.
      messages: how many were sent before.
      start: the first coefficients [p]; None for the least squares of `first`.
      further: the number of the last parameters, which are no coefficients and change by at most 2 in a step.
    """
    prior = np.diag(precision)
    most, tolerance, has_effects = messages + MOST_MESSAGES, _TOLERANCE, start is not None
    if start is None:
        check_determined(first.information + prior, names, first.num_rows)
        start = solve(first.information + prior, first.gradient)
    else:  # Variances near 0 have a flat maximum, to which steps converge slowly.
        most, tolerance = messages + 4 * MOST_MESSAGES, _FLAT_TOLERANCE
    coefficients, previous, best, sums = start, np.zeros(len(precision)), -np.inf, first
    reached, decrement = None, np.inf
    while messages < most:
        sums, messages = ask(coefficients), messages + 1
        value = sums.log_likelihood - 0.5 * float(precision @ coefficients**2)
        information, gradient = sums.information + prior, sums.gradient - precision * coefficients
        is_finite = np.isfinite(value) and np.all(np.isfinite(gradient)) and np.all(np.isfinite(information))
        falls = value <= best - _ROUNDING * abs(best)
        if is_finite and (not falls or (has_effects and decrement < _NEAR)):
            step = _step(information, gradient)
            step = step / max(1.0, np.max(np.abs(step[len(step) - further :]), initial=0.0) / _LONGEST)
            length = abs(gradient @ step)
            if not falls or length < decrement:
                previous, best, decrement = coefficients, value, length
                reached = Maximum(coefficients, information, sums, messages, coefficients)
                coefficients = coefficients + step
                if decrement < tolerance:
                    return Maximum(coefficients, information, sums, messages, previous)
                continue
            if reached is not None and decrement < _QUADRATURE:
                return reached._replace(messages=messages)
        coefficients = (coefficients + previous) / 2
    if np.any(precision > 0) and np.all(precision > 0):
        raise InvalidArgument(f"Newton's steps did not converge in {messages} messages: rescale the columns.")
    raise separating(previous, first, names[: len(names) - further], is_constant=sums.num_events in (0, sums.num_rows))


class MomentExpansion(NamedTuple):
    """Mean and covariance to second order, the messages that they took, and warnings.

    Where the second order is too large to be trusted, there is a warning, and they are b* and the inverse information.
    """

    mean: np.ndarray
    covariance: np.ndarray
    messages: int
    warnings: list[str]


def expand(ask: Ask, coefficients: np.ndarray, information: np.ndarray) -> MomentExpansion:
    """Compute mean and covariance to the second order of Laplace's expansion at the maximum b*, from 2 p + 1 messages.

    With T, Q the third and fourth derivatives of the log posterior at b*, S the inverse of the information there, and
    repeated indices summed:

        mean_a = b*_a + S_ab T_bcd S_cd / 2
        covariance = S + S P S,   P_ab = (Q_abcd S_cd + T_acd S_ce S_df T_bef + T_abc S_cd T_def S_ef) / 2

    T and Q_abcd S_cd are central differences of the information along the columns of a square root of S.

    Source: Tierney & Kadane 1986; the diagrams of one loop of any text on perturbation theory.
    """
    covariance = inverse(information)
    root = np.linalg.cholesky(covariance)
    flat = ask(coefficients).information
    third, fourth = [], np.zeros_like(covariance)
    for direction in root.T:
        above, below = (ask(coefficients + sign * _DIFFERENCE * direction).information for sign in (1, -1))
        third.append((below - above) / (2 * _DIFFERENCE))
        fourth += (2 * flat - above - below) / _DIFFERENCE**2
    # In coordinates in which the posterior has a covariance of 1, where indices are contracted directly.
    t = np.einsum("ia,cij,jb->abc", root, np.stack(third), root)
    tadpole = np.einsum("abb->a", t)
    loop = root.T @ fourth @ root + np.einsum("acd,bcd->ab", t, t) + np.einsum("abc,c->ab", t, tadpole)
    messages, sizes = 2 * len(root) + 1, np.abs(np.linalg.eigvalsh((loop + loop.T) / 2)) / 2
    if not np.linalg.norm(tadpole) / 2 < _LARGEST or not np.max(sizes) < _LARGEST:
        return MomentExpansion(coefficients, covariance, messages, [_TOO_SKEWED])
    corrected = root @ (np.eye(len(root)) + loop / 2) @ root.T
    return MomentExpansion(coefficients + root @ tadpole / 2, (corrected + corrected.T) / 2, messages, [])


class WithoutError(InvalidArgument):
    """The estimate of a Gaussian outcome's variance is 0."""


def gaussian_of_sums(sums: Sums, precision: np.ndarray, dispersion: float | None, names: Sequence[str]) -> Posterior:
    """Compute the posterior of Gaussian outcomes from sums at coefficients of 0: X'X, X'y and -y'y / 2.

    Without a dispersion d the fixed point of d = RSS / (N - gamma), gamma = p - tr(covariance diag(precision)), which
    maximises the marginal likelihood (MacKay 1992, equation 4.10).
    """
    check_determined(sums.information + np.diag(precision), names, sums.num_rows)
    variance, degrees = (dispersion, None) if dispersion is not None else _estimated_dispersion(sums, precision)
    information = sums.information / variance + np.diag(precision)
    mean = solve(information, sums.gradient / variance)
    constant = 0.5 * sums.num_rows * math.log(2 * math.pi * variance)
    return Posterior(
        names,
        mean,
        inverse(information),
        "gaussian",
        int(sums.num_rows),
        int(sums.num_events),
        1,
        1,
        -0.5 * residual_sum(sums, mean) / variance - constant,
        precision,
        variance,
        few_events(sums, FAMILIES["gaussian"], len(precision)),
        sums,
        np.zeros(len(precision)),
        dispersion,
        degrees,
    )


def residual_sum(sums: Sums, mean: np.ndarray) -> float:
    """Compute the sum of squared residuals from sums at coefficients of 0."""
    return max(float(-2 * sums.log_likelihood - 2 * mean @ sums.gradient + mean @ sums.information @ mean), 0.0)


def check_rows(sums: Sums, num_coefficients: int) -> None:
    """Refuse an estimate of the dispersion from no more rows than coefficients."""
    if sums.num_rows <= num_coefficients:
        raise InvalidArgument(
            f"There are {sums.num_rows:g} rows for {num_coefficients} coefficients: give dispersion, the variance of "
            "the outcome, or more rows."
        )


def _estimated_dispersion(sums: Sums, precision: np.ndarray) -> tuple[float, float]:
    """Estimate the dispersion, and the degrees of freedom N - gamma."""
    check_rows(sums, len(precision))
    variance, degrees = -2 * sums.log_likelihood / sums.num_rows or 1.0, sums.num_rows
    for _ in range(_DISPERSION_STEPS):
        information = sums.information / variance + np.diag(precision)
        rss = residual_sum(sums, solve(information, sums.gradient / variance))
        degrees = sums.num_rows - (len(precision) - float(np.diag(inverse(information)) @ precision))
        before, variance = variance, rss / degrees
        if variance <= 1e-12 * -2 * sums.log_likelihood / sums.num_rows:
            raise WithoutError(
                "The columns predict the outcome without error, or its mean is too large beside its spread for sums: "
                "drop the column that holds the outcome, or subtract a constant from the outcome."
            )
        if abs(variance - before) <= _CHANGE * before:
            break
    return variance, degrees


def make_robust(posterior: Posterior, unit: str, scores: np.ndarray) -> Posterior:
    """Return a posterior with a robust covariance: A^-1 M A^-1, M the sum of g g' over scores of the unit [p, p]."""
    few = []
    if unit == CLIENTS and posterior.num_clients < _FEW_CLIENTS:
        few.append(
            f"A robust variance from {posterior.num_clients} clients is too small: it is right for many, such as "
            f"{_FEW_CLIENTS} or more."
        )
    return dataclasses.replace(
        posterior,
        covariance=posterior.covariance @ scores @ posterior.covariance,
        messages=posterior.messages + 1,
        warnings=[*posterior.warnings, *few],
        robust=unit,
        degrees_of_freedom=None,
        # A revision would go back to the inverse information.
        sums=None,
        sums_at=None,
    )
