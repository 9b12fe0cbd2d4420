"""The messages of clients as bytes: what the server reads, with few bits for each entry of the Gram matrix.

S = G - n m m^T,   C_ij = S_ij / sqrt(S_ii S_jj),   l_ij = round(L C_ij + u_ij),   L = 2^(bits - 1) - 1

with the number n and the mean m of the client's features. The server takes (l - u) / L for C. The dither u, uniform on
[-1/2, 1/2), follows from the client's number on both sides, and makes the error of C uniform with the variance
1 / (12 L^2), whatever C is. N, M and the diagonal of S are sent in float64, l in the code of `compression.golomb`.

Source: Schuchman 1964, "Dither signals and their effect on quantization noise".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.algorithms.heads.sums import ClassSums, HeadSums, empty_sums, symmetric, upper, whole
from tfp_bfl.compression import golomb, lengths
from tfp_bfl.contracts import Coding
from tfp_bfl.errors import InvalidArgument, check_count
from tfp_bfl.weights import ServerMessage


class ShortSums(NamedTuple):
    """`ClassSums` of a client with few bits.

    Fields:
      counts, totals: as of `ClassSums`.
      diagonal: of S [F].
      levels: l of the upper triangle, row by row, int32 [F (F + 1) / 2].
    """

    counts: Any
    totals: Any
    diagonal: Any
    levels: Any


def check_bits(sum_bits: int) -> int:
    """Return the bits of an entry of the Gram matrix: 8 to 16, or 64; others raise InvalidArgument."""
    if sum_bits != 64 and not 8 <= check_count(sum_bits, "sum_bits") <= 16:
        raise InvalidArgument(f"sum_bits is {sum_bits}, but must be 8 to 16, or 64.")
    return sum_bits


def shorten(sums: HeadSums, bits: int) -> HeadSums:
    """Return the sums, of which the Gram matrix is whole [F, F], with `bits` for each entry of its upper triangle."""
    of = sums.features
    if bits == 64:
        return sums._replace(features=of._replace(gram=upper(of.gram)))
    scatter, most = of.gram - _of_mean(of), _most(bits)
    diagonal = tf.maximum(tf.linalg.diag_part(scatter), 0.0)
    values = most * tf.math.divide_no_nan(upper(scatter), _products(diagonal))
    levels = tf.cast(tf.round(values + _dither(sums.client, values.shape)), tf.int32)
    return sums._replace(features=ShortSums(of.counts, of.totals, diagonal, tf.clip_by_value(levels, -most, most)))


def restore(code: HeadSums, bits: int) -> HeadSums:
    """Return the sums that a code stands for."""
    of = code.features
    if bits == 64:
        return code
    values = (tf.cast(of.levels, tf.float64) - _dither(code.client, of.levels.shape)) / _most(bits)
    scatter = symmetric(values * _products(of.diagonal), of.totals.shape[1])
    gram = upper(tf.linalg.set_diag(scatter, of.diagonal) + _of_mean(of))
    return code._replace(features=ClassSums(of.counts, of.totals, gram))


def _most(bits: int) -> int:
    return 2 ** (bits - 1) - 1


def _dither(client: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    seed = tf.stack([tf.cast(client, tf.int32), 0])
    return tf.random.stateless_uniform(shape, seed, dtype=tf.float64, alg="philox") - 0.5


def _products(diagonal: tf.Tensor) -> tf.Tensor:
    return upper(tf.sqrt(diagonal[:, tf.newaxis] * diagonal))


def _of_mean(sums: ClassSums | ShortSums) -> tf.Tensor:
    """Return n m m^T [F, F]."""
    total = tf.reduce_sum(sums.totals, 0)
    return tf.math.divide_no_nan(total[:, tf.newaxis] * total, tf.reduce_sum(sums.counts))


def coding(bits: int, gradients: bool) -> Coding:
    """Return the coding of what `shorten` gives: the floats that are read, and then the levels."""

    def encode(message: ServerMessage, code: HeadSums) -> bytes:
        floats, levels = _parts(read_of(code, int(message.round)))
        return b"".join([x.astype("<f8").tobytes() for x in floats] + list(map(golomb.encode, levels)))

    def decode(message: ServerMessage, content: bytes) -> HeadSums:
        size, classes = message.weights.point[-2].shape
        zeros = shorten(whole(empty_sums(size, classes, gradients)), bits)
        read = read_of(zeros, int(message.round))
        floats, levels = _parts(read)
        size = sum(x.nbytes for x in floats)
        if len(content) < size or (len(content) > size and not levels):
            raise InvalidArgument(f"The code has {len(content)} bytes, but the numbers of this round take {size}.")
        flat = np.frombuffer(content[:size], "<f8")
        parts = [part.reshape(x.shape) for part, x in zip(np.split(flat, np.cumsum([x.size for x in floats])), floats)]
        parts += [golomb.decode(content[size:], x.size).astype(np.int32) for x in levels]
        found = tf.nest.pack_sequence_as(read, parts)._asdict()
        return zeros._replace(**{name: x for name, x in found.items() if tf.nest.flatten(x)})

    return Coding(lambda message, sent: restore(sent.code, bits), encode, decode)


def read_of(code: HeadSums, done: int) -> HeadSums:
    """Return what the server reads of a code after so many rounds: features first, later all else."""
    return code._replace(features=()) if done else code._replace(gradient=(), fisher=(), losses=())


def num_bits(code: HeadSums) -> tf.Tensor:
    """Return 8 times the bytes of a code, float32."""
    floats = [x for x in tf.nest.flatten(code) if x.dtype == tf.float64]
    levels = [lengths.num_bits(x) for x in tf.nest.flatten(code) if x.dtype == tf.int32]
    return tf.cast(sum(levels, 64 * sum(x.shape.num_elements() for x in floats)), tf.float32)


def _parts(code: HeadSums) -> tuple[list[np.ndarray], list[np.ndarray]]:
    leaves = [np.asarray(x) for x in tf.nest.flatten(code)]
    return [x for x in leaves if x.dtype == np.float64], [x for x in leaves if x.dtype == np.int32]
