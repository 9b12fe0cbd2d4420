"""The engine that runs rounds in this process: compiled, a client on each core, without TensorFlow Federated."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.contracts import Metrics, ServerState
from tfp_bfl.errors import ComputationError
from tfp_bfl.federated.round import Broadcast, Contribution, Round, summed
from tfp_bfl.federated.threads import start


class Output(NamedTuple):
    """What a round gives, as a `tff.learning.templates.LearningProcessOutput` does."""

    state: ServerState
    metrics: Metrics


class LocalEngine:
    """Runs a round's functions, each traced once.

    Attributes:
      concurrent_calls: how many datasets of clients are worked through at once.
    """

    def __init__(self, round: Round):
        self._round = round
        self._conclude = tf.function(round.conclude, autograph=False, reduce_retracing=True)
        self._add = tf.function(round.add, autograph=False, reduce_retracing=True)
        self._broadcast = tf.function(round.broadcast, autograph=False, reduce_retracing=True)
        self._lanes: list[Callable[[Broadcast, tf.data.Dataset], Contribution]] = []
        self.concurrent_calls = len(os.sched_getaffinity(0))

    def initialize(self) -> ServerState:
        """The state before the first round."""
        return _as_arrays(self._round.initialize())

    def next(self, state: ServerState, datasets: Sequence[tf.data.Dataset]) -> Output:
        """The round after the state's, over all clients of the datasets.

        Raises:
          ComputationError: an operation of a client's work raised.
        """
        try:
            state = tf.nest.map_structure(tf.convert_to_tensor, state)
            sent = self._broadcast(state)
            number = min(len(datasets), self.concurrent_calls)
            lanes = [
                start(functools.partial(self._work, lane, sent, datasets[i::number]))
                for i, lane in enumerate(self._first_lanes(number))
            ]
            total = functools.reduce(self._add, [lane.result() for lane in lanes])
            return Output(*_as_arrays(self._conclude(state, total)))
        except tf.errors.OpError as error:
            raise ComputationError(f"A computation failed: {_reason(error.message)}") from error

    def replace_dead_workers(self) -> int:
        """0: there are none."""
        return 0

    def _first_lanes(self, number: int) -> list[Any]:
        # A model's variables hold one client at a time: each lane has a model of its own.
        while len(self._lanes) < number:
            work = summed(self._round.build_client(), self._round.add, self._round.element_spec)
            self._lanes.append(tf.function(work, autograph=False, reduce_retracing=True))
        return self._lanes[:number]

    def _work(self, lane: Any, sent: Broadcast, datasets: Sequence[tf.data.Dataset]) -> Contribution:
        return functools.reduce(self._add, [lane(sent, dataset) for dataset in datasets])


def _as_arrays(structure: Any) -> Any:
    return tf.nest.map_structure(np.asarray, structure)


def _reason(message: str) -> str:
    """What an operation said, of TensorFlow's text on where it stands in the graph and in the program."""
    around = ("Graph execution error", "Detected at node", "Node:", "<stack traces", " ", "\t")
    lines = [line for line in message.splitlines() if line.strip() and not line.startswith(around)]
    return (lines or [message])[0].strip()
