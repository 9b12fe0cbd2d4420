"""The length of a code of `golomb.py` from its integers, in TensorFlow: without writing it."""

from __future__ import annotations

import tensorflow as tf

from tfp_bfl.compression.golomb import PLANES, STEPS, WIDTH, rice_scale

_POWERS = [2**i for i in range(40)]


def num_bits(levels: tf.Tensor) -> tf.Tensor:
    """Return 8 times the number of bytes of `golomb.encode(levels)` for integers [d]: a scalar int64."""
    sizes = tf.abs(tf.cast(levels, tf.int64))
    length = tf.size(sizes, out_type=tf.int64)
    low = tf.constant(0, tf.int64)
    for step in STEPS:
        reach = tf.math.count_nonzero(sizes >= tf.bitwise.left_shift(tf.constant(1, tf.int64), low + step - 1))
        low += step * tf.cast(2 * reach >= tf.maximum(length, 1), tf.int64)
    signs = tf.math.count_nonzero(sizes)

    def plane(left: tf.Tensor, bits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        ones = left > 0
        length, number = tf.size(left, out_type=tf.int64), tf.math.count_nonzero(ones)
        fewer = 2 * number <= length
        num_rare = tf.where(fewer, number, length - number)
        low = _bit_length(rice_scale(length, num_rare))
        rare = tf.where(tf.equal(ones, fewer))[:, 0]
        gaps = rare - tf.concat([[tf.constant(-1, tf.int64)], rare[:-1]], 0)[: tf.size(rare)] - 1
        code = tf.reduce_sum(tf.bitwise.right_shift(gaps, tf.broadcast_to(low, tf.shape(gaps))) + 1 + low)
        return tf.boolean_mask(left, ones) - 1, bits + _bit_length(length) + code

    high = tf.bitwise.right_shift(sizes, tf.broadcast_to(low, tf.shape(sizes)))
    left, bits = tf.while_loop(
        lambda left, bits: tf.size(left) > 0,
        plane,
        (high, WIDTH + low * length + signs),
        shape_invariants=(tf.TensorShape([None]), tf.TensorShape([])),
        maximum_iterations=PLANES,
    )
    bits += 31 * tf.size(left, tf.int64)
    return 8 * ((bits + 7) // 8)


def _bit_length(x: tf.Tensor) -> tf.Tensor:
    return tf.math.count_nonzero(x >= tf.constant(_POWERS, tf.int64))
