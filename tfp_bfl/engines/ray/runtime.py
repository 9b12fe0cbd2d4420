"""A Ray cluster that a program joins, or starts on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
import os
import socket
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from tfp_bfl.errors import InvalidArgument, MissingDependency, WorkerError, check_count, check_number, shown

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
    """Return the module `ray`.

    Raises:
      MissingDependency: it is not installed.
    """
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise MissingDependency(
            "The engine 'ray' needs the package ray, which is not installed; install with: pip install 'ray>=2.55'"
        ) from None


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
