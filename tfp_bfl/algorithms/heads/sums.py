"""The message of a client for an exact head: sums over its examples, of features below a frozen last layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.contracts import HEAD_SUMS, TOTAL, ClientWork, ModelRule, Pooled, Work
from tfp_bfl.data import ClientExamples
from tfp_bfl.errors import check_count, check_number
from tfp_bfl.layers import as_floats, sampling
from tfp_bfl.models import as_model_fn
from tfp_bfl.posterior.kronecker import upper
from tfp_bfl.weights import ClientResult, ModelWeights, ServerMessage, TrainingMetrics, assign_weights, split_head

# Softmax temperatures of which clients send the loss of their held-back rows.
TEMPERATURES = np.exp(np.linspace(-3.0, 3.0, 61))
_AT_ONE = len(TEMPERATURES) // 2
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
      client: its number; 0 in a sum over clients.
      num_examples: its number of examples, 1 after division; of a sum over clients the number of all examples.
      features: of the first round; zeros in later ones.
      gradient: of the negative log likelihood in the last layer's weights [F + 1, C], the bias last.
      fisher: sum_i diag(p_i) - p_i p_i^T [C, C]. Both are [0, 0] unless the head is "softmax".
      losses: the negative log likelihood of the held-back rows at each of `TEMPERATURES`, and their number [62].
    """

    client: Any
    num_examples: Any
    features: ClassSums
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


def head_sums(
    model_fn: Callable[[], keras.Model], *, gradients: bool = False, held_back: float = 0.1, batch_size: int = 256
) -> ClientWork[HeadSums]:
    """Build client work that sends the sums of which the server makes a head (`algorithms.head`).

    In the first round a client sends N, M and G of its features. In each round it sends the losses of its held-back
    rows at the head that the server has sent, and with `gradients` the gradient of its other rows there.

    Args:
      model_fn: builds a model that ends with a dense layer; the layers below are frozen.
      gradients: send gradient and Fisher information of the softmax likelihood.
      held_back: fraction h of the rows that serve for the temperature alone: the rows i, from 1 on, at which
        floor(h i) grows. 0 for none.
      batch_size: examples at once. It changes rounding alone.
    """
    model_fn = as_model_fn(model_fn)
    check_count(batch_size, "batch_size")
    check_number(held_back, "held_back", zero=True, within=(0.0, 0.5))

    def build() -> Work[HeadSums]:
        model = model_fn()
        below = split_head(model).features

        @tf.function(autograph=False)
        def work(message: ServerMessage, examples: ClientExamples, seed: tf.Tensor) -> ClientResult[HeadSums]:
            del seed
            assign_weights(model, message.weights)
            sent, num_rows = message_of(message), tf.shape(examples.labels)[0]
            places = tf.math.floor(tf.cast(tf.range(num_rows + 1), tf.float64) * held_back)
            held = places[1:] > places[:-1]

            def add(i: tf.Tensor, sums: HeadSums) -> tuple[tf.Tensor, HeadSums]:
                rows = slice(i, i + batch_size)
                with sampling("mean"):
                    x = tf.cast(below(as_floats(examples.features[rows]), training=False), tf.float64)
                batch = x, examples.labels[rows], held[rows]
                return i + batch_size, _added(sums, *batch, sent, tf.equal(message.round, 0), gradients)

            start = tf.constant(0), _empty(sent.weights.shape[0], sent.weights.shape[1], gradients)
            sums = tf.while_loop(lambda i, _: i < num_rows, add, start, parallel_iterations=1)[1]
            number = tf.cast(num_rows, tf.float64)
            client = tf.reduce_max(tf.concat([[-1], examples.client], 0))
            means = tf.nest.map_structure(lambda x: tf.math.divide_no_nan(x, number), sums)
            means = means._replace(client=tf.cast(client, tf.float64), num_examples=tf.ones([], tf.float64))
            nll = tf.cast(tf.math.divide_no_nan(sums.losses[_AT_ONE], sums.losses[-1]), tf.float32)
            return ClientResult(means, num_rows, TrainingMetrics(nll, tf.zeros([]), -nll))

        return work

    return ClientWork(build, sends=HEAD_SUMS, settings=(("held_back", held_back),))


def _empty(width: int, num_classes: int, gradients: bool) -> HeadSums:
    """Return sums over no examples, for weights [F + 1, C]."""
    zeros = lambda *shape: tf.zeros(shape, tf.float64)
    features = ClassSums(zeros(num_classes), zeros(num_classes, width - 1), zeros(width * (width - 1) // 2))
    shapes = ((width, num_classes), (num_classes, num_classes)) if gradients else ((0, 0), (0, 0))
    return HeadSums(zeros(), zeros(), features, zeros(*shapes[0]), zeros(*shapes[1]), zeros(len(TEMPERATURES) + 1))


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


def _added(
    sums: HeadSums,
    x: tf.Tensor,
    labels: tf.Tensor,
    held: tf.Tensor,
    message: HeadMessage,
    first: tf.Tensor,
    gradients: bool,
) -> HeadSums:
    """Return the sums with a batch: x [B, F], labels [B], and which rows are held back [B]."""
    fit, onehot = (
        tf.cast(~held, tf.float64)[:, tf.newaxis],
        tf.one_hot(labels, message.weights.shape[1], dtype=tf.float64),
    )
    own, weights = onehot * fit, message.weights

    def with_features() -> ClassSums:
        batch = tf.reduce_sum(own, 0), tf.matmul(own, x, transpose_a=True), upper(tf.matmul(x * fit, x, True))
        return ClassSums(*map(tf.add, sums.features, batch))

    features = tf.cond(first, with_features, lambda: sums.features)
    gradient, fisher = sums.gradient, sums.fisher
    if gradients:
        p = tf.nn.softmax(x @ weights[:-1] + weights[-1])
        slopes = p * fit - own
        gradient += tf.concat([tf.matmul(x, slopes, True), tf.reduce_sum(slopes, 0)[tf.newaxis]], 0)
        fisher += tf.linalg.diag(tf.reduce_sum(p * fit, 0)) - tf.matmul(p * fit, p, True)
    drawn = tf.cast(message.samples, tf.float64)
    logits = tf.einsum("bf,sfc->bsc", tf.boolean_mask(x, held), drawn[:, :-1]) + drawn[:, -1]
    truth = tf.reduce_sum(logits * tf.boolean_mask(onehot, held)[:, tf.newaxis, :], 2)
    log_p = lambda heat: tf.reduce_logsumexp(truth / heat - tf.reduce_logsumexp(logits / heat, 2), 1)
    nll = tf.map_fn(lambda heat: -tf.reduce_sum(log_p(heat) - math.log(NUM_SENT)), tf.constant(TEMPERATURES))
    number = tf.math.count_nonzero(held[tf.newaxis], 1, dtype=tf.float64)
    return sums._replace(
        features=features, gradient=gradient, fisher=fisher, losses=sums.losses + tf.concat([nll, number], 0)
    )


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
        return tf.nest.map_structure(
            lambda x: x * tf.cast(weight, x.dtype), local._replace(client=tf.zeros_like(local.client))
        )

    one = tf.constant(1.0, tf.float64)
    units = lambda anchor: HeadSums(one, one, ClassSums(one, one, one), one, one, one)
    add = lambda a, b: tf.nest.map_structure(tf.add, a, b)
    return ModelRule(
        summarise, add, lambda sums, anchor: Pooled(sums), "summed", takes=HEAD_SUMS, gives=TOTAL, units=units
    )
