"""The client work of an exact head: sums over examples, of features below a frozen last layer."""

from __future__ import annotations

import math
from collections.abc import Callable

import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.algorithms.heads.coding import check_bits, coding, num_bits, read_of, restore, shorten
from tfp_bfl.algorithms.heads.sums import (
    TEMPERATURES,
    ClassSums,
    HeadMessage,
    HeadSums,
    empty_sums,
    message_of,
    whole,
)
from tfp_bfl.contracts import DYNAMIC, HEAD_SUMS, ClientWork, Work
from tfp_bfl.data import ClientExamples
from tfp_bfl.errors import check_count, check_number
from tfp_bfl.layers import as_floats, sampling
from tfp_bfl.models import as_model_fn
from tfp_bfl.weights import ClientResult, Compact, ServerMessage, TrainingMetrics, assign_weights, split_head

_AT_ONE = len(TEMPERATURES) // 2


def head_sums(
    model_fn: Callable[[], keras.Model],
    *,
    gradients: bool = False,
    masked: bool = False,
    held_back: float = 0.1,
    sum_bits: int = 64,
    batch_size: int = 256,
) -> ClientWork[HeadSums]:
    """Build client work that sends the sums of which the server makes a head (`algorithms.head`).

    In the first round a client sends N, M and G of its features. In each later one it sends the losses of its held-back
    rows at the head that the server has sent, and with `gradients` the gradient of its other rows there.

    Args:
      model_fn: builds a model that ends with a dense layer; the layers below are frozen.
      gradients: send gradient and Fisher information of the softmax likelihood.
      masked: messages are masked numbers, zeros too (`compose(secure_sums=...)`).
      held_back: fraction h of the rows that serve for the temperature alone: the rows i, from 1 on, at which
        floor(h i) grows. 0 for none.
      sum_bits: bits of each entry of G: 64, or 8 to 16 for rounded correlations (`heads.coding`).
      batch_size: examples at once. It changes rounding alone.
    """
    model_fn = as_model_fn(model_fn)
    check_count(batch_size, "batch_size")
    check_number(held_back, "held_back", zero=True, within=(0.0, 0.5))
    of_bytes = None if masked else coding(check_bits(sum_bits), gradients)
    shapes = "" if sum_bits == 64 else DYNAMIC

    def build() -> Work[HeadSums]:
        model = model_fn()
        below = split_head(model).features

        @tf.function(autograph=False)
        def work(message: ServerMessage, examples: ClientExamples, seed: tf.Tensor) -> ClientResult[HeadSums]:
            del seed
            assign_weights(model, message.weights)
            at, num_rows, first = message_of(message), tf.shape(examples.labels)[0], tf.equal(message.round, 0)
            places = tf.math.floor(tf.cast(tf.range(num_rows + 1), tf.float64) * held_back)
            held = places[1:] > places[:-1]

            def add(i: tf.Tensor, sums: HeadSums) -> tuple[tf.Tensor, HeadSums]:
                rows = slice(i, i + batch_size)
                with sampling("mean"):
                    x = tf.cast(below(as_floats(examples.features[rows]), training=False), tf.float64)
                batch = x, examples.labels[rows], held[rows]
                return i + batch_size, _added(sums, *batch, at, first, gradients)

            start = tf.constant(0), whole(empty_sums(at.weights.shape[0] - 1, at.weights.shape[1], gradients))
            sums = tf.while_loop(lambda i, _: i < num_rows, add, start, parallel_iterations=1)[1]
            number = tf.cast(num_rows, tf.float64)
            client = tf.reduce_max(tf.concat([[-1], examples.client], 0))
            means = tf.nest.map_structure(lambda x: tf.math.divide_no_nan(x, number), sums)
            means = means._replace(client=tf.cast(client, tf.float64), num_examples=tf.ones([], tf.float64))
            nll = tf.cast(tf.math.divide_no_nan(sums.losses[_AT_ONE], sums.losses[-1]), tf.float32)
            code = shorten(means, sum_bits)
            bits = [lambda i=i: num_bits(code if masked else read_of(code, i)) for i in range(2)]
            counts, metrics = {"upload_bits": tf.cond(first, *bits)}, TrainingMetrics(nll, tf.zeros([]), -nll)
            sent = () if masked else Compact(code)
            return ClientResult(restore(code, sum_bits), num_rows, metrics, counts, sent=sent)

        return work

    settings = (("held_back", held_back), ("sum_bits", sum_bits))
    return ClientWork(build, sends=HEAD_SUMS, coding=of_bytes, shapes=shapes, settings=settings)


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
    fit = tf.cast(~held, tf.float64)[:, tf.newaxis]
    onehot = tf.one_hot(labels, message.weights.shape[1], dtype=tf.float64)
    own, weights, features = onehot * fit, message.weights, sums.features
    of_held = tf.boolean_mask(x, held), tf.boolean_mask(onehot, held)

    def in_first() -> HeadSums:
        batch = tf.reduce_sum(own, 0), tf.matmul(own, x, transpose_a=True), tf.matmul(x * fit, x, True)
        at_one = _nll(*of_held, message.samples[:1], tf.ones([1], tf.float64))
        losses = tf.pad(at_one, [[_AT_ONE, len(TEMPERATURES) - _AT_ONE - 1]])
        return sums._replace(features=ClassSums(*map(tf.add, features, batch)), losses=losses)

    def in_later() -> HeadSums:
        gradient, fisher = sums.gradient, sums.fisher
        if gradients:
            p = tf.nn.softmax(x @ weights[:-1] + weights[-1])
            slopes = p * fit - own
            gradient += tf.concat([tf.matmul(x, slopes, True), tf.reduce_sum(slopes, 0)[tf.newaxis]], 0)
            fisher += tf.linalg.diag(tf.reduce_sum(p * fit, 0)) - tf.matmul(p * fit, p, True)
        losses = _nll(*of_held, message.samples, tf.constant(TEMPERATURES))
        return sums._replace(gradient=gradient, fisher=fisher, losses=losses)

    added, number = tf.cond(first, in_first, in_later), tf.math.count_nonzero(held[tf.newaxis], 1, dtype=tf.float64)
    return added._replace(losses=sums.losses + tf.concat([added.losses, number], 0))


def _nll(x: tf.Tensor, onehot: tf.Tensor, samples: tf.Tensor, heats: tf.Tensor) -> tf.Tensor:
    """Return the negative log likelihood of rows at each temperature, over the mean prediction of the samples."""
    drawn = tf.cast(samples, tf.float64)
    logits = tf.einsum("bf,sfc->bsc", x, drawn[:, :-1]) + drawn[:, -1]
    truth = tf.reduce_sum(logits * onehot[:, tf.newaxis, :], 2)
    log_p = lambda heat: tf.reduce_logsumexp(truth / heat - tf.reduce_logsumexp(logits / heat, 2), 1)
    return tf.map_fn(lambda heat: -tf.reduce_sum(log_p(heat) - math.log(samples.shape[0])), heats)
