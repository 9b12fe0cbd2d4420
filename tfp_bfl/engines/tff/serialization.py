"""TFF's messages, filled where they lie: TFF's own way copies a value once at every level of its structure."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfp_bfl.engines.tff.installation import require_tff


def create_value_request(executor_id: object, value: object, type_spec: object) -> Any:
    """Return the request that leaves `value`, of the TFF type `type_spec`, at a worker's executor.

    Equal, byte for byte, to that of TFF's own `serialize_value`, and with its errors.
    """
    from tensorflow_federated.proto.v0 import executor_pb2

    request = executor_pb2.CreateValueRequest(executor=executor_id)
    _fill(request.value, value, type_spec)
    return request


def _fill(message: Any, value: Any, type_spec: Any) -> None:
    """Make the empty `message` that of the value."""
    tff = require_tff()
    if isinstance(type_spec, tff.StructType):
        _fill_struct(message, value, type_spec)
    elif isinstance(type_spec, tff.FederatedType):
        _fill_federated(message, value, type_spec)
    elif isinstance(type_spec, tff.TensorType) and _is_array_of(value, type_spec):
        _fill_array(message.array, value)
    else:
        _fill_as_tff(message, value, type_spec)


def _fill_struct(message: Any, value: Any, type_spec: Any) -> None:
    from tensorflow_federated.python.common_libs import structure

    values = structure.from_container(value)
    if len(values) != len(type_spec):
        _fill_as_tff(message, value, type_spec)  # which says what does not fit
        return
    message.struct.SetInParent()
    for (name, element_type), element in zip(structure.iter_elements(type_spec), values):
        _fill(message.struct.element.add(name=name).value, element, element_type)


def _fill_federated(message: Any, value: Any, type_spec: Any) -> None:
    from tensorflow_federated.python.core.impl.types import type_serialization

    members = [value] if type_spec.all_equal else value
    if not isinstance(members, list):
        _fill_as_tff(message, value, type_spec)
        return
    for member in members:
        _fill(message.federated.value.add(), member, type_spec.member)
    message.federated.type.CopyFrom(type_serialization.serialize_type(type_spec).federated)


def _is_array_of(value: Any, type_spec: Any) -> bool:
    """Return whether TFF sends the value as the bytes of an array, without a conversion."""
    return (
        isinstance(value, np.ndarray)
        and value.ndim > 0
        and value.shape == type_spec.shape
        and value.dtype == type_spec.dtype
        and value.dtype.kind not in "OSU"
    )


def _fill_array(message: Any, value: np.ndarray) -> None:
    from tensorflow_federated.python.core.impl.types import array_shape, dtype_utils

    message.dtype = dtype_utils.to_proto(value.dtype.type)
    message.shape.CopyFrom(array_shape.to_proto(value.shape))
    message.content = value.tobytes()


def _fill_as_tff(message: Any, value: Any, type_spec: Any) -> None:
    from tensorflow_federated.python.core.impl.executors import value_serialization

    message.CopyFrom(value_serialization.serialize_value(value, type_spec)[0])
