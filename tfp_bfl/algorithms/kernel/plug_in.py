"""The improved Sheather-Jones bandwidth as a TensorFlow graph, for many coordinates at once.

Letters: C coordinates, S clients, N different values of a coordinate, n grid points.
"""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

from tfp_bfl.algorithms.kernel.mean_shift import BLOCK, in_blocks

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
