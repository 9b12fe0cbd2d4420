"""One round with all that can go wrong in it: clients that stay away, are faulty or raise, and workers that die."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from tfp_bfl.contracts import ServerState
from tfp_bfl.data import Clients, answering, cohort
from tfp_bfl.errors import ComputationError, Error, WorkerError
from tfp_bfl.federated.engines import Engine
from tfp_bfl.federated.faults import FAULTS

logger = logging.getLogger(__name__)


class Sampling(NamedTuple):
    """How a round's clients are drawn, and how often a round is tried.

    Fields:
      cohort_size: clients a round; None for all.
      dropout: the probability that a client does not answer.
      seed: of both.
      max_retries: new cohorts for a round in which nobody was sound.
      max_restarts: of dead workers, within a round.
      popularity: of `data.cohort`.
    """

    cohort_size: Optional[int]
    dropout: float
    seed: int
    max_retries: int
    max_restarts: int
    popularity: Optional[float] = None


class Outcome(NamedTuple):
    """What a round came to.

    Fields:
      state: the server's after the round.
      metrics: of the process.
      raised: the clients whose computation raised, with the reason.
      num_dropped: clients that did not answer.
      retries: cohorts before this one.
      restarts: workers that were started anew.
    """

    state: ServerState
    metrics: Any
    raised: Mapping[int, str] = MappingProxyType({})
    num_dropped: int = 0
    retries: int = 0
    restarts: int = 0

    @property
    def faulty(self) -> dict[int, str]:
        """Clients that were left out, with the reasons."""
        report = self.metrics["clients"]
        found = zip(report["client"].tolist(), report["fault"].tolist())
        return dict(sorted({**{client: FAULTS[fault] for client, fault in found if fault}, **self.raised}.items()))


class Attempts:
    """Runs rounds of an engine over clients, again where that can help."""

    def __init__(self, engine: Engine, clients: Clients, sampling: Sampling):
        self._engine = engine
        self._clients = clients
        self._sampling = sampling
        self._shards: tuple[Any, list[tf.data.Dataset]] = (None, [])
        self._restarts = 0

    def run(self, state: ServerState) -> Outcome:
        """One round: that after the state's.

        Raises:
          Error: nobody was sound in any attempt.
          WorkerError: workers died more than `max_restarts` times.
        """
        number, sampling = int(state.round) + 1, self._sampling
        self._restarts = 0
        # Without a draw there is nobody else to try.
        drawn = sampling.dropout > 0 or (sampling.cohort_size or self._clients.num_clients) < self._clients.num_clients
        reasons = "no client answered"
        for attempt in range(1 + sampling.max_retries if drawn else 1):
            chosen = cohort(
                self._clients.num_clients, sampling.cohort_size, number, sampling.seed, attempt, sampling.popularity
            )
            present = answering(chosen, sampling.dropout, number, sampling.seed, attempt)
            if len(present):
                outcome = self._run_with(state, present.tolist())._replace(
                    num_dropped=len(chosen) - len(present), retries=attempt, restarts=self._restarts
                )
                faulty = outcome.faulty
                if faulty:
                    logger.warning("Round %d goes on without faulty clients: %s.", number, _listed(faulty))
                if len(faulty) < len(present):
                    return outcome
                reasons = f"every client was faulty: {_listed(faulty)}"
            logger.warning("Attempt %d at round %d came to nothing: %s.", attempt + 1, number, reasons)
        raise Error(f"Nothing was learnt in round {number}, in {attempt + 1} attempts: {reasons}.")

    def _run_with(self, state: ServerState, present: Sequence[int]) -> Outcome:
        try:
            return self._next(state, present)
        except ComputationError as error:
            raised = self._find_raising(state, list(present), str(error))
        left = [k for k in present if k not in raised]
        if left:
            return self._next(state, left)._replace(raised=raised)
        return Outcome(state, {"clients": {"client": np.zeros(0), "fault": np.zeros(0)}}, raised)

    def _next(self, state: ServerState, present: Sequence[int]) -> Outcome:
        while True:
            try:
                output = self._engine.next(state, self._datasets(present))
                return Outcome(output.state, output.metrics)
            except WorkerError as error:
                started = self._engine.replace_dead_workers() if self._restarts < self._sampling.max_restarts else 0
                if not started:
                    raise
                self._restarts += started
                logger.warning("A worker died and was started anew; the round is run again: %s", error)

    def _find_raising(self, state: ServerState, suspects: list[int], reason: str) -> dict[int, str]:
        """The clients of those whose computation raises, by halves: a few rounds for one among many."""
        if len(suspects) == 1:
            return {int(suspects[0]): reason}
        found = {}
        middle = len(suspects) // 2
        for half in (suspects[:middle], suspects[middle:]):
            try:
                self._next(state, half)
            except ComputationError as error:
                found.update(self._find_raising(state, half, str(error)))
        return found

    def _datasets(self, present: Sequence[int]) -> list[tf.data.Dataset]:
        """The clients' data; those of the last call stay, so that workers know them."""
        key = tuple(int(k) for k in present)
        if self._shards[0] != key:
            self._shards = key, self._clients.shards(key, self._engine.concurrent_calls)
        return self._shards[1]


def _listed(faulty: dict[int, str], most: int = 5) -> str:
    shown = "; ".join(f"client {client}: {reason}" for client, reason in [*faulty.items()][:most])
    return shown + (f"; and {len(faulty) - most} more" if len(faulty) > most else "")
