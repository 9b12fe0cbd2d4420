"""The source of noise of stochastic layers: an explicit stateless seed, or Keras' global generator without one."""

import contextlib
import itertools
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.tensors import is_traced_for_xla

# AutoGraph reads the code of all that a traced function calls, for loops over tensors: a third of the tracing, for
# nothing where there are none.
without_autograph = tf.autograph.experimental.do_not_convert

MODES = ("flipout", "shared", "mean")
# By which nothing else is folded.
_FIRST_CALL = 2**29 + 3
# Coefficients of sin(y) / y and of cos(y) in y^2, the highest power first.
_ODD = [(-1.0) ** k / math.factorial(2 * k + 1) for k in range(5, -1, -1)]
_EVEN = [(-1.0) ** k / math.factorial(2 * k) for k in range(6, -1, -1)]
# Of Threefry, by turns.
_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
_PARITY = 0x1BD11BDA
# Numbers of operations without another seed, from 1 on, across threads.
_operations = itertools.count(1)


class _Scope(NamedTuple):
    mode: str
    seed: tf.Tensor | None
    calls: Iterator[int]
    perturbations: Mapping[Any, tf.Tensor]


class _Scopes(threading.local):
    def __init__(self) -> None:
        self.stack: list[_Scope] = []


_scopes = _Scopes()


@contextlib.contextmanager
def sampling(
    mode: str = "flipout", seed: tf.Tensor = None, perturbations: Mapping[Any, tf.Tensor] | None = None
) -> Iterator[None]:
    """Set how the layers called inside the block draw their noise.

        with bfl.layers.sampling("shared", seed=[7, 0]):
            logits = model(images)

    Args:
      mode: "flipout": a perturbation of its own for each example (two convolutions), in layers with variational
        dropout by local reparametrisation; "shared": one weight sample for the whole batch (one convolution, for
        prediction); "mean": the posterior's mean, and no dropout.
      seed: [2] integers or a tensor. The same seed gives the same noise; each layer call in the block draws from its
        own substream. None: from TensorFlow's global generator (`tf.random.set_seed`), anew each call.
      perturbations: s * eps for the weights with drawn noise, from `seed` itself, by the `ref()` of their
        mean's variable: one draw for a whole model is cheaper than one a layer. Other weights draw for themselves.
    """
    if mode not in MODES:
        raise InvalidArgument(f"sampling has no mode {mode!r}: choose one of {', '.join(map(repr, MODES))}.")
    seed = None if seed is None else tf.cast(tf.convert_to_tensor(seed), tf.int32)
    _scopes.stack.append(_Scope(mode, seed, itertools.count(), perturbations or {}))
    try:
        yield
    finally:
        _scopes.stack.pop()


def mode() -> str:
    """Return the mode of the innermost `sampling` block; "flipout" outside any."""
    return _scopes.stack[-1].mode if _scopes.stack else "flipout"


def current_seed() -> tf.Tensor | None:
    """Return the seed [2] of the innermost `sampling` block; None without one."""
    return _scopes.stack[-1].seed if _scopes.stack else None


def drawn(mean: tf.Variable) -> tf.Tensor | None:
    """Return the perturbation that the innermost `sampling` block holds ready for the weight of this mean."""
    if not _scopes.stack or not _scopes.stack[-1].perturbations:
        return None
    variable = mean if hasattr(mean, "ref") else mean.value  # of a variable of Keras 3
    return _scopes.stack[-1].perturbations.get(variable.ref())


def standard_normal(size: Any, seed: tf.Tensor) -> tf.Tensor:
    """Return `size` draws from N(0, 1) in float32, in less time than `tf.random.stateless_normal` (benchmarks).

    Box & Muller (1958): (r cos t, r sin t) with r = sqrt(-2 log u), u and t / (2 pi) uniform on 2^20 and 2^12 midpoints
    from the 32 bits of one integer. Moments below the 4096th of the angle are exact; |draws| stay below 5.4.
    """
    if not is_traced_for_xla():
        return tf.concat(_pair(_random_bits([(size + 1) // 2], seed)), 0)[:size]
    # Rows, as XLA would compute a vector of several parts number by number, each with the question of its part.
    cosines, sines = zip(*map(_pair, _random_words((size + 3) // 4, seed)))
    return tf.reshape(tf.stack([*cosines, *sines]), [-1])[:size]


def _pair(bits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return two draws from N(0, 1) of the bits of each int32."""
    low = tf.cast(tf.bitwise.bitwise_and(bits, 0xFFFFF), tf.float32)
    high = tf.cast(tf.bitwise.right_shift(bits, 20), tf.float32)  # keeps the sign: in [-2048, 2048)
    radius = tf.sqrt(-2.0 * tf.math.log((low + 0.5) * 2.0**-20))
    cosine, sine = _direction(high + 0.5)
    return radius * cosine, radius * sine


def _direction(place: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return cos(t) and sin(t), t = pi place / 2048, of places in (-2048, 2048) other than 0.

    XLA on a CPU calls the C library for each cosine and sine. Taylor polynomials about |t| = pi / 2 have an error of at
    most 6e-8 before rounding and take less time.
    """
    if not is_traced_for_xla():
        angle = place * (math.pi / 2048)
        return tf.cos(angle), tf.sin(angle)
    shifted = (tf.abs(place) - 1024) * (math.pi / 2048)
    odd, even = (tf.math.polyval(terms, tf.square(shifted)) for terms in (_ODD, _EVEN))
    return -shifted * odd, tf.sign(place) * even


def _random_bits(shape: Sequence[Any], seed: tf.Tensor) -> tf.Tensor:
    """Return independent int32 of 32 random bits each; by XLA in a quarter of the time of TensorFlow's Threefry."""
    if not is_traced_for_xla():
        return tf.random.stateless_uniform(shape, seed, None, None, tf.int32)
    size = math.prod(shape)
    return tf.reshape(tf.reshape(tf.stack(_random_words((size + 1) // 2, seed)), [-1])[:size], shape)


def _random_words(number: int, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return two times so many independent int32 of 32 random bits each."""
    counters = tf.range(number)
    return threefry(seed, counters, tf.zeros_like(counters))


def threefry(key: tf.Tensor, first: tf.Tensor, second: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return two words of random bits for each counter of two words: Threefry-2x32 of 20 rounds.

    Args:
      key: int32 [2].
      first, second: words of the counters, int32 [N].

    Returns:
      Two int32 [N].

    Source: Salmon et al. 2011, Parallel random numbers: as easy as 1, 2, 3, table 2.
    """
    key, first, second = (tf.bitcast(x, tf.uint32) for x in (key, first, second))
    keys = key[0], key[1], key[0] ^ key[1] ^ _PARITY
    first, second = first + keys[0], second + keys[1]
    for i in range(5):
        for left in _ROTATIONS[i % 2]:
            first += second
            second = first ^ (tf.bitwise.left_shift(second, left) | tf.bitwise.right_shift(second, 32 - left))
        first += keys[(i + 1) % 3]
        second += keys[(i + 2) % 3] + (i + 1)
    return tf.bitcast(first, tf.int32), tf.bitcast(second, tf.int32)


def random_signs(rows: object, width: int, seed: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return independent +1 and -1 with probability 1 / 2 each: [rows, width rounded up to a multiple of 4]."""
    columns = -(-width // 4)
    bits = _random_bits([rows, columns], seed)
    four = tf.reshape(tf.bitcast(bits, tf.int8), [rows, 4 * columns])
    # The sign bit of each byte, spread over it, gives 0 or -1; with the lowest bit set, 1 or -1.
    return tf.cast(tf.bitwise.bitwise_or(tf.bitwise.right_shift(four, 7), 1), dtype)


def next_seeds(number: int) -> list[tf.Tensor]:
    """Return `number` fresh seeds, each [2] int32, for one layer call."""
    scope = _scopes.stack[-1] if _scopes.stack else None
    if scope is None or scope.seed is None:
        return tf.unstack(unseeded([number, 2], tf.int32.max))
    calls = [next(scope.calls) for _ in range(number)]
    # The seed itself is that of the perturbations.
    first = lambda: tf.random.experimental.stateless_fold_in(scope.seed, _FIRST_CALL)
    return [first() if scope.perturbations and not i else scope.seed + _offset(i) for i in calls]


def unseeded(shape: Sequence[int], maxval: int) -> tf.Tensor:
    """Return integers from 0 to maxval - 1 of TensorFlow's global generator, anew each call: int32 of the shape.

    With TensorFlow's determinism and without `tf.random.set_seed`, TensorFlow refuses operations without a seed, and
    so would refuse to build a model. Each operation then has its number in this process as its seed.
    """
    try:
        return tf.random.uniform(shape, maxval=maxval, dtype=tf.int32)
    except RuntimeError:
        return tf.random.uniform(shape, maxval=maxval, dtype=tf.int32, seed=next(_operations))


def _offset(call: int) -> tf.Tensor:
    # Far apart in the first number, so that streams under neighbouring seeds never meet; Philox does the mixing.
    golden = call * 0x9E3779B9 % 2**32
    return tf.constant([golden - 2**32 if golden >= 2**31 else golden, call], tf.int32)
