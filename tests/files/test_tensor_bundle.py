"""The index of a checkpoint, read in Python before TensorFlow sees it."""

import math
import struct

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import tensor_bundle_pb2

from tests.kit import refuses
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files.tensor_bundle import OBJECTS as TABLE_OF_OBJECTS
from tfp_bfl.files.tensor_bundle import check_index, check_strings


def table(entries):
    def varint(n):
        return bytes([n & 127 | 128]) + varint(n >> 7) if n > 127 else bytes([n])

    def block(pairs):
        body = b"".join(b"\0" + varint(len(k)) + varint(len(v)) + k + v for k, v in pairs)
        return body + struct.pack("<II", 0, 1)

    data = block(entries)
    index = block([(b"z", varint(0) + varint(len(data)))])
    start = len(data) + 5
    footer = varint(start) + varint(0) + varint(start) + varint(len(index))
    footer = footer.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)
    return data + b"\0" * 5 + index + b"\0" * 5 + footer


HEADER = tensor_bundle_pb2.BundleHeaderProto(num_shards=1).SerializeToString()
VARIABLES = {"w": (tf.float32, (2, 3))}


def entry(dtype=tf.float32, shape=(2, 3), size=24, offset=10, **more):
    proto = tensor_bundle_pb2.BundleEntryProto(dtype=dtype.as_datatype_enum, size=size, offset=offset, **more)
    for n in shape:
        proto.shape.dim.add(size=n)
    return proto.SerializeToString()


OBJECTS = (TABLE_OF_OBJECTS.encode(), entry(tf.string, (), 10, 0))


def test_index_of_valid_entries():
    spans = check_index(table([(b"", HEADER), OBJECTS, (b"w", entry())]), VARIABLES, [TABLE_OF_OBJECTS])
    assert spans["w"] == (10, 24) and spans[OBJECTS[0].decode()] == (0, 10)


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [(b"", HEADER), OBJECTS],
        [(b"", HEADER), OBJECTS, (b"w", b"\xff\xff\xff")],
        [(b"", b"\xff"), OBJECTS, (b"w", entry())],
        [(b"", tensor_bundle_pb2.BundleHeaderProto(num_shards=2).SerializeToString()), OBJECTS, (b"w", entry())],
        [(b"", HEADER), OBJECTS, (b"w", entry(shape=(2**40, 2**40)))],
        [(b"", HEADER), OBJECTS, (b"w", entry(shape=(2**40, 2**40), size=2**62))],
        [(b"", HEADER), OBJECTS, (b"w", entry(shape=(-1, -6)))],
        [(b"", HEADER), OBJECTS, (b"w", entry(size=2**60))],
        [(b"", HEADER), OBJECTS, (b"w", entry(offset=-1))],
        [(b"", HEADER), OBJECTS, (b"w", entry(shard_id=1))],
        [(b"", HEADER), OBJECTS, (b"w", entry(tf.string))],
        [(b"", HEADER), OBJECTS, (b"w", entry()), (b"x", entry())],
        [(b"", HEADER), OBJECTS, (b"w", entry()), (b"w", entry())],
        [(b"", HEADER), (OBJECTS[0], entry(tf.string, (), 2**40, 0)), (b"w", entry())],
        [(b"", HEADER), OBJECTS, (b"\xff", entry())],
    ],
)
def test_index_of_hostile_entries(entries):
    with pytest.raises(InvalidArgument, match=r"the index of its variables|its variables are not in one file"):
        check_index(table(entries), VARIABLES, [TABLE_OF_OBJECTS])


@pytest.mark.parametrize(
    ("wanted", "shape", "fits"),
    [
        ((None, 3), (2, 3), True),
        ((None, 3), (0, 3), True),
        ((None, 3), (1000, 3), True),
        ((None, None), (2, 3), True),
        ((None,), (6,), True),
        ((None, 3), (2, 4), False),
        ((None, 3), (6,), False),
        ((None, 3), (2, 3, 1), False),
        ((None,), (), False),
        ((), (1,), False),
        ((2, 3), (3, 3), False),
    ],
)
def test_axes_without_a_size_may_have_any(wanted, shape, fits):
    size = 4 * math.prod(shape)
    whole = table([(b"", HEADER), (b"w", entry(shape=shape, size=size))])
    if fits:
        assert check_index(whole, {"w": (tf.float32, wanted)}) == {"w": (10, size)}
    else:
        refuses("other types or shapes than belong to it", check_index, whole, {"w": (tf.float32, wanted)})


@pytest.mark.parametrize("changed", [{"shape": (-1, 3)}, {"size": 20}, {"size": 2**60}, {"dtype": tf.int32}])
def test_an_axis_without_a_size_still_has_one_in_the_file(changed):
    whole = table([(b"", HEADER), (b"w", entry(**changed))])
    with pytest.raises(InvalidArgument, match=r"the index of its variables|its variables are not in one file"):
        check_index(whole, {"w": (tf.float32, (None, 3))})


def test_index_cut_anywhere():
    whole = table([(b"", HEADER), OBJECTS, (b"w", entry())])
    for length in range(len(whole)):
        with pytest.raises(InvalidArgument, match=r"the index of its variables|its variables are not in one file"):
            check_index(whole[:length], VARIABLES, [TABLE_OF_OBJECTS])


@pytest.mark.parametrize(
    "content", [b"", b"\x80", b"\xff" * 9 + b"\x01" + b"\0" * 4 + b"x", b"\x02" + b"\0" * 4 + b"x"]
)
def test_texts_of_other_lengths(content):
    check_strings(b"\x02" + b"\0" * 4 + b"xy")
    refuses("the table of its objects is not as long as it says", check_strings, content)
