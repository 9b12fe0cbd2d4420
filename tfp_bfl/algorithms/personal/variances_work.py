"""Client work from personal variances; their change is returned to what gave them."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfp_bfl.algorithms.personal.variances import LogitGradient, PersonalVariances, kept_weights
from tfp_bfl.contracts import WEIGHTS, ClientWork, Work
from tfp_bfl.data import ClientExamples
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior import flatten, unflatten
from tfp_bfl.weights import ClientResult, ModelWeights, Pruned, ServerMessage

# Of weights that a client does without: no precision, to float32, and finite.
NO_PRECISION = 1e10
_BITS = ("upload_bits", "download_bits")


def personal(work: ClientWork, variances: PersonalVariances, threshold: float | None = None) -> ClientWork:
    """Return the same work from the client's own variances, of logits l = h(e_m), and what it learns of h and e_m.

    sends: theta, sigma^2 as trained,   (d l / d psi)^T (l - l'),   (d l / d e_m)^T (l - l')

    with l' the logits after training: what the server subtracts from h's weights psi and the client's row e_m. The two
    products are extra statistics beside the weights, a `personal.variances.LogitGradient`, of which the server gets the
    mean. A federation would compute l and the products on the server, and send theta and l alone; so bits are counted.

    Args:
      work: that sends `WEIGHTS` and keeps nothing, such as `personal.work.meta_learning`.
      variances: of `personal.variances.PERSONAL_VARIANCES`.
      threshold: weights with a dropout rate p = alpha / (1 + alpha), alpha = sigma^2 / theta^2, is above it are 0 for
        the client, which neither trains nor sends them; None for none.

    Returns:
      Client work for a rule such as "log_linear_pool" and for `personal.step.personal`. It reports `pruned_weights`,
      `upload_bits` and `download_bits`.

    Source: Jeon et al. 2023 (arXiv:2510.20225), algorithm 1.
    """
    if work.sends != WEIGHTS or work.memory is not None:
        raise InvalidArgument(
            "Personal variances are of client work that sends a model's weights and keeps nothing, such as "
            "personal.work.meta_learning(model_fn)."
        )
    variances.check_threshold(threshold)

    def build() -> Work:
        inner = work.build()

        @tf.function(autograph=False)
        def run(message: ServerMessage, examples: ClientExamples, seed: tf.Tensor) -> ClientResult:
            before, posterior = message.weights, message.weights.posterior
            theta = flatten(posterior.mean)
            client = tf.reduce_max(tf.concat([[-1], examples.client], 0))
            given = message.told.shared, variances.row(message.told, tf.maximum(client, 0))
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(given)
                logits = variances.logits(*given, message.told.middle)
            start = variances.variance(logits, theta)
            mask = kept_weights(theta, start, threshold)
            as_posterior = lambda x: unflatten(x, posterior.mean)
            first = posterior._replace(mean=as_posterior(mask * theta), variance=as_posterior(start))
            sent = () if threshold is None else Pruned(mask)
            result = inner(message._replace(weights=before._replace(posterior=first), told=sent), examples, seed)
            mean, variance = (flatten(x) for x in result.weights.posterior)
            change = mask * variances.change((start, theta), (variance, mean))
            shared, row = tape.gradient(logits, given, change, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            mean = tf.where(mask > 0, mean, theta)
            variance = tf.where(mask > 0, variance, NO_PRECISION)
            pooled = result.weights.posterior._replace(mean=as_posterior(mean), variance=as_posterior(variance))
            mine = tf.one_hot(client, variances.num_clients)
            rows = tf.nest.map_structure(lambda x: tf.tensordot(mine, x, 0), row)
            extra = LogitGradient(shared, rows, mine, tf.reduce_sum(tf.square(change)))
            bits = _bits(result.weights, mask, threshold, 64.0 if variances.learned else 32.0)
            counts = {**result.counts, "pruned_weights": tf.cast(tf.reduce_sum(1 - mask), tf.int32)}
            weights, counts = result.weights._replace(posterior=pooled), {**counts, **dict.fromkeys(_BITS, bits)}
            return result._replace(weights=weights, counts=counts, extra=extra)

        return run

    def extra(weights: ModelWeights) -> LogitGradient:
        number = sum(int(np.prod(x.shape)) for x in weights.posterior.mean)
        shared, rows, _ = tf.nest.map_structure(np.zeros_like, variances.initialize(number, 0))
        return LogitGradient(shared, rows, np.zeros(variances.num_clients, np.float32), np.float32(0))

    return ClientWork(build, extra=extra, is_private=work.is_private, settings=work.settings)


def _bits(weights: ModelWeights, mask: tf.Tensor, threshold: float | None, of_each: float) -> tf.Tensor:
    """Return the bits of the unpruned weights, theta and l in float32 or theta alone, of all others, and of one mask
    bit for each weight.
    """
    others = sum(x.shape.num_elements() for x in tf.nest.flatten((weights.point, weights.moments)))
    return of_each * tf.reduce_sum(mask) + float(32 * others + (0 if threshold is None else mask.shape[0]))
