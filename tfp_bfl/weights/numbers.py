"""Outputs that are a Gaussian: what a model says of a number."""

from __future__ import annotations

import tensorflow as tf

# Far from what standardised labels have.
MOST_LOG_VARIANCE = 14.0


def mean_and_log_variance(outputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the mean [...] and the log variance [...], within +-MOST_LOG_VARIANCE, of a model's two
    outputs [..., 2].
    """
    return outputs[..., 0], tf.clip_by_value(outputs[..., 1], -MOST_LOG_VARIANCE, MOST_LOG_VARIANCE)
