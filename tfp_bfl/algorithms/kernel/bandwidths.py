"""Bandwidths of a kernel density over the clients' values, for many coordinates at once.

A bandwidth is one function of a coordinate's values [C, S] in ascending order, float64, and one entry in `BANDWIDTHS`;
it gives h [C] and whether it fell back to another rule, [C]. `adaptive` differs from point to point.
Letters: C coordinates, S clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import tensorflow as tf

from tfp_bfl.algorithms.kernel.mean_shift import BLOCK, ScaledClients, Windows, in_blocks
from tfp_bfl.algorithms.kernel.plug_in import improved_sheather_jones

MULTIPLES = (0.01, 0.1, 1.0, 10.0)
NEIGHBOURS = 5


def stddev(values: tf.Tensor) -> tf.Tensor:
    """Return the standard deviations [C], with ddof 1; 0 of a single client."""
    num_clients = _count(values)
    square = tf.reduce_sum(tf.math.squared_difference(values, tf.reduce_mean(values, -1, keepdims=True)), -1)
    return tf.sqrt(square / tf.maximum(num_clients - 1, 1))


def interquartile_range(values: tf.Tensor) -> tf.Tensor:
    """Return the interquartile ranges [C], with quantiles by linear interpolation between the ordered values."""
    last = _count(values) - 1

    def quantile(q: float) -> tf.Tensor:
        below = tf.floor(q * last)
        low, high = (tf.gather(values, tf.cast(i, tf.int32), axis=-1) for i in (below, tf.minimum(below + 1, last)))
        return low + (q * last - below) * (high - low)

    return quantile(0.75) - quantile(0.25)


def silverman(values: tf.Tensor, gaussian: bool) -> tuple[tf.Tensor, tf.Tensor]:
    """h = 0.9 min(sd, IQR / 1.34) S^(-1/5), sd with ddof 1.

    Source: Silverman 1986, eq. 3.31.
    """
    h = 0.9 * tf.minimum(stddev(values), interquartile_range(values) / 1.34) * _count(values) ** -0.2
    return h, tf.zeros_like(h, tf.bool)


def silverman_wide(values: tf.Tensor, gaussian: bool) -> tuple[tf.Tensor, tf.Tensor]:
    """h = 1.06 min(sd, IQR) S^(-1/5), as in the experiments of Johansson & Gullbrandson 2022."""
    h = 1.06 * tf.minimum(stddev(values), interquartile_range(values)) * _count(values) ** -0.2
    return h, tf.zeros_like(h, tf.bool)


def scott(values: tf.Tensor, gaussian: bool) -> tuple[tf.Tensor, tf.Tensor]:
    """h = sd S^(-1/5), sd with ddof 1, as `scipy.stats.gaussian_kde` has it.

    Source: Scott 1992, eq. 6.44.
    """
    h = stddev(values) * _count(values) ** -0.2
    return h, tf.zeros_like(h, tf.bool)


def plug_in(values: tf.Tensor, gaussian: bool) -> tuple[tf.Tensor, tf.Tensor]:
    """Return `improved_sheather_jones`; Silverman's where that finds none, as of few or tied values."""
    h, found = improved_sheather_jones(values)
    return tf.where(found, h, silverman(values, gaussian)[0]), ~found


def cross_validated(values: tf.Tensor, gaussian: bool) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the one of 0.01, 0.1, 1 and 10 times Silverman's h with the largest leave-one-out log likelihood.

    L(h) = sum_i log[1 / ((S - 1) h) sum_{j != i} K((w_i - w_j) / h)]

    With Epanechnikov's kernel a client with no other within h makes L minus infinity: where all four are, Silverman's
    h is the fallback.

    Source: Silverman 1986, section 3.4.4.
    """
    reference = silverman(values, gaussian)[0]
    log_likelihood = _gaussian_log_likelihood if gaussian else _epanechnikov_log_likelihood
    size = tf.shape(values)
    clients = ScaledClients(values, tf.ones_like(values))
    scores = tf.stack(log_likelihood(clients, [multiple * reference for multiple in MULTIPLES]), -1)
    best = tf.gather(tf.constant(MULTIPLES, tf.float64), tf.argmax(scores, -1))
    none = tf.reduce_all(tf.math.is_inf(scores), -1) | (size[1] < 2)
    return tf.where(none, reference, best * reference), none


def _gaussian_log_likelihood(clients: ScaledClients, bandwidths: list[tf.Tensor]) -> list[tf.Tensor]:
    z = clients.values
    num_rows, num_clients = tf.shape(z)[0], tf.shape(z)[1]
    gap = tf.pad(z[:, 1:] - z[:, :-1], [[0, 0], [1, 1]], constant_values=math.inf)
    nearest = tf.minimum(gap[:, 1:], gap[:, :-1])

    def of_block(start: tf.Tensor, stop: tf.Tensor) -> list[tf.Tensor]:
        # Beside the nearest other client's, so that the largest term is 1. The excess needs no more than float32.
        own, near = z[start:stop], nearest[start:stop]
        square = tf.math.squared_difference(own[:, :, tf.newaxis], own[:, tf.newaxis])
        excess = tf.cast(tf.square(near)[..., tf.newaxis] - square, tf.float32)
        excess = tf.linalg.set_diag(excess, tf.fill(tf.shape(near), -math.inf))
        scores = []
        for h in bandwidths:
            rate = tf.math.divide_no_nan(tf.constant(0.5, h.dtype), h[start:stop] ** 2)
            total = tf.reduce_sum(tf.exp(excess * tf.cast(rate, tf.float32)[:, tf.newaxis, tf.newaxis]), -1)
            logs = tf.math.log(tf.cast(total, tf.float64)) - rate[:, tf.newaxis] * tf.square(near)
            scores.append(tf.reduce_sum(logs, -1) - _count(z) * tf.math.log(h[start:stop]))
        return [tf.stack(scores, -1)]

    width = tf.maximum(1, BLOCK // num_clients**2)
    return tf.unstack(in_blocks(of_block, num_rows, width, [tf.float64])[0], len(bandwidths), axis=-1)


def _epanechnikov_log_likelihood(clients: ScaledClients, bandwidths: list[tf.Tensor]) -> list[tf.Tensor]:
    z, windows = clients.values, Windows(clients)
    scores = []
    for h in bandwidths:
        h = h[:, tf.newaxis]
        (s0, _, s2, _), count, _, _ = windows.sums(z, tf.broadcast_to(h, tf.shape(z)))
        others = tf.maximum(s0 - tf.math.divide_no_nan(s2, h**2) - 1, 1e-12)
        logs = tf.where(count > 1, tf.math.log(others), -math.inf)
        scores.append(tf.reduce_sum(logs - tf.math.log(h), -1))
    return scores


def adaptive(values: tf.Tensor) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return h(x) = sd_5(x) 5^(-1/5), sd_5 over the five clients nearest x (ddof 1; of two equally far the smaller
    one).

    With S < 5 clients these are all of them, and h = sd S^(-1/5).

    Returns:
      A function of points [C, Q] that gives their bandwidths [C, Q].
    """
    num_clients = tf.shape(values)[1]
    size = tf.minimum(num_clients, NEIGHBOURS)
    starts = tf.range(num_clients - size + 1)
    groups = tf.gather(values, starts[:, tf.newaxis] + tf.range(size), axis=1)
    shape = tf.shape(groups)
    # From the first of each group: the spread of ties is zero to the last bit.
    spread = stddev(tf.reshape(groups - groups[..., :1], [-1, size]))
    table = tf.reshape(spread * tf.cast(size, tf.float64) ** -0.2, shape[:2])
    # The nearest five are neighbours. Past the middle between w_i and w_(i + 5), the latter is the nearer one.
    middles = 0.5 * (values[:, : num_clients - size] + values[:, size:])

    def bandwidth(x: tf.Tensor) -> tf.Tensor:
        group = tf.searchsorted(middles, tf.cast(x, tf.float64), "left")
        return tf.gather(table, group, axis=1, batch_dims=1)

    return bandwidth


def _count(values: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.shape(values)[-1], tf.float64)


ADAPTIVE = "adaptive"
# A new bandwidth is one more name here.
BANDWIDTHS: dict[str, Callable[[tf.Tensor, bool], tuple[tf.Tensor, tf.Tensor]]] = {
    function.__name__: function for function in (silverman, silverman_wide, scott, plug_in, cross_validated)
}
