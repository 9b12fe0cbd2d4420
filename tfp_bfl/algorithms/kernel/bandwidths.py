"""Bandwidths of a kernel density over the clients' values, for many coordinates at once.

A bandwidth is one function of a coordinate's values [C, S] in ascending order, float64, and one entry in `BANDWIDTHS`;
it gives h [C] and whether it fell back to another rule, [C]. `adaptive` differs from point to point.
Letters: C coordinates, S clients; of the plug-in N different values of a coordinate, n grid points.
"""

import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfp_bfl.algorithms.kernel.mean_shift import BLOCK, ScaledClients, Windows, in_blocks

GRID = 2**10
STAGES = range(2, 8)
# Times at which the derivatives' norms are tabulated: with cubics between them the bandwidth is right to 2e-4.
LOG_TIMES = np.linspace(math.log(1e-10), math.log(4.0), 164)
BISECTIONS = 40


def improved_sheather_jones(values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the bandwidth that minimises the asymptotic mean integrated squared error of a Gaussian kernel's density.

    h = sqrt(t) L, t the root of t = (2 N sqrt(pi) |f''|^2(t_2))^(-2/5), with

      t_s = (2 c_s k_s / (N |f^(s+1)|^2(t_(s+1))))^(2 / (3 + 2 s)),  s = 6 to 2, t_7 = t,
      c_s = (1 + 2^(-s - 1/2)) / 3,  k_s = 1 3 5 ... (2 s - 1) / sqrt(2 pi),
      |f^(s)|^2(t) = pi^(2 s) / 2 sum_k k^(2 s) a_k^2 exp(-k^2 pi^2 t),

    a_k the cosine transform of the values, binned linearly on n = 1,024 points over L, their range and half of it at
    each side. Of several roots it is the one at which Botev's doubled bound first encloses one.

    KDEpy 1.1.12 has the same equations and pads by at least 6, whatever the values' unit, and multiplies by the range,
    not L. Of values stretched to a range of 12 and more, its bandwidth is half of this one.

    Args:
      values: [C, S], float64, ascending.

    Returns:
      h [C], float64, and whether there is a root, [C]; h is 0 where there is none.

    Source: Botev, Grotowski & Kroese 2010 (arXiv:1011.2602), algorithm 1.
    """
    low, high = values[:, :1], values[:, -1:]
    place = (GRID - 1) * (0.25 + 0.5 * tf.math.divide_no_nan(values - low, high - low))
    different = 1 + tf.reduce_sum(tf.cast(values[:, 1:] > values[:, :-1], tf.int32), -1)
    basis, offsets = _basis()

    def of_block(start: tf.Tensor, stop: tf.Tensor) -> list[tf.Tensor]:
        power = tf.square(tf.signal.dct(_binned(place[start:stop]))[:, 1:])
        sums = tf.reshape(tf.matmul(power, basis), [-1, len(STAGES), len(LOG_TIMES)])
        smallest = np.finfo(np.float32).tiny
        logs = tf.math.log(tf.cast(tf.maximum(sums, smallest), tf.float64)) + offsets
        return list(_root(logs, tf.cast(different[start:stop], tf.float64)))

    width = BLOCK // GRID
    time, is_bracketed = in_blocks(of_block, tf.shape(values)[0], width, [tf.float64, tf.bool])
    is_bracketed &= different > 1
    return tf.where(is_bracketed, tf.sqrt(time) * 2 * (high - low)[:, 0], 0), is_bracketed


def _binned(place: tf.Tensor) -> tf.Tensor:
    """Return the share of the values at each grid point [C, n], float32: of places [C, S] on the grid, linearly."""
    num_rows, num_values = tf.shape(place)[0], tf.shape(place)[1]
    below = tf.floor(place)
    index = tf.cast(below, tf.int32) + GRID * tf.range(num_rows)[:, tf.newaxis]
    right = tf.cast(place - below, tf.float32)
    counts = tf.math.unsorted_segment_sum(
        tf.concat([1 - right, right], 1), tf.concat([index, index + 1], 1), num_rows * GRID
    )
    return tf.reshape(counts, [num_rows, GRID]) / tf.cast(num_values, tf.float32)


def _basis() -> tuple[np.ndarray, np.ndarray]:
    """Return k^(2 s) exp(-k^2 pi^2 t) of all stages and times, each column over its largest, and the
    columns' logarithms.
    """
    k = np.arange(1, GRID)[:, None, None]
    s = np.array(STAGES)[:, None]
    # a_k^2 is of the sum with both signs, twice the cosine: 2 pi^(2 s) |a / 2|^2 = pi^(2 s) / 2 a^2.
    logs = 2 * s * np.log(k) - (k * np.pi) ** 2 * np.exp(LOG_TIMES)
    largest = logs.max(0)
    basis = np.exp(logs - largest).reshape(GRID - 1, -1)
    return basis.astype(np.float32), largest + 2 * s * np.log(np.pi) + np.log(0.5)


def _root(logs: tf.Tensor, num_values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return t [C] and whether there is one, from the tabulated logarithms of |f^(s)|^2 [C, stages, times]."""

    def excess(time: tf.Tensor) -> tf.Tensor:
        """Return log t - log (the right hand side at t)."""
        log_f = _interpolate(logs[:, -1], tf.math.log(time))
        for s in reversed(STAGES[:-1]):
            constant = (1 + 0.5 ** (s + 0.5)) / 3 * np.prod(np.arange(1.0, 2 * s, 2)) / math.sqrt(2 * math.pi)
            log_time = (math.log(2 * constant) - tf.math.log(num_values) - log_f) * 2 / (3 + 2 * s)
            log_f = _interpolate(logs[:, s - STAGES[0]], log_time)
        return tf.math.log(time) + 0.4 * (math.log(2 * math.sqrt(math.pi)) + tf.math.log(num_values) + log_f)

    start = 1e-11 + 1e-5 * (tf.clip_by_value(num_values, 50, 1050) - 50)

    def enclose(bound: tf.Tensor, is_bracketed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        is_bracketed |= (bound < 1) & (excess(bound) > 0)
        return tf.where(is_bracketed, bound, 2 * bound), is_bracketed

    bound, is_bracketed = tf.while_loop(
        lambda bound, is_bracketed: tf.reduce_any(~is_bracketed & (bound < 1)),
        enclose,
        (start, tf.zeros_like(start, tf.bool)),
        parallel_iterations=1,
    )
    low = tf.math.log(tf.where(bound > start, bound / 2, 1e-12))

    def halve(i: tf.Tensor, low: tf.Tensor, high: tf.Tensor) -> tuple[tf.Tensor, ...]:
        middle = (low + high) / 2
        below = excess(tf.exp(middle)) <= 0
        return i + 1, tf.where(below, middle, low), tf.where(below, high, middle)

    _, low, high = tf.while_loop(
        lambda i, low, high: i < BISECTIONS, halve, (0, low, tf.math.log(bound)), parallel_iterations=1
    )
    return tf.exp((low + high) / 2), is_bracketed


def _interpolate(table: tf.Tensor, log_time: tf.Tensor) -> tf.Tensor:
    """Return the cubic through the four nearest of a table's values [C, times], at one time a row [C];
    constant outside.
    """
    step = LOG_TIMES[1] - LOG_TIMES[0]
    place = tf.clip_by_value((log_time - LOG_TIMES[0]) / step, 0.0, len(LOG_TIMES) - 1.0)
    first = tf.clip_by_value(tf.cast(place, tf.int32) - 1, 0, len(LOG_TIMES) - 4)
    t = place - tf.cast(first, tf.float64)
    nodes = tf.gather(table, first[:, tf.newaxis] + tf.range(4), axis=1, batch_dims=1)
    shares = [tf.reduce_prod(tf.stack([(t - j) / (i - j) for j in range(4) if j != i]), 0) for i in range(4)]
    return tf.reduce_sum(nodes * tf.stack(shares, -1), -1)


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
