"""One round with all that can go wrong in it: clients that stay away, are faulty, raise or spoil, workers that die."""

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tfp_bfl.contracts import ServerState
from tfp_bfl.data import ClientData, ClientFiles, Clients, Parties, answering, cohort
from tfp_bfl.data.cohorts import each_drawn
from tfp_bfl.errors import ComputationError, Diverged, Error, InvalidArgument, WorkerError, counted
from tfp_bfl.federated.engines import Engine
from tfp_bfl.federated.faults import DIVERGENCE, FAULTS, spoilt
from tfp_bfl.federated.notices import divergence_clause, loss_warning, smaller_rate
from tfp_bfl.federated.options import Cohorts
from tfp_bfl.federated.process import BayesianProcess

logger = logging.getLogger(__name__)

# A client is left out that moved its weights this many times as far as the median of at least three, and by more than
# 1 a weight.
_MANY_TIMES = 1000.0
_FAR = {
    "change": f"its weights moved more than {_MANY_TIMES:g} times as far as the median client's",
    "extra": f"its statistics beside the weights are more than {_MANY_TIMES:g} times the median client's",
}
_MOST_SHOWN = 5
_SPOILT = "with it the server's weights are not finite, or beyond max_magnitude"


NO_CLIENTS = dict.fromkeys(("client", "fault", "diverged_at"), np.zeros(0, np.int32))


class Attempted(NamedTuple):
    """The result of an attempt at a round: the state after it, and the metrics of the process.

    `left_out` are clients whom the round was run again without, with the reason: their computation raised, or they
    spoilt the others'. `num_dropped` did not answer, `retries` are cohorts before this one, and `restarts` workers that
    were started anew.
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
    def diverges(self) -> bool:
        """Return True if a client was left out for a message that is not finite, or huge."""
        return not DIVERGENCE.isdisjoint(self.faulty.values())

    @property
    def described(self) -> str:
        """Faulty clients in words, the first ones with their reasons, and where training diverged."""
        report, faulty = self.metrics["clients"], self.faulty
        shown = "; ".join(f"client {client}: {reason}" for client, reason in [*faulty.items()][:_MOST_SHOWN])
        more = f"; and {len(faulty) - _MOST_SHOWN} more" if len(faulty) > _MOST_SHOWN else ""
        steps = zip(report["client"].tolist(), report["diverged_at"].tolist())
        return shown + more + divergence_clause({client: step for client, step in steps if client in faulty})

    @property
    def far(self) -> dict[int, str]:
        """Sound clients with a change or extra statistics not of the others' size, with the reason."""
        report = self.metrics["clients"]
        sound = report["fault"] == 0
        if np.count_nonzero(sound) < 3:
            return {}
        reasons: dict[int, str] = {}
        for name, reason in _FAR.items():
            bound = max(1.0, _MANY_TIMES * np.median(report[name][sound]))
            reasons = {**dict.fromkeys(report["client"][sound & (report[name] > bound)].tolist(), reason), **reasons}
        return reasons


class _Spoilt(ComputationError):
    """The server's weights after a round are not such as a run can go on from."""


# What an engine accepts -> the method of clients that gives it.
_GIVES = {"datasets": "shards", "rows": "rows_by_part", "examples": "examples_by_part", "references": "references"}


class Attempts:
    """Runs rounds of an engine over clients, again where that can help; warns of clients that look wrong and stay.

    A trial is a round of some clients. A round is a trial of its cohort and, where clients are to blame for what is
    wrong with it, another one without them; where no client of a cohort was sound, the next cohort is tried.
    """

    def __init__(
        self,
        process: BayesianProcess,
        engine: Engine,
        clients: ClientData | Parties,
        cohorts: Cohorts,
        seed: int,
        max_restarts: int,
    ):
        if engine.accepts == "references" and not isinstance(clients, ClientFiles):
            raise InvalidArgument(
                "The workers of a cluster read their clients' examples from files, but these clients are in memory: "
                "give it data.write_clients(clients, folder), a folder that every machine sees."
            )
        if engine.accepts == "examples":
            if not isinstance(clients, ClientData):
                raise InvalidArgument(
                    "The engine compiled takes clients with examples in this process: use simulate_parties for sites."
                )
            engine.expect(clients.sizes)  # type: ignore[attr-defined]
        self._process = process
        self._engine = engine
        self._clients = clients
        self._cohorts = cohorts
        self._seed = seed
        self._max_restarts = max_restarts
        self.warnings: dict[int, str] = {}
        self._shards: tuple[Any, Sequence[Any]] = (None, [])
        self._restarts = 0

    def run(self, state: ServerState) -> Attempted:
        """Run the round after the state's: Diverged if the server's weights are not finite, or beyond bounds, whoever
        takes part; Error if nobody was sound in any attempt; WorkerError after more than `max_restarts` deaths.
        """
        self._restarts = 0
        number, cohorts, num_clients = int(state.round) + 1, self._cohorts, self._clients.num_clients
        if self._process.privacy is not None:
            return self._run_hiding(state, number)
        # Without a draw there is nobody else to try.
        drawn = cohorts.dropout > 0 or (cohorts.size or num_clients) < num_clients
        reasons = "no client answered"
        for attempt in range(1 + cohorts.max_retries if drawn else 1):
            chosen = cohort(num_clients, cohorts.size, number, self._seed, attempt, cohorts.popularity)
            present = answering(chosen, cohorts.dropout, number, self._seed, attempt).tolist()
            if present:
                outcome = self._without_culprits(state, present)
                faulty = outcome.faulty
                if faulty:
                    logger.warning("Round %d continues without faulty clients: %s.", number, outcome.described)
                if len(faulty) < len(present):
                    self._warn(outcome)
                    num_dropped = len(chosen) - len(present)
                    return outcome._replace(num_dropped=num_dropped, retries=attempt, restarts=self._restarts)
                reasons = f"every client was faulty: {outcome.described}{self._rather() if outcome.diverges else ''}"
                if self._process.server_step.needs.is_chain:
                    reasons += "; with other clients in their place the chain would be of another posterior"
            logger.warning("Attempt %d at round %d failed: %s.", attempt + 1, number, reasons)
            if present and self._process.server_step.needs.is_chain:
                break
        raise Error(f"No training succeeded in round {number}, in {counted(attempt + 1, 'attempt')}: {reasons}.")

    def _run_hiding(self, state: ServerState, number: int) -> Attempted:
        """Run a round that does not reveal its clients: it is not repeated, and leaves no client out for the others."""
        size, num_clients = self._cohorts.size, self._clients.num_clients
        chosen = each_drawn(num_clients, size or num_clients, number, self._seed)
        present = answering(chosen, self._cohorts.dropout, number, self._seed).tolist()
        if not present:  # The noise alone is added: to what one client sends who counts nothing.
            state = state._replace(federation=state.federation._replace(most_weight=np.float32(0)))
        try:
            outcome = self._trial(state, present or [0])
        except _Spoilt as spoilt:
            raise Diverged(str(spoilt), state) from None
        if outcome.faulty:
            logger.warning("In round %d faulty clients count nothing: %s.", number, outcome.described)
        return outcome._replace(num_dropped=len(chosen) - len(present), restarts=self._restarts)

    def _rather(self) -> str:
        """Return which options may be the cause where all clients fail at once, and the learning rate to try."""
        settings = self._process.description
        named = [f"{name} ({settings[name]})" for name in ("learning_rate", "step_size") if name in settings]
        rate = smaller_rate(settings)
        advice = f": training diverges at too large a rate, {rate}" if rate else ""
        return f"; where all fail at once, look at {' and '.join(named)} first{advice}" if named else ""

    def _without_culprits(self, state: ServerState, present: Sequence[int]) -> Attempted:
        """Run the round of these clients and, if some of them are to blame for what is wrong with it, without them."""
        left_out: dict[int, str] = {}
        may_fail, may_be_far = True, True
        while present:
            try:
                outcome = self._trial(state, present)
                left_out = {**outcome.left_out, **left_out}
                culprits = outcome.far if may_be_far else {}
                may_be_far = False
                if not culprits:
                    return outcome._replace(left_out=left_out)
            except ComputationError as error:
                culprits = self._culprits(state, present, error) if may_fail else {}
                if isinstance(error, _Spoilt) and not culprits:
                    raise Diverged(str(error), state) from None
                if not may_fail:
                    raise
                may_fail = False
            left_out = {**left_out, **culprits}
            present = [k for k in present if k not in left_out]
        return Attempted(state, {"clients": NO_CLIENTS}, left_out)

    def _culprits(self, state: ServerState, present: Sequence[int], error: ComputationError) -> dict[int, str]:
        """Return the clients with whom a trial fails, with the reason; empty where the server's step is to blame.

        They are found by halves: in a few trials for one among many.
        """
        is_spoilt = isinstance(error, _Spoilt)
        # Where it is the server's step, no quarter of the clients does any better.
        if is_spoilt and all(self._failure(state, present[i::4]) for i in range(min(4, len(present)))):
            return {}
        reasons: dict[int, str] = {}
        suspects: list[tuple[Sequence[int], ComputationError]] = [(present, error)]
        while suspects:
            group, error = suspects.pop()
            if len(group) == 1:
                reasons[int(group[0])] = _SPOILT if isinstance(error, _Spoilt) else str(error)
                continue
            middle = len(group) // 2
            for half in (group[:middle], group[middle:]):
                failure = self._failure(state, half)
                if failure is not None:
                    suspects.append((half, failure))
        return {} if is_spoilt and 2 * len(reasons) > len(present) else reasons

    def _failure(self, state: ServerState, present: Sequence[int]) -> ComputationError | None:
        """Return why a trial of these clients fails; None if it does not."""
        try:
            self._trial(state, present)
        except ComputationError as error:
            return error
        return None

    def _trial(self, state: ServerState, present: Sequence[int]) -> Attempted:
        """Run a round with clients' weights within `max_weight_ratio` of each other, with a state that is sound.

        Workers that died are started again.
        """
        is_capped = False
        while True:
            try:
                output = self._engine.next(state, self._datasets(present))
            except WorkerError as error:
                started = self._engine.replace_dead_workers() if self._restarts < self._max_restarts else 0
                if not started:
                    raise
                self._restarts += started
                logger.warning("A worker died and was started anew; the round is run again: %s", error)
                continue
            outcome = Attempted(output.state, output.metrics, getattr(output, "left_out", {}))
            most, above = self._most_weight(outcome)
            if is_capped or not above:
                break
            is_capped = True
            state = state._replace(federation=state.federation._replace(most_weight=np.float32(most)))
            logger.warning(
                "Round %d weighs no client more than %g times the median one: %s weighed more.",
                int(state.round) + 1,
                self._process.limits.max_weight_ratio,
                ", ".join(f"client {k}" for k in above),
            )
        process = self._process
        names = process.settings["rule"], process.server_step.name, process.limits.max_magnitude
        if wrong := spoilt(outcome.state, *names):
            rate = smaller_rate(process.description)
            raise _Spoilt(f"{wrong}{f' ({rate})' if rate else ''}; the state of round {state.round} is kept.")
        return outcome

    def _most_weight(self, outcome: Attempted) -> tuple[float, list[int]]:
        """Return the largest weight that a client may have, and the clients who have more."""
        ratio, report = self._process.limits.max_weight_ratio, outcome.metrics["clients"]
        sound = report["fault"] == 0
        if ratio is None or not sound.any():
            return np.inf, []
        # The lower median: of two clients the lighter one is the measure.
        most = ratio * np.quantile(report["weight"][sound], 0.5, method="lower")
        return most, report["client"][sound & (report["weight"] > most)].tolist()

    def _warn(self, outcome: Attempted) -> None:
        report = outcome.metrics["clients"]
        for client, sentence in loss_warning(report["client"], np.where(report["fault"] == 0, report["nll"], np.nan)):
            if client not in self.warnings:
                self.warnings[client] = sentence
                logger.warning(sentence)

    def _datasets(self, present: Sequence[int]) -> Sequence[Any]:
        """Return the clients' data; those of the last call stay, so that workers know them."""
        key = tuple(int(k) for k in present)
        if self._shards[0] != key:
            clients: Any = self._clients
            accepts = self._engine.accepts
            if accepts == "rows" and not isinstance(clients, Clients):  # Clients in files are read one after another.
                accepts = "datasets"
            self._shards = key, getattr(clients, _GIVES[accepts])(key, self._engine.concurrent_calls)
        return self._shards[1]
