"""What can be wrong with a client's contribution to a round."""

from __future__ import annotations

import tensorflow as tf

from tfp_bfl.models import ModelWeights

# A contribution's code is its place here; the first is none.
FAULTS = ("", "not finite", "variance zero or below", "weight not above zero")


def find_fault(weights: ModelWeights, weight: tf.Tensor) -> tf.Tensor:
    """The code of the first fault in a client's weights and aggregation weight: a scalar int32, 0 if there is none."""
    leaves = [tf.reshape(x, [-1]) for x in tf.nest.flatten(weights)]
    finite = tf.reduce_all(tf.math.is_finite(tf.concat(leaves, 0)))
    variances = [tf.reshape(v, [-1]) for v in tf.nest.flatten(weights.posterior.variance)]
    positive = tf.reduce_all(tf.concat(variances, 0) > 0) if variances else tf.constant(True)
    counts = tf.math.is_finite(weight) & (weight > 0)
    return tf.where(finite, tf.where(positive, tf.where(counts, 0, 3), 2), 1)


def is_sound(fault: tf.Tensor) -> tf.Tensor:
    """Whether a code says that there is no fault, elementwise."""
    # Not `fault == 0`: in the graphs that TFF traces, `==` compares tensors as Python objects.
    return tf.equal(fault, 0)
