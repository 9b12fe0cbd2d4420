"""Compressors that differ between clients, with one form of message for all of them."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.compression.compressors import Compressor
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.tensors import Scalar

# A byte states which compressor made the message.
NUMBER_BITS = 8


class ChosenMessage(NamedTuple):
    """The message of one of several compressors.

    Fields:
      number: of the compressor, a scalar int32.
      parts: a message of each compressor, zeros for all but this one.
    """

    number: Any
    parts: tuple[Any, ...]


def by_client(compressors: Sequence[Compressor], size: int) -> Callable[[Scalar], Compressor]:
    """Return the function from a client's number to its compressor, if clients have different ones.

    All compressors that it returns have one form of message, so that clients share a graph and a server decodes any
    message. A message is one byte longer than that of the client's compressor. Clients with the same compressor share
    its code in the graph.

    Args:
      compressors: of the clients 0, 1, ..., one for each.
      size: d, the number of values of a vector.

    Returns:
      A function of a scalar; `omega` and `bound` of its compressors are the largest of all clients'.

    Raises:
      InvalidArgument: more than 256 different compressors.
    """
    distinct = list(dict.fromkeys(compressors))
    if len(distinct) > 2**NUMBER_BITS:
        raise InvalidArgument(
            f"The clients have {len(distinct)} different compressors, but at most {2**NUMBER_BITS} are possible: give "
            "some clients the same one."
        )
    numbers = np.array([distinct.index(c) for c in compressors], np.int32)
    specs = [_message_spec(c, size) for c in distinct]

    def compress(number: tf.Tensor, x: tf.Tensor, seed: tf.Tensor) -> ChosenMessage:
        def by(i: int) -> tuple[Any, ...]:
            absent = lambda spec: tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), spec)
            return tuple(distinct[i].compress(x, seed) if i == j else absent(spec) for j, spec in enumerate(specs))

        return ChosenMessage(number, tf.switch_case(number, [functools.partial(by, i) for i in range(len(distinct))]))

    def of_part(name: str) -> Callable[[ChosenMessage], Any]:
        def call(message: ChosenMessage) -> Any:
            branches = [functools.partial(getattr(c, name), part) for c, part in zip(distinct, message.parts)]
            return tf.switch_case(tf.convert_to_tensor(message.number), branches)

        return call

    def encode(message: ChosenMessage) -> bytes:
        i = int(message.number)
        return bytes([i]) + distinct[i].encode(message.parts[i])

    def decode(code: bytes, size: int) -> ChosenMessage:
        if not code or code[0] >= len(distinct):
            raise InvalidArgument(f"The code names none of the {len(distinct)} compressors: it is damaged.")
        absent = lambda spec: tf.nest.map_structure(lambda s: np.zeros(s.shape, s.dtype.as_numpy_dtype), spec)
        parts = [distinct[code[0]].decode(code[1:], size) if i == code[0] else absent(s) for i, s in enumerate(specs)]
        return ChosenMessage(np.int32(code[0]), tuple(parts))

    bits_of = of_part("num_bits")
    shared = Compressor(
        "by client",
        lambda x, seed: compress(tf.constant(0), x, seed),
        of_part("decompress"),
        lambda d: max(c.omega(d) for c in distinct),
        lambda message: NUMBER_BITS + bits_of(message),
        lambda d: NUMBER_BITS + max(c.bound(d) for c in distinct),
        encode,
        decode,
        all(c.unbiased for c in distinct),
    )

    def of(client: Scalar) -> Compressor:
        return shared._replace(compress=functools.partial(compress, tf.gather(numbers, client)))

    return of


def _message_spec(compressor: Compressor, size: int) -> Any:
    """Return the types of a compressor's message, by tracing it."""
    traced = tf.function(compressor.compress, autograph=False)
    message = traced.get_concrete_function(tf.TensorSpec([size]), tf.TensorSpec([2], tf.int32)).structured_outputs
    return tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), message)
