"""Standard deviations of the prior by the maximum of the marginal likelihood, from sums over clients.

With the sums at (b0, psi), g the gradient, A the information on the coefficients b, and P = diag(1 / s^2):

    log p(y | psi, s) = l0 - g' b0 - b0' A b0 / 2 + (c' (A + P)^-1 c + log det P - log det(A + P)) / 2,   c = g + A b0

It is exact for Gaussian outcomes, and Laplace's approximation for others at their maximum b0. Flat priors have no part
in log det P. It needs no rows: the server compares any number of s without a message.

Source: MacKay 1992, equation 2.14; Tierney & Kadane 1986.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.linalg

from tfp_bfl.glm.federation import Federation, Question, ask_sums
from tfp_bfl.glm.hierarchical import Hierarchical, layout_of, nodes_of
from tfp_bfl.glm.posterior import Model, Posterior
from tfp_bfl.glm.sums import Sums

# Multiples of the outcome's scale: standard deviations on columns with a standard deviation of 1.
_GRID = np.exp2(np.arange(-9.0, 4.0))
_REFINEMENTS = 3
# A change below half of a step of the grid ends the fits, of which there are a few at most.
_CHANGE, _MOST_FITS = 0.5, 6
# Of a group of coefficients; and the option by which standard deviations are fitted.
FLAT, FITTED = -1, "fitted"


class ColumnMoments(NamedTuple):
    """Moments of the columns of the design, from one message.

    Fields:
      means, stddevs: of each column over all rows [p]; 1 for a column that does not vary, such as the intercept.
      scale: the standard deviation of a Gaussian outcome; 1 for others.
    """

    means: np.ndarray
    stddevs: np.ndarray
    scale: float


def ask_columns(federation: Federation, family: str) -> ColumnMoments:
    """Ask for the moments of the columns and of a Gaussian outcome: the sums at coefficients of 0, where weights are
    equal.
    """
    sums = ask_sums(federation, Question("sums", np.zeros(len(federation.names))))[0]
    means, squares = sums.information[0] / sums.information[0, 0], np.diag(sums.information) / sums.information[0, 0]
    q = len(federation.names) // len({*federation.names})
    means = np.repeat(means[::q], q)  # At 0 the predictors of a row are independent.
    variances = squares - means**2
    varies = variances > 1e-12 * squares
    scale = 1.0
    if family == "gaussian":
        outcome = sums.gradient[0] / sums.num_rows
        scale = float(np.sqrt(max(-2 * sums.log_likelihood / sums.num_rows - outcome**2, 0.0))) or 1.0
    return ColumnMoments(means, np.sqrt(np.where(varies, variances, 1.0)), scale)


def log_evidence(sums: Sums, at: np.ndarray, precision: np.ndarray) -> float:
    """Compute the log marginal likelihood of a Gaussian prior, up to the constant of flat ones.

    Args:
      sums: of the likelihood at parameters of which the first p are the coefficients.
      at: these coefficients b0 [p].
      precision: of the prior, 1 / s^2 [p]; 0 for a flat one.
    """
    size, has_prior = len(at), precision > 0
    information, gradient = sums.information[:size, :size], sums.gradient[:size]
    # In units in which the prior's standard deviations are 1, so that small ones keep their digits.
    root = np.where(has_prior, 1 / np.sqrt(np.where(has_prior, precision, 1.0)), 1.0)
    lower = scipy.linalg.cholesky(information * np.outer(root, root) + np.diag(has_prior.astype(float)), lower=True)
    half = scipy.linalg.solve_triangular(lower, (gradient + information @ at) * root, lower=True)
    fixed = sums.log_likelihood - gradient @ at - 0.5 * at @ information @ at
    return float(fixed + 0.5 * half @ half - np.sum(np.log(np.diag(lower))))


def precision_of(stddevs: np.ndarray, groups: np.ndarray, columns: ColumnMoments) -> np.ndarray:
    """Return 1 / s^2 of each coefficient [p], s: that of its group / standard deviation of the column; 0 if flat."""
    return np.where(groups == FLAT, 0.0, (columns.stddevs / np.append(stddevs, 1.0)[groups]) ** 2)


def best_stddevs(sums: Sums, at: np.ndarray, groups: np.ndarray, columns: ColumnMoments) -> np.ndarray:
    """Find the standard deviations of one or two groups with the largest marginal likelihood [G].

    All pairs of a grid come first, as one group can replace the other, then smaller steps of each. `groups` has the
    number of each coefficient's group [p], or `FLAT`.
    """
    value = lambda s: log_evidence(sums, at, precision_of(s, groups, columns))
    grid, count = columns.scale * _GRID, int(np.max(groups)) + 1
    places = np.stack(np.meshgrid(*[grid] * count, indexing="ij"), -1).reshape(-1, count)
    best, step = max(places, key=value), 2.0
    for _ in range(_REFINEMENTS):
        step = np.sqrt(step)
        for axis in np.eye(count):
            best = max((best, best * step**axis, best / step**axis), key=value)
    return np.asarray(best)


def _sums_of(pooled: Posterior) -> tuple[Sums, np.ndarray]:
    """Return the sums of a fit without random effects, in units of its dispersion, and where they are."""
    sums, at = pooled.sums, pooled.sums_at
    assert sums is not None and at is not None
    d = pooled.dispersion
    return sums._replace(
        log_likelihood=sums.log_likelihood / d, gradient=sums.gradient / d, information=sums.information / d
    ), at


def fit_priors(
    federation: Federation,
    model: Model,
    groups: np.ndarray,
    pooled: Callable[[np.ndarray], Posterior],
    fit: Callable[[np.ndarray], Hierarchical],
) -> Hierarchical:
    """Fit a hierarchical model with the standard deviations of the prior that have the largest marginal likelihood.

    Fits with a given prior alternate with the choice of the prior from the sums at their maximum; the first choice is
    that of a fit without random effects. The result is the last fit, with its `log_evidence` and `prior_stddevs`; its
    messages are those of all.

    Args:
      federation, model: the clients, and the options of the fit.
      groups: as of `best_stddevs`.
      pooled, fit: precision of the prior [p] -> the fit without, and with random effects.
    """
    columns, layout, family = ask_columns(federation, model.family), layout_of(federation, model), model.family
    wide = pooled(precision_of(np.full(int(np.max(groups)) + 1, columns.scale), groups, columns))
    stddevs, messages = best_stddevs(*_sums_of(wide), groups, columns), 1 + wide.messages
    for number in range(_MOST_FITS):
        precision = precision_of(stddevs, groups, columns)
        result = fit(precision)
        question = Question("effects", result.parameters, layout.columns, nodes_of(family, layout))
        at = result.parameters[: len(groups)]
        sums, messages = ask_sums(federation, question)[0], messages + result.posterior.messages + 1
        found = best_stddevs(sums, at, groups, columns)
        if np.max(np.abs(np.log2(found / stddevs))) < _CHANGE or number == _MOST_FITS - 1:
            break
        stddevs = found
    posterior = dataclasses.replace(result.posterior, messages=messages)
    evidence = log_evidence(sums, at, precision)
    return dataclasses.replace(
        result, posterior=posterior, prior_stddevs=tuple(stddevs.tolist()), log_evidence=evidence
    )
