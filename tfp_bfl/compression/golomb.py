"""Integers as bytes: Golomb-Rice codes of gaps, plane by plane, in NumPy; and their lengths in TensorFlow.

The low bits of the sizes are written as they are. What is left of a size is written in planes: of those that have
reached t = 0, 1, ..., which reach t + 1? A plane is the number of its ones, and the gaps between the rarer of its two
symbols in the Rice code that is shortest for their share. What has not ended after `PLANES` of them is written as it
is. Then the signs of what is not 0.

A library is no shorter: a range coder of the counts of the levels (constriction 0.5, with its table) makes 36 of 73
measured messages longer, those below 1,000 values by up to four times, the largest ones up to 4 % shorter, and its
length can't be counted without writing it (`num_bits`).

Source: Golomb 1966, "Run-length encodings"; Gallager and Van Voorhis 1975 for the parameter.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from tfp_bfl.errors import InvalidArgument

# A size has at most 31 bits, of which as many are low as these say.
WIDTH = 5
PLANES = 48
STEPS = (16, 8, 4, 2, 1)
EARLY = "The code ends too early: it is damaged, or of fewer integers."
BEYOND = "The code has more of something than there are integers: it is damaged, or of more integers."
_POWERS = [2**i for i in range(40)]


def encode(levels: np.ndarray) -> bytes:
    """Return integers [d] as bytes, at most 31 bits each besides the sign; d itself is not among them.

    Raises:
      InvalidArgument: they are not a vector of integers, or one is too large.
    """
    levels = np.asarray(levels)
    if levels.ndim != 1 or levels.dtype.kind not in "iu":
        raise InvalidArgument(f"A code is of a vector of integers, but this is {levels.dtype} {list(levels.shape)}.")
    sizes = np.abs(levels.astype(np.int64))
    if sizes.size and sizes.max() >= 2**31:
        raise InvalidArgument(f"The integer {sizes.max()} is too large for the code: it must be below 2^31.")
    low = _num_low_bits(sizes)
    parts = [_bits(low, WIDTH), _bits(sizes & (2**low - 1), low)]
    left = sizes >> low
    for _ in range(PLANES):
        if not left.size:
            break
        ones = left > 0
        parts += _plane(ones)
        left = left[ones] - 1
    parts.append(_bits(left, 31))
    parts.append((levels < 0)[sizes > 0].astype(np.uint8))
    return np.packbits(np.concatenate(parts)).tobytes()


def decode(code: bytes, num_levels: int) -> np.ndarray:
    """Return the integers [d] of `encode`, as int64.

    Raises:
      InvalidArgument: the bytes are not a code of so many.
    """
    reader = _Reader(np.unpackbits(np.frombuffer(code, np.uint8)))
    low = int(reader.numbers(1, WIDTH)[0])
    sizes = reader.numbers(num_levels, low)
    where = np.arange(num_levels)
    for _ in range(PLANES):
        if not where.size:
            break
        where = where[reader.plane(where.size)]
        sizes[where] += 2**low
    sizes[where] += reader.numbers(len(where), 31) << low
    present = np.flatnonzero(sizes)
    sizes[present[reader.take(len(present)) > 0]] *= -1
    reader.end()
    return sizes


def _num_low_bits(sizes: np.ndarray) -> int:
    """Return the low bits of the median: the largest j for which half of the sizes are at least 2^(j - 1), or 0.

    Of a normal law three to six planes are then left, of which each takes its time; as many bits more save a plane and
    cost more than 5 % where levels are few.
    """
    j = 0
    for step in STEPS:
        j += step * (2 * int(np.count_nonzero(sizes >= 2 ** (j + step - 1))) >= max(sizes.size, 1))
    return j


def rice_scale(length: Any, num_rare: Any) -> Any:
    """Return the integer with k bits, for the Rice code of the gaps between `num_rare` symbols in a row of `length`.

    k = the least with q^(2^k) <= (sqrt(5) - 1) / 2, gaps of probability (1 - q) q^gap:  2^k above 0.481 (mean + 1 / 2)
    """
    return 481 * (2 * length - num_rare) // (2000 * num_rare + 1)


def _plane(ones: np.ndarray) -> list[np.ndarray]:
    number = int(ones.sum())
    rare = np.flatnonzero(ones if 2 * number <= ones.size else ~ones)
    low = rice_scale(ones.size, rare.size).bit_length()
    gaps = np.diff(rare, prepend=-1) - 1
    ends = np.cumsum((gaps >> low) + 1) - 1
    unary = np.zeros(ends[-1] + 1 if ends.size else 0, np.uint8)
    unary[ends] = 1
    return [_bits(number, ones.size.bit_length()), unary, _bits(gaps & (2**low - 1), low)]


def _bits(values: np.ndarray | int, width: int) -> np.ndarray:
    """Return integers at least 0 and below 2^width, the highest bit first: [n * width]."""
    kind = _kind(width)
    bytes_ = np.atleast_1d(values).astype(kind).view(np.uint8)
    return np.unpackbits(bytes_).reshape(-1, 8 * kind.itemsize)[:, 8 * kind.itemsize - width :].ravel()


def _kind(width: int) -> np.dtype:
    return np.dtype(">u1" if width <= 8 else ">u2" if width <= 16 else ">u4")


class _Reader:
    def __init__(self, bits: np.ndarray):
        self._bits, self._at = bits, 0

    def take(self, number: int) -> np.ndarray:
        self._at += number
        if self._at > len(self._bits):
            raise InvalidArgument(EARLY)
        return self._bits[self._at - number : self._at]

    def numbers(self, number: int, width: int) -> np.ndarray:
        bits = self.take(number * width).reshape(number, width)
        values: np.ndarray = np.zeros(number, np.uint16 if width <= 16 else np.int64)
        for i in range(width):
            values = (values << 1) | bits[:, i]
        return values.astype(np.int64)

    def plane(self, length: int) -> np.ndarray:
        """Return the positions of the ones."""
        number = int(self.numbers(1, length.bit_length())[0])
        if number > length:
            raise InvalidArgument(BEYOND)
        num_rare = min(number, length - number)
        low = rice_scale(length, num_rare).bit_length()
        # The gaps' high parts sum to at most the row's length over 2^low.
        ends = np.flatnonzero(self._bits[self._at : self._at + num_rare + (length >> low)])[:num_rare]
        if len(ends) != num_rare:
            raise InvalidArgument(EARLY)
        self.take(int(ends[-1]) + 1 if num_rare else 0)
        gaps = ((np.diff(ends, prepend=-1) - 1) << low) + self.numbers(num_rare, low)
        rare = np.cumsum(gaps + 1) - 1
        if num_rare and rare[-1] >= length:
            raise InvalidArgument(BEYOND)
        if 2 * number <= length:
            return rare
        others = np.ones(length, bool)
        others[rare] = False
        return np.flatnonzero(others)

    def end(self) -> None:
        if len(self._bits) - self._at >= 8:
            raise InvalidArgument("The code continues after its last integer: it is damaged, or encodes more integers.")


def num_bits(levels: tf.Tensor) -> tf.Tensor:
    """Return 8 times the number of bytes of `encode(levels)` for integers [d]: a scalar int64."""
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
