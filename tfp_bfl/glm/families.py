"""The families of outcomes, each with its canonical link.

A row has q linear predictors: one, but of C classes q = C - 1. With the probabilities p of the classes,

    p = softmax(B eta),   B [C, q] with columns orthogonal to each other and to 1,   B' B = I / 2

so that coefficients of all classes with one normal prior are eta with the prior N(0, s^2 I), in which the difference of
any two classes has the variance s^2, as the coefficient of two classes has.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import linalg, special

Array = np.ndarray
LARGE = 700.0  # exp of more overflows


class Terms(NamedTuple):
    """The terms of each row in the sums of its client: log p(y | eta) [..., n], with a dispersion of 1, its first
    derivatives by eta [..., n, q], and minus its second ones [..., n, q, q].
    """

    log_likelihood: Array
    score: Array
    weight: Array


class Family(NamedTuple):
    """A distribution of the outcome given the linear predictor eta.

    Fields:
      terms: (eta [..., n, q], outcome [n]) -> `Terms`.
      mean: eta -> the mean of the outcome, elementwise; of classes, differences from the first one [..., q] ->
        probabilities [..., C].
      start: (outcome [n], q) -> eta of the first step [n, q], near the outcome's own.
      requirement, is_valid: what all outcomes must be, for errors; outcome [n] -> whether each one is so [n].
      events: outcome -> the number of events, a sum over rows.
      limit: (rows, events) -> the number that limits how many coefficients can be estimated.
      ratio: the name of exp(coefficient); None where it has none.
      is_count: whether outcomes are counts with the variance of their mean, which `checks.misfit` tests.
    """

    name: str
    terms: Callable[[Array, Array], Terms]
    mean: Callable[[Array], Array]
    start: Callable[[Array, int], Array]
    requirement: str
    is_valid: Callable[[Array], Array]
    events: Callable[[Array], float]
    limit: Callable[[float, float], float]
    ratio: str | None
    is_count: bool = False


def _gaussian(eta: Array, outcome: Array) -> Terms:
    residual = outcome - eta
    return Terms(-0.5 * residual**2, residual, np.ones_like(eta))


def _bernoulli(eta: Array, outcome: Array) -> Terms:
    p = special.expit(eta)
    return Terms(outcome * eta - np.logaddexp(0.0, eta), outcome - p, p * special.expit(-eta))


def _poisson(eta: Array, outcome: Array) -> Terms:
    rate = np.exp(np.minimum(eta, LARGE))
    return Terms(outcome * eta - rate - special.gammaln(outcome + 1), outcome - rate, rate)


def _single(terms: Callable[[Array, Array], Terms]) -> Callable[[Array, Array], Terms]:
    """Return terms for one predictor [..., n, 1] by those for predictors [..., n]."""

    def of_one(eta: Array, outcome: Array) -> Terms:
        found = terms(eta[..., 0], outcome)
        return Terms(found.log_likelihood, found.score[..., np.newaxis], found.weight[..., np.newaxis, np.newaxis])

    return of_one


@functools.cache
def contrasts(predictors: int) -> Array:
    """Return B [C, q]: from the predictors of a row to the logits of its classes."""
    basis: Array = linalg.helmert(predictors + 1).T / -np.sqrt(2)
    return basis


def _multinomial(eta: Array, outcome: Array) -> Terms:
    basis = contrasts(eta.shape[-1])
    logits, chosen = eta @ basis.T, outcome.astype(np.int64)
    top = np.max(logits, -1, keepdims=True)
    p = np.exp(logits - top)
    total = np.sum(p, -1, keepdims=True)
    p, total = p / total, (top + np.log(total))[..., 0]
    mean = p @ basis
    weight = (p @ np.einsum("ca,cb->cab", basis, basis).reshape(len(basis), -1)).reshape(*mean.shape, -1)
    of_own = np.sum(eta * basis[chosen], -1)
    return Terms(of_own - total, basis[chosen] - mean, weight - mean[..., np.newaxis] * mean[..., np.newaxis, :])


def _probabilities(eta: Array) -> Array:
    found: Array = special.softmax(np.concatenate([np.zeros_like(eta[..., :1]), eta], -1), -1)
    return found


def _is_count(outcome: Array) -> Array:
    return (outcome >= 0) & (outcome == np.round(outcome))


FAMILIES = {
    "gaussian": Family(
        "gaussian",
        _single(_gaussian),
        mean=lambda eta: eta,
        start=lambda outcome, q: np.zeros((len(outcome), 1)),
        requirement="a finite number",
        is_valid=np.isfinite,
        events=len,
        limit=lambda count, events: count,
        ratio=None,
    ),
    "bernoulli": Family(
        "bernoulli",
        _single(_bernoulli),
        mean=special.expit,
        start=lambda outcome, q: special.logit((outcome[:, np.newaxis] + 0.5) / 2),
        requirement="0 or 1",
        is_valid=lambda outcome: (outcome == 0) | (outcome == 1),
        events=np.sum,
        limit=lambda count, events: min(events, count - events),
        ratio="odds ratio",
    ),
    "poisson": Family(
        "poisson",
        _single(_poisson),
        mean=lambda eta: np.exp(np.minimum(eta, LARGE)),
        start=lambda outcome, q: np.log(outcome[:, np.newaxis] + 0.1),
        requirement="a count: 0, 1, 2, ...",
        is_valid=_is_count,
        events=np.sum,
        limit=lambda count, events: events,
        ratio="rate ratio",
        is_count=True,
    ),
    "multinomial": Family(
        "multinomial",
        _multinomial,
        mean=_probabilities,
        start=lambda outcome, q: 2 * np.log(3) * contrasts(q)[outcome.astype(np.int64)],
        requirement="the number of a class: 0, 1, 2, ...",
        is_valid=_is_count,
        events=np.count_nonzero,  # Rows of other classes than the first one.
        limit=lambda count, events: min(events, count - events),
        ratio="odds ratio",
    ),
}
