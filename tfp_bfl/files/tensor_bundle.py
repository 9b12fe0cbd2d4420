"""The index of TensorFlow's checkpoints, read in Python: TensorFlow's own reader ends the process at some broken ones.

The file is a sorted table as of LevelDB, without compression. Its blocks hold entries (length of the prefix shared with
the last key, length of the rest, length of the value, rest, value), then the offsets of the entries that share nothing,
then their number; the footer has the position of the index block, which has the positions of the blocks.
"""

import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import tensor_bundle_pb2

from tfp_bfl.errors import InvalidArgument

OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"
MOST_TEXT_BYTES = 2**24
_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48


class Span(NamedTuple):
    """The position of a value in the file of values."""

    offset: int
    size: int


def check_index(
    table: bytes, variables: dict[str, tuple[Any, tuple[int | None, ...]]], texts: Sequence[str] = ()
) -> dict[str, Span]:
    """Return the position of each variable and text in the file of values, by name in the checkpoint.

    Args:
      table: the index.
      variables: data type and shape of each variable; None for an axis of any size.
      texts: names of scalar strings besides, such as `OBJECTS`, the table of objects of a SavedModel.

    Raises:
      InvalidArgument: the index is broken, or lists other variables, types, shapes or sizes.
    """
    try:
        entries = dict(_entries(table))
        header = tensor_bundle_pb2.BundleHeaderProto.FromString(entries.pop(b"", b""))
        parsed = {name.decode(): tensor_bundle_pb2.BundleEntryProto.FromString(v) for name, v in entries.items()}
        shapes = {name: (entry.dtype, num_elements(entry.shape)) for name, entry in parsed.items()}
    except (ValueError, IndexError, struct.error, DecodeError):
        raise InvalidArgument("the index of its variables can't be read") from None
    if header.num_shards != 1 or header.endianness != tensor_bundle_pb2.BundleHeaderProto.LITTLE:
        raise InvalidArgument("its variables are not in one file of little-endian values")
    if parsed.keys() != {*variables, *texts}:
        raise InvalidArgument("the index of its variables has other variables than belong to it")
    spans = {}
    for name, entry in parsed.items():
        dtype, shape = variables.get(name, (tf.string, ()))
        wrong = entry.slices or entry.shard_id or entry.offset < 0 or entry.dtype != dtype.as_datatype_enum
        wrong = wrong or not tf.TensorShape(shape).is_compatible_with([dim.size for dim in entry.shape.dim])
        if name in texts:
            wrong = wrong or not 0 < entry.size <= MOST_TEXT_BYTES
        else:
            wrong = wrong or entry.size != shapes[name][1] * dtype.size
        if wrong:
            raise InvalidArgument("the index of its variables has other types or shapes than belong to it")
        spans[name] = Span(entry.offset, entry.size)
    return spans


def num_elements(shape: Any) -> int:
    """Return the number of elements of a TensorShapeProto; ValueError if it is not fully known."""
    sizes = [dim.size for dim in shape.dim]
    if shape.unknown_rank or min(sizes, default=0) < 0:
        raise ValueError
    return math.prod(sizes)


def check_strings(content: bytes) -> None:
    """Raise InvalidArgument unless these bytes are one string as a file of values holds it.

    That is its length, the checksum of that, and the text. TensorFlow takes memory for the length that is written.
    """
    try:
        length, start = _varint(content, 0)
    except (ValueError, IndexError):
        length, start = -1, 0
    if start + 4 + length != len(content):
        raise InvalidArgument("the table of its objects is not as long as it says")


def _entries(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    footer = table[-_FOOTER:]
    if len(footer) < _FOOTER or struct.unpack("<Q", footer[-8:])[0] != _MAGIC:
        raise ValueError
    _, at = _handle(footer, 0)
    index, _ = _handle(footer, at)
    last = None
    for _, value in _block(table, index):
        for key, content in _block(table, _handle(value, 0)[0]):
            if last is not None and key <= last:
                raise ValueError
            last = key
            yield key, content


def _block(table: bytes, span: Span) -> Iterator[tuple[bytes, bytes]]:
    end = span.offset + span.size
    if end + 5 > len(table) - _FOOTER or table[end] != 0:  # its kind of compression
        raise ValueError
    block = table[span.offset : end]
    (num_restarts,) = struct.unpack("<I", block[-4:])
    stop = len(block) - 4 - 4 * num_restarts
    restarts = set(struct.unpack(f"<{num_restarts}I", block[stop:-4]) if stop >= 0 else ())
    at, key, whole = 0, b"", set()
    while at < stop:
        begin = at
        shared, at = _varint(block, at)
        rest, at = _varint(block, at)
        size, at = _varint(block, at)
        if shared > len(key) or at + rest + size > stop:
            raise ValueError
        if not shared:
            whole.add(begin)
        key = key[:shared] + block[at : at + rest]
        yield key, block[at + rest : at + rest + size]
        at += rest + size
    if at != stop or not restarts <= whole:
        raise ValueError


def _handle(content: bytes, at: int) -> tuple[Span, int]:
    offset, at = _varint(content, at)
    size, at = _varint(content, at)
    return Span(offset, size), at


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError
