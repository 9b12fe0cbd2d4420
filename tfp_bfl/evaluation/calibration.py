"""Calibration, of the most probable class or of all: is a model that says 80 % right in 80 % of the cases?

Probabilities, labels and errors are those of `metrics`. `num_bins` is M, the number of bins; bins of equal width are
(m/M, (m + 1)/M], and the first one also holds 0. `over` is "top_label", the predicted class, or "classes", all of them.
Errors lie in [0, 1].
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.errors import check_count, lookup
from tfp_bfl.evaluation.metrics import correct, of_classes

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
