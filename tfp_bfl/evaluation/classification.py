"""Scores of each class, the confusion matrix, the area under the ROC curve, and calibration; arguments as of `metrics`.

Calibration is of the most probable class or of all: is a model that says 80 % right in 80 % of the cases? `num_bins` is
M, the number of bins; bins of equal width are (m/M, (m + 1)/M], and the first one also holds 0. `over` is "top_label",
the predicted class, or "classes", all of them. Errors lie in [0, 1].
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from scipy import stats

from tfp_bfl.errors import InvalidArgument, check_count, check_share, lookup
from tfp_bfl.evaluation.metrics import correct, of_classes

# Interval of a proportion -> its name in SciPy.
INTERVALS = {"wilson": "wilson", "clopper_pearson": "exact"}


class Proportion(NamedTuple):
    """A fraction of examples, and the ends of its confidence interval."""

    value: float
    low: float
    high: float


class ClassScores(NamedTuple):
    """The scores of the C classes.

    Fields:
      confusion: [C, C], numbers of examples: a row for each label, a column for each predicted class.
      recall: [C], NaN for a class without examples.
      precision: [C], 0 for a class that is never predicted.
      balanced_accuracy: the mean recall of the classes with examples (`macro_recall`).
      auroc: as `auroc` returns it.
      sensitivity: recall of class 1, the positive class, with its interval; None unless there are two classes and
        examples of class 1.
      specificity: recall of class 0, likewise.
    """

    confusion: np.ndarray
    recall: np.ndarray
    precision: np.ndarray
    balanced_accuracy: float
    auroc: float | None
    sensitivity: Proportion | None
    specificity: Proportion | None


@of_classes
def confusion_matrix(probabilities: tf.Tensor, labels: tf.Tensor) -> np.ndarray:
    """Count the examples: int64 [C, C], a row for each label, a column for each predicted class.

    Example:
      >>> probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]], np.float32)
      >>> bfl.evaluation.confusion_matrix(probabilities, np.array([0, 1, 1, 0]))
      array([[2, 0],
             [1, 1]])
    """
    true, classes = labels.numpy(), probabilities.shape[1]
    places = true * classes + probabilities.numpy().argmax(-1)
    return np.bincount(places, minlength=classes**2).reshape(classes, classes)


@of_classes
def auroc(probabilities: tf.Tensor, labels: tf.Tensor) -> float | None:
    """Compute the area under the ROC curve: of class 1 for two classes, else the mean over classes against the rest.

        auroc_c = P(p_c of an example of class c > p_c of another) + P(equal) / 2,    auroc = mean_c auroc_c

    over the classes with examples of them and of others (macro average, one versus rest); None if all are of one class.
    Source: Hanley & McNeil 1982.

    Example:
      >>> probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]], np.float32)
      >>> bfl.evaluation.auroc(probabilities, np.array([0, 1, 1, 0]))
      1.0
    """
    true, values = labels.numpy(), probabilities.numpy()
    if values.shape[1] == 2:  # Both classes have the same area, but for the rounding of 1 - p.
        values, true = values[:, 1:], 1 - true
    areas = []
    for c in range(values.shape[1]):  # By the Mann-Whitney statistic.
        positive = true == c
        if 0 < (number := int(positive.sum())) < len(positive):
            above = stats.rankdata(values[:, c])[positive].sum() - number * (number + 1) / 2
            areas.append(above / (number * (len(positive) - number)))
    return float(np.mean(areas)) if areas else None


def proportion_interval(
    count: int, number: int, confidence: float = 0.95, interval: str = "wilson"
) -> tuple[float, float]:
    """Compute the ends of a confidence interval of `count` successes in `number` trials.

    `interval` is "wilson", close to the stated confidence on average, or "clopper_pearson", at least the stated one.
    Sources: Wilson 1927; Clopper & Pearson 1934; computed by SciPy.

    Example:
      >>> print(np.round(bfl.evaluation.proportion_interval(45, 50), 3))
      [0.786 0.957]
    """
    check_count(number, "number")
    check_share(confidence, "confidence")
    method = lookup(INTERVALS, interval, "interval")
    if not 0 <= count <= number:
        raise InvalidArgument(f"count is {count}, but must be from 0 to number, {number}.")
    found = stats.binomtest(int(count), int(number)).proportion_ci(confidence, method)
    return float(found.low), float(found.high)


def different_proportions(counts: Mapping[str, tuple[float, float]], error_rate: float = 0.05) -> dict[str, float]:
    """Compute the p-value of each group for a proportion that differs from that of all others together.

        p = min(1, 2 K min(P(X <= k), P(X >= k))),    X ~ hypergeometric(all trials, all successes, n)

    (Fisher's exact test, two-sided, and Bonferroni's bound over K groups; two groups are one comparison, K = 1.) While
    the smallest p is at most `error_rate`, that group (of equal ones the one with the lower proportion) is left out of
    the further comparisons. If all groups have one probability, any p is at most `error_rate` with a probability of at
    most `error_rate`.
    `counts` are group -> number of successes, and of trials; a group without trials has no p-value.

    Source: Fisher 1935; the bound over groups is Bonferroni's, of which each later step keeps the level.

    Example:
      >>> p_values = bfl.evaluation.different_proportions({"north": (6, 36), "south": (8, 36), "west": (30, 36)})
      >>> {group: float(f"{p:.1g}") for group, p in p_values.items()}
      {'west': 9e-10, 'north': 1.0, 'south': 1.0}
    """
    names = [group for group, (_, number) in counts.items() if number]
    successes, trials = (np.rint([counts[group][i] for group in names]) for i in (0, 1))
    comparisons = len(names) if len(names) > 2 else 1
    rest, found, least = np.arange(len(names)), dict[str, float](), 0.0
    while len(rest) > 1:
        own, number = successes[rest], trials[rest]
        law = stats.hypergeom(number.sum(), own.sum(), number)
        p_values = np.minimum(1.0, 2 * comparisons * np.minimum(law.cdf(own), law.sf(own - 1)))
        # Tails of two groups, or of equal ones, differ by rounding alone.
        first = np.lexsort((own / number, np.round(np.log(np.maximum(p_values, 1e-300)), 6)))[0]
        if p_values[first] > error_rate:
            return found | {names[k]: float(p) for k, p in zip(rest, p_values)}
        least = max(least, float(p_values[first]))
        found[names[rest[first]]] = least
        rest = np.delete(rest, first)
    return found | {names[k]: 1.0 for k in rest}


def class_scores(
    probabilities: object, labels: object, confidence: float = 0.95, interval: str = "wilson"
) -> ClassScores:
    """Compute `ClassScores`; `confidence` and `interval` as of `proportion_interval`.

    Example:
      >>> probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]], np.float32)
      >>> scores = bfl.evaluation.class_scores(probabilities, np.array([0, 1, 1, 0]))
      >>> print(scores.recall, [round(x, 3) for x in scores.sensitivity])
      [1.  0.5] [0.5, 0.095, 0.905]
    """
    counts = confusion_matrix(probabilities, labels)
    right, examples, predicted = np.diagonal(counts), counts.sum(1), counts.sum(0)
    recall = np.where(examples > 0, right / np.maximum(examples, 1), np.nan)
    recalls: list[Proportion | None] = [None, None]
    if len(counts) == 2:
        for c in np.flatnonzero(examples):
            ends = proportion_interval(int(right[c]), int(examples[c]), confidence, interval)
            recalls[c] = Proportion(float(recall[c]), *ends)
    precision, balanced = right / np.maximum(predicted, 1), float(np.nanmean(recall))
    return ClassScores(counts, recall, precision, balanced, auroc(probabilities, labels), recalls[1], recalls[0])


# What calibration is over.
_OVER = {"top_label": "the most probable class of each example", "classes": "all classes, C an example"}


class Reliability(NamedTuple):
    """Confidence and accuracy in M bins of equal width; over classes, predictions are the probabilities of all.

    Fields:
      confidence: [M], mean probability of the predictions in each bin; NaN in an empty bin.
      accuracy: [M], fraction of them that are the label; NaN in an empty bin.
      count: [M], number of predictions in each bin, int64.
      edges: [M + 1], from 0 to 1.
    """

    confidence: tf.Tensor
    accuracy: tf.Tensor
    count: tf.Tensor
    edges: tf.Tensor


@of_classes
def reliability(
    probabilities: tf.Tensor, labels: tf.Tensor, num_bins: int = 15, over: str = "top_label"
) -> Reliability:
    """Compute mean confidence and accuracy, binned by confidence.

        confidence_m = mean of max_c p_bc,   accuracy_m = mean of [argmax_c p_bc = y_b]   over the b in bin m
        over classes:  confidence_m = mean of p_bc,   accuracy_m = mean of [c = y_b]      over the (b, c) in bin m

    Source: Guo et al. 2017 (arXiv:1706.04599), section 2.

    Example:
      >>> p, y = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]], np.float32), [0, 1, 1, 0]
      >>> bins = bfl.evaluation.reliability(p, y, num_bins=5)
      >>> print(np.array(bins.count), np.round(bins.accuracy, 2))
      [0 0 1 2 1] [nan nan  0.  1.  1.]
    """
    lookup(_OVER, over, "calibration over")
    return _reliability(probabilities, labels, check_count(num_bins, "num_bins"), over)


# Traced, since single operations are slow for a client with few examples.
@tf.function(autograph=False, reduce_retracing=True)
def _reliability(probabilities: tf.Tensor, labels: tf.Tensor, num_bins: int, over: str) -> Reliability:
    dtype = probabilities.dtype
    # Rounded to the dtype of the probabilities, so that a confidence of 0.3 equals the edge 3/10.
    edges = tf.cast(tf.range(num_bins + 1, dtype=tf.float64) / num_bins, dtype)
    if over == "classes":
        confidence = tf.reshape(probabilities, [-1])
        right = tf.reshape(tf.one_hot(labels, tf.shape(probabilities)[-1], dtype=tf.float64), [-1])
    else:
        confidence, right = tf.reduce_max(probabilities, axis=-1), correct(probabilities, labels)
    bins = tf.searchsorted(edges[1:-1], confidence, side="left")
    count = tf.math.bincount(bins, minlength=num_bins, maxlength=num_bins, dtype=tf.int64)
    # Sums in float64: in float32 the mean over a large bin would drift.
    sums = (tf.math.unsorted_segment_sum(tf.cast(x, tf.float64), bins, num_bins) for x in (confidence, right))
    mean_confidence, accuracy = (tf.cast(x / tf.cast(count, tf.float64), dtype) for x in sums)
    return Reliability(mean_confidence, accuracy, count, edges)


def _gaps(bins: Reliability) -> tf.Tensor:
    """Return [M], the absolute gap between accuracy and confidence, zero in empty bins."""
    gaps = tf.abs(bins.accuracy - bins.confidence)
    return tf.where(bins.count > 0, gaps, tf.zeros_like(gaps))


def expected_calibration_error(
    probabilities: object, labels: object, num_bins: int = 15, over: str = "top_label"
) -> tf.Tensor:
    """Compute ece = sum_m count_m / sum count * abs(accuracy_m - confidence_m) (`reliability`).

    The estimate is biased upwards where bins hold few examples. Over classes most probabilities are small and right, so
    that it is small too: compare it with others of as many classes. Source: Naeini et al. 2015; Guo et al. 2017
    (arXiv:1706.04599), equation 3; over classes as Jeon et al. 2023 (arXiv:2510.20225), but their ten bins leave out 1.

    Example:
      >>> p, y = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]], np.float32), [0, 1, 1, 0]
      >>> round(float(bfl.evaluation.expected_calibration_error(p, y)), 3)
      0.3
    """
    bins = reliability(probabilities, labels, num_bins, over)
    share = tf.cast(bins.count / tf.reduce_sum(bins.count), bins.accuracy.dtype)
    return tf.reduce_sum(share * _gaps(bins))


def maximum_calibration_error(
    probabilities: object, labels: object, num_bins: int = 15, over: str = "top_label"
) -> tf.Tensor:
    """Compute mce = max_m abs(accuracy_m - confidence_m) over the bins with examples (`reliability`).

    One example in a bin is enough to set it: read it beside the counts. Source: as of `expected_calibration_error`,
    equation 5.

    Example:
      >>> p, y = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]], np.float32), [0, 1, 1, 0]
      >>> round(float(bfl.evaluation.maximum_calibration_error(p, y)), 3)
      0.6
    """
    return tf.reduce_max(_gaps(reliability(probabilities, labels, num_bins, over)))


@of_classes
def adaptive_calibration_error(probabilities: tf.Tensor, labels: tf.Tensor, num_bins: int = 15) -> float:
    """Compute the expected calibration error of the predicted class in M bins of equally many examples, up to one.

        ace = sum_m count_m / B * |accuracy_m - confidence_m|

    Examples of equal confidence stay together, in the bin that holds the middle one of them, so that the value does not
    depend on the order of the examples.

    Source: Nguyen & O'Connor 2015 (arXiv:1508.05154), section 4.1; Nixon et al. 2019 (arXiv:1904.01685).

    Example:
      >>> p, y = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]], np.float32), [0, 1, 1, 0]
      >>> round(bfl.evaluation.adaptive_calibration_error(p, y, num_bins=2), 3)
      0.15
    """
    right = correct(probabilities, labels).numpy()
    return _error(probabilities.numpy().max(-1), right, check_count(num_bins, "num_bins"), equal_mass=True)


@of_classes
def classwise_calibration_error(
    probabilities: tf.Tensor, labels: tf.Tensor, num_bins: int = 15, equal_mass: bool = False
) -> float:
    """Compute the mean over classes of the calibration error of the probability of each class.

        cwce = 1/C sum_c sum_m count_cm / B * |frequency_cm - confidence_cm|

    frequency_cm is the fraction of the label c among the examples with p_bc in bin m, confidence_cm their mean p_bc.
    The bins have equal width, or with `equal_mass` equally many examples (`adaptive_calibration_error`).

    Source: Kull et al. 2019 (arXiv:1910.12656), section 2; Nixon et al. 2019 (arXiv:1904.01685).

    Example:
      >>> p, y = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]], np.float32), [0, 1, 1, 0]
      >>> round(bfl.evaluation.classwise_calibration_error(p, y, num_bins=5), 3)
      0.225
    """
    true, values = labels.numpy(), probabilities.numpy().astype(np.float64)
    number = check_count(num_bins, "num_bins")
    return float(np.mean([_error(values[:, c], true == c, number, equal_mass) for c in range(values.shape[1])]))


def _error(confidence: np.ndarray, hits: np.ndarray, num_bins: int, equal_mass: bool) -> float:
    if equal_mass:
        _, places, counts = np.unique(confidence, return_inverse=True, return_counts=True)
        # The bins of `np.array_split`; a value belongs to the bin with the middle of its examples.
        size, longer = divmod(len(confidence), num_bins)
        ends = np.cumsum(size + (np.arange(num_bins) < longer))
        middles = np.cumsum(counts) - (counts + 1) / 2
        bins = np.searchsorted(ends, middles, side="right")[places.ravel()]
    else:  # In float32, so that a confidence of 0.3 equals the edge 3/10.
        bins = np.searchsorted((np.arange(1, num_bins) / num_bins).astype(np.float32), confidence.astype(np.float32))
    return float(np.abs(np.bincount(bins, hits - confidence.astype(np.float64))).sum() / len(confidence))
