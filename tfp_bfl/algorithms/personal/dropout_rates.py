"""Dropout rates of clients' personal variances: their sizes, and how far the clients differ."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tfp_bfl.algorithms.personal.variances import Parameters, PersonalVariances

# Rates are computed for at most this many clients of a round.
MOST_CLIENTS = 32
# Logits within this fraction of the range from its top count as saturated.
SATURATED = 0.01


class DropoutRates(NamedTuple):
    """The dropout rates p = sigma^2 / (theta^2 + sigma^2) of clients' weights.

    Fields:
      dropout_rate_q05, dropout_rate_median, dropout_rate_q95: quantiles over a client's weights, means over clients.
      dropout_rate_stddev: of the clients' mean rates.
      logit_stddev: standard deviation over clients of a weight's logit, root mean square over the weights.
      saturated_share: fraction of logits within 1 % of the range from its top.
    """

    dropout_rate_q05: tf.Tensor
    dropout_rate_median: tf.Tensor
    dropout_rate_q95: tf.Tensor
    dropout_rate_stddev: tf.Tensor
    logit_stddev: tf.Tensor
    saturated_share: tf.Tensor


def dropout_rates(
    variances: PersonalVariances, parameters: Parameters, mean: tf.Tensor, present: tf.Tensor
) -> DropoutRates:
    """Return the rates of the clients of a round, the first 32 of them.

    Args:
      variances, parameters: trained by the server.
      mean: theta [D].
      present: above 0 for the clients of the round [M]. Where it is above 0 for none, as a median of the clients is,
        the rates are of all clients.
    """
    present = tf.sign(tf.maximum(present, 0.0))
    present = tf.where(tf.reduce_any(present > 0), present, tf.ones_like(present))
    weights, clients = tf.math.top_k(present, min(MOST_CLIENTS, variances.num_clients))
    weights = tf.math.divide_no_nan(weights, tf.reduce_sum(weights))
    of_client = lambda k: variances.logits(parameters.shared, variances.row(parameters, k), parameters.middle)
    logits = tf.map_fn(of_client, clients, fn_output_signature=tf.float32)  # [K, D]
    variance = variances.variance(logits, mean)
    rates = variance / (tf.square(mean) + variance)
    average = lambda x: tf.tensordot(weights, x, 1)
    stddev = lambda x: tf.sqrt(average(tf.square(x - average(x))))
    ordered, last = tf.sort(rates, 1), rates.shape[1] - 1
    quantile = lambda q: average(ordered[:, round(q * last)])
    low, high = variances.logit_range
    top = tf.cast(logits > high - SATURATED * (high - low), tf.float32)
    quantiles = quantile(0.05), quantile(0.5), quantile(0.95)
    of_logits = tf.sqrt(tf.reduce_mean(tf.square(stddev(logits))))
    return DropoutRates(*quantiles, stddev(tf.reduce_mean(rates, 1)), of_logits, average(tf.reduce_mean(top, 1)))
