"""The variance of each weight between clients beyond their posterior standard deviations: a random effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior.families import marginals
from tfp_bfl.posterior.low_rank import LowRank, as_low_rank, check_same_weights
from tfp_bfl.posterior.mean_field import MeanField


def between_clients_variance(posteriors: Sequence[LowRank | MeanField]) -> Any:
    """Return the variance between K clients of each weight, estimated by moments from what they sent.

        tau_d^2 = max(0, 1/(K - 1) sum_k (m_kd - mean_d)^2 - 1/K sum_k v_kd)

    The first term is the clients' means' own variance, the second what it would be if all had one posterior mean. No
    data are needed. Each weight has its own: pooled over a tensor, the weights that clients know nothing of would hide
    how far they are apart in those that they know. One client has no variance: 0.

    Args:
      posteriors: with means m_k and marginal variances v_k, of one structure.

    Returns:
      A structure of that form and those shapes.

    Raises:
      InvalidArgument: no posteriors, or as `as_low_rank`, or of different weights.

    Source: Hedges and Olkin 1985; DerSimonian and Laird 1986, with equal weights of the clients.
    """
    if not posteriors:
        raise InvalidArgument("A variance between clients needs the posterior of one at least.")
    every = [as_low_rank(q) for q in posteriors]
    for other in every[1:]:
        check_same_weights(other, every[0], "a posterior")
    number = len(every)
    if number == 1:
        return tf.nest.map_structure(tf.zeros_like, every[0].mean)

    def of_weights(*parts: tf.Tensor) -> tf.Tensor:
        means, variances = (tf.cast(tf.stack(x), tf.float64) for x in (parts[:number], parts[number:]))
        apart = tf.reduce_sum(tf.square(means - tf.reduce_mean(means, 0)), 0) / (number - 1)
        return tf.cast(tf.maximum(apart - tf.reduce_mean(variances, 0), 0), parts[0].dtype)

    return tf.nest.map_structure(of_weights, *(q.mean for q in every), *(marginals(q).variance for q in every))


def with_random_effects(posteriors: Sequence[LowRank | MeanField]) -> tuple[LowRank, ...]:
    """Return the posteriors, each with `between_clients_variance` added to the independent part of its variances.

    Raises:
      InvalidArgument: as `between_clients_variance`.
    """
    tau = between_clients_variance(posteriors)
    every = [as_low_rank(q) for q in posteriors]
    return tuple(q._replace(diagonal=tf.nest.map_structure(tf.add, q.diagonal, tau)) for q in every)
