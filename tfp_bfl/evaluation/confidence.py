"""Accuracy on the predictions of which a model is at least so sure; arguments as of `metrics`."""

from typing import NamedTuple

import tensorflow as tf

from tfp_bfl.errors import check_count
from tfp_bfl.evaluation.metrics import correct, of_classes


class ConfidenceCurve(NamedTuple):
    """Accuracy against the confidence that is asked for.

    Fields:
      threshold: [P], the confidences 0, 1/P, ..., (P - 1)/P.
      accuracy: [P], on the examples predicted with at least that confidence; NaN where there are none.
      kept: [P], the share of examples that are.
    """

    threshold: tf.Tensor
    accuracy: tf.Tensor
    kept: tf.Tensor


@of_classes
def confidence_curve(probabilities: tf.Tensor, labels: tf.Tensor, num_points: int = 20) -> ConfidenceCurve:
    """Return accuracy on the examples with a predicted class of at least a given probability.

        accuracy_i = mean of [argmax_c p_bc = y_b]   over the b with max_c p_bc >= i / P,    i = 0..P - 1

    A well calibrated model's curve lies above the diagonal: those predictions are at least i / P sure.

    Source: Lakshminarayanan et al. 2017 (arXiv:1612.01474), section 3.6.

    Args:
      num_points: P, the number of thresholds.

    Returns:
      A `ConfidenceCurve` of the dtype of the probabilities; its first accuracy is that of all examples.

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
