"""The engine that compiles a whole round by XLA: for small models, whose rounds cost little arithmetic."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any, Callable

import tensorflow as tf

from tfp_bfl.contracts import PADDED, Metrics, ServerState
from tfp_bfl.data import ClientExamples
from tfp_bfl.errors import ComputationError, InvalidArgument
from tfp_bfl.federated.local import Output, as_arrays, check_once, reason
from tfp_bfl.federated.loops import check_shapes, stacked, sum_of_rows
from tfp_bfl.federated.round import Round, check_secret
from tfp_bfl.tensors import traced_for_xla

# Each size is one more loop to compile.
MOST_SIZES = 8
# What XLA says of operations that it can't compile.
_OBSTACLE = re.compile(r"No registered '\w+'|must be a compile-time constant")


class CompiledEngine:
    """Runs each round as one function that XLA compiled, in which clients are a loop.

    Clients of several sizes are filled up to the largest one of all (`expect`) where the work allows that
    (`ClientWork.shapes`), and are a loop for each size elsewhere. A round of other shapes than before compiles anew.
    Batches and noise are other draws of the same distributions than those of other engines; assertions in a client's
    work are not checked.

    Attributes:
      concurrent_calls: 1.
      by_examples: it takes the clients' `ClientExamples` for datasets.
    """

    by_examples = True

    def __init__(self, round: Round, shapes: str = ""):
        check_shapes(shapes)
        self._round = round
        self._pads = shapes == PADDED
        self._most = 0  # Rows to which clients are padded; 0 for none.
        self._given: Any = None
        self._groups: tuple[ClientExamples, ...] = ()
        self._compiled: dict[bool, Callable[..., Any]] = {}
        self.concurrent_calls = 1

    def initialize(self) -> ServerState:
        """Return the state before the first round."""
        return as_arrays(self._round.initialize())

    def expect(self, sizes: Sequence[int]) -> None:
        """Prepare for clients of these sizes, of whom any may be in a round.

        Raises:
          InvalidArgument: there are more than `MOST_SIZES` sizes, and the clients' work does not let them be padded.
        """
        several = sorted({int(n) for n in sizes})
        self._most = several[-1] if self._pads and len(several) > 1 else 0
        self._given = None
        if not self._pads and len(several) > MOST_SIZES:
            raise InvalidArgument(
                f"The engine compiled takes clients of at most {MOST_SIZES} sizes for this algorithm and model, and "
                f"these have {len(several)}, from {several[0]} to {several[-1]} examples: use Clients.limit, or the "
                "engine local."
            )

    def next(self, state: ServerState, datasets: Sequence[Sequence[ClientExamples]]) -> Output:
        """Return the round after the state's, over all clients.

        Raises:
          ComputationError: an operation of a client's work raised.
          InvalidArgument: a client is there twice; a private process without a secret seed; an operation that XLA has
            not.
        """
        check_secret(state)
        if self._given is not datasets:
            self._groups = self._grouped([client for part in datasets for client in part])
            self._given = datasets
        padded = self._most > 0
        if padded not in self._compiled:
            self._compiled[padded] = _compile(self._round, padded)
        state = tf.nest.map_structure(tf.convert_to_tensor, state)
        try:
            output = Output(*as_arrays(self._compiled[padded](state, self._groups)))
        except tf.errors.OpError as error:
            if obstacle := _OBSTACLE.search(error.message):
                raise InvalidArgument(
                    f"XLA can't compile a round of this process ({obstacle[0]}): use the engine local."
                ) from error
            raise ComputationError(f"A computation failed: {reason(error.message)}") from error
        check_once(output.metrics["clients"]["client"])
        return output

    def replace_dead_workers(self) -> int:
        """0: there are none."""
        return 0

    def _grouped(self, clients: Sequence[ClientExamples]) -> tuple[ClientExamples, ...]:
        """Return the clients of each loop."""
        if self._most:
            return (stacked(clients, self._most),)
        of: dict[int, list[ClientExamples]] = {}
        for client in clients:
            of.setdefault(len(client.labels), []).append(client)
        return tuple(stacked(of[size]) for size in sorted(of))


def _compile(round: Round, padded: bool) -> Callable[..., Any]:
    """Return the function (state, groups of clients) -> (state, metrics), with variables of its own."""
    contribute = round.build_client()

    @tf.function(autograph=False, jit_compile=True)
    def run(state: ServerState, groups: tuple[ClientExamples, ...]) -> tuple[ServerState, Metrics]:
        with traced_for_xla(padded=padded):
            sent = round.broadcast(state)
            totals = [sum_of_rows(round, contribute, sent, group) for group in groups]
            return round.conclude(state, functools.reduce(round.add, totals))

    return run
