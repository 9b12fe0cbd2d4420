"""Abstention thresholds and the softmax temperature, from held-out examples on which nobody trained.

Probabilities and labels are those of `metrics`. An `uncertainty` [B] is in any unit, such as the entropy or the
epistemic part; larger is less sure.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, special, stats

from tfp_bfl.errors import InvalidArgument, check_number
from tfp_bfl.evaluation.metrics import of_classes
from tfp_bfl.evaluation.out_of_distribution import check_scores

_TINY = np.finfo(np.float32).tiny
_ROUNDING = 1e-12
_TRIES = 20
_LOG_TEMPERATURES = (-3.0, 3.0)
_PRIOR_SCALE = 0.1


class RiskCoverage(NamedTuple):
    """Thresholds, the distinct uncertainties, ascending [M]; coverage and error rate of the examples up to each [M]."""

    limit: np.ndarray
    coverage: np.ndarray
    risk: np.ndarray


class Limit(NamedTuple):
    """An uncertainty above which the model abstains, with coverage and accuracy on the held-out examples."""

    limit: float
    coverage: float
    accuracy: float


class Promise(NamedTuple):
    """The accuracy that a threshold promises for new examples, rounded down to thousandths, and the threshold."""

    at_least: float
    limit: Limit


class NoThreshold(InvalidArgument):
    """No abstention threshold has the requested accuracy; `promise` holds the highest that can be promised instead."""

    def __init__(self, message: str, promise: Promise):
        super().__init__(message)
        self.promise = promise


@of_classes
def risk_coverage(probabilities: Any, labels: Any, uncertainty: Any) -> RiskCoverage:
    """Return the risk-coverage curve of an uncertainty.

        coverage(t) = mean_b [u_b <= t],    risk(t) = sum_b [u_b <= t] [argmax_c p_bc != y_b] / sum_b [u_b <= t]

    Source: Geifman & El-Yaniv 2017 (arXiv:1705.08500).

    Example:
      >>> p, y = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]], np.float32), [0, 1, 1, 0]
      >>> curve = bfl.evaluation.risk_coverage(p, y, 1 - p.max(axis=1))
      >>> print(curve.coverage, curve.risk)
      [0.25 0.5  0.75 1.  ] [0.   0.   0.   0.25]
    """
    wrong = (probabilities.numpy().argmax(-1) != labels.numpy()).astype(np.int64)
    uncertainty = check_scores(uncertainty, "uncertainty")
    if len(uncertainty) != len(wrong):
        raise InvalidArgument(f"There are {len(uncertainty)} uncertainties, but {len(wrong)} labels.")
    order = np.argsort(uncertainty, kind="stable")
    ends = np.flatnonzero(np.diff(uncertainty[order], append=np.inf) > 0)
    kept = ends + 1
    return RiskCoverage(uncertainty[order][ends], kept / len(wrong), np.cumsum(wrong[order])[ends] / kept)


def area_under_risk_coverage(curve: RiskCoverage) -> float:
    """Return the mean risk over the coverages (AURC); an uncertainty that knows nothing has the model's error rate.

        sum_j risk_j (coverage_j - coverage_j-1)

    Source: Geifman, Uziel & El-Yaniv 2019 (arXiv:1805.08206). What shares an uncertainty counts together.

    Example:
      >>> p, y = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]], np.float32), [0, 1, 1, 0]
      >>> curve = bfl.evaluation.risk_coverage(p, y, 1 - p.max(axis=1))
      >>> round(bfl.evaluation.area_under_risk_coverage(curve), 3)
      0.062
    """
    return float(np.sum(curve.risk * np.diff(curve.coverage, prepend=0.0)))


def abstention_limit(
    probabilities: object,
    labels: object,
    uncertainty: object,
    *,
    accuracy: float | None = None,
    coverage: float | None = None,
    confidence: float = 0.9,
) -> Limit:
    """Return the largest limit with enough accuracy below it, or the smallest that keeps enough of them.

    For an accuracy a: with probability `confidence` over the held-out examples, the accuracy on new ones like them
    below the limit is at least a. One limit for each twentieth of the examples is tried, at the level
    delta = (1 - confidence) / 20; one with k mistakes among m kept passes if

        BetaInv(1 - delta; k + 1, m - k) <= 1 - a                   the Clopper-Pearson bound of the risk

    Sources: selective classification with guaranteed risk, Geifman & El-Yaniv 2017 (arXiv:1705.08500); their bisection
    stops where few are kept, so all are tried, as Angelopoulos et al. 2021 (arXiv:2110.01052) test limits.

    Args:
      accuracy: a, the accuracy on retained examples; or
      coverage: the share that is to be kept.
      confidence: of the accuracy. 0 asks for no more than that on the held-out examples themselves.

    Raises:
      NoThreshold: no threshold has that accuracy; the error holds the highest accuracy that can be promised.

    Example:
      >>> sure = np.random.default_rng(0).uniform(0.5, 1, 200)
      >>> labels = (np.random.default_rng(1).uniform(size=200) > sure).astype(int)
      >>> limit = bfl.evaluation.abstention_limit(np.stack([sure, 1 - sure], axis=1), labels, 1 - sure, coverage=0.5)
      >>> limit.coverage
      0.5
    """
    if (accuracy is None) == (coverage is None):
        raise InvalidArgument(
            "Give either the accuracy that accepted predictions must have, or the coverage, and not both."
        )
    check_share(confidence, "confidence", zero=True)
    curve = risk_coverage(probabilities, labels, uncertainty)
    if coverage is not None:
        check_share(coverage, "coverage", one=True)
        return _limit(curve, int(np.argmax(curve.coverage >= coverage - _ROUNDING)))
    assert accuracy is not None
    check_share(accuracy, "accuracy")
    number = len(check_scores(uncertainty, "uncertainty"))
    tried = [int(np.argmax(curve.coverage >= i / _TRIES - _ROUNDING)) for i in range(1, _TRIES + 1)]
    bounds = {j: _bound(curve, j, number, confidence) for j in (tried if confidence else range(len(curve.limit)))}
    best = max((j for j, risk in bounds.items() if risk <= 1 - accuracy), default=-1)
    if best < 0:
        safest = min(bounds, key=lambda j: (bounds[j], -j))
        promise = Promise(math.floor(1e3 * (1 - bounds[safest])) / 1e3, _limit(curve, safest))
        raise NoThreshold(
            f"No abstention threshold has accuracy {accuracy:g} with confidence {confidence:g}: these {number} "
            f"held-out examples support at most {promise.at_least:g}, at coverage {promise.limit.coverage:.0%}; lower "
            "the accuracy or the confidence, or hold out more examples.",
            promise,
        )
    return _limit(curve, best)


@of_classes
def fit_temperature(probabilities: Any, labels: Any) -> float:
    """Estimate the softmax temperature T by penalised likelihood, between e^-3 and e^3 (`at_temperature`).

        argmin_T  sum_b -log p_T(y_b) + |log T| / 0.1

    The penalty is a Laplace prior on log T, of mean 0 and scale 0.1: T stays 1 unless the examples say otherwise by
    more than their chance. Without it the likelihood of examples that are all predicted right has no maximum.

    Source: Guo et al. 2017 (arXiv:1706.04599), for probabilities that are means over weight samples.

    Example:
      >>> p, labels = np.tile(np.array([[0.99, 0.01]]), (100, 1)), np.repeat([0, 1], [80, 20])
      >>> round(bfl.evaluation.fit_temperature(p, labels), 1)
      2.6
    """
    true = labels.numpy()[:, np.newaxis]
    # In float64: the rounding of a float32 sum depends on the order of the rows, and moves the minimum.
    logs = np.log(np.maximum(probabilities.numpy().astype(np.float64), _TINY))

    def loss(log_t: float) -> float:
        logits = logs / math.exp(log_t)
        nll = special.logsumexp(logits, -1) - np.take_along_axis(logits, true, -1)[:, 0]
        return float(nll.sum()) + abs(log_t) / _PRIOR_SCALE

    least, most = _LOG_TEMPERATURES
    sides = [optimize.minimize_scalar(loss, bounds=side, method="bounded") for side in ((least, 0), (0, most))]
    # The penalty has a corner at 0, which the search of a side only comes near to.
    found = min([(loss(0.0), 0.0), *((float(side.fun), float(side.x)) for side in sides)])
    return math.exp(found[1])


def at_temperature(probabilities: object, temperature: float) -> np.ndarray:
    """Compute softmax(log p / T) over the last axis, float32; above 1 less sure, below 1 surer.

    Example:
      >>> print(np.round(bfl.evaluation.at_temperature(np.array([0.9, 0.1]), 2.0), 2))
      [0.75 0.25]
    """
    temperature = check_number(temperature, "temperature")
    logits = np.log(np.maximum(np.asarray(probabilities, np.float64), _TINY)) / temperature
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    found: np.ndarray = (powers / powers.sum(-1, keepdims=True)).astype(np.float32)
    return found


def _bound(curve: RiskCoverage, j: int, number: int, confidence: float) -> float:
    """Return an upper bound of the risk below the j-th limit."""
    if confidence == 0:
        return float(curve.risk[j])
    answered = round(curve.coverage[j] * number)
    mistakes = round(curve.risk[j] * answered)
    if mistakes == answered:
        return 1.0
    return float(stats.beta.ppf(1 - (1 - confidence) / _TRIES, mistakes + 1, answered - mistakes))


def _limit(curve: RiskCoverage, j: int) -> Limit:
    return Limit(float(curve.limit[j]), float(curve.coverage[j]), float(1 - curve.risk[j]))


def check_share(value: float, name: str, zero: bool = False, one: bool = False) -> None:
    """Raise InvalidArgument unless a value lies between 0 and 1, the ends included if `zero` or `one` says so."""
    inside = isinstance(value, (int, float)) and 0 <= value <= 1
    if not inside or (value == 0 and not zero) or (value == 1 and not one):
        least, most = ("at least 0" if zero else "above 0"), ("at most 1" if one else "below 1")
        raise InvalidArgument(f"{name} is {value}, but must be {least} and {most}.")
