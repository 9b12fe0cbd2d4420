"""The families of outcomes, each with its link.

A row has q linear predictors: one, but of C classes q = C - 1. With the probabilities p of the classes,

    p = softmax(B eta),   B [C, q] with columns orthogonal to each other and to 1,   B' B = I / 2

so that coefficients of all classes with one normal prior are eta with the prior N(0, s^2 I), in which the difference of
any two classes has the variance s^2, as the coefficient of two classes has.

Families with further parameters, which all rows share, count these among the predictors: x' b and offset are the first
one, and each further parameter is one that is the same in all rows. Their sums have the derivatives by all of them:

    negative_binomial: (eta, log theta),   Var(y) = mu + mu^2 / theta,   mu = exp(eta)
    ordinal:           (eta, zeta_1, ..., zeta_(K-1)),   log P(y <= k) / P(y > k) = zeta_k - eta
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import linalg, special

Array = np.ndarray
NEGATIVE_BINOMIAL, ORDINAL = "negative_binomial", "ordinal"
LARGE = 700.0  # exp of more overflows


class Terms(NamedTuple):
    """The terms of each row in the sums of its client: log p(y | eta) [..., n], with a dispersion of 1, its first
    derivatives by eta [..., n, q], minus its second ones [..., n, q, q], and their expectations, from which standard
    errors follow; None where they are the same, or have no form.
    """

    log_likelihood: Array
    score: Array
    weight: Array
    expected: Array | None = None


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
      pearson: (outcome, weight) -> the terms of the second sum of `Sums.pearson`; None without both sums.
      has_dispersion: whether the variance has a factor that is estimated beside the coefficients.
      is_canonical: whether the link is canonical, and no parameter is further: random effects, second order, one
        message, revisions and sites have no other families.
      further: names of classes -> names of the further parameters; None without them.
      first: (eta of `start`, outcome) -> the terms of the first step; None for `terms`.
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
    pearson: Callable[[Array, Array], Array] | None = None
    has_dispersion: bool = False
    is_canonical: bool = True
    further: Callable[[Sequence[str]], tuple[str, ...]] | None = None
    first: Callable[[Array, Array], Terms] | None = None


def _gaussian(eta: Array, outcome: Array) -> Terms:
    residual = outcome - eta
    return Terms(-0.5 * residual**2, residual, np.ones_like(eta))


def _bernoulli(eta: Array, outcome: Array) -> Terms:
    p = special.expit(eta)
    return Terms(outcome * eta - np.logaddexp(0.0, eta), outcome - p, p * special.expit(-eta))


def _exp(eta: Array) -> Array:
    found: Array = np.exp(np.minimum(eta, LARGE))
    return found


def _poisson(eta: Array, outcome: Array) -> Terms:
    rate = _exp(eta)
    return Terms(outcome * eta - rate - special.gammaln(outcome + 1), outcome - rate, rate)


def _gamma(eta: Array, outcome: Array) -> Terms:
    relative = outcome[:, np.newaxis] * _exp(-eta)
    weight = relative[..., np.newaxis]
    return Terms(-(eta + relative)[..., 0], relative - 1, weight, np.ones_like(weight))


def _first_gamma(eta: Array, outcome: Array) -> Terms:
    """Return terms of least squares with small weights of outcomes near 0, the logarithms of which are far away."""
    return Terms(np.zeros(len(outcome)), np.zeros_like(eta), outcome[:, np.newaxis, np.newaxis] ** 0.5)


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


def _negative_binomial(eta: Array, outcome: Array) -> Terms:
    log_theta = np.clip(eta[..., 1], -LARGE, LARGE)
    theta, s = np.exp(log_theta), eta[..., 0] - log_theta
    p, log_all, both = special.expit(s), np.logaddexp(0.0, s), outcome + theta
    change = theta * (special.digamma(both) - special.digamma(theta) - log_all)
    bend = theta**2 * (special.polygamma(1, theta) - special.polygamma(1, both))
    constant = special.gammaln(both) - special.gammaln(theta) - special.gammaln(outcome + 1)
    score = np.stack([outcome - both * p, change - outcome + both * p], -1)
    observed, mean = both * p * (1 - p), theta * p
    of_theta, across = bend - change - 2 * mean + observed, mean - observed
    weight = np.stack([observed, across, across, of_theta], -1).reshape(*score.shape, 2)
    expected = np.stack([mean, 0 * mean, 0 * mean, of_theta], -1).reshape(weight.shape)
    return Terms(constant + outcome * s - both * log_all, score, weight, expected)


def _first_negative_binomial(eta: Array, outcome: Array) -> Terms:
    """Return terms of least squares as `_first_gamma`, of which the first step leaves log theta at 0."""
    weight = np.zeros((*eta.shape, 2))
    weight[:, 0, 0], weight[:, 1, 1] = (outcome + 0.1) ** 0.5, 1.0
    return Terms(np.zeros(len(eta)), np.zeros_like(eta), weight)


def _ordinal(eta: Array, outcome: Array) -> Terms:
    """Compute the terms of log(F(a) - F(b)), with a and b the cutpoints above and below the outcome, minus eta.

    F(a) - F(b) = F(a) F(-b) (1 - exp(b - a)),   F: the logistic function
    """
    levels, chosen = eta.shape[-1], outcome.astype(np.int64)[:, np.newaxis]
    cuts = np.pad(eta[..., 1:], ((0, 0), (1, 1)), constant_values=((0, 0), (-np.inf, np.inf)))
    upper, lower = (np.take_along_axis(cuts, chosen + j, 1)[:, 0] for j in (1, 0))
    above, below = upper - eta[..., 0], lower - eta[..., 0]
    width = np.where(upper > lower, upper - lower, np.nan)  # Cutpoints out of order have no likelihood.
    within, bend = 1 / np.expm1(width), 0.25 / np.sinh(np.minimum(width, LARGE) / 2) ** 2
    log_likelihood = special.log_expit(above) + special.log_expit(-below) + np.log(-np.expm1(-width))
    change = np.column_stack([-np.ones(levels + 1), np.eye(levels + 1)[:, 1:-1]])
    of_above, of_below = change[chosen[:, 0] + 1], change[chosen[:, 0]]
    by_above, by_below = special.expit(-above) + within, -special.expit(below) - within
    score = by_above[:, np.newaxis] * of_above + by_below[:, np.newaxis] * of_below
    parts = [(special.expit(x) * special.expit(-x), of) for x, of in ((above, of_above), (below, of_below))]
    weight = sum(np.einsum("i,ia,ib->iab", w, of, of) for w, of in (*parts, (bend, of_above - of_below)))
    return Terms(log_likelihood, score, weight)


def _first_ordinal(eta: Array, outcome: Array) -> Terms:
    """Return terms of least squares, of 3 for y <= k and else -3 by zeta_k - x' b: their cutpoints are in order."""
    levels = eta.shape[-1]
    change = np.column_stack([-np.ones(levels - 1), np.eye(levels - 1)])
    sides = np.where(outcome[:, np.newaxis] <= np.arange(levels - 1), 3.0, -3.0)
    return Terms(np.zeros(len(eta)), sides @ change, np.broadcast_to(change.T @ change, (*eta.shape, levels)))


def _between_cuts(eta: Array) -> Array:
    """Return the probabilities of classes [..., K] from logits of y <= k [..., K - 1]."""
    found: Array = np.diff(special.expit(eta), axis=-1, prepend=0.0, append=1.0)
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
        has_dispersion=True,
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
        mean=_exp,
        start=lambda outcome, q: np.log(outcome[:, np.newaxis] + 0.1),
        requirement="a count: 0, 1, 2, ...",
        is_valid=_is_count,
        events=np.sum,
        limit=lambda count, events: events,
        ratio="rate ratio",
        pearson=lambda outcome, weight: 1 / weight,
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
    "gamma": Family(
        "gamma",
        _gamma,
        mean=_exp,
        start=lambda outcome, q: np.log(outcome[:, np.newaxis]),
        requirement="a number above 0",
        is_valid=lambda outcome: outcome > 0,
        events=len,
        limit=lambda count, events: count,
        ratio="ratio of means",
        first=_first_gamma,
        pearson=lambda outcome, weight: np.log(outcome),
        has_dispersion=True,
        is_canonical=False,
    ),
    NEGATIVE_BINOMIAL: Family(
        NEGATIVE_BINOMIAL,
        _negative_binomial,
        mean=_exp,
        start=lambda outcome, q: np.column_stack([np.log(outcome + 0.1), np.zeros(len(outcome))]),
        requirement="a count: 0, 1, 2, ...",
        is_valid=_is_count,
        events=np.sum,
        limit=lambda count, events: events,
        ratio="rate ratio",
        is_canonical=False,
        further=lambda classes: ("log(theta)",),
        first=_first_negative_binomial,
    ),
    ORDINAL: Family(
        ORDINAL,
        _ordinal,
        mean=_between_cuts,
        start=lambda outcome, q: np.zeros((len(outcome), q)),
        requirement="the number of a level: 0, 1, 2, ...",
        is_valid=_is_count,
        events=np.count_nonzero,  # Rows above the first level.
        limit=lambda count, events: min(events, count - events),
        ratio="odds ratio",
        is_canonical=False,
        further=lambda classes: tuple(f"{low}|{high}" for low, high in itertools.pairwise(classes)),
        first=_first_ordinal,
    ),
}
CANONICAL = {name: family for name, family in FAMILIES.items() if family.is_canonical}
DISPERSED = tuple(name for name, family in FAMILIES.items() if family.has_dispersion)
