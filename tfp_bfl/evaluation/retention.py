"""Accuracy on the examples that a model is surest about, by an uncertainty or by confidence; arguments of `metrics`."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.errors import InvalidArgument, check_count
from tfp_bfl.evaluation.metrics import (
    check_batch,
    correct,
    of_classes,
    to_tensor,
)


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
    uncertainty = _check_uncertainty(uncertainty, probabilities)
    dtype = probabilities.dtype

    order = tf.argsort(uncertainty)
    hits = tf.gather(tf.cast(correct(probabilities, labels), tf.float64), order)
    # Examples of equal uncertainty form one block, in which every example counts with the block's accuracy.
    ordered = tf.gather(uncertainty, order)
    starts = tf.concat([[0], tf.cast(ordered[1:] > ordered[:-1], tf.int32)], axis=0)
    blocks = tf.cumsum(starts)
    block_size = tf.math.segment_sum(tf.ones_like(hits), blocks)
    block_hits = tf.math.segment_sum(hits, blocks)
    block_end = tf.cumsum(block_size)
    hits_before = tf.cumsum(block_hits, exclusive=True)

    retained = tf.range(1, num_points + 1, dtype=tf.float64) / num_points
    number = retained * tf.reduce_sum(block_size)
    block = tf.minimum(tf.searchsorted(block_end, number), tf.size(block_end) - 1)
    inside = (number - tf.gather(block_end - block_size, block)) / tf.gather(block_size, block)
    accuracy = (tf.gather(hits_before, block) + inside * tf.gather(block_hits, block)) / number
    return RetentionCurve(tf.cast(retained, dtype), tf.cast(tf.clip_by_value(accuracy, 0.0, 1.0), dtype))


def _check_uncertainty(uncertainty: object, probabilities: tf.Tensor) -> tf.Tensor:
    tensor = to_tensor(uncertainty, "uncertainty values")
    if not (tensor.dtype.is_floating or tensor.dtype.is_integer):
        raise InvalidArgument(f"The uncertainty values must be numbers, not {tensor.dtype.name}.")
    check_batch(tensor, probabilities, "uncertainty values")
    values = tf.get_static_value(tensor)
    if values is not None and not np.all(np.isfinite(values)):
        raise InvalidArgument("The uncertainty values must be finite, but they hold NaN or infinity.")
    return tf.cast(tensor, tf.float64)


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
        raise InvalidArgument(
            f"The curve must hold two tensors of one shape [P], not {retained.shape} and {accuracy.shape}."
        )
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
