"""How much each client counts: equal, by training-set size, by distance to the anchor, by maximum discrepancy.

Fischer et al. 2024 (arXiv:2403.15263), eqs. 18-21. KL is between whole posteriors, summed over all weights, in float64.
"""

from __future__ import annotations

from typing import Any, Callable

import tensorflow as tf

from tfp_bfl.posterior import MeanField, kl_divergence

# Below this KL (nats) two posteriors count as identical, so that identical clients get equal weight, not infinity.
_SMALLEST_KL = 1e-12


def equal(local: MeanField, anchor: MeanField, num_examples: tf.Tensor) -> tf.Tensor:
    """w_k = 1 (eq. 18)."""
    del local, anchor
    return tf.ones_like(num_examples, tf.float32)


def train_size(local: MeanField, anchor: MeanField, num_examples: tf.Tensor) -> tf.Tensor:
    """w_k = N_k, the client's training examples (eq. 19)."""
    del local, anchor
    return tf.cast(num_examples, tf.float32)


def distance(local: MeanField, anchor: MeanField, num_examples: tf.Tensor) -> tf.Tensor:
    """w_k = 1 / KL[q_g || q_k], q_g the anchor: the global posterior of the round before (eq. 21).

    Each client computes its own; the rule normalises by the sum. It needs a model with variational weights.
    """
    del num_examples
    kl = kl_divergence(_double(anchor), _double(local))
    return tf.cast(1 / tf.maximum(kl, _SMALLEST_KL), tf.float32)


WEIGHTINGS: dict[str, Callable[[MeanField, MeanField, tf.Tensor], tf.Tensor]] = {
    function.__name__: function for function in (equal, train_size, distance)
}


def distance_weights(stacked: MeanField, anchor: MeanField) -> tf.Tensor:
    """Weights by distance to the anchor, normalised: [K].

    gamma_k = 1 / KL[q_g || q_k] (eq. 21), w_k = gamma_k / sum_j gamma_j

    Args:
      stacked: the K clients' posteriors, leaves [K, ...].
      anchor: the global posterior of the round before, leaves [...].
    """
    kl = kl_divergence(_double(anchor), _double(stacked))
    return _normalise(1 / tf.maximum(kl, _SMALLEST_KL))


def max_discrepancy_weights(stacked: MeanField) -> tf.Tensor:
    """Weights by maximum discrepancy as printed (eq. 20), normalised: [K].

    gamma_k = max_{j != k} 1 / KL[q_k || q_j],   w_k = gamma_k / sum_j gamma_j: one near neighbour is enough. It sees
    all posteriors at once: memory clients x weights. A single client has weight 1.

    Args:
      stacked: the K clients' posteriors, leaves [K, ...].
    """
    stacked = _double(stacked)
    num_clients = tf.nest.flatten(stacked.mean)[0].shape[0]
    if num_clients == 1:
        return tf.ones([1], tf.float64)
    gammas = []
    for k in range(num_clients):
        others = [j for j in range(num_clients) if j != k]
        mine, theirs = (tf.nest.map_structure(lambda x, i=i: tf.gather(x, i), stacked) for i in (k, others))
        gammas.append(tf.reduce_max(1 / tf.maximum(kl_divergence(mine, theirs), _SMALLEST_KL)))
    return _normalise(tf.stack(gammas))


def _double(q: MeanField) -> MeanField:
    return tf.nest.map_structure(lambda x: tf.cast(x, tf.float64), q)


def _normalise(weights: Any) -> tf.Tensor:
    return weights / tf.reduce_sum(weights)
