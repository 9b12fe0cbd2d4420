"""A worker as TFF sees it: an executor that sends values and calls over gRPC, and sends nothing twice.

Messages are filled where they lie: TFF's own way copies a value once at every level of its structure.
"""

import collections
import contextlib
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_bfl.engines.tff.installation import require_tff
from tfp_bfl.errors import InvalidArgument

_FREE_SECONDS = 5.0
_KEPT_COMPUTATIONS = 8
# Of a protocol buffer.
_MOST_DATASET_BYTES = 2**31 - 2**20


def create_stub(channel: object) -> Any:
    """Return TFF's interface to the worker behind a gRPC channel."""
    tff = require_tff()
    from tensorflow_federated.proto.v0 import executor_pb2_grpc

    # TFF's own stub watches the channel from a thread, which fails loudly once the channel closes.
    calls = executor_pb2_grpc.ExecutorGroupStub(channel)
    stub_type = type(
        "Stub",
        (tff.framework.RemoteExecutorStub,),
        {
            "get_executor": staticmethod(functools.partial(_call, tff, calls.GetExecutor)),
            "create_value": staticmethod(functools.partial(_call, tff, calls.CreateValue)),
            "create_struct": staticmethod(functools.partial(_call, tff, calls.CreateStruct)),
            "create_call": staticmethod(functools.partial(_call, tff, calls.CreateCall)),
            "create_selection": staticmethod(functools.partial(_call, tff, calls.CreateSelection)),
            "compute": staticmethod(functools.partial(_call, tff, calls.Compute)),
            "dispose": staticmethod(functools.partial(_free, calls.Dispose)),
            "dispose_executor": staticmethod(functools.partial(_free, calls.DisposeExecutor)),
            "is_ready": True,  # TFF asks this only of workers that it starts itself.
        },
    )
    return stub_type()


@functools.cache
def executor_type() -> Any:
    """Return the class of executors over a stub."""
    tff = require_tff()
    from tensorflow_federated.python.core.impl.executors.remote_executor import RemoteValue

    class Executor(tff.framework.RemoteExecutor):  # type: ignore[name-defined,misc]
        """TFF's executor, which leaves at the worker what each round would send again.

        These are the last computations, and the last clients' datasets, known by the Python objects' identity.
        """

        def __init__(self, stub: object) -> None:
            # TFF frees values in batches of 20: the worker held 2.3 GB instead of 0.3 for cohorts of 1 to 30
            # clients with 1 MB each.
            super().__init__(stub, dispose_batch_size=1)
            self._computations: collections.OrderedDict[Any, Any] = collections.OrderedDict()
            self._datasets: collections.OrderedDict[Any, Any] = collections.OrderedDict()

        async def create_value(self, value: object, type_spec: Any | None = None) -> Any:
            if isinstance(value, tff.framework.ConcreteComputation):
                return await self._keep(self._computations, _KEPT_COMPUTATIONS, [value], value, type_spec)
            if isinstance(value, list) and value and all(isinstance(x, tf.data.Dataset) for x in value):
                return await self._keep(self._datasets, 1, value, value, type_spec)
            return await self._create(value, type_spec)

        async def _create(self, value: object, type_spec: object) -> Any:
            if not isinstance(type_spec, (tff.StructType, tff.FederatedType)):
                return await super().create_value(value, type_spec)
            self._check_has_executor_id()
            request = create_value_request(self._executor_id, value, type_spec)
            return RemoteValue(self._stub.create_value(request).value_ref, type_spec, self)

        async def _keep(self, cache: Any, most: int, objects: list[Any], value: Any, type_spec: Any) -> Any:
            key = (*map(id, objects), str(type_spec))
            if key in cache:
                cache.move_to_end(key)
                return cache[key][-1]
            while len(cache) >= most:
                cache.popitem(last=False)
            remote = await self._create(value, type_spec)
            cache[key] = (list(objects), remote)  # Held, so that no other object gets its identity.
            return remote

        def forget(self) -> None:
            """Free what is left at the worker."""
            self._computations.clear()
            self._datasets.clear()

        def abandon(self) -> None:
            """Forget a worker that is gone, and with it all that it held."""
            self._executor_id = None
            self.forget()

        def close(self) -> None:
            self.forget()
            super().close()

    return Executor


def _call(tff: ModuleType, call: Callable[[Any], Any], request: object) -> Any:
    import grpc

    try:
        return call(request)
    except grpc.RpcError as error:
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION):
            # TFF repeats the call, and `create_executor` ends that if the worker is gone.
            raise tff.framework.RetryableError(f"{error.code()}: {error.details()}") from error
        raise


def _free(call: Callable[..., Any], request: object) -> None:
    import grpc

    # At a worker that is gone, or through a closed channel (ValueError), there is nothing to free.
    with contextlib.suppress(grpc.RpcError, ValueError):
        call(request, timeout=_FREE_SECONDS)


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
    elif isinstance(type_spec, tff.SequenceType) and isinstance(value, tf.data.Dataset):
        _fill_dataset(message, value, type_spec)
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


def _fill_dataset(message: Any, value: tf.data.Dataset, type_spec: Any) -> None:
    """Make the empty `message` that of a dataset, of which TFF itself sends at most 100 MB."""
    variant = tf.data.experimental.to_variant
    # TFF checks types and writes them, of a dataset with the same types and no elements.
    _fill_as_tff(
        message, tf.data.experimental.from_variant(variant(tf.data.Dataset.range(0)), value.element_spec), type_spec
    )
    content = tf.raw_ops.DatasetToGraphV2(input_dataset=variant(value)).numpy()
    if len(content) > _MOST_DATASET_BYTES:
        raise InvalidArgument(
            f"The examples of the clients that train together take {len(content) / 1e9:.1f} GB, and a message to a "
            "worker of TensorFlow Federated at most 2 GB: choose the engine local."
        )
    message.sequence.serialized_graph_def = content


def _fill_array(message: Any, value: np.ndarray) -> None:
    from tensorflow_federated.python.core.impl.types import array_shape, dtype_utils

    message.dtype = dtype_utils.to_proto(value.dtype.type)
    message.shape.CopyFrom(array_shape.to_proto(value.shape))
    message.content = value.tobytes()


def _fill_as_tff(message: Any, value: Any, type_spec: Any) -> None:
    from tensorflow_federated.python.core.impl.executors import value_serialization

    message.CopyFrom(value_serialization.serialize_value(value, type_spec)[0])
