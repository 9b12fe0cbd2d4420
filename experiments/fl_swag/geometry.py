"""The location of the product of the clients' posteriors, and the directions in which each posterior is wide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_bfl.posterior import LowRank, log_prob


def flat(weights: Any) -> np.ndarray:
    """Return all leaves in one vector [D]."""
    leaves = [np.asarray(x, np.float64) for x in tf.nest.flatten(weights)]
    return np.concatenate([x.ravel() for x in leaves])


def stddev_along(q: LowRank, direction: np.ndarray) -> float:
    """Return sqrt(d^T Sigma d) for a unit vector d [D]."""
    rows = [np.asarray(u, np.float64) for u in tf.nest.flatten(q.deviations)]
    deviations = np.concatenate([u.reshape(len(u), -1) for u in rows], 1)
    variance = np.sum(flat(q.diagonal) * direction**2) + np.sum(np.square(deviations @ direction))
    return float(np.sqrt(variance))


def standard_distance(q: LowRank, weights: Any) -> float:
    """Return sqrt((w - m)^T Sigma^-1 (w - m)): how many standard deviations w is from q's mean."""
    return float(np.sqrt(2 * (log_prob(q, q.mean) - log_prob(q, weights))))


def geometry(posteriors: Sequence[LowRank], start: Any) -> dict[str, float]:
    """Return the clients' distances from theta_0, and the widths of their posteriors along their displacements.

    d_k = (m_k - theta_0) / |m_k - theta_0|

    Returns:
      clients_moved: mean_k |m_k - theta_0|; average_moved: |mean_k m_k - theta_0|; stddev_own_way: mean_k of the
      standard deviation of q_k along d_k; stddev_other_ways: the mean over k and j != k of that of q_k along d_j;
      start_distance, average_distance: mean_k of the standard deviations that theta_0 and the average of all m_k are
      from m_k.
    """
    ways = np.stack([flat(q.mean) for q in posteriors]) - flat(start)
    lengths = np.linalg.norm(ways, axis=1)
    directions = ways / lengths[:, np.newaxis]
    stddevs = np.array([[stddev_along(q, d) for d in directions] for q in posteriors])
    average = tf.nest.map_structure(lambda *m: tf.reduce_mean(tf.stack(m), 0), *(q.mean for q in posteriors))
    first = tf.nest.map_structure(lambda m, w: tf.cast(w, m.dtype), posteriors[0].mean, tuple(start))
    own = np.eye(len(posteriors), dtype=bool)
    return {
        "clients_moved": float(lengths.mean()),
        "average_moved": float(np.linalg.norm(ways.mean(0))),
        "stddev_own_way": float(stddevs[own].mean()),
        "stddev_other_ways": float(stddevs[~own].mean()),
        "start_distance": float(np.mean([standard_distance(q, first) for q in posteriors])),
        "average_distance": float(np.mean([standard_distance(q, average) for q in posteriors])),
    }
