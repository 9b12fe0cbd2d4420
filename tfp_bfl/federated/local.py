"""The engine that runs rounds in this process: compiled, a client on each core, without TensorFlow Federated."""

import copy
import functools
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import tensorflow as tf

from tfp_bfl.contracts import Metrics, ServerState
from tfp_bfl.data import ClientRows
from tfp_bfl.errors import ComputationError, InvalidArgument
from tfp_bfl.federated.round import (
    Broadcast,
    Contribute,
    Contribution,
    Round,
    check_secret,
    summed,
    summed_rows,
    types_of,
)
from tfp_bfl.machine import num_cores
from tfp_bfl.tensors import TensorTree

T = TypeVar("T")
# What an engine accepts for the data of a part of a round's clients: `engines.Engine`.
Accepts = Literal["datasets", "rows", "examples", "references"]


class Output(NamedTuple):
    """The result of a round, as a `tff.learning.templates.LearningProcessOutput` has it.

    Fields:
      left_out: clients without a sound answer, with the reason, where the engine knows clients by number.
    """

    state: ServerState
    metrics: Metrics
    left_out: Mapping[int, str] = MappingProxyType({})


class LocalEngine:
    """Runs a round's functions, each traced once, as an `engines.Engine`."""

    accepts: Accepts = "rows"

    def __init__(self, round: Round):
        self._round = round
        self._conclude = tf.function(round.conclude, autograph=False, reduce_retracing=True)
        self._add = tf.function(round.add, autograph=False, reduce_retracing=True)
        self._broadcast = tf.function(round.broadcast, autograph=False, reduce_retracing=True)
        self._lanes: list[_Lane] = []
        self.concurrent_calls = num_cores()

    def initialize(self) -> ServerState:
        """Return the state before the first round."""
        return as_arrays(self._round.initialize())

    def next(self, state: ServerState, datasets: Sequence[tf.data.Dataset | ClientRows]) -> Output:
        """Return the round after the state's, over all clients of the datasets, each of which is in them once.

        A private process without a secret seed is refused; what an operation raises is ComputationError.
        """
        check_secret(state)
        try:
            state = tf.nest.map_structure(tf.convert_to_tensor, state)
            total = functools.reduce(self._add, self._contributions(self._broadcast(state), datasets))
            output = Output(*as_arrays(self._conclude(state, total)))
        except tf.errors.OpError as error:
            raise ComputationError(f"A computation failed: {reason(error.message)}") from error
        check_once(output.metrics["clients"]["client"])
        return output

    def replace_dead_workers(self) -> int:
        """Return 0: there are no workers."""
        return 0

    def _contributions(self, sent: Broadcast, datasets: Sequence[Any]) -> list[Contribution]:
        """Return the contributions of the datasets' clients, in a fixed order, each the sum of several."""
        number = min(len(datasets), self.concurrent_calls)
        of_rows = isinstance(datasets[0], ClientRows)
        works = [self._work_of(i, of_rows, lambda one: _traced(self._round, one, of_rows)) for i in range(number)]
        return at_once([functools.partial(self._sum, x, sent, datasets[i::number]) for i, x in enumerate(works)])

    def _work_of(self, number: int, key: Any, trace: Callable[[Contribute], Any]) -> Callable[..., Contribution]:
        """Return the work of a lane: the first lane's graph on its own variables, if it needs no more."""
        while len(self._lanes) <= number:
            self._lanes.append(_Lane(*client_of(self._round), {}))
        first, lane = self._lanes[0], self._lanes[number]
        if key not in lane.works:
            copied = None
            if key in first.works and self._may_share(first.works[key]):
                copied = with_variables(first.works[key], first.variables, lane.variables)
            lane.works[key] = copied or trace(lane.contribute)
        return lane.works[key]

    def _may_share(self, work: Any) -> bool:
        return not needs_own_kernels(work)

    def _sum(self, work: Any, sent: Broadcast, datasets: Sequence[Any]) -> Contribution:
        given = (x if isinstance(x, ClientRows) else (x,) for x in datasets)
        return functools.reduce(self._add, [work(sent, *dataset) for dataset in given])


class _Lane(NamedTuple):
    """The work of a client, the variables that hold one client at a time, and its sums over clients.

    Fields:
      works: whether of `ClientRows`, or of a dataset; or the shapes of clients that are compiled -> the sum, traced
        when it is first asked for.
    """

    contribute: Contribute
    variables: list[tf.Variable]
    works: dict[Any, Callable[..., Contribution]]


def client_of(round: Round) -> tuple[Contribute, list[tf.Variable]]:
    """Return the work of a client, and the variables that it made."""
    variables: list[tf.Variable] = []

    def remember(create: Callable[..., tf.Variable], **kwargs: object) -> tf.Variable:
        variables.append(create(**kwargs))
        return variables[-1]

    with tf.variable_creator_scope(remember):
        return round.build_client(), variables


def _traced(round: Round, contribute: Contribute, of_rows: bool) -> Any:
    """Return the sum over clients, of `ClientRows` or of a dataset."""
    spec, sent = round.element_spec, types_of(round.broadcast, types_of(round.initialize))
    given = (spec, tf.TensorSpec([None], tf.int64)) if of_rows else (tf.data.DatasetSpec(spec),)
    work = tf.function((summed_rows if of_rows else summed)(contribute, round.add, spec), autograph=False)
    return work.get_concrete_function(sent, *given)


def with_variables(work: Any, own: Sequence[tf.Variable], others: Sequence[tf.Variable]) -> Any:
    """Return a concrete function on other variables than its own; None where these are not all that it writes to."""
    if len(others) != len(own):
        return None
    handles = {id(mine.handle): other.handle for mine, other in zip(own, others)}
    copied = copy.copy(work)
    if any(x.dtype == tf.resource and id(x) not in handles for x in copied.captured_inputs):
        return None
    copied.set_external_captures([handles.get(id(x), x) for x in copied.captured_inputs])
    return copied


def needs_own_kernels(work: Any) -> bool:
    """Return whether two threads must not run one graph: an operation in it keeps what a call gave it.

    oneDNN's batch normalization keeps the number of channels of the call that began last, so two calls with different
    numbers write past the end of their arrays. The channels of a network are constants, but LayerNormalization of
    Keras 2 gives the rows of a batch as channels, in the format NCHW.
    """
    graph = work.graph.as_graph_def()
    nodes = itertools.chain(graph.node, *(function.node_def for function in graph.library.function))
    return any(x.op.startswith("FusedBatchNorm") and x.attr["data_format"].s == b"NCHW" for x in nodes)


def check_once(clients: np.ndarray) -> None:
    """Raise InvalidArgument if a client's number is in a round twice."""
    numbers, times = np.unique(clients[clients >= 0], return_counts=True)
    if (times > 1).any():
        raise InvalidArgument(
            f"Client {numbers[times > 1][0]} is {times.max()} times in one round: give each client's dataset once."
        )


def as_arrays(structure: TensorTree) -> Any:
    """Return the structure with NumPy's arrays as leaves."""
    return tf.nest.map_structure(np.asarray, structure)


def reason(message: str) -> str:
    """Return the message of an operation, without TensorFlow's text on its place in the graph and in the program."""
    around = ("Graph execution error", "Detected at node", "Node:", "<stack traces", " ", "\t")
    lines = [line for line in message.splitlines() if line.strip() and not line.startswith(around)]
    return (lines or [message])[0].strip()


def start(function: Callable[[], T], name: str = "tfp_bfl-call") -> Future[T]:
    """Run a function on a separate daemon thread, so that a program can exit in the middle of it."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def at_once(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Return the results of functions, each called on a thread of its own (`start`)."""
    futures = [start(call) for call in calls]
    return [future.result() for future in futures]
