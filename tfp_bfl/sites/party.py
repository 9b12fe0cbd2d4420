"""Sites of a federation: the work of a site for a message, and the server's engine over the sites.

    server: state -> message, to all sites of a round
    site:   message, its examples, its memory, a random key from its secret -> result
    server: check each result, take, add in the order of the sites' numbers, conclude

A `Transport` carries named arrays, and nothing else, between server and sites.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import hmac
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import tensorflow as tf

from tfp_bfl.contracts import Memory, Metrics, ServerState
from tfp_bfl.data import ClientExamples, Parties, Source
from tfp_bfl.errors import Error, InvalidArgument, check_count
from tfp_bfl.federated.local import Accepts, Output, as_arrays
from tfp_bfl.federated.memory import find_row, no_rows
from tfp_bfl.federated.options import PASSED_ON, settings_of
from tfp_bfl.federated.process import BayesianProcess
from tfp_bfl.federated.round import Contribution, summed_spec, types_of
from tfp_bfl.federated.simulation import SimulationResult, simulate
from tfp_bfl.sites.arrays import Answer, Arrays, ByRound, digest_of, from_arrays, in_order, to_arrays

if TYPE_CHECKING:
    from typing import Unpack

    from tfp_bfl.federated.options import Options
    from tfp_bfl.sites.bounds import SentWeights


class Transport(Protocol):
    """Carrier of a message to sites, and of their answers."""

    def ask(self, numbers: Sequence[int], message: Arrays) -> Iterator[tuple[int, Answer]]:
        """Yield (number, answer) of the sites with these numbers in order of arrival, until the last or the deadline.

        The transport authenticates the site with the number of each answer.
        """


def at_server(process: BayesianProcess) -> BayesianProcess:
    """Return the process as the server of sites runs it, with the round of each site's memory in place of the memory.

    The memory itself (`ClientWork.memory`) stays at the site.
    """
    if process.client_work.memory is None:
        return process
    served, version = copy.copy(process), tf.zeros([], tf.int32)
    served.client_work = process.client_work._replace(memory=lambda weights, share: version, personal=None)
    initialize = process.round.initialize
    served.round = process.round._replace(initialize=lambda: initialize()._replace(memory=no_rows(version)))
    served.state_spec = tf.nest.flatten(types_of(served.round.initialize))
    return served


class Party:
    """A site of a federation, with its examples, its secret and its memory, none of which it sends.

    Args:
      process, run: process of the run, built at the site, and its name.
      source, number: examples of the site, and its number at the server.
      secret: secret of the site; all of its random numbers are functions of it and of the name of the run.
      memory: store of the site's memory, as named arrays; None for a dictionary.
      charge: receives the message of each round before the work begins, and raises `InvalidArgument` to refuse it.
      max_examples: bound on the number of examples that weights the site; None for no bound.
      rounds: number of rounds that the site answers; None for any number.
      job: digest of the job, 32 bytes, the same at all sites. The noise of differential privacy is a function of it
        and of the message, so that no two answers have the same noise.
      steps: bounds on the content of messages; None for no bounds.
    """

    def __init__(
        self,
        process: BayesianProcess,
        source: Source,
        number: int,
        secret: bytes,
        run: str = "",
        memory: ByRound[dict[str, np.ndarray]] | None = None,
        charge: Callable[[Arrays], None] | None = None,
        max_examples: int | None = None,
        *,
        rounds: int | None = None,
        job: bytes = bytes(32),
        steps: SentWeights | None = None,
    ):
        self.number, self._rounds, self._steps = number, rounds, steps
        self._size = min(source.num_examples, max_examples or source.num_examples)
        self._secret, self._run, self._charge, self._job = secret, run, charge, job
        self._is_private = process.client_work.needs.is_private
        self._versions: ByRound[dict[str, np.ndarray]] = {} if memory is None else memory
        self._first, self._coding = process.client_work.memory, process.client_work.coding
        self._examples = ClientExamples(
            tf.fill([source.num_examples], number), tf.constant(source.features), tf.constant(source.labels)
        )
        self._spec, self._row = _message_specs(process)
        work = tf.function(process.round.build_work(), autograph=False)
        types = self._spec._replace(memory=self._row), process.element_spec, tf.TensorSpec([2], tf.int32)
        self._work = work.get_concrete_function(*types)

    def answer(self, message: Arrays) -> dict[str, np.ndarray]:
        """Return the result of the site's work without its memory."""
        received = from_arrays(message, self._spec)
        self._check_round(int(received.round))
        result = self._result(message, received)
        if self._coding is None:
            return to_arrays(result)
        code = self._coding.encode(received, tf.nest.map_structure(np.asarray, result.sent.code))
        sent = result.sent._replace(code=np.frombuffer(code, np.uint8))
        return to_arrays(result._replace(weights=(), sent=sent))

    def _check_round(self, done: int) -> None:
        if self._rounds is not None and not 0 <= done < self._rounds:
            raise InvalidArgument(f"It has agreed to {self._rounds} rounds, which do not include round {done + 1}.")

    def _result(self, message: Arrays, received: Any) -> Any:
        """Return the result of the site's work and store its memory."""
        done = int(received.round)
        key = self._key(done, message)

        def work(extra: object) -> Any:
            given = received._replace(memory=self._memory(received), extra=extra)
            return self._work(tf.nest.map_structure(tf.constant, given), self._examples, key)

        if self._steps is not None:
            self._steps.check(done, message, work)
        if self._charge is not None:
            self._charge(message)
        result = work(received.extra)
        result = result._replace(num_examples=tf.constant(min(int(result.num_examples), self._size)))
        if self._steps is not None:
            self._steps.moved(done, message, result)
        if self._first is not None:
            self._versions[done + 1] = to_arrays(result.memory)
        return result._replace(memory=())

    def _memory(self, message: Any) -> Any:
        if self._first is None:
            return ()
        version = int(find_row(message.memory, tf.constant(self.number))[0])
        # In the first round, a stored memory may be from an earlier run with the same name.
        if version == 0 and (int(message.round) == 0 or 0 not in self._versions):
            size, total = self._size, int(message.federation.num_examples)
            share = np.float32(size / max(total, size)) if int(message.round) == 0 else np.float32(0)
            weights = tf.nest.map_structure(tf.constant, message.weights)
            self._versions[0] = to_arrays(self._first(weights, share))
        if version not in self._versions:
            raise InvalidArgument(f"The memory of this site after round {version} is missing: start the run again.")
        return from_arrays(self._versions[version], self._row)

    def _key(self, done: int, message: Arrays) -> np.ndarray:
        context = f"{self._run}/{done}".encode()
        if self._is_private:
            context += b"/" + self._job + digest_of(message).encode()
        digest = hmac.new(self._secret, context, hashlib.sha256).digest()
        return np.frombuffer(digest[:8], np.int32)


class PartyEngine:
    """Engine that runs rounds over sites and checks all of their answers.

    Contributions are added in the order of the sites' numbers, not in the order of arrival, so that sums are
    reproducible bit for bit. A round requires `quorum` valid answers.

    `process` is a result of `at_server`, and `result` the type of a site's answer (`result_spec`).
    """

    accepts: Accepts = "datasets"
    concurrent_calls = 1

    def __init__(self, process: BayesianProcess, result: Any, parties: Parties, transport: Transport, quorum: int):
        self._round, self._coding = process.round, process.client_work.coding
        self._spec = result if self._coding is None else result._replace(weights=())
        self._parties, self._transport, self._quorum = parties, transport, quorum
        traced = functools.partial(tf.function, autograph=False, reduce_retracing=True)
        self._broadcast, self._conclude = traced(process.round.broadcast), traced(process.round.conclude)
        (message, _), scalar = _message_specs(process), tf.TensorSpec([], tf.int32)
        types = message, self._spec, scalar, scalar
        self._take = tf.function(self._taken, autograph=False).get_concrete_function(*types)
        some = summed_spec(types_of(self._taken, *types), process.round.add)
        self._add = tf.function(process.round.add, input_signature=[some, some], autograph=False)

    def initialize(self) -> ServerState:
        """Return the state before the first round."""
        return as_arrays(self._round.initialize())

    def next(self, state: ServerState, numbers: Sequence[int]) -> Output:
        """Run the next round over the sites with these numbers."""
        state = tf.nest.map_structure(tf.convert_to_tensor, state)
        message = self._broadcast(state).message
        total, left_out = self._gather(message, numbers)
        nobody: Metrics = {"clients": {"client": np.zeros(0), "fault": np.zeros(0)}}
        after, metrics = (state, nobody) if total is None else self._conclude(state, total)
        output = Output(as_arrays(after), as_arrays(metrics), left_out)
        sound, done = int(np.count_nonzero(output.metrics["clients"]["fault"] == 0)), int(state.round)
        if sound < self._quorum:
            raise self._too_few(sound, len(numbers), done, left_out)
        return output

    def _gather(self, message: object, numbers: Sequence[int]) -> tuple[Contribution | None, dict[int, str]]:
        """Return the sum of the sites' contributions, and the reasons of the sites that it leaves out."""
        return self._summed(message, numbers)

    def _summed(
        self, message: object, numbers: Sequence[int], **more: np.ndarray
    ) -> tuple[Contribution | None, dict[int, str]]:
        total, left_out = None, dict[int, str]()
        answers = self._transport.ask(numbers, {**to_arrays(message), **more})
        for _, one in in_order(answers, numbers, functools.partial(self._contribution, message), left_out):
            total = one if total is None else self._add(total, one)
        return total, left_out

    def replace_dead_workers(self) -> int:
        """Return 0: the server starts no sites."""
        return 0

    def _contribution(self, message: Any, number: int, answer: Arrays) -> Contribution:
        spec = self._spec
        if self._coding is not None:
            spec = spec._replace(sent=spec.sent._replace(code=tf.TensorSpec([None], tf.uint8)))
        result = from_arrays(answer, spec)
        if self._coding is not None:
            code = to_arrays(self._coding.decode(message, result.sent.code.tobytes()))
            result = result._replace(sent=result.sent._replace(code=from_arrays(code, self._spec.sent.code)))
        known = (tf.constant(x, tf.int32) for x in (number, self._parties.sizes[number]))
        return self._take(message, tf.nest.map_structure(tf.constant, result), *known)

    def _taken(self, message: Any, result: Any, number: tf.Tensor, size: tf.Tensor) -> Contribution:
        if self._coding is not None:
            result = result._replace(weights=self._coding.expand(message, result.sent), sent=())
        _, known = find_row(message.memory, number)
        version = () if message.memory == () else message.round + 1
        return self._round.take(message, result._replace(memory=version), number, size, known)

    def _too_few(self, sound: int, asked: int, done: int, left_out: Mapping[int, str]) -> Error:
        return Error(
            f"{sound} of {asked} sites gave a valid answer in round {done + 1}, but the quorum is {self._quorum}"
            f"{self._reasons(left_out)}. Earlier rounds are stored."
        )

    def _reasons(self, left_out: Mapping[int, str]) -> str:
        reasons = "; ".join(f"{self._parties.names[number]}: {reason}" for number, reason in left_out.items())
        return f" ({reasons})" if reasons else ""


def simulate_parties(
    process: BayesianProcess,
    parties: Parties,
    transport: Transport,
    rounds: int,
    quorum: int = 1,
    make_engine: Callable[..., PartyEngine] = PartyEngine,
    **options: Unpack[Options],
) -> SimulationResult:
    """Run a process over sites, as `simulate` runs it over simulated clients, and return its result.

    Args:
      process: process of `tfp_bfl.algorithms`.
      parties, transport: the sites, and the transport to them.
      rounds: total number of rounds.
      quorum: smallest number of valid answers in a round; a round with fewer raises `Error`.
      make_engine: `PartyEngine`, or `SealedEngine` for secure aggregation.
      **options: options of `simulate`, except `engine`.
    """
    check_count(quorum, "quorum")
    asked = settings_of(simulate_parties, options, PASSED_ON).cohorts.size or parties.num_clients
    if quorum > asked:
        raise InvalidArgument(f"The quorum is {quorum}, but there are {asked} sites in a round.")
    result = result_spec(process)
    engine = lambda process, runtime: contextlib.nullcontext(make_engine(process, result, parties, transport, quorum))
    return simulate(at_server(process), parties, rounds, engine=engine, **options)


def result_spec(process: BayesianProcess) -> Any:
    """Return the type of a site's answer, which excludes its memory."""
    message, row = _message_specs(process)
    work = tf.function(process.round.build_work(), autograph=False)
    result = types_of(work, message._replace(memory=row), process.element_spec, tf.TensorSpec([2], tf.int32))
    return result._replace(memory=())


def _message_specs(process: BayesianProcess) -> tuple[Any, Any]:
    """Return the types of a message as it is sent, and of a site's memory."""
    message = types_of(process.round.broadcast, types_of(process.round.initialize)).message
    first, numbers = process.client_work.memory, tf.TensorSpec([None], tf.int32)
    if first is None:
        return message, ()
    row = types_of(first, message.weights, tf.TensorSpec([], tf.float32))
    return message._replace(memory=Memory(numbers, numbers)), row
