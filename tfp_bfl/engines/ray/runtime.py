"""A Ray cluster that a program joins, or starts on this machine, and its tasks, repeated where a machine is lost."""

import contextlib
import dataclasses
import functools
import importlib
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from tfp_bfl.errors import Error, InvalidArgument, MissingDependency, WorkerError, check_count, check_number, shown

_ANSWER_SECONDS = 20.0


@dataclasses.dataclass(frozen=True)
class RayRuntime:
    """The runtime that a with-block of `ray_runtime` holds: the module `ray`, connected, and its arguments.

    `workers` is (), as the cluster's processes are not ours.
    """

    ray: Any
    num_workers: int
    threads: int
    patience: float
    workers: tuple[()] = ()


@contextlib.contextmanager
def ray_runtime(
    address: str | None = None, num_workers: int | None = None, *, threads: int = 1, patience: float = 60.0
) -> Iterator[RayRuntime]:
    """Connect to a Ray cluster for the with-block, or start one of this machine that ends with it.

        files = bfl.data.write_clients(clients, "/shared/clients")
        with bfl.engines.ray.ray_runtime("10.0.0.1:6379") as runtime:
            bfl.simulate(process, files, rounds=60, engine="ray", runtime=runtime)

    The task of a lost machine is done again on another, with the same numbers. A program that is connected already
    stays so. TLS and the token are Ray's own, by the environment: docs/clusters.md.

    Args:
      address: "host:port" of the cluster's head; None for that of the environment variable RAY_ADDRESS or, without it,
        for a cluster of this machine's own.
      num_workers: into how many sums a round's clients are shared out, of which the bits of a result depend; None for
        as many as there is room for at the start. What has no room waits.
      threads: cores for each.
      patience: seconds without any machine that works after which a round is an error.

    Raises:
      MissingDependency: Ray is not installed.
      WorkerError: no cluster answers at the address, or it has no cores for a worker.
    """
    if num_workers is not None:
        check_count(num_workers, "num_workers")
    check_count(threads, "threads")
    check_number(patience, "patience")
    ray = require_ray()
    ours = not ray.is_initialized()
    if ours:
        _connect(ray, address or os.environ.get("RAY_ADDRESS"))
    try:
        cores = int(ray.cluster_resources().get("CPU", 0))
        if cores < threads:
            raise WorkerError(f"The cluster has {cores} cores, but each worker takes threads={threads}.")
        yield RayRuntime(ray, num_workers or cores // threads, threads, patience)
    finally:
        if ours:
            ray.shutdown()


@contextlib.contextmanager
def joined(runtime: RayRuntime | None) -> Iterator[RayRuntime]:
    """Yield a runtime; one that is started here and stopped if there is none."""
    if runtime is not None and not isinstance(runtime, RayRuntime):
        raise InvalidArgument(
            f"runtime is {shown(runtime)}, but the engine ray needs a cluster of engines.ray.ray_runtime."
        )
    with ray_runtime() if runtime is None else contextlib.nullcontext(runtime) as cluster:
        yield cluster


def first_line(error: object) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def require_ray() -> ModuleType:
    """Return the module `ray`; MissingDependency if it is not installed."""
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise MissingDependency(
            "The engine 'ray' needs the package ray, which is not installed; install with: pip install 'ray>=2.55'"
        ) from None


check_installed = require_ray


def _connect(ray: Any, address: str | None) -> None:
    # Ray tells its makers how it is used, unless told otherwise.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options = {} if address else {"include_dashboard": False}
    try:
        if address and ":" in address:  # Ray itself asks for many minutes.
            host, port = address.rsplit(":", 1)
            socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS).close()
        ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:  # Of many kinds: no answer, no token, another version.
        raise WorkerError(
            f"No Ray cluster can be joined at {address or 'this machine'} ({type(error).__name__}: "
            f"{first_line(error)}): start its head with ray start --head, with the same versions, token and TLS."
        ) from None


logger = logging.getLogger(__name__)

# How often Ray begins a task again after its process or machine is lost: a client may end each process.
RETRIES = 20
_LOOK_SECONDS = 5.0
# In which it begins what a lost machine did elsewhere, if it notices.
_RAYS_OWN_SECONDS = 20.0


class Tasks(NamedTuple):
    """Calls of functions of this library on the machines of a cluster."""

    runtime: RayRuntime

    def remote(self, function: Callable[..., Any], **options: object) -> Any:
        """Return a function as Ray's remote function, with these options of Ray."""
        surroundings = {"env_vars": {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_NUM_INTRAOP_THREADS": str(self.runtime.threads)}}
        return self.runtime.ray.remote(function).options(runtime_env=surroundings, **options)

    def work(self, function: Callable[..., Any]) -> Any:
        """Return a function that computes as Ray's remote function, on the runtime's cores of one machine."""
        return self.remote(function, num_cpus=self.runtime.threads, max_retries=RETRIES)

    def check_machines(self, examine: Callable[..., tuple[str, str]], versions: str, *given: object) -> None:
        """Check that all machines have the versions of this program, and nothing that stops them.

        `examine` returns of its arguments the versions of a machine, and why it can't take part, or "".
        """
        affinity = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        nodes = self._machines()
        on = [affinity(node_id=node["NodeID"], soft=False) for node in nodes]
        looks = [self.remote(examine, num_cpus=0, scheduling_strategy=node) for node in on]
        replies = self.results([functools.partial(look.remote, *given) for look in looks])
        for node, (found, trouble) in zip(nodes, replies):
            where = f"The machine {node['NodeManagerAddress']} of the cluster"
            if found != versions:
                raise InvalidArgument(f"{where} has {found}, but this program {versions}: install the same.")
            if trouble:
                raise InvalidArgument(f"{where} {trouble}")

    def _machines(self) -> list[Any]:
        """Return the machines that run tasks."""
        return [n for n in self.runtime.ray.nodes() if n["Alive"] and n["Resources"].get("CPU", 0) > 0]

    def results(self, asked: Sequence[Callable[[], Any]]) -> list[Any]:
        """Return the results of tasks, each started by a call; repeat tasks of a lost machine on another.

        Ray itself does not notice when the machine of a task that runs is cut off: it would wait for ever.
        """
        ray, results = self.runtime.ray, dict[int, Any]()
        tries = {ask(): i for i, ask in enumerate(asked)}
        machines = self._machine_ids()
        there = lost = time.monotonic()
        while len(results) < len(asked):
            waiting = [ref for ref, i in tries.items() if i not in results]
            for ref in ray.wait(waiting, num_returns=1, timeout=_LOOK_SECONDS)[0]:
                result = self._result(ref, last=list(tries.values()).count(tries[ref]) == 1)
                if result is None:
                    del tries[ref]
                else:
                    results[tries[ref]] = result
            now, left = time.monotonic(), self._machine_ids()
            there = now if left else there
            if now - there > self.runtime.patience:
                raise WorkerError(
                    f"The cluster has had no machine for {self.runtime.patience:g} s: start one with ray start, and "
                    "begin again; the rounds that were saved are kept."
                )
            lost = now if machines <= left else lost
            if now - lost > _RAYS_OWN_SECONDS and left:
                logger.warning("A machine of the cluster is lost: what it had to do is done again.")
                tries.update({ask(): i for i, ask in enumerate(asked) if i not in results})
                machines, lost = left, now
        return [results[i] for i in range(len(asked))]

    def _machine_ids(self) -> set[str]:
        return {node["NodeID"] for node in self._machines()}

    def _result(self, ref: object, last: bool) -> Any:
        """Return a task's result; None for one that is lost and not the last of its kind."""
        ray = self.runtime.ray
        try:
            return ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, Error):
                raise error.cause from None
            raise WorkerError(f"A task of the cluster failed: {first_line(error.cause)}") from None
        except ray.exceptions.RayError as error:
            if not last:
                return None
            raise WorkerError(
                f"A task of the cluster was lost {RETRIES} times ({type(error).__name__}): {first_line(error)}"
            ) from None
