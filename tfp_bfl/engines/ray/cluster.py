"""The engine on a Ray cluster: its tasks read their clients' examples from files, and send sums of contributions.

What clients do is sent as graphs, once: the machines need this library, and none of the program's own code.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import io
import logging
import os
import pathlib
import socket
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from types import ModuleType
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from tfp_bfl.data import ClientExamples, ClientFiles, Reference
from tfp_bfl.errors import (
    ComputationError,
    Error,
    InvalidArgument,
    MissingDependency,
    WorkerError,
    check_count,
    check_number,
)
from tfp_bfl.federated.local import LocalEngine, client_of
from tfp_bfl.federated.round import Broadcast, Contribution, Round, summed_spec, types_of

# How often Ray begins a task again after its process or machine is lost: a client may end each process.
logger = logging.getLogger(__name__)

_RETRIES = 20
_LOOK_SECONDS = 5.0
# In which it begins what a lost machine did elsewhere, if it notices.
_RAYS_OWN_SECONDS = 20.0
_ANSWER_SECONDS = 20.0


@dataclasses.dataclass(frozen=True)
class RayRuntime:
    """The runtime that a with-block of `ray_runtime` holds.

    Attributes:
      ray: the module, connected to the cluster.
      num_workers: into how many sums a round's clients are shared out.
      threads: cores that each takes.
      patience: seconds without any machine after which a round is given up.
      workers: (), as the cluster's processes are not ours.
    """

    ray: Any
    num_workers: int
    threads: int
    patience: float
    workers: tuple[()] = ()


@contextlib.contextmanager
def ray_runtime(
    address: Optional[str] = None, num_workers: Optional[int] = None, *, threads: int = 1, patience: float = 60.0
) -> Iterator[RayRuntime]:
    """Connect to a Ray cluster for the with-block, or starts one of this machine that ends with it.

        files = bfl.data.write_clients(clients, "/shared/clients")
        with bfl.federated.ray_runtime("10.0.0.1:6379") as runtime:
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
      InvalidArgument: a number outside its range.
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


class Program(NamedTuple):
    """The work of clients, as graphs over flat lists of tensors.

    Fields:
      code: a SavedModel in a tar [bytes], uint8.
      key: its digest.
      total: the structure and types of what clients contribute together.
    """

    code: np.ndarray
    key: str
    total: Contribution


class RayEngine(LocalEngine):
    """Runs the clients of a round in tasks of the cluster, and all else here.

    Attributes:
      concurrent_calls: of the runtime's `num_workers`.
      by_reference: it takes `data.Reference`s for datasets.
    """

    by_reference = True

    def __init__(self, round: Round, runtime: RayRuntime):
        super().__init__(round)
        self.concurrent_calls = runtime.num_workers
        self._runtime, self._seen = runtime, set[str]()
        self._program = program_of(round)
        ray = runtime.ray
        self._code = ray.put(self._program.code)
        surroundings = {"env_vars": {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_NUM_INTRAOP_THREADS": str(runtime.threads)}}
        self._task = lambda function, **options: ray.remote(function).options(runtime_env=surroundings, **options)
        self._work = self._task(work_on, num_cpus=runtime.threads, max_retries=_RETRIES)

    def _contributions(self, sent: Broadcast, datasets: Sequence[Reference]) -> list[Contribution]:
        for reference in datasets:
            if reference.digest not in self._seen:
                self._check_machines(reference)
                self._seen.add(reference.digest)
        message = self._runtime.ray.put([np.asarray(x) for x in tf.nest.flatten(sent)])
        # The code goes in a list, by which it is a name: it is fetched where it is not known.
        asked = [functools.partial(self._work.remote, [self._code], self._program.key, message, x) for x in datasets]
        pack = lambda leaves: tf.nest.pack_sequence_as(self._program.total, [tf.constant(x) for x in leaves])
        return [pack(leaves) for leaves in self._results(asked)]

    def _check_machines(self, reference: Reference) -> None:
        """Check that all machines have this version of the library and see the clients' files."""
        affinity = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        nodes = self._machines()
        on = [affinity(node_id=node["NodeID"], soft=False) for node in nodes]
        looks = [self._task(examine, num_cpus=0, scheduling_strategy=node) for node in on]
        replies = self._results([functools.partial(look.remote, reference) for look in looks])
        for node, (versions, trouble) in zip(nodes, replies):
            where = f"The machine {node['NodeManagerAddress']} of the cluster"
            if versions != _versions():
                raise InvalidArgument(f"{where} has {versions}, but this program {_versions()}: install the same.")
            if trouble:
                raise InvalidArgument(f"{where} does not see the clients: {trouble}")

    def _machines(self) -> list[Any]:
        """Return the machines that run tasks."""
        return [n for n in self._runtime.ray.nodes() if n["Alive"] and n["Resources"].get("CPU", 0) > 0]

    def _results(self, asked: Sequence[Callable[[], Any]]) -> list[Any]:
        """Return the results of tasks, each started by a call; repeat tasks of a lost machine on another.

        Ray itself does not notice when the machine of a task that runs is cut off: it would wait for ever.

        Raises:
          ComputationError: an operation of a client's work raised.
          WorkerError: there is no machine left, or a task's process ended each time.
        """
        ray, results = self._runtime.ray, dict[int, Any]()
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
            if now - there > self._runtime.patience:
                raise WorkerError(
                    f"The cluster has had no machine for {self._runtime.patience:g} s: start one with ray start, and "
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

    def _result(self, ref: Any, last: bool) -> Any:
        """Return a task's result; None for one that is lost and not the last of its kind."""
        ray = self._runtime.ray
        try:
            return ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, Error):
                raise error.cause from None
            raise WorkerError(f"A task of the cluster failed: {_first_line(error.cause)}") from None
        except ray.exceptions.RayError as error:
            if not last:
                return None
            raise WorkerError(
                f"A task of the cluster was lost {_RETRIES} times ({type(error).__name__}): {_first_line(error)}"
            ) from None


def program_of(round: Round) -> Program:
    """Return the work of clients in a round, for processes elsewhere (`Learner`)."""
    contribute, variables = client_of(round)
    sent, examples = types_of(round.broadcast, types_of(round.initialize)), round.element_spec
    leaves = tf.nest.flatten(sent)
    one = types_of(tf.function(contribute, autograph=False), sent, examples)
    total = summed_spec(one, round.add)

    def work(*given: tf.Tensor) -> list[tf.Tensor]:
        message = tf.nest.pack_sequence_as(sent, given[: len(leaves)])
        return tf.nest.flatten(contribute(message, ClientExamples(*given[len(leaves) :])))

    def add(*given: tf.Tensor) -> list[tf.Tensor]:
        half = len(given) // 2
        a, b = (tf.nest.pack_sequence_as(total, part) for part in (given[:half], given[half:]))
        return tf.nest.flatten(round.add(a, b))

    module, of_total = tf.Module(), tf.nest.flatten(total)
    module.variables_of_work = variables
    module.work = tf.function(work, [*leaves, *examples], autograph=False)
    module.add = tf.function(add, [*of_total, *of_total], autograph=False)
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            tar.add(folder, arcname=".")
    code = packed.getvalue()
    return Program(np.frombuffer(code, np.uint8), hashlib.sha256(code).hexdigest(), total)


class Learner:
    """A program's clients, at work in this process."""

    def __init__(self, code: np.ndarray):
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(fileobj=io.BytesIO(code.tobytes())) as tar:
                tar.extractall(folder)
            self._module = tf.saved_model.load(folder)

    def learn(self, message: Sequence[np.ndarray], clients: ClientFiles, numbers: Sequence[int]) -> list[np.ndarray]:
        """Return the leaves of what these clients contribute together, one after another."""
        message, total = [tf.constant(x) for x in message], None
        for k in numbers:
            try:
                examples = [tf.constant(x) for x in clients.examples(k)]
                own = self._module.work(*message, *examples)
                total = own if total is None else self._module.add(*total, *own)
            except tf.errors.OpError as error:
                raise ComputationError(f"A computation failed: {_first_line(error.message)}") from None
        return [x.numpy() for x in total or []]


@functools.lru_cache(maxsize=4)
def _learners(key: str) -> list[Learner]:
    """Return the cache of this process: program key -> learner."""
    del key
    return []


def work_on(code: Sequence[Any], key: str, message: Sequence[np.ndarray], part: Reference) -> list[np.ndarray]:
    """Return a task: the leaves of what the clients of a reference contribute together."""
    learners = _learners(key)
    if not learners:
        learners.append(Learner(require_ray().get(code[0])))
    return learners[0].learn(message, _files(part), part.numbers)


def examine(reference: Reference) -> tuple[str, str]:
    """Return a task: a machine's versions, and why it does not see the clients, or ""."""
    try:
        _files(reference)
    except InvalidArgument as error:
        return _versions(), str(error)
    return _versions(), ""


def _files(reference: Reference) -> ClientFiles:
    files = ClientFiles(reference.folder)
    if files.digest != reference.digest:
        raise InvalidArgument(f"{pathlib.Path(reference.folder)} holds other clients here.")
    return files


def _versions() -> str:
    return f"tfp_bfl {metadata.version('tfp_bfl')}, tensorflow {tf.__version__}"


def _first_line(error: Any) -> str:
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


def _connect(ray: Any, address: Optional[str]) -> None:
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
            f"{_first_line(error)}): start its head with ray start --head, with the same versions, token and TLS."
        ) from None
