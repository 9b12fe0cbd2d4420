"""One round with all that can go wrong in it: clients that stay away, are faulty, raise or spoil, workers that die."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Optional, Union

import numpy as np
import tensorflow as tf

from tfp_bfl.contracts import ServerState
from tfp_bfl.data import ClientData, ClientFiles, Parties, answering, cohort, each_drawn
from tfp_bfl.errors import ComputationError, Diverged, Error, InvalidArgument, WorkerError
from tfp_bfl.federated.engines import Engine
from tfp_bfl.federated.faults import FAULTS, within
from tfp_bfl.federated.notices import loss_warning
from tfp_bfl.federated.process import BayesianProcess

logger = logging.getLogger(__name__)

# A client is left out that moved its weights this many times as far as the median of at least three, and by more than
# 1 a weight.
_MANY_TIMES = 1000.0
_FAR = {
    "change": f"its weights moved more than {_MANY_TIMES:g} times as far as the median client's",
    "extra": f"its statistics beside the weights are more than {_MANY_TIMES:g} times the median client's",
}
_SPOILT = "with it the server's weights are not finite, or beyond max_magnitude"


class Sampling(NamedTuple):
    """How a round's clients are drawn, and how often a round is tried.

    Fields:
      cohort_size: clients a round; None for all.
      dropout: the probability that a client does not answer.
      seed: of both.
      max_retries: new cohorts for a round in which nobody was sound.
      max_restarts: of dead workers, within a round.
      popularity: of `data.cohort`.
      each_for_itself: cohort_size is what a round has in expectation, as differential privacy wants it.
    """

    cohort_size: Optional[int]
    dropout: float
    seed: int
    max_retries: int
    max_restarts: int
    popularity: Optional[float] = None
    each_for_itself: bool = False


class Outcome(NamedTuple):
    """What a round came to.

    Fields:
      state: the server's after the round.
      metrics: of the process.
      left_out: clients whom this round was run again without, with the reason: their computation raised, or they
        spoilt the others'.
      num_dropped: clients that did not answer.
      retries: cohorts before this one.
      restarts: workers that were started anew.
    """

    state: ServerState
    metrics: Any
    left_out: Mapping[int, str] = MappingProxyType({})
    num_dropped: int = 0
    retries: int = 0
    restarts: int = 0

    @property
    def faulty(self) -> dict[int, str]:
        """Clients that were left out, with the reasons."""
        report = self.metrics["clients"]
        found = zip(report["client"].tolist(), report["fault"].tolist())
        return dict(sorted({**{client: FAULTS[fault] for client, fault in found if fault}, **self.left_out}.items()))

    @property
    def far(self) -> dict[int, str]:
        """Sound clients whose change or extra statistics are not of the others' size, with the reason."""
        report = self.metrics["clients"]
        sound = report["fault"] == 0
        if np.count_nonzero(sound) < 3:
            return {}
        found: dict[int, str] = {}
        for name, reason in _FAR.items():
            bound = max(1.0, _MANY_TIMES * np.median(report[name][sound]))
            found = {**dict.fromkeys(report["client"][sound & (report[name] > bound)].tolist(), reason), **found}
        return found


class _Spoilt(ComputationError):
    """The server's weights after a round are not such as a run can go on from."""


class Attempts:
    """Runs rounds of an engine over clients, again where that can help.

    Attributes:
      warnings: sentences on clients who look wrong and are not left out.
    """

    def __init__(
        self, process: BayesianProcess, engine: Engine, clients: Union[ClientData, Parties], sampling: Sampling
    ):
        self._by_reference = getattr(engine, "by_reference", False)
        if self._by_reference and not isinstance(clients, ClientFiles):
            raise InvalidArgument(
                "The workers of a cluster read their clients' examples from files, but these clients are in memory: "
                "give it data.write_clients(clients, folder), a folder that every machine sees."
            )
        self._process = process
        self._engine = engine
        self._clients = clients
        self._sampling = sampling
        self.warnings: dict[int, str] = {}
        self._shards: tuple[Any, Sequence[Any]] = (None, [])
        self._restarts = 0

    def run(self, state: ServerState) -> Outcome:
        """One round: that after the state's.

        Raises:
          Diverged: the server's weights are not finite after its step, or beyond all bounds, whoever takes part.
          Error: nobody was sound in any attempt.
          WorkerError: workers died more than `max_restarts` times.
        """
        number, sampling = int(state.round) + 1, self._sampling
        self._restarts = 0
        if sampling.each_for_itself:
            return self._run_hiding(state, number)
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
                    self._warn(outcome)
                    return outcome
                reasons = f"every client was faulty: {_listed(faulty)}"
            logger.warning("Attempt %d at round %d came to nothing: %s.", attempt + 1, number, reasons)
        raise Error(f"Nothing was learnt in round {number}, in {attempt + 1} attempts: {reasons}{self._rather()}.")

    def _run_hiding(self, state: ServerState, number: int) -> Outcome:
        """A round that does not tell who was in it: it is not tried again, and nobody is left out for the others."""
        chosen = each_drawn(
            self._clients.num_clients,
            self._sampling.cohort_size or self._clients.num_clients,
            number,
            self._sampling.seed,
        )
        present = answering(chosen, self._sampling.dropout, number, self._sampling.seed).tolist()
        if not present:  # The noise alone is added: to what one client sends who counts nothing.
            state = state._replace(federation=state.federation._replace(most_weight=np.float32(0)))
        try:
            outcome = self._next(state, present or [0])
        except _Spoilt as spoilt:
            raise Diverged(str(spoilt), state) from None
        if outcome.faulty:
            logger.warning("In round %d faulty clients count nothing: %s.", number, _listed(outcome.faulty))
        return outcome._replace(num_dropped=len(chosen) - len(present), restarts=self._restarts)

    def _rather(self) -> str:
        """Return which options may be the cause where all clients fail at once, and the learning rate to try."""
        settings = self._process.description
        named = [f"{name} ({settings[name]})" for name in ("learning_rate", "step_size") if name in settings]
        rates = [float(x) for x in re.findall(r"\d+\.?\d*(?:e[-+]?\d+)?", str(settings.get("learning_rate", "")))]
        advice = f": training diverges at too large a rate, try {max(rates) / 10:g}" if rates and max(rates) > 0 else ""
        return f"; where all fail at once, look at {' and '.join(named)} first{advice}" if named else ""

    def _run_with(self, state: ServerState, present: Sequence[int]) -> Outcome:
        try:
            outcome = self._next(state, present)
            left_out = outcome.far
            if not left_out:
                return outcome
            left_out = {**outcome.left_out, **left_out}
        except ComputationError as error:
            if isinstance(error, _Spoilt) and not self._some_do_not_spoil(state, present):
                raise Diverged(str(error), state) from None
            left_out = self._find_raising(state, list(present), _reason(error))
            if isinstance(error, _Spoilt) and 2 * len(left_out) > len(present):
                raise Diverged(str(error), state) from None
        left = [k for k in present if k not in left_out]
        if not left:
            return Outcome(state, {"clients": {"client": np.zeros(0), "fault": np.zeros(0)}}, left_out)
        try:
            outcome = self._next(state, left)
            return outcome._replace(left_out={**outcome.left_out, **left_out})
        except _Spoilt as spoilt:
            raise Diverged(str(spoilt), state) from None

    def _some_do_not_spoil(self, state: ServerState, present: Sequence[int]) -> bool:
        """Whether it is some of the clients: where it is the server's step, no quarter of them does any better."""
        for part in (present[i::4] for i in range(min(4, len(present)))):
            with contextlib.suppress(_Spoilt):
                self._next(state, part)
                return True
        return False

    def _next(self, state: ServerState, present: Sequence[int]) -> Outcome:
        """A round whose clients' weights are within `max_weight_ratio` of each other, with a state that is sound."""
        outcome = self._once(state, present)
        most, above = self._most_weight(outcome)
        if above:
            capped = state._replace(federation=state.federation._replace(most_weight=np.float32(most)))
            outcome = self._once(capped, present)
            logger.warning(
                "Round %d weighs no client more than %g times the median one: %s weighed more.",
                int(state.round) + 1,
                self._process.limits.max_weight_ratio,
                ", ".join(f"client {k}" for k in above),
            )
        bound, done = self._process.limits.max_magnitude, int(state.round)
        finite = all(np.all(np.isfinite(x)) for x in tf.nest.flatten((outcome.state.weights, outcome.state.step)))
        if not (finite and within(outcome.state.weights, bound)):
            raise _Spoilt(
                f"The server's weights are not finite, or beyond {bound:g}, after round {done + 1}, by its step "
                f"{self._process.server_step.name}: take a smaller step, at the server or the clients; the state of "
                f"round {done} is kept."
            )
        return outcome

    def _most_weight(self, outcome: Outcome) -> tuple[float, list[int]]:
        """The largest weight that a client may have, and the clients who have more."""
        ratio, report = self._process.limits.max_weight_ratio, outcome.metrics["clients"]
        sound = report["fault"] == 0
        if ratio is None or not sound.any():
            return np.inf, []
        # The lower median: of two clients the lighter one is the measure.
        most = ratio * np.quantile(report["weight"][sound], 0.5, method="lower")
        return most, report["client"][sound & (report["weight"] > most)].tolist()

    def _warn(self, outcome: Outcome) -> None:
        report = outcome.metrics["clients"]
        for client, sentence in loss_warning(report["client"], np.where(report["fault"] == 0, report["nll"], np.nan)):
            if client not in self.warnings:
                self.warnings[client] = sentence
                logger.warning(sentence)

    def _once(self, state: ServerState, present: Sequence[int]) -> Outcome:
        while True:
            try:
                output = self._engine.next(state, self._datasets(present))
                return Outcome(output.state, output.metrics, getattr(output, "left_out", {}))
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
                found.update(self._find_raising(state, half, _reason(error)))
        return found

    def _datasets(self, present: Sequence[int]) -> Sequence[Any]:
        """The clients' data; those of the last call stay, so that workers know them."""
        key = tuple(int(k) for k in present)
        if self._shards[0] != key:
            clients: Any = self._clients
            give = clients.references if self._by_reference else clients.shards
            self._shards = key, give(key, self._engine.concurrent_calls)
        return self._shards[1]


def _reason(error: ComputationError) -> str:
    return _SPOILT if isinstance(error, _Spoilt) else str(error)


def _listed(faulty: dict[int, str], most: int = 5) -> str:
    shown = "; ".join(f"client {client}: {reason}" for client, reason in [*faulty.items()][:most])
    return shown + (f"; and {len(faulty) - most} more" if len(faulty) > most else "")
