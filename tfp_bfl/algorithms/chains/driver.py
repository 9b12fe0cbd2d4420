"""Many rounds in one graph, for samplers: a compiled loop over the round's functions, and several chains of it."""

from __future__ import annotations

import functools
import logging
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.contracts import PADDED, ServerState
from tfp_bfl.data import ClientExamples, Clients, cohort
from tfp_bfl.data.clients import Share
from tfp_bfl.errors import Diverged, InvalidArgument, check_counts
from tfp_bfl.federated.checks import check_clients, work_warning
from tfp_bfl.federated.draws import Thinning, check_thinning
from tfp_bfl.federated.faults import FAULTS, is_sound, within
from tfp_bfl.federated.loops import check_shapes, stacked, sum_over
from tfp_bfl.federated.notices import divergence_clause, smaller_rate
from tfp_bfl.federated.options import Cohorts, settings_of
from tfp_bfl.federated.process import BayesianProcess
from tfp_bfl.federated.round import types_of
from tfp_bfl.files.arrays import write_arrays
from tfp_bfl.posterior import Samples
from tfp_bfl.tensors import traced_for_xla
from tfp_bfl.weights import ModelWeights

if TYPE_CHECKING:
    from typing import Unpack

    from tfp_bfl.federated.options import CohortKeywords

logger = logging.getLogger(__name__)

# Rounds in one call of the graph: so often a run can be interrupted, and draws leave it.
ROUNDS_AT_ONCE = 1000

_GOES_ON, _DIVERGED, _FAULTY = range(3)


class Chains(NamedTuple):
    """The samples of M chains, as arrays.

    Fields:
      state: after the last round, leaves [M, ...].
      draws: the server's weights in the rounds that were kept, leaves [M, R, ...].
      rounds: their numbers [R].
      metrics: of these rounds, each [M, R].
      most: how many of the last kept rounds predict; None for all.
    """

    state: ServerState
    draws: ModelWeights
    rounds: np.ndarray
    metrics: dict[str, np.ndarray]
    most: int | None = None

    def predictive(self) -> ModelWeights:
        """Return the weights with all chains' draws, the last `most` of each, as the posterior over them, for
        `weights.predictive_model`.

        What is no point weight, such as moments, is the last chain's.
        """
        if not len(self.rounds):
            raise InvalidArgument("No round of the chain was kept: run more rounds, or fewer of burn-in.")
        last = tf.nest.map_structure(lambda x: x[-1, -1], self.draws)
        last_draws = [x[:, -(self.most or len(self.rounds)) :] for x in self.draws.point]
        joined = tuple(np.reshape(x, (-1, *np.shape(x)[2:])) for x in last_draws)
        return last._replace(posterior=Samples(joined), point=())


def simulate_chains(
    process: BayesianProcess,
    clients: Clients,
    rounds: int,
    *,
    num_chains: int = 1,
    cohorts: Cohorts | int | None = None,
    seed: int | None = None,
    start: ModelWeights | None = None,
    thinning: Thinning | None = None,
    metrics: Sequence[str] = (),
    draws_dir: str | os.PathLike | None = None,
    xla: bool = False,
    **options: Unpack[CohortKeywords],
) -> Chains:
    """Run rounds in a compiled loop in this process, without what a round of `simulate` costs besides its arithmetic.

    Chain m is the run of `simulate` with the seed `seed` + m: the same cohorts, noise and states, to the rounding of
    sums. (By XLA batches and noise are other draws of the same distributions.) There are no checkpoints, retries or
    evaluations here. A second call for the same process and clients does not trace again.

    Args:
      process, clients, rounds: as of `simulate`.
      cohorts: as of `simulate`, without dropout.
      num_chains: M.
      seed: of the first chain; None for the process's.
      start: the first weights, leaves [...] for all chains or [M, ...]; None for the process's own.
      thinning: which rounds are kept; None for the process's own choice, or all.
      metrics: names of the round's metrics to keep of these rounds.
      draws_dir: a new folder for the draws, each written once: `draws_2000.npz` is of the kept ones of the last 1,000
        rounds or fewer up to round 2,000, point weights "0", "1", ... [M, R, ...] and "rounds" [R]. A run that diverges
        has left there what came before.
      xla: compiles the loop by XLA, which makes rounds of small models many times faster and those of convolutions
        slower. It needs client work and rules with shapes that are known beforehand, and clients of one size unless the
        work lets them be padded.
      **options: cohort_size and popularity, fields of `Cohorts` as keywords.

    Raises:
      InvalidArgument: as of `simulate`; cohorts with dropout; a metric that the round has not; for `xla`, clients of
        several sizes where the work does not let them be padded.
      Diverged: the weights of a chain are not finite after the server's step, or a client is faulty
        (`federated.faults`), whom `simulate` would leave out; the error has the `state` before.
    """
    check_counts(rounds=rounds, num_chains=num_chains)
    drawn = settings_of(simulate_chains, {"cohorts": cohorts, **options}, ["cohorts"]).cohorts
    if drawn.dropout or drawn.max_retries != Cohorts().max_retries:
        raise InvalidArgument(
            "Rounds in one graph have neither dropout nor retries: leave dropout and max_retries out, or use simulate."
        )
    check_clients(process, clients, drawn.size, drawn.popularity)
    if warning := work_warning(process, clients):
        logger.warning(warning)
    if any(None in x.shape for x in tf.nest.flatten(types_of(process.round.initialize).step)):
        raise InvalidArgument(
            f"The server step {process.server_step.name} keeps what grows from round to round, which a compiled loop "
            "can't hold: use simulate."
        )
    if xla:
        check_shapes(process.shapes)
        if process.shapes != PADDED and len(set(sizes := clients.sizes)) > 1:
            raise InvalidArgument(
                f"XLA needs clients of one size, but they have {sizes.min()} to {sizes.max()} examples: use "
                "Clients.limit, or xla=False."
            )
    if process.privacy is not None:
        raise InvalidArgument("Rounds in one graph draw cohorts of one size, and privacy must not: use simulate.")
    if process.client_work.needs.is_private:
        raise InvalidArgument("Rounds in one graph have noise of the seed, which would hide no example: use simulate.")
    thinning = check_thinning(thinning or process.thinning or Thinning())
    first = process.round.seed if seed is None else seed
    state = _first_states(process, clients, rounds, first, num_chains, start)
    at_once = min(rounds, ROUNDS_AT_ONCE)
    some_rounds = _compiled(process, clients, thinning, at_once, tuple(metrics), xla)
    folder = None if draws_dir is None else pathlib.Path(draws_dir)
    if folder is not None:
        if folder.exists():
            raise InvalidArgument(f"draws_dir is {folder}, which is there already: give a new folder.")
        folder.mkdir(parents=True)
    pieces: list[Any] = []
    for done in range(0, rounds, at_once):
        numbers = range(done + 1, min(done + at_once, rounds) + 1)
        seeds = range(first, first + num_chains)
        draw = lambda n, s: cohort(clients.num_clients, drawn.size, n, s, popularity=drawn.popularity)
        chosen = np.array([[draw(n, s) for n in numbers] for s in seeds], np.int32)
        chosen = np.pad(chosen, [(0, 0), (0, at_once - len(numbers)), (0, 0)])
        state, rows, verdict = some_rounds(state, tf.constant(chosen), tf.constant(len(numbers)))
        _check(verdict.numpy(), state, process)
        due = sum(thinning.is_due(n) for n in numbers)
        pieces.append(tf.nest.map_structure(lambda x, due=due: x[:, :due].numpy(), rows))
        if folder is not None and due:
            arrays = {str(i): x for i, x in enumerate(pieces[-1][0].point)}
            arrays["rounds"] = np.array([n for n in numbers if thinning.is_due(n)])
            write_arrays(folder / f"draws_{numbers[-1]}.npz", arrays)
    draws, recorded = tf.nest.map_structure(lambda *x: np.concatenate(x, 1), *pieces)
    arrays = tf.nest.map_structure(np.asarray, state)
    kept = np.array([n for n in range(1, rounds + 1) if thinning.is_due(n)])
    return Chains(arrays, draws, kept, recorded, thinning.most)


def _first_states(
    process: BayesianProcess, clients: Clients, rounds: int, seed: int, num_chains: int, start: ModelWeights | None
) -> ServerState:
    first = process.local.initialize()
    each = [first] * num_chains
    if start is not None:
        repeat = lambda given, own: np.broadcast_to(given, (num_chains, *np.shape(own)))
        starts = tf.nest.map_structure(repeat, start, first.weights)
        of_chain = lambda m: tf.nest.map_structure(lambda x: x[m], starts)
        each = [process.set_model_weights(first, of_chain(m)) for m in range(num_chains)]
    with_clients = [process.with_clients(x, range(clients.num_clients), clients.sizes, rounds) for x in each]
    states = tf.nest.map_structure(lambda *x: tf.constant(np.stack(x)), *with_clients)
    return states._replace(seed=tf.range(seed, seed + num_chains))


@functools.lru_cache(maxsize=4)
def _compiled(
    process: BayesianProcess, clients: Clients, thinning: Thinning, at_once: int, metrics: tuple[str, ...], xla: bool
) -> Callable[..., Any]:
    """Return the function (states, cohorts [M, n, C], rounds of these) -> (states, rows [M, ...], verdicts [M,
    4]): what has happened, and of a fault the first client, its code and the local step at which its training
    diverged.
    """
    round, padded = process.round, xla and len(set(clients.sizes)) > 1
    contribute, examples_of = tf.function(round.build_client(), autograph=False), _rows_of(clients, pad=padded)

    def advance(state: ServerState, chosen: tf.Tensor) -> tuple[ServerState, Any, tf.Tensor]:
        sent = round.broadcast(state)
        total = sum_over(round, lambda k: contribute(sent, examples_of(k)), chosen)
        new, report = round.conclude(state, total)
        for name in metrics:
            if name not in report or name == "clients":
                raise InvalidArgument(f"The round has no metric {name!r}: it has {', '.join(sorted(report))}.")
        reports = report["clients"]
        sound = is_sound(reports["fault"])
        verdict = tf.where(tf.reduce_all(sound), _GOES_ON, _FAULTY)
        verdict = tf.where(within(new.weights, process.limits.max_magnitude), verdict, _DIVERGED)
        first = tf.argmin(tf.cast(sound, tf.int32))
        # The state before what went wrong stays.
        new_state = tf.nest.map_structure(lambda x, y: tf.where(tf.equal(verdict, _GOES_ON), x, y), new, state)
        report = {name: report[name] for name in metrics}
        of_first = (reports[name][first] for name in ("client", "fault", "diverged_at"))
        return new_state, (new.weights, report), tf.stack([verdict, *of_first])

    def chain(state: ServerState, cohorts: tf.Tensor, number: tf.Tensor) -> tuple[ServerState, Any, tf.Tensor]:
        size = at_once // thinning.every + 2
        row = types_of(advance, state, cohorts[0])[1]
        rows = tf.nest.map_structure(lambda x: tf.zeros([size, *x.shape], x.dtype), row)
        before = _index(state.round, thinning)

        def body(i: tf.Tensor, state: ServerState, rows: object, verdict: tf.Tensor) -> Any:
            del verdict
            new, values, verdict = advance(state, cohorts[i])
            # Rounds that are not due are overwritten by the one that is; the last row is for those after it.
            place = tf.minimum(_index(state.round, thinning) - before, size - 1)
            write = lambda x, y: tf.tensor_scatter_nd_update(x, [[place]], y[tf.newaxis])
            return i + 1, new, tf.nest.map_structure(write, rows, values), verdict

        start = tf.constant(0), state, rows, tf.constant([_GOES_ON, 0, 0, 0])
        going = lambda i, state, rows, verdict: (i < number) & tf.equal(verdict[0], _GOES_ON)
        return tf.while_loop(going, body, start, parallel_iterations=1)[1:]

    @tf.function(autograph=False, jit_compile=xla)
    def chains(states: ServerState, cohorts: tf.Tensor, number: tf.Tensor) -> Any:
        one = lambda given: chain(given[0], given[1], number)
        of_one = tf.nest.map_structure(lambda x: x[0], (states, cohorts))
        with traced_for_xla(xla, padded):
            spec = types_of(one, of_one)
            return tf.map_fn(one, (states, cohorts), fn_output_signature=spec, parallel_iterations=1)

    return chains


def _rows_of(clients: Clients, pad: bool) -> Callable[[tf.Tensor], ClientExamples]:
    """Return the function from a client's number, a scalar tensor, to its examples, which are held in memory.

    With `pad` all have as many rows as the largest; those beyond a client's own do not count, and are of client -1.
    """
    everyone = range(clients.num_clients)
    if pad or len(set(clients.sizes)) == 1:
        rows = stacked(Share(clients, np.array(everyone)), int(max(clients.sizes)))
        return lambda k: tf.nest.map_structure(lambda x: tf.gather(x, k), rows)
    joined, up_to = clients.rows(*everyone)
    ends = tf.constant(up_to, tf.int32)
    starts = tf.concat([[0], ends[:-1]], 0)
    return lambda k: tf.nest.map_structure(lambda x: x[starts[k] : ends[k]], joined)


def _index(done: Any, thinning: Thinning) -> Any:
    """Return the number of the sample that the round after `done` is, or precedes."""
    return tf.maximum(-((thinning.burn_in - done) // thinning.every), 0)


def _check(verdict: np.ndarray, states: ServerState, process: BayesianProcess) -> None:
    bound, rate = process.limits.max_magnitude, smaller_rate(process.description)
    rate = f" ({rate})" if rate else ""
    for m in np.flatnonzero(verdict[:, 0]):
        state = tf.nest.map_structure(lambda x, m=m: x[m].numpy(), states)
        number = state.round + 1
        what, client, fault, step = verdict[m]
        if what == _FAULTY:
            raise Diverged(
                f"What client {client} sends in round {number} of chain {m} is faulty ({FAULTS[fault]}"
                f"{divergence_clause({client: step})}), and a chain without it would be of another posterior: look at "
                f"its examples, or take a smaller step than the server's {process.server_step.name}{rate}; the state "
                f"of round {number - 1} is kept.",
                state,
            )
        raise Diverged(
            f"The weights of chain {m} are not finite, or beyond {bound:g}, after round {number}, by "
            f"the server's step {process.server_step.name}: take a smaller step, at the server or the clients{rate}; "
            f"the state of round {number - 1} is kept.",
            state,
        )
