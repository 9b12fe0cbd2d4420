"""The messages of an exact head: sums over examples, of features below a frozen last layer, and their rule."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.contracts import HEAD_SUMS, TOTAL, ModelRule, Pooled
from tfp_bfl.posterior.kronecker import symmetric, upper
from tfp_bfl.weights import ModelWeights, ServerMessage

# Softmax temperatures of which clients send the loss of their held-back rows.
TEMPERATURES = np.exp(np.linspace(-3.0, 3.0, 61))
# Samples of the weights over which clients average the predictions of these rows.
NUM_SENT = 16


class ClassSums(NamedTuple):
    """Sums over the examples of one client, or of several, in float64.

    Fields:
      counts: N, the number of examples of each class [C].
      totals: M, the sum of the features of each class [C, F].
      gram: G = sum_i x_i x_i^T, its upper triangle row by row [F (F + 1) / 2].
    """

    counts: Any
    totals: Any
    gram: Any


class HeadSums(NamedTuple):
    """The message of a client: sums in float64, divided by its number of examples.

    Fields:
      features: `ClassSums` of the first round. It has these alone, later ones all else: the rest is zeros, not sent.
      gradient: of the negative log likelihood in the last layer's weights [F + 1, C], the bias last.
      fisher: sum_i diag(p_i) - p_i p_i^T [C, C]. Both are [0, 0] unless the head is "softmax".
      losses: the negative log likelihood of the held-back rows at each of `TEMPERATURES`, and their number [62].
    """

    features: Any
    gradient: Any
    fisher: Any
    losses: Any


class HeadMessage(NamedTuple):
    """The message of the server to all clients.

    Fields:
      weights: at which clients send gradients [F + 1, C], float64.
      samples: of the posterior at temperature 1 [S, F + 1, C], float32.
    """

    weights: Any
    samples: Any


def empty_sums(size: int, num_classes: int, gradients: bool = False) -> HeadSums:
    """Return sums over no examples, for a kernel [F, C], with the whole Gram matrix [F, F]."""
    zeros = lambda *shape: tf.zeros(shape, tf.float64)
    features = ClassSums(zeros(num_classes), zeros(num_classes, size), zeros(size, size))
    of_weights = (zeros(size + 1, num_classes), zeros(num_classes, num_classes)) if gradients else (zeros(0, 0),) * 2
    return HeadSums(features, *of_weights, zeros(len(TEMPERATURES) + 1))


def message_of(message: ServerMessage) -> HeadMessage:
    """Return the weights that the server sends; before the first round those of the model."""
    return message.extra if tf.nest.flatten(message.extra) else first_message(message.weights)


def first_message(given: ModelWeights) -> HeadMessage:
    """Return the message with the weights of a model."""
    weights = as_matrix(given.point[-2:])
    return HeadMessage(weights, tf.repeat(tf.cast(weights, tf.float32)[tf.newaxis], NUM_SENT, 0))


def as_matrix(layer: Any) -> tf.Tensor:
    """Return kernel [F, C] and bias [C] as one matrix [F + 1, C] in float64."""
    kernel, bias = layer
    return tf.cast(tf.concat([kernel, bias[tf.newaxis]], 0), tf.float64)


def repaired(sums: ClassSums, clip_norm: float | None = None) -> ClassSums:
    """Return noisy sums with a positive semidefinite scatter within classes.

    W = sum_i (x_i - mean_{y_i}) (x_i - mean_{y_i})^T = D Q diag(v) Q^T D,   v <- max(v, -min v),   D^2 = diag W

    Sums without noise stay as they are: there -min v is zero up to rounding.

    Args:
      clip_norm: R of sums with the noise of `heads.private`: D is then the identity, as all entries have equal noise,
        and N_c is at least 0 and |M_c| at most R N_c.
    """
    counts, totals = sums.counts, sums.totals
    if clip_norm is not None:
        counts = tf.maximum(counts, 0.0)
        most = tf.math.divide_no_nan(clip_norm * counts, tf.norm(totals, axis=1))
        totals *= tf.minimum(most, 1.0)[:, tf.newaxis]
    means = tf.math.divide_no_nan(totals, counts[:, tf.newaxis])
    between = tf.matmul(means, totals, transpose_a=True)
    within = symmetric(sums.gram) - between
    scale = tf.sqrt(tf.maximum(tf.linalg.diag_part(within), 0.0))
    scale = scale if clip_norm is None else tf.ones_like(scale)
    products = scale * scale[:, tf.newaxis]
    values, vectors = tf.linalg.eigh(tf.math.divide_no_nan(within, products))
    values = tf.maximum(values, -values[0])
    gram = upper(tf.matmul(vectors * values, vectors, transpose_b=True) * products + between)
    return ClassSums(counts, totals, gram)


def varying(variance: tf.Tensor, centre: tf.Tensor) -> tf.Tensor:
    """Return which features are not constant, up to rounding, of their variances and means [F]."""
    return variance > 1e-12 * (tf.reduce_mean(variance) + tf.square(centre))


def with_intercept(vectors: tf.Tensor, centre: tf.Tensor) -> tf.Tensor:
    """Return directions of the weights on centred features [F, P] as those on raw ones, with the bias as the last row
    and direction [F + 1, P + 1].
    """
    below = -tf.linalg.matvec(vectors, centre, transpose_a=True)
    left = tf.concat([vectors, below[tf.newaxis]], 0)
    last = tf.one_hot(tf.shape(left)[0] - 1, tf.shape(left)[0], dtype=tf.float64)
    return tf.concat([left, last[:, tf.newaxis]], 1)


def summed() -> ModelRule[Any, Any]:
    """Build the rule of the sum over all clients, which is all that secure aggregation shows.

    sum_k b_k x_k,   x_k the sums of client k by its number of examples, b_k its weight

    With the numbers of examples as weights this is the sum over all examples.
    """

    def summarise(local: HeadSums, anchor: object, weight: tf.Tensor) -> HeadSums:
        del anchor
        return tf.nest.map_structure(lambda x: x * tf.cast(weight, x.dtype), local)

    one = tf.constant(1.0, tf.float64)
    units = lambda anchor: HeadSums(ClassSums(one, one, one), one, one, one)
    add = lambda a, b: tf.nest.map_structure(tf.add, a, b)
    return ModelRule(
        summarise, add, lambda sums, anchor: Pooled(sums), "summed", takes=HEAD_SUMS, gives=TOTAL, units=units
    )
