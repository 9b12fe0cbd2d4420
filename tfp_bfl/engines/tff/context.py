"""Execution contexts that run TFF computations on workers which we start, or which run elsewhere already."""

import asyncio
import contextlib
import dataclasses
import functools
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any

from tfp_bfl.engines.tff.executor import create_stub, executor_type
from tfp_bfl.engines.tff.heartbeat import heartbeat
from tfp_bfl.engines.tff.installation import require_tff
from tfp_bfl.engines.tff.workers import Tls, Worker, is_ready, open_channel
from tfp_bfl.errors import ComputationError, InvalidArgument, WorkerError, check_count, check_counts
from tfp_bfl.federated.local import start
from tfp_bfl.machine import num_cores

_RELEASE_SECONDS = 5.0


class RemoteWorker:
    """The gRPC channel to a worker that someone else started, at `address` ("host:port"), or to a proxy before it."""

    def __init__(self, address: str, connect_seconds: float = 60.0, tls: Tls | None = None) -> None:
        self.address, self._tls = address, tls
        self._connect_seconds = connect_seconds
        self._silent_seconds = 0.0
        self.channel = self.open_channel()

    @property
    def is_alive(self) -> bool:
        """Whether the worker still counts as alive."""
        return not self._silent_seconds

    def open_channel(self) -> Any:
        """Open another channel to the worker."""
        return open_channel(self.address, local=False, tls=self._tls)

    def give_up(self, seconds: float) -> None:
        """Close the channel, which ends the calls that wait for an answer."""
        self._silent_seconds = seconds
        self.channel.close()

    def check(self) -> None:
        """Raise WorkerError if the worker does not answer within `connect_seconds`, or was given up."""
        if self._silent_seconds:
            raise WorkerError(
                f"The worker at {self.address} did not answer for {self._silent_seconds:g} s: its machine is stopped "
                "or cut off. Fix the machine or network, and resume from the saved rounds."
            )
        if not is_ready(self.channel, self._connect_seconds):
            raise WorkerError(
                f"No worker answered at {self.address} within connect_seconds={self._connect_seconds:g}; "
                "start TFF's worker_binary there and let its port through"
                + (", and look whether its proxy knows the certificate of tls." if self._tls else ".")
            )

    def stop(self) -> None:
        """Close the channel; the worker runs on."""
        self.channel.close()


AnyWorker = Worker | RemoteWorker


@dataclasses.dataclass(frozen=True)
class Runtime:
    """The runtime that a with-block of `local_workers` or `remote_workers` holds.

    Attributes:
      context: the `tff.framework.SyncContext` in which computations run; installed for the thread of the
        with-block (TFF's contexts are per thread: another thread has to install it for itself).
      concurrent_calls: how many client computations all workers run at once.
      replace_dead_workers: starts a worker for each that has died and returns how many; none if they are not ours.
    """

    context: Any
    workers: Sequence[Any]
    concurrent_calls: int
    replace_dead_workers: Callable[[], int] = lambda: 0


@contextlib.contextmanager
def local_workers(
    num_workers: int = 1,
    max_concurrent_calls: int | None = None,
    *,
    intra_op_threads: int | None = None,
    inter_op_threads: int | None = None,
    startup_seconds: float = 60.0,
    heartbeat_seconds: float = 60.0,
    own_network: bool = True,
) -> Iterator[Runtime]:
    """Start workers on this machine, run the with-block's TFF computations on them, and always end them.

    With several workers the clients of a computation are split among them and what they aggregate is merged:
    see `remote_workers` for what such a computation may look like. On one machine, one worker is as fast.

    Args:
      num_workers: how many processes.
      max_concurrent_calls: how many clients each worker computes at once; None for this process's cores,
        shared among the workers. More is no faster, and holds more memory.
      intra_op_threads: a worker's threads within an operation. None for the cores' share of each client where
        several are computed at once (small operations run faster on one core each), else for TensorFlow's choice.
      inter_op_threads: a worker's threads across operations. None for `max_concurrent_calls`, likewise.
      startup_seconds: how long each worker may take to answer.
      heartbeat_seconds: a worker that does not answer for so long (a busy one does) is ended, as if it had died.
      own_network: whether each worker is in a network with nothing else, behind a socket that only this user can
        reach; where the system refuses, a warning says so. False for clients that read from the network.

    Raises:
      MissingDependency: TFF can't be imported.
      WorkerError: a worker ended or did not answer in time; or, from a computation, a worker died.
    """
    threads = {"intra_op_threads": intra_op_threads, "inter_op_threads": inter_op_threads}
    chosen = {"max_concurrent_calls": max_concurrent_calls, **threads}
    check_counts(num_workers=num_workers, **{name: x for name, x in chosen.items() if x is not None})
    cores = num_cores()
    if max_concurrent_calls is None:
        max_concurrent_calls = max(1, cores // num_workers)
    at_once = num_workers * max_concurrent_calls
    if at_once > 1:
        # The environment is the user's way to set what the arguments leave open: it passes to the worker.
        if intra_op_threads is None and "TF_NUM_INTRAOP_THREADS" not in os.environ:
            intra_op_threads = max(1, cores // at_once)
        if inter_op_threads is None and "TF_NUM_INTEROP_THREADS" not in os.environ:
            inter_op_threads = max_concurrent_calls
    start = functools.partial(
        Worker.start,
        *(max_concurrent_calls, intra_op_threads, inter_op_threads, startup_seconds),
        own_network=own_network,
    )
    with contextlib.ExitStack() as stack:
        connections: list[_Connection] = []
        workers: list[Any] = []
        for i in range(num_workers):
            workers.append(start())
            stack.callback(lambda i: workers[i].stop(), i)  # Whoever is in its place then.
        connections += map(_Connection, workers)
        for i in range(num_workers):
            stack.callback(lambda i: connections[i].abandon(), i)

        def replace_dead_workers() -> int:
            dead = [i for i, worker in enumerate(workers) if not worker.is_alive]
            for i in dead:
                connections[i].abandon()
                workers[i].stop()
                workers[i] = start()
                connections[i] = _Connection(workers[i])
            return len(dead)

        context = _create_context(connections)
        stack.enter_context(heartbeat(workers, heartbeat_seconds))
        with require_tff().framework.get_context_stack().install(context):
            yield Runtime(context, workers, num_workers * max_concurrent_calls, replace_dead_workers)


@contextlib.contextmanager
def remote_workers(
    addresses: Sequence[str],
    max_concurrent_calls: int = 8,
    *,
    connect_seconds: float = 60.0,
    heartbeat_seconds: float = 60.0,
    tls: Tls | None = None,
) -> Iterator[Runtime]:
    """Run the with-block's TFF computations on workers that run already, which stay as they are.

    With several workers the clients of a computation are split among them, each part is aggregated where it
    was computed, and the parts are merged. That takes a computation with aggregations that do not depend on each
    other's results (broadcast, compute, aggregate: one round); another one raises InvalidArgument. What takes
    nothing placed at the clients runs on the first worker.

    Args:
      addresses: "host:port" of each worker, or of a proxy before it. Without `tls` traffic is neither encrypted nor
        authenticated: use it in trusted networks only.
      max_concurrent_calls: how many clients each computes at once, as its `--max_concurrent_computation_calls` says.
      connect_seconds: how long each worker may take to answer.
      heartbeat_seconds: after so long without an answer (a busy worker answers) computations raise WorkerError.
      tls: for proxies that encrypt, and ask who we are.

    Raises:
      MissingDependency: TFF can't be imported.
      WorkerError: a worker does not answer.
    """
    check_count(max_concurrent_calls, "max_concurrent_calls")
    if isinstance(addresses, str) or not addresses or not all(":" in address for address in addresses):
        raise InvalidArgument(f'addresses is {addresses!r}; it must be a list of "host:port".')
    with contextlib.ExitStack() as stack:
        workers = []
        for address in addresses:
            worker = RemoteWorker(address, connect_seconds, tls)
            stack.callback(worker.stop)
            workers.append(worker)
        for worker in workers:
            worker.check()
        connections = [_Connection(worker) for worker in workers]
        context = _create_context(connections)
        stack.callback(_release, connections)
        stack.enter_context(heartbeat(workers, heartbeat_seconds))
        with require_tff().framework.get_context_stack().install(context):
            yield Runtime(context, tuple(workers), len(workers) * max_concurrent_calls)


class _Connection:
    """A worker and TFF's asynchronous context over it."""

    def __init__(self, worker: AnyWorker) -> None:
        self._executors: weakref.WeakSet[Any] = weakref.WeakSet()
        self.context = _create_async_context(worker, self._executors)
        self._worker = worker

    def explain(self, error: Exception) -> Exception:
        """Return the error, or why the worker was given up, of which it is only what a call felt."""
        if isinstance(self._worker, RemoteWorker) and not self._worker.is_alive:
            try:
                self._worker.check()
            except WorkerError as reason:
                return reason
        return error

    def abandon(self) -> None:
        """Forget what the worker holds, which is about to end or has ended."""
        for executor in self._executors:
            executor.abandon()

    def close(self) -> None:
        """Free what the worker holds."""
        for executor in list(self._executors):
            executor.close()


def _create_context(connections: list[_Connection]) -> Any:
    """Return a synchronous context over the workers of these connections, which may be replaced in their list."""
    tff = require_tff()

    class AsyncContext(tff.framework.AsyncContext):  # type: ignore[name-defined,misc]
        """One worker's context; calls to it block a thread of their own, so that workers run side by side."""

        def __init__(self, i: int) -> None:
            self._i = i

        async def invoke(self, comp: object, arg: object) -> Any:
            context = connections[self._i].context
            try:
                return await asyncio.wrap_future(_start(lambda: context.invoke(comp, arg)))
            except Exception as caught:
                failures.append(connections[self._i].explain(caught))
                # TFF reads one failure; asyncio would print each of the others, but no cancellation.
                raise asyncio.CancelledError from caught

    class Context(tff.framework.SyncContext):  # type: ignore[name-defined,misc]
        def invoke(self, comp: Any, arg: Any) -> Any:
            with _explained():
                if len(connections) == 1 or not _has_clients(comp.type_signature.parameter):
                    try:
                        return _start(lambda: connections[0].context.invoke(comp, arg)).result()
                    except Exception as failure:
                        raise connections[0].explain(failure) from failure
                try:
                    return split.invoke(comp, arg)
                except CancelledError:
                    # A worker that died explains more than the calls that this has ended.
                    for error in sorted(failures, key=lambda error: not isinstance(error, WorkerError)):
                        raise error from None
                    raise
                finally:
                    failures.clear()

    failures: list[Exception] = []
    split = tff.framework.MergeableCompExecutionContext(
        [AsyncContext(i) for i in range(len(connections))], compiler_fn=_compile_mergeable
    )
    return Context()


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Turn gRPC's error for a computation that failed into one sentence."""
    import grpc

    try:
        yield
    except grpc.RpcError as error:
        text = error.details() if isinstance(error, grpc.Call) else str(error)
        reason = (text or "").removeprefix("Failed to run computation: ").strip().partition("\n")[0]
        raise ComputationError(f"A computation failed at a worker: {reason or 'it gives no reason'}") from error


def _release(connections: list[_Connection]) -> None:
    """Free what workers hold that go on. On a thread: one that computes answers late, a dead one never."""

    def close_all() -> None:
        for connection in connections:
            connection.close()

    thread = threading.Thread(target=close_all, daemon=True)
    thread.start()
    thread.join(_RELEASE_SECONDS)


def _create_async_context(worker: AnyWorker, executors: "weakref.WeakSet[Any]") -> Any:
    """Return TFF's asynchronous context over one worker; add the executors that it makes to `executors`."""
    tff = require_tff()
    from tensorflow_federated.python.core.environments.tensorflow_frontend import tensorflow_computation

    stub = create_stub(worker.channel)

    def create_executor(cardinalities: dict[Any, int]) -> Any:
        # TFF repeats a call for ever while a worker is unavailable; each attempt comes by here.
        worker.check()
        cardinalities.setdefault(tff.CLIENTS, 0)
        for other in executors:  # TFF drops executors without closing them, and what they keep would stay.
            other.forget()
        executor = executor_type()(stub)
        executor.set_cardinalities(cardinalities)
        executors.add(executor)
        return executor

    return tff.framework.AsyncExecutionContext(
        executor_fn=tff.framework.ResourceManagingExecutorFactory(create_executor),
        compiler_fn=tff.backends.native.desugar_and_transform_to_native,
        transform_args=tensorflow_computation.transform_args,
        transform_result=tensorflow_computation.transform_result,
    )


def _start(make: Callable[[], Coroutine[Any, Any, Any]]) -> "Future[Any]":
    """Run a coroutine on a thread: TFF's own context keeps one, and an event loop, that nothing ends."""
    return start(lambda: asyncio.run(make()))


def _has_clients(type_signature: Any) -> bool:
    tff = require_tff()
    if type_signature is None:
        return False
    if isinstance(type_signature, tff.FederatedType):
        return type_signature.placement is tff.CLIENTS
    return any(_has_clients(child) for child in type_signature.children())


def _compile_mergeable(comp: object) -> Any:
    try:
        return require_tff().backends.native.compile_to_mergeable_comp_form(comp)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            "This computation can't be split over several workers, because it aggregates more than once; "
            "use one worker, or aggregate everything at once."
        ) from error
