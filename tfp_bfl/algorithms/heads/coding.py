"""The messages of clients as bytes: what the server reads, with few bits for each entry of the Gram matrix.

S = G - n m m^T,   C_ij = S_ij / sqrt(S_ii S_jj),   l_ij = round(L C_ij + u_ij),   L = 2^(bits - 1) - 1

with the number n and the mean m of the client's features. The server takes (l - u) / L for C. The dither u, uniform on
[-1/2, 1/2), follows from the client's number on both sides, and makes the error of C uniform with the variance
1 / (12 L^2), whatever C is. N, M and the diagonal of S are sent in float64, l in the code of `compression.golomb`.

Source: Schuchman 1964, "Dither signals and their effect on quantization noise".
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.algorithms.heads.sums import ClassSums, HeadSums, empty_sums
from tfp_bfl.compression import golomb
from tfp_bfl.contracts import Coding
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior.kronecker import symmetric, upper
from tfp_bfl.weights import ServerMessage


class ShortSums(NamedTuple):
    """`ClassSums` with few bits: the client's number, N, M, the diagonal of S [F], and l of the upper triangle."""

    client: Any
    counts: Any
    totals: Any
    diagonal: Any
    levels: Any


def shorten(sums: ClassSums, bits: int, client: tf.Tensor) -> ClassSums | ShortSums:
    """Return sums with a whole Gram matrix [F, F] with `bits` for each entry of its upper triangle."""
    if bits == 64:
        return sums._replace(gram=upper(sums.gram))
    scatter, most = sums.gram - _of_mean(sums), 2 ** (bits - 1) - 1
    diagonal = tf.maximum(tf.linalg.diag_part(scatter), 0.0)
    values = most * upper(tf.math.divide_no_nan(scatter, tf.sqrt(diagonal[:, tf.newaxis] * diagonal)))
    levels = tf.cast(tf.round(values + _dither(client, values.shape)), tf.int32)
    return ShortSums(client, sums.counts, sums.totals, diagonal, tf.clip_by_value(levels, -most, most))


def restore(code: ClassSums | ShortSums, bits: int) -> ClassSums:
    """Return the sums that a code stands for."""
    if isinstance(code, ClassSums):
        return code
    levels, diagonal = tf.cast(code.levels, tf.float64) - _dither(code.client, code.levels.shape), code.diagonal
    values = symmetric(levels / (2 ** (bits - 1) - 1))
    scatter = tf.linalg.set_diag(values * tf.sqrt(diagonal[:, tf.newaxis] * diagonal), diagonal)
    gram = upper(scatter + _of_mean(code))
    return ClassSums(code.counts, code.totals, gram)


def _of_mean(sums: ClassSums | ShortSums) -> tf.Tensor:
    """Return n m m^T [F, F]."""
    total = tf.reduce_sum(sums.totals, 0)
    return tf.math.divide_no_nan(total[:, tf.newaxis] * total, tf.reduce_sum(sums.counts))


def _dither(client: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    seed = tf.stack([tf.cast(client, tf.int32), 0])
    return tf.random.stateless_uniform(shape, seed, dtype=tf.float64, alg="philox") - 0.5


def coding(bits: int, gradients: bool) -> Coding:
    """Return the coding of `HeadSums` with `shorten`ed features: the floats that are read, and then the levels."""

    def expand(message: ServerMessage, sent: Any) -> HeadSums:
        return sent.code._replace(features=restore(sent.code.features, bits))

    def encode(message: ServerMessage, code: HeadSums) -> bytes:
        floats, levels = _parts(read_of(code, int(message.round)))
        return b"".join([np.asarray(x, "<f8").tobytes() for x in floats] + [golomb.encode(x) for x in levels])

    def decode(message: ServerMessage, content: bytes) -> HeadSums:
        size, classes = message.weights.point[-2].shape
        zeros = empty_sums(size, classes, gradients)
        zeros = zeros._replace(features=shorten(zeros.features, bits, tf.zeros([], tf.float64)))
        read = read_of(zeros, int(message.round))
        floats, levels = _parts(read)
        flat = np.frombuffer(content[: 8 * (len(content) // 8)], "<f8")
        ends = np.cumsum([int(tf.size(x)) for x in floats])
        if len(flat) < ends[-1] or (len(content) > 8 * ends[-1] and not levels):
            raise InvalidArgument(f"The code has {len(content)} bytes, but the numbers of its round {8 * ends[-1]}.")
        parts = [part.reshape(x.shape) for part, x in zip(np.split(flat, ends), floats)]
        parts += [golomb.decode(content[8 * ends[-1] :], len(x)).astype(np.int32) for x in levels]
        found = tf.nest.pack_sequence_as(read, parts)._asdict()
        return zeros._replace(**{name: x for name, x in found.items() if tf.nest.flatten(x)})

    return Coding(expand, encode, decode)


def read_of(code: HeadSums, done: int) -> HeadSums:
    """Return what the server reads of a code after so many rounds: features first, later all else."""
    return HeadSums((), *code[1:]) if done else HeadSums(code.features, (), (), ())


def num_bits(code: HeadSums) -> tf.Tensor:
    """Return 8 times the bytes of a code, float32."""
    floats, levels = _parts(code)
    size = 64 * sum(x.shape.num_elements() for x in floats)
    return tf.cast(sum(map(golomb.num_bits, levels), size), tf.float32)


def _parts(code: HeadSums) -> tuple[list[Any], list[Any]]:
    leaves = tf.nest.flatten(code)
    floats, levels = ([x for x in leaves if x.dtype.name == name] for name in ("float64", "int32"))
    return floats, levels
