"""The client work of an exact head: sums over examples, of features below a frozen last layer."""

from collections.abc import Callable

import tensorflow as tf

from tfp_bfl import keras
from tfp_bfl.algorithms.heads.coding import coding, num_bits, read_of, restore, shorten
from tfp_bfl.algorithms.heads.private import clipped, noised
from tfp_bfl.algorithms.heads.sums import TEMPERATURES, ClassSums, HeadMessage, HeadSums, empty_sums, message_of
from tfp_bfl.contracts import DYNAMIC, HEAD_SUMS, ClientWork, Needs, Work
from tfp_bfl.data import ClientExamples
from tfp_bfl.errors import InvalidArgument, check_count, check_number
from tfp_bfl.layers import as_floats, sampling
from tfp_bfl.models import as_model_fn
from tfp_bfl.training.example_privacy import ExamplePrivacy
from tfp_bfl.weights import ClientResult, Compact, ServerMessage, TrainingMetrics, assign_weights, split_head

_AT_ONE = len(TEMPERATURES) // 2


def head_sums(
    model_fn: Callable[[], keras.Model],
    *,
    gradients: bool = False,
    masked: bool = False,
    held_back: float = 0.1,
    sum_bits: int = 64,
    example_privacy: ExamplePrivacy | None = None,
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
      sum_bits: bits of each entry of G: 64, or 8, 10, 12 or 16 for rounded correlations (`heads.coding`).
      example_privacy: that little is said of any one example, by clipping and noise of the sums (`heads.private`). No
        rows are held back then.
      batch_size: examples at once. It changes rounding alone.
    """
    model_fn = as_model_fn(model_fn)
    check_count(batch_size, "batch_size")
    check_number(held_back, "held_back", zero=True, within=(0.0, 0.5))
    if sum_bits not in (8, 10, 12, 16, 64):
        raise InvalidArgument(f"sum_bits is {sum_bits!r}, but must be 8, 10, 12, 16 or 64.")
    if example_privacy is not None:
        held_back, _ = 0.0, example_privacy.checked()
    of_bytes = coding(sum_bits, gradients)

    def build() -> Work[HeadSums]:
        model = model_fn()
        below = split_head(model).features

        @tf.function(autograph=False)
        def work(message: ServerMessage, examples: ClientExamples, seed: tf.Tensor) -> ClientResult[HeadSums]:
            assign_weights(model, message.weights)
            at, num_rows, first = message_of(message), tf.shape(examples.labels)[0], tf.equal(message.round, 0)
            places = tf.math.floor(tf.cast(tf.range(num_rows + 1), tf.float64) * held_back)
            held = places[1:] > places[:-1]

            def add(i: tf.Tensor, sums: HeadSums) -> tuple[tf.Tensor, HeadSums]:
                rows = slice(i, i + batch_size)
                with sampling("mean"):
                    x = tf.cast(below(as_floats(examples.features[rows]), training=False), tf.float64)
                x = x if example_privacy is None else clipped(x, example_privacy.clip_norm)
                return i + batch_size, _added(sums, (x, examples.labels[rows], held[rows]), at, first, gradients)

            start = tf.constant(0), empty_sums(at.weights.shape[0] - 1, at.weights.shape[1], gradients)
            sums = tf.while_loop(lambda i, _: i < num_rows, add, start, parallel_iterations=1)[1]
            if example_privacy is not None:
                noisy = lambda: noised(sums.features, example_privacy, seed)
                sums = sums._replace(features=tf.cond(first, noisy, lambda: sums.features))
            means = tf.nest.map_structure(lambda x: tf.math.divide_no_nan(x, tf.cast(num_rows, x.dtype)), sums)
            client = tf.cast(tf.reduce_max(tf.concat([[-1], examples.client], 0)), tf.float64)
            code = means._replace(features=shorten(means.features, sum_bits, client))
            bits = [lambda i=i: num_bits(code if masked else read_of(code, i)) for i in range(2)]
            nll = tf.cast(tf.math.divide_no_nan(sums.losses[_AT_ONE], sums.losses[-1]), tf.float32)
            counts, metrics = {"upload_bits": tf.cond(first, *bits)}, TrainingMetrics(nll, tf.zeros([]), -nll)
            sent, found = Compact(code), means._replace(features=restore(code.features, sum_bits))
            return ClientResult(found, num_rows, metrics, counts, sent=() if masked else sent)

        return work

    return ClientWork(
        build,
        sends=HEAD_SUMS,
        coding=None if masked else of_bytes,
        shapes="" if sum_bits == 64 else DYNAMIC,
        settings=(("held_back", held_back), ("sum_bits", sum_bits)),
        needs=Needs(is_private=example_privacy is not None),
    )


def _added(sums: HeadSums, rows: tuple[tf.Tensor, ...], at: HeadMessage, first: tf.Tensor, gradients: bool) -> HeadSums:
    """Return the sums with a batch: x [B, F], labels [B], and which rows are held back [B]."""
    x, labels, held = rows
    fit, onehot = tf.cast(~held, tf.float64)[:, tf.newaxis], tf.one_hot(labels, at.weights.shape[1], dtype=tf.float64)
    own, weights = onehot * fit, at.weights

    def with_features() -> ClassSums:
        batch = tf.reduce_sum(own, 0), tf.matmul(own, x, transpose_a=True), tf.matmul(x * fit, x, True)
        return ClassSums(*map(tf.add, sums.features, batch))

    def with_gradient() -> tuple[tf.Tensor, tf.Tensor]:
        p = tf.nn.softmax(x @ weights[:-1] + weights[-1])
        slopes = p * fit - own
        gradient = tf.concat([tf.matmul(x, slopes, True), tf.reduce_sum(slopes, 0)[tf.newaxis]], 0)
        fisher = tf.linalg.diag(tf.reduce_sum(p * fit, 0)) - tf.matmul(p * fit, p, True)
        return sums.gradient + gradient, sums.fisher + fisher

    features = tf.cond(first, with_features, lambda: sums.features)
    of_weights = sums.gradient, sums.fisher
    of_weights = tf.cond(first, lambda: of_weights, with_gradient) if gradients else of_weights
    # In the first round no loss is read but that of the training metrics: one sample, as all are equal.
    drawn = tf.cond(first, lambda: at.samples[:1], lambda: at.samples)
    # In float32, as the model predicts: a copy of the samples in float64 would be the largest array of the client.
    given = tf.boolean_mask(tf.concat([x, tf.ones_like(x[:, :1])], 1), held)
    logits = tf.cast(tf.matmul(tf.cast(given, tf.float32), drawn), tf.float64)
    truth = tf.reduce_sum(logits * tf.boolean_mask(onehot, held), 2)
    log_p = lambda heat: tf.reduce_logsumexp(truth / heat - tf.reduce_logsumexp(logits / heat, 2), 0)
    num_drawn = tf.cast(tf.shape(drawn)[0], tf.float64)
    nll = tf.map_fn(lambda heat: -tf.reduce_sum(log_p(heat) - tf.math.log(num_drawn)), tf.constant(TEMPERATURES))
    number = tf.math.count_nonzero(held[tf.newaxis], 1, dtype=tf.float64)
    return HeadSums(features, of_weights[0], of_weights[1], sums.losses + tf.concat([nll, number], 0))
