"""The families of outcomes, each with its canonical link."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special

Array = np.ndarray
LARGE = 700.0  # exp of more overflows


class Terms(NamedTuple):
    """The terms of each row in the sums of its client [n]: log p(y | eta), with a dispersion of 1, its first derivative
    by eta, and minus its second one.
    """

    log_likelihood: Array
    score: Array
    weight: Array


class Family(NamedTuple):
    """A distribution of the outcome given the linear predictor eta.

    Fields:
      terms: (eta [n], outcome [n]) -> `Terms`.
      mean: eta -> the mean of the outcome.
      start: outcome -> eta of the first step, near the outcome's own.
      requirement, is_valid: what all outcomes must be, for errors; outcome [n] -> whether each one is so [n].
      events: outcome -> the number of events, a sum over rows.
      limit: (rows, events) -> the number that limits how many coefficients can be estimated.
      ratio: the name of exp(coefficient); None where it has none.
      is_count: whether outcomes are counts with the variance of their mean, which `checks.misfit` tests.
    """

    name: str
    terms: Callable[[Array, Array], Terms]
    mean: Callable[[Array], Array]
    start: Callable[[Array], Array]
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


def _is_count(outcome: Array) -> Array:
    return (outcome >= 0) & (outcome == np.round(outcome))


FAMILIES = {
    "gaussian": Family(
        "gaussian",
        _gaussian,
        mean=lambda eta: eta,
        start=np.zeros_like,
        requirement="a finite number",
        is_valid=np.isfinite,
        events=len,
        limit=lambda count, events: count,
        ratio=None,
    ),
    "bernoulli": Family(
        "bernoulli",
        _bernoulli,
        mean=special.expit,
        start=lambda outcome: special.logit((outcome + 0.5) / 2),
        requirement="0 or 1",
        is_valid=lambda outcome: (outcome == 0) | (outcome == 1),
        events=np.sum,
        limit=lambda count, events: min(events, count - events),
        ratio="odds ratio",
    ),
    "poisson": Family(
        "poisson",
        _poisson,
        mean=lambda eta: np.exp(np.minimum(eta, LARGE)),
        start=lambda outcome: np.log(outcome + 0.1),
        requirement="a count: 0, 1, 2, ...",
        is_valid=_is_count,
        events=np.sum,
        limit=lambda count, events: events,
        ratio="rate ratio",
        is_count=True,
    ),
}
