"""Weights of the clients: equal, by training-set size, by distance to the anchor, by maximum discrepancy.

Fischer et al. 2024 (arXiv:2403.15263), eqs. 18-21. KL is between whole posteriors, summed over all weights, in float64.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfp_bfl.posterior import MeanField, kl_divergence

# Below this KL (nats) two posteriors count as identical, so that identical clients get equal weight, not infinity.
_SMALLEST_KL = 1e-12
# That of a client to others where there are none.
_LARGEST_KL = 1e300


def equal(local: MeanField, anchor: MeanField, num_examples: tf.Tensor) -> tf.Tensor:
    """Return w_k = 1 (equation 18)."""
    del local, anchor
    return tf.ones_like(num_examples, tf.float32)


def train_size(local: MeanField, anchor: MeanField, num_examples: tf.Tensor) -> tf.Tensor:
    """Return w_k = N_k, the client's training examples (equation 19)."""
    del local, anchor
    return tf.cast(num_examples, tf.float32)


def distance(local: MeanField, anchor: MeanField, num_examples: tf.Tensor) -> tf.Tensor:
    """Return w_k = 1 / KL[q_g || q_k], q_g the anchor: the global posterior of the round before (equation 21).

    Each client computes its own; the rule normalises by the sum. It needs a model with variational weights.
    """
    del num_examples
    kl = kl_divergence(_double(anchor), _double(local))
    return tf.cast(1 / tf.maximum(kl, _SMALLEST_KL), tf.float32)


WEIGHTINGS: dict[str, Callable[[MeanField, MeanField, tf.Tensor], tf.Tensor]] = {
    function.__name__: function for function in (equal, train_size, distance)
}


def max_discrepancy_weights(stacked: MeanField, nearest: bool = True) -> tf.Tensor:
    """Return weights by maximum discrepancy, normalised: [K].

    gamma_k = max_{j != k} 1 / KL[q_k || q_j]   as printed (eq. 20): one near neighbour is enough
    gamma_k = 1 / max_{j != k} KL[q_k || q_j]   with nearest=False, as the paper's words have it: a client far from any
                                                other counts little
    w_k = gamma_k / sum_j gamma_j

    It sees all posteriors at once: memory clients x weights. A single client has weight 1.

    Args:
      stacked: the K clients' posteriors, leaves [K, ...].
      nearest: which of the two.
    """
    stacked = _double(stacked)
    num_clients = tf.shape(tf.nest.flatten(stacked.mean)[0])[0]

    def to_all(k: tf.Tensor) -> tf.Tensor:
        return kl_divergence(tf.nest.map_structure(lambda x: x[k], stacked), stacked)

    kl = tf.map_fn(to_all, tf.range(num_clients), fn_output_signature=tf.float64)
    itself = tf.eye(num_clients) > 0
    if nearest:
        kl = tf.reduce_min(tf.where(itself, tf.constant(_LARGEST_KL, tf.float64), kl), 1)
    else:
        kl = tf.reduce_max(tf.where(itself, tf.zeros([], tf.float64), kl), 1)
    return _normalise(1 / tf.maximum(kl, _SMALLEST_KL))


def max_discrepancy_farthest_weights(stacked: MeanField) -> tf.Tensor:
    """Return `max_discrepancy_weights` with nearest=False: [K]."""
    return max_discrepancy_weights(stacked, nearest=False)


# Weights that no client can tell alone: of all posteriors, stacked, to [K].
STACKED_WEIGHTINGS: dict[str, Callable[[MeanField], tf.Tensor]] = {
    "max_discrepancy": max_discrepancy_weights,
    "max_discrepancy_farthest": max_discrepancy_farthest_weights,
}

# No client weighs more than so many times the median one where weights follow from what clients send: of one that
# sends back what it got 1 / KL is without bound, and it alone would be the next global posterior.
MAX_RATIO = 10.0


def capped(weights: tf.Tensor, max_ratio: float) -> tf.Tensor:
    """Return w_k = min(w_k, max_ratio x the lower median of w), normalised: [K]."""
    middle = tf.sort(weights)[(tf.shape(weights)[0] - 1) // 2]
    return _normalise(tf.minimum(weights, tf.cast(max_ratio, weights.dtype) * middle))


ALL_WEIGHTINGS = {**WEIGHTINGS, **STACKED_WEIGHTINGS}


def weigh_of(weighting: str) -> Any:
    """Return the weight of one client by a weighting of `ALL_WEIGHTINGS`, under its name.

    By a weighting of all clients together it is 1, until the server has all.
    """
    if weighting in WEIGHTINGS:
        return WEIGHTINGS[weighting]

    def alike(*of_client: Any) -> tf.Tensor:
        return equal(*of_client)

    alike.__name__ = weighting
    return alike


COMPARE_POSTERIORS = ("distance", *STACKED_WEIGHTINGS)


def _double(q: MeanField) -> MeanField:
    return tf.nest.map_structure(lambda x: tf.cast(x, tf.float64), q)


def _normalise(weights: object) -> tf.Tensor:
    return weights / tf.reduce_sum(weights)
