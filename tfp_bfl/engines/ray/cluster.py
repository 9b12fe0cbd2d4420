"""The engine on a Ray cluster: its tasks read their clients' examples from files, and send sums of contributions.

What clients do is sent as graphs, once: the machines need this library, and none of the program's own code.
"""

import contextlib
import functools
import hashlib
import io
import pathlib
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.data import ClientExamples, ClientFiles, Reference
from tfp_bfl.engines.ray.runtime import RayRuntime, Tasks, first_line, joined, require_ray
from tfp_bfl.errors import ComputationError, InvalidArgument
from tfp_bfl.federated import BayesianProcess
from tfp_bfl.federated.local import Accepts, LocalEngine, client_of
from tfp_bfl.federated.round import Broadcast, Contribution, Round, summed_spec, types_of
from tfp_bfl.files.writing import space


class Program(NamedTuple):
    """The work of clients, as graphs over flat lists of tensors: a SavedModel in a tar [bytes], its digest, and the
    structure and types of what clients contribute together.
    """

    code: np.ndarray
    key: str
    total: Contribution


class RayEngine(LocalEngine):
    """Runs the clients of a round in tasks of the cluster, and all else here."""

    accepts: Accepts = "references"

    def __init__(self, round: Round, runtime: RayRuntime):
        super().__init__(round)
        self.concurrent_calls = runtime.num_workers
        self._runtime, self._seen = runtime, set[str]()
        self._program = program_of(round)
        self._code = runtime.ray.put(self._program.code)
        self._tasks = Tasks(runtime)
        self._work = self._tasks.work(work_on)

    def _contributions(self, sent: Broadcast, datasets: Sequence[Reference]) -> list[Contribution]:
        for reference in datasets:
            if reference.digest not in self._seen:
                self._tasks.check_machines(examine, _versions(), reference)
                self._seen.add(reference.digest)
        message = self._runtime.ray.put([np.asarray(x) for x in tf.nest.flatten(sent)])
        # The code goes in a list, by which it is a name: it is fetched where it is not known.
        asked = [functools.partial(self._work.remote, [self._code], self._program.key, message, x) for x in datasets]
        pack = lambda leaves: tf.nest.pack_sequence_as(self._program.total, [tf.constant(x) for x in leaves])
        return [pack(leaves) for leaves in self._tasks.results(asked)]


@contextlib.contextmanager
def running(process: BayesianProcess, runtime: RayRuntime | None) -> Iterator[RayEngine]:
    """Yield the engine of a process on a cluster: that of the runtime, or one that is started here and stopped."""
    with joined(runtime) as cluster:
        yield RayEngine(process.round, cluster)


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
        with space(folder, writes=True):
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
                raise ComputationError(f"A computation failed: {first_line(error.message)}") from None
        return [x.numpy() for x in total or []]


@functools.lru_cache(maxsize=4)
def _learners(key: str) -> list[Learner]:
    """Return the cache of this process: program key -> learner."""
    del key
    return []


def work_on(code: Sequence[Any], key: str, message: Sequence[np.ndarray], part: Reference) -> list[np.ndarray]:
    """Return, in a task, the leaves of what the clients of a reference contribute together."""
    learners = _learners(key)
    if not learners:
        learners.append(Learner(require_ray().get(code[0])))
    return learners[0].learn(message, _files(part), part.numbers)


def examine(reference: Reference) -> tuple[str, str]:
    """Return, in a task, a machine's versions, and why it can't take part, or ""."""
    try:
        _files(reference)
    except InvalidArgument as error:
        return _versions(), f"does not see the clients: {error}"
    return _versions(), ""


def _files(reference: Reference) -> ClientFiles:
    files = ClientFiles(reference.folder)
    if files.digest != reference.digest:
        raise InvalidArgument(f"{pathlib.Path(reference.folder)} holds other clients here.")
    return files


def _versions() -> str:
    return f"tfp_bfl {metadata.version('tfp_bfl')}, tensorflow {tf.__version__}"
