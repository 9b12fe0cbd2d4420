"""Values filled in place are the messages that TFF itself would send."""

import collections
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl.engines.tff.executor import create_value_request

tff = pytest.importorskip("tensorflow_federated")

RNG = np.random.default_rng(0)


class Inner(NamedTuple):
    mean: Any
    variance: Any


class State(NamedTuple):
    round: Any
    weights: Any
    memory: Any


def array(dtype, *shape):
    return RNG.integers(0, 2, shape).astype(dtype)


STATE = State(
    np.int32(7),
    Inner((array(np.float32, 3, 4), np.zeros([0, 5], np.float32)), (np.float32(1.5), array(np.float64, 2))),
    collections.OrderedDict(b=array(np.int64, 3), a=(), c={"inner": [array(np.bool_, 2, 2)]}),
)
VALUES = {
    "nested state": STATE,
    "transposed": [np.arange(6, dtype=np.float32).reshape(2, 3).T],
    "other byte order": [np.arange(3, dtype=">f4")],
    "strings": [np.array([b"a", b"bc"], object), "d"],
    "Python's scalars": collections.OrderedDict(z=1, y=2.5, x=True),
    "nothing": (),
    **{
        f"{np.dtype(dtype).name}": [array(dtype, 2, 3), array(dtype, 0), dtype(1)]
        for dtype in (
            *(np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64),
            *(np.float16, np.float32, np.float64, np.complex64, np.complex128, ml_dtypes.bfloat16),
        )
    },
}


def type_of(value):
    if isinstance(value, (str, bytes)) or getattr(value, "dtype", None) == np.dtype(object):
        return tff.TensorType(np.str_, np.shape(value))
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return tff.StructType([(name, type_of(x)) for name, x in value.items()])
    if isinstance(value, (list, tuple)):
        return tff.StructType([type_of(x) for x in value])
    if isinstance(value, (np.ndarray, np.generic)):
        return tff.TensorType(value.dtype.type, value.shape)
    return tff.TensorType({bool: np.bool_, int: np.int32, float: np.float32}[type(value)])


def both(value, type_spec):
    """The value's message as filled in place, and TFF's own."""
    from tensorflow_federated.proto.v0 import executor_pb2

    executor = executor_pb2.ExecutorId(id="3")
    own, _ = tff.framework.serialize_value(value, type_spec)
    wanted = executor_pb2.CreateValueRequest(executor=executor, value=own)
    return [
        message.SerializeToString(deterministic=True)
        for message in (create_value_request(executor, value, type_spec), wanted)
    ]


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_structures_are_tffs_byte_for_byte(value):
    filled, wanted = both(value, type_of(value))
    assert filled == wanted and len(wanted) > 5


@pytest.mark.parametrize("value", [STATE, np.ones([2], np.float32), np.int64(3)], ids=["state", "array", "scalar"])
def test_federated_values_are_tffs_byte_for_byte(value):
    filled, wanted = both(value, tff.FederatedType(type_of(value), tff.SERVER))
    assert filled == wanted
    filled, wanted = both([value, value], tff.FederatedType(type_of(value), tff.CLIENTS))
    assert filled == wanted


def test_arrays_of_unknown_size_are_tffs():
    for shape in ([None], None):
        filled, wanted = both([array(np.float32, 3)], tff.StructType([tff.TensorType(np.float32, shape)]))
        assert filled == wanted


def test_what_is_not_an_array_is_left_to_tff():
    increment = tff.tensorflow.computation(lambda x: x + 1, np.int32)
    filled, wanted = both([increment], tff.StructType([increment.type_signature]))
    assert filled == wanted


def test_datasets_may_be_larger_than_tff_sends():
    """TFF's own limit is 100 MB: clients of 5,000 examples with 1,280 features have more."""
    data = tf.data.Dataset.from_tensors(tf.zeros([26 * 2**20]))
    type_spec = tff.FederatedType(tff.SequenceType(tff.TensorType(np.float32, [26 * 2**20])), tff.CLIENTS)
    with pytest.raises(ValueError, match="exceeds maximum allowed"):
        tff.framework.serialize_value([data], type_spec)
    (message,) = create_value_request(None, [data], type_spec).value.federated.value
    ((content,),) = [[*tff.framework.deserialize_value(message)[0]]]
    assert content.shape == [26 * 2**20]


def test_datasets_are_as_tffs():
    """Whose graphs have names that differ from call to call: the content is compared."""
    datasets = [tf.data.Dataset.range(3), tf.data.Dataset.range(5)]
    type_spec = tff.FederatedType(tff.SequenceType(np.int64), tff.CLIENTS)
    message = create_value_request(None, datasets, type_spec).value
    assert message.federated.type == tff.framework.serialize_value(datasets, type_spec)[0].federated.type
    assert [[*tff.framework.deserialize_value(x)[0]] for x in message.federated.value] == [[0, 1, 2], [0, 1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("value", "type_spec"),
    [
        ([1], tff.StructType([np.int32, np.int32])),
        ([np.ones([2], np.float32)], tff.StructType([tff.TensorType(np.float32, [3])])),
        ([np.ones([2], np.float64)], tff.StructType([tff.TensorType(np.float32, [2])])),
        ((1, 2), tff.FederatedType(np.int32, tff.CLIENTS)),
    ],
)
def test_what_does_not_fit_is_refused_as_by_tff(value, type_spec):
    with pytest.raises(TypeError) as theirs:
        tff.framework.serialize_value(value, type_spec)
    with pytest.raises(TypeError) as ours:
        create_value_request(None, value, type_spec)
    assert str(ours.value) == str(theirs.value)


def test_the_value_is_not_changed_and_not_shared():
    value = [np.zeros([4], np.float32)]
    message = create_value_request(None, value, type_of(value))
    value[0][:] = 1
    assert not np.frombuffer(message.value.struct.element[0].value.array.content, np.float32).any()
