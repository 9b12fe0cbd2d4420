"""Accuracy on the examples that a model is surest about, abstention thresholds, and the softmax temperature.

Probabilities and labels are those of `metrics`. An `uncertainty` [B] is in any unit, such as the entropy or the
epistemic part; larger is less sure. Thresholds and temperature are from held-out examples on which nobody trained.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from scipy import optimize, special, stats

from tfp_bfl.errors import SOFTMAX_TEMPERATURES, InvalidArgument, check_count, check_number, check_share
from tfp_bfl.evaluation.metrics import check_batch, correct, of_classes, to_tensor
from tfp_bfl.evaluation.unusual import check_scores

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

    Either a or the coverage is given. A confidence of 0 asks for no more than the accuracy on the held-out examples
    themselves. `NoThreshold` holds the highest accuracy that can be promised where no threshold has a.

    Sources: selective classification with guaranteed risk, Geifman & El-Yaniv 2017 (arXiv:1705.08500); their bisection
    stops where few are kept, so all are tried, as Angelopoulos et al. 2021 (arXiv:2110.01052) test limits.

    Example:
      >>> sure = np.random.default_rng(0).uniform(0.5, 1, 200)
      >>> labels = (np.random.default_rng(1).uniform(size=200) > sure).astype(int)
      >>> limit = bfl.evaluation.abstention_limit(np.stack([sure, 1 - sure], axis=1), labels, 1 - sure, coverage=0.5)
      >>> limit.coverage
      0.5
    """
    if (accuracy is None) == (coverage is None):
        raise InvalidArgument("Give either the accuracy of accepted predictions, or the coverage, and not both.")
    check_share(confidence, "confidence", zero=True)
    curve = risk_coverage(probabilities, labels, uncertainty)
    if coverage is not None:
        check_share(coverage, "coverage", one=True)
        return _limit(curve, int(np.argmax(curve.coverage >= coverage - _ROUNDING)))
    assert accuracy is not None
    check_share(accuracy, "accuracy")
    number = len(check_scores(uncertainty, "uncertainty"))
    tried = [int(np.argmax(curve.coverage >= i / _TRIES - _ROUNDING)) for i in range(1, _TRIES + 1)]

    def bound(j: int) -> float:
        """Return an upper bound of the risk below the j-th limit."""
        answered = round(curve.coverage[j] * number)
        mistakes = round(curve.risk[j] * answered)
        if confidence == 0 or mistakes == answered:
            return float(curve.risk[j])
        return float(stats.beta.ppf(1 - (1 - confidence) / _TRIES, mistakes + 1, answered - mistakes))

    bounds = {j: bound(j) for j in (tried if confidence else range(len(curve.limit)))}
    best = max((j for j, risk in bounds.items() if risk <= 1 - accuracy), default=-1)
    if best < 0:
        safest = min(bounds, key=lambda j: (bounds[j], -j))
        promise = Promise(math.floor(1e3 * (1 - bounds[safest])) / 1e3, _limit(curve, safest))
        what = f"No abstention threshold has accuracy {accuracy:g} with confidence {confidence:g}"
        most = f"support at most {promise.at_least:g}, at coverage {promise.limit.coverage:.0%}"
        advice = "lower the accuracy or the confidence, or hold out more examples"
        raise NoThreshold(f"{what}: these {number} held-out examples {most}; {advice}.", promise)
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
    temperature = check_number(temperature, "temperature", within=SOFTMAX_TEMPERATURES)
    logits = np.log(np.maximum(np.asarray(probabilities, np.float64), _TINY)) / temperature
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return (powers / powers.sum(-1, keepdims=True)).astype(np.float32)


def _limit(curve: RiskCoverage, j: int) -> Limit:
    return Limit(float(curve.limit[j]), float(curve.coverage[j]), float(1 - curve.risk[j]))


class RetentionCurve(NamedTuple):
    """The fractions 1/P, 2/P, ..., 1 that are retained [P], and the accuracy on each [P], of least uncertainty."""

    retained: tf.Tensor
    accuracy: tf.Tensor


@of_classes
def retention_curve(
    probabilities: tf.Tensor, labels: tf.Tensor, uncertainty: Any, num_points: int = 20
) -> RetentionCurve:
    """Compute accuracy on the examples with the least uncertainty [B], for fractions 1/P to 1 of them.

        accuracy_i = E[ sum_b keep_ib [argmax_c p_bc = y_b] ] / (i B / P),    i = 1..P

    keep_i takes the i B / P examples of least uncertainty. The expectation is over the orders of examples
    with equal uncertainty, so the curve doesn't depend on the order of the input: an uncertainty that is the
    same everywhere gives a level line at the accuracy. Where i B / P is no whole number, the last example
    counts in proportion.

    Source: accuracy-rejection curves, Nadeem et al. 2009 (PMLR 8); with Bayesian uncertainties, Filos et al.
    2019 (arXiv:1912.10481).

    Example:
      >>> p, y = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]], np.float32), [0, 1, 1, 0]
      >>> curve = bfl.evaluation.retention_curve(p, y, 1 - p.max(axis=1), num_points=8)
      >>> print(np.round(curve.accuracy, 2))
      [1.   1.   1.   1.   1.   1.   0.86 0.75]
    """
    num_points = check_count(num_points, "num_points")
    tensor, dtype = to_tensor(uncertainty, "uncertainty values"), probabilities.dtype
    if not (tensor.dtype.is_floating or tensor.dtype.is_integer):
        raise InvalidArgument(f"The uncertainty values must be numbers, not {tensor.dtype.name}.")
    check_batch(tensor, probabilities, "uncertainty values")
    values = tf.get_static_value(tensor)
    if values is not None and not np.all(np.isfinite(values)):
        raise InvalidArgument("The uncertainty values must be finite, but they hold NaN or infinity.")
    uncertainty = tf.cast(tensor, tf.float64)
    order = tf.argsort(uncertainty)
    hits = tf.gather(tf.cast(correct(probabilities, labels), tf.float64), order)
    # Examples of equal uncertainty form one block, in which every example counts with the block's accuracy.
    _, blocks, sizes = tf.unique_with_counts(tf.gather(uncertainty, order))
    block_size = tf.cast(sizes, tf.float64)
    block_hits = tf.math.segment_sum(hits, blocks)
    block_end = tf.cumsum(block_size)
    hits_before = tf.cumsum(block_hits, exclusive=True)

    retained = tf.range(1, num_points + 1, dtype=tf.float64) / num_points
    number = retained * tf.reduce_sum(block_size)
    block = tf.minimum(tf.searchsorted(block_end, number), tf.size(block_end) - 1)
    inside = (number - tf.gather(block_end - block_size, block)) / tf.gather(block_size, block)
    accuracy = (tf.gather(hits_before, block) + inside * tf.gather(block_hits, block)) / number
    return RetentionCurve(tf.cast(retained, dtype), tf.cast(tf.clip_by_value(accuracy, 0.0, 1.0), dtype))


def area_under_retention_curve(curve: RetentionCurve) -> tf.Tensor:
    """Compute sum_i accuracy_i (retained_i - retained_i-1), the mean height of a retention curve over the fractions.

    An uncertainty that knows nothing about the mistakes has the model's accuracy as its area (in
    expectation); a larger area is better. Compare areas only of curves with the same number of points.

    Example:
      >>> p, y = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]], np.float32), [0, 1, 1, 0]
      >>> curve = bfl.evaluation.retention_curve(p, y, 1 - p.max(axis=1))
      >>> round(float(bfl.evaluation.area_under_retention_curve(curve)), 3)
      0.96
    """
    retained = to_tensor(curve.retained, "curve's shares")
    accuracy = to_tensor(curve.accuracy, "curve's accuracies")
    if retained.shape.rank != 1 or not retained.shape.is_compatible_with(accuracy.shape) or 0 in retained.shape:
        raise InvalidArgument(f"A curve holds two tensors of one shape [P], not {retained.shape} and {accuracy.shape}.")
    widths = retained - tf.concat([tf.zeros_like(retained[:1]), retained[:-1]], axis=0)
    return tf.reduce_sum(widths * accuracy)


class ConfidenceCurve(NamedTuple):
    """Confidences 0, 1/P, ..., (P - 1)/P [P]; accuracy of predictions at least so sure (NaN of none); their share."""

    threshold: tf.Tensor
    accuracy: tf.Tensor
    kept: tf.Tensor


@of_classes
def confidence_curve(probabilities: tf.Tensor, labels: tf.Tensor, num_points: int = 20) -> ConfidenceCurve:
    """Compute accuracy on the examples with a predicted class of at least a given probability.

        accuracy_i = mean of [argmax_c p_bc = y_b]   over the b with max_c p_bc >= i / P,    i = 0..P - 1

    A well calibrated model's curve lies above the diagonal: those predictions are at least i / P sure.

    Source: Lakshminarayanan et al. 2017 (arXiv:1612.01474), section 3.6.

    Example:
      >>> p, y = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]], np.float32), [0, 1, 1, 0]
      >>> curve = bfl.evaluation.confidence_curve(p, y, num_points=3)
      >>> print(np.round(curve.accuracy, 2))
      [0.75 0.75 1.  ]
    """
    num_points = check_count(num_points, "num_points")
    dtype = probabilities.dtype
    # Rounded to the dtype of the probabilities, so that a confidence of 0.3 reaches the threshold 3/10.
    threshold = tf.cast(tf.range(num_points, dtype=tf.float64) / num_points, dtype)
    reached = tf.searchsorted(threshold, tf.reduce_max(probabilities, axis=-1), side="right") - 1
    hits = tf.cast(correct(probabilities, labels), tf.float64)
    from_there_on = lambda values: tf.cumsum(tf.math.unsorted_segment_sum(values, reached, num_points), reverse=True)
    count = from_there_on(tf.ones_like(hits))
    return ConfidenceCurve(threshold, tf.cast(from_there_on(hits) / count, dtype), tf.cast(count / count[0], dtype))
