"""Compressors of vectors: a quantiser, a sparsifier, the largest values, none; for all of it or tensor by tensor."""

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.compression import golomb
from tfp_bfl.compression.golomb import num_bits
from tfp_bfl.errors import InvalidArgument, check_count, check_number
from tfp_bfl.named import Table, WithArgument, parse

NORM_BITS = 32


class Compressor(NamedTuple):
    """C(x) = decompress(compress(x)), with E ||C(x) - x||^2 <= omega ||x||^2 and, where it is unbiased, E C(x) = x.

    Whatever uses C(x) uses what the message says.

    Fields:
      name: as text gives it.
      compress: (x [d] float32, a seed [2]) -> a message, a structure of tensors. Equal seeds give equal noise.
      decompress: message -> C(x) [d].
      omega: d -> the factor.
      num_bits: message -> the bits of `encode`'s bytes, a scalar int64.
      bound: d -> expected bits by theory.
      encode: message of arrays -> bytes.
      decode: (bytes, d) -> the message, as float32 and int32 arrays.
      unbiased: whether E C(x) = x. Else omega is below 1, and an error memory makes up for what is left out.
    """

    name: str
    compress: Callable[[tf.Tensor, tf.Tensor], Any]
    decompress: Callable[[Any], tf.Tensor]
    omega: Callable[[int], float]
    num_bits: Callable[[Any], tf.Tensor]
    bound: Callable[[int], float]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes, int], Any]
    unbiased: bool = True


class Quantised(NamedTuple):
    """A quantised vector: its norm, a scalar, and q [d], integers from -s to s."""

    norm: Any
    levels: Any


def quantiser(levels: int) -> Compressor:
    """QSGD: each value becomes a multiple of the norm over s, up or down at random.

    r_j = min(s |x_j| / ||x||, s),   q_j = sign(x_j) (floor(r_j) + 1{u_j < r_j - floor(r_j)}),   C(x) = ||x|| q / s
    omega = min(d / s^2, sqrt(d) / s)

    A message takes 32 bits of norm and q in the Golomb-Rice code of `golomb.py`, as a rule within 5 % of q's entropy.

    Args:
      levels: s, from 1 to 2^24; "p bits" are 2^p levels.

    Raises:
      InvalidArgument: levels outside that range.

    Source: Alistarh et al. 2017 (arXiv:1610.02132), section 3.1.

    Example:
      >>> bfl.compression.quantiser(16).name
      'quantiser:16'
    """
    s = check_count(levels, "levels")
    if s > 2**24:
        raise InvalidArgument(f"levels is {s}, but must be at most 2^24: float32 holds no larger integers exactly.")

    def compress(x: tf.Tensor, seed: tf.Tensor) -> Quantised:
        norm = tf.norm(x)
        # The cut is for rounding: the norm of a single value may come out below it.
        r = tf.minimum(s * tf.math.divide_no_nan(tf.abs(x), norm), float(s))
        down = tf.floor(r)
        up = tf.random.stateless_uniform(tf.shape(x), seed) < r - down
        return Quantised(norm, tf.cast(tf.sign(x) * (down + tf.cast(up, x.dtype)), tf.int32))

    def encode(message: Quantised) -> bytes:
        return struct.pack("<f", message.norm) + golomb.encode(np.asarray(message.levels))

    def decode(code: bytes, size: int) -> Quantised:
        norm = struct.unpack("<f", _start(code, 4))[0]
        q = golomb.decode(code[4:], size)
        if np.any(np.abs(q) > s):
            raise InvalidArgument(f"The code has the level {np.abs(q).max()}, but this quantiser has {s}.")
        return Quantised(np.float32(norm), q.astype(np.int32))

    return Compressor(
        f"quantiser:{s}",
        compress,
        lambda message: message.norm * (tf.cast(message.levels, tf.float32) / s),
        lambda d: min(d / s**2, math.sqrt(d) / s),
        lambda message: NORM_BITS + num_bits(message.levels),
        lambda d: elias_bound(d, s),
        encode,
        decode,
    )


def elias_bound(num_values: int, levels: int) -> float:
    """Return the expected bits of a quantised vector in Elias' codes, with 32 bits of its norm.

    Of d values and s levels, t = s (s + sqrt(d)), logarithms to base 2, terms o(1) left out:

    sparse, s^2 + sqrt(d) <= d / 2:  (3 + 3 / 2 log(2 (s^2 + d) / t)) t + 32
    dense:                           (1 / 2 (log(1 + (s^2 + min(d, s sqrt(d))) / d) + 1) + 2) d + 32

    It is no bound on what a coder makes of one message: coordinate by coordinate Elias' own codes are above it for few
    levels and for many.

    Source: Alistarh et al. 2017 (arXiv:1610.02132), theorem 3.2 and lemma A.2.

    Raises:
      InvalidArgument: a count below 1.
    """
    d, s = check_count(num_values, "num_values"), check_count(levels, "levels")
    root = math.sqrt(d)
    if s * s + root <= d / 2:
        t = s * (s + root)
        return (3 + 1.5 * math.log2(2 * (s * s + d) / t)) * t + NORM_BITS
    return (0.5 * (math.log2(1 + (s * s + min(d, s * root)) / d) + 1) + 2) * d + NORM_BITS


def sparsifier(share: float) -> Compressor:
    """Keep each value with the same probability, and scale up the kept ones: C(x)_j = x_j / share, or 0.

    omega = 1 / share - 1, exactly: E (C(x)_j - x_j)^2 = omega x_j^2

    A message takes 32 bits of how many values there are, 32 of each, and where they are in the code of `golomb.py`.

    Args:
      share: the probability, above 0 and at most 1.

    Raises:
      InvalidArgument: a share outside that range.

    Example:
      >>> bfl.compression.sparsifier(0.1).name
      'sparsifier:0.1'
    """
    share = check_number(share, "share")
    if share > 1:
        raise InvalidArgument(f"share is {share:g}, but must be at most 1: it is the probability that a value is kept.")

    def compress(x: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return tf.where(tf.random.stateless_uniform(tf.shape(x), seed) < share, x / share, 0.0)

    return _sparse(f"sparsifier:{share:g}", share, compress, lambda d: 1 / share - 1)


def largest(share: float) -> Compressor:
    """Keep a share of the values, the largest by size, as they are: biased, and so for clients with an error memory.

    omega = 1 - ceil(share d) / d; a message takes what that of `sparsifier` does.

    Args:
      share: of the values, above 0 and at most 1.

    Raises:
      InvalidArgument: a share outside that range.

    Source: Stich et al. 2018 (arXiv:1809.07599), "top-k".

    Example:
      >>> bfl.compression.largest(0.1).name
      'largest:0.1'
    """
    share = check_number(share, "share")
    if share > 1:
        raise InvalidArgument(f"share is {share:g}, but must be at most 1: it is of the values that are kept.")

    def compress(x: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        del seed
        size = tf.size(x)
        number = tf.cast(tf.math.ceil(share * tf.cast(size, tf.float64)), tf.int32)
        where = tf.math.top_k(tf.abs(x), number, sorted=False).indices
        return tf.tensor_scatter_nd_update(tf.zeros_like(x), where[:, tf.newaxis], tf.gather(x, where))

    omega = lambda d: 1 - math.ceil(share * d) / d
    return _sparse(f"largest:{share:g}", share, compress, omega)._replace(unbiased=False)


def _sparse(name: str, share: float, compress: Callable[..., Any], omega: Callable[[int], float]) -> Compressor:
    """Return a compressor with the message C(x) itself, coded as its non-zero values and their positions."""
    entropy = -sum(p * math.log2(p) for p in (share, 1 - share) if p)

    def bits_of(message: tf.Tensor) -> tf.Tensor:
        kept = tf.not_equal(message, 0)
        return 32 + 32 * tf.math.count_nonzero(kept) + num_bits(tf.cast(kept, tf.int32))

    def encode(message: object) -> bytes:
        values = np.asarray(message, "<f4")
        kept = values != 0
        return struct.pack("<I", kept.sum()) + values[kept].tobytes() + golomb.encode(kept.astype(np.int32))

    def decode(code: bytes, size: int) -> np.ndarray:
        end = 4 + 4 * struct.unpack("<I", _start(code, 4))[0]
        values, mask = np.frombuffer(_start(code, end)[4:], "<f4"), golomb.decode(code[end:], size)
        if not set(np.unique(mask)) <= {0, 1} or mask.sum() != len(values):
            raise InvalidArgument(f"The code has {len(values)} values, but not as many places for them: it is damaged.")
        message = np.zeros(size, np.float32)
        message[mask > 0] = values
        return message

    bound = lambda d: (32 * share + entropy) * d + 32
    return Compressor(name, compress, lambda message: message, omega, bits_of, bound, encode, decode)


def none() -> Compressor:
    """Return the identity as a compressor: C(x) = x, omega = 0, 32 bits a value."""

    def decode(code: bytes, size: int) -> np.ndarray:
        if len(code) != 4 * size:
            raise InvalidArgument(f"{size} float32 values take {4 * size} bytes, but the code has {len(code)}.")
        return np.frombuffer(code, "<f4").astype(np.float32)

    return Compressor(
        "none",
        lambda x, seed: x,
        lambda message: message,
        lambda d: 0.0,
        lambda message: 32 * tf.size(message, tf.int64),
        lambda d: 32.0 * d,
        lambda message: np.asarray(message, "<f4").tobytes(),
        decode,
    )


def by_tensor(compressor: Compressor, sizes: Sequence[int]) -> Compressor:
    """Return a compressor for each tensor of a vector: each quantised by its own norm, say.

    omega is the largest of the tensors'. A message is a tuple of theirs; its code begins with how many bytes each has,
    in 32 bits a tensor.

    Args:
      compressor: of each tensor.
      sizes: of the tensors, in their order; their sum is d.

    Raises:
      InvalidArgument: a size below 1, or none.
    """
    sizes = [check_count(size, "a tensor's size") for size in sizes]
    if not sizes:
        raise InvalidArgument("sizes is empty, but must hold the size of each tensor.")

    def each(x: tf.Tensor, seed: tf.Tensor) -> tuple[Any, ...]:
        fold = tf.random.experimental.stateless_fold_in
        return tuple(compressor.compress(part, fold(seed, i)) for i, part in enumerate(tf.split(x, sizes)))

    def encode(message: tuple[Any, ...]) -> bytes:
        codes = [compressor.encode(part) for part in message]
        return struct.pack(f"<{len(codes)}I", *map(len, codes)) + b"".join(codes)

    def decode(code: bytes, size: int) -> tuple[Any, ...]:
        if size != sum(sizes):
            raise InvalidArgument(f"The tensors have {sum(sizes)} values together, but {size} are asked for.")
        head = 4 * len(sizes)
        lengths = struct.unpack(f"<{len(sizes)}I", _start(code, head))
        if head + sum(lengths) != len(code):
            raise InvalidArgument(f"The code has {len(code)} bytes, but says {head + sum(lengths)}: it is damaged.")
        ends = np.cumsum([head, *lengths])
        return tuple(compressor.decode(code[a:b], size) for a, b, size in zip(ends, ends[1:], sizes))

    return Compressor(
        f"{compressor.name} by tensor",
        each,
        lambda message: tf.concat([compressor.decompress(part) for part in message], 0),
        lambda d: max(map(compressor.omega, sizes)),
        lambda message: tf.add_n([32 + compressor.num_bits(part) for part in message]),
        lambda d: sum(32 + compressor.bound(size) for size in sizes),
        encode,
        decode,
        compressor.unbiased,
    )


def _start(code: bytes, length: int) -> bytes:
    if len(code) < length:
        raise InvalidArgument(f"The code has {len(code)} bytes, but must have at least {length}: it ends too early.")
    return code[:length]


COMPRESSORS: Table = {
    "quantiser": WithArgument(quantiser, "levels", int),
    "sparsifier": WithArgument(sparsifier, "share"),
    "largest": WithArgument(largest, "share"),
    "none": none,
}


def parse_compressor(text: str) -> Compressor:
    """Return "quantiser:LEVELS", "sparsifier:SHARE", "largest:SHARE" or "none" as a compressor.

    Raises:
      InvalidArgument: no such compressor, or a number outside its range.

    Example:
      >>> bfl.compression.parse_compressor("quantiser:16").name
      'quantiser:16'
    """
    return parse(COMPRESSORS, text, "compressor")()
