"""The driver of simulations: rounds over a cohort of clients, with metrics, evaluation and a model at the end."""

from __future__ import annotations

import functools
import logging
import math
import os
import pathlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, Union

import numpy as np
import tensorflow as tf

from tfp_bfl.contracts import ServerState
from tfp_bfl.data import ClientData, Parties, answering, cohort
from tfp_bfl.errors import InvalidArgument, check_count, shown
from tfp_bfl.federated.attempts import Attempts, Outcome, Sampling
from tfp_bfl.federated.averaging import Averaged, RoundAverage, check_average_rounds
from tfp_bfl.federated.checkpoints import Checkpoints, Record
from tfp_bfl.federated.draws import Draws, Thinning
from tfp_bfl.federated.engines import ENGINES, MakeEngine, check_engine
from tfp_bfl.federated.ensemble import Ensemble, Members, over_members
from tfp_bfl.federated.notices import collapse_warning, cores_warning, has_collapsed, one_shot_warning, spread_warning
from tfp_bfl.federated.process import BayesianProcess
from tfp_bfl.posterior import Samples, Spread, marginals, spread
from tfp_bfl.privacy import Privacy, everyone_clipped_warning, taking_part_warning
from tfp_bfl.weights import ModelWeights, predictive_model

if TYPE_CHECKING:
    from tfp_bfl.engines.tff.context import Runtime

logger = logging.getLogger(__name__)


class SimulationResult(NamedTuple):
    """What a simulation leaves.

    Fields:
      model: the Keras model with the last round's weights, or their average over the last rounds.
      state: the process's last state.
      rounds: each round's metrics, plain numbers.
      collapsed: the round in which the posterior lost its spread, None if it kept it.
      draws: of a chain, the rounds that were kept; None without any.
      warnings: what there is to know of the posterior, whole sentences; they have been logged too.
      averaged: with `average_rounds`, the average and its scores (`rounds[-1]` holds the last round's); else None.
      ensemble: of an `Ensemble`, the members' results and the scores of `model`; `state` is then the last member's, and
        `rounds` holds the rows of all members. Else None.
    """

    model: tf.keras.Model
    state: ServerState
    rounds: list[dict[str, Any]]
    collapsed: Optional[int]
    draws: Optional[Samples] = None
    warnings: Sequence[str] = ()
    averaged: Optional[Averaged] = None
    ensemble: Optional[Members] = None


@over_members
def simulate(
    process: Union[BayesianProcess, Ensemble],
    clients: Union[ClientData, Parties],
    rounds: int,
    cohort_size: Optional[int] = None,
    seed: Optional[int] = None,
    checkpoint_dir: Union[str, os.PathLike, None] = None,
    evaluate: Optional[Callable[[tf.keras.Model], dict[str, float]]] = None,
    evaluate_every: int = 1,
    on_round: Optional[Callable[[dict[str, Any]], None]] = None,
    start: Optional[ModelWeights] = None,
    stop: Optional[Callable[[dict[str, Any]], bool]] = None,
    runtime: Optional[Runtime] = None,
    *,
    engine: Union[str, MakeEngine, None] = None,
    draws: Optional[Thinning] = None,
    checkpoint_every: int = 1,
    keep_checkpoints: int = 3,
    dropout: float = 0.0,
    max_retries: int = 3,
    max_restarts: int = 3,
    popularity: Optional[float] = None,
    evaluate_cohort: Optional[Callable[[tf.keras.Model, Any, Any], dict[str, float]]] = None,
    batch_norm_examples: Any = None,
    average_rounds: Optional[int] = None,
) -> SimulationResult:
    """Runs a process for a number of rounds.

    Everything random is a function of the seed, the round, the client and the step: not of the number of workers, nor
    of where a run was stopped. Faulty clients are left out of their round, and named in its metrics and the log.

    Args:
      process: of `tfp_bfl.algorithms`; of an `Ensemble` each member in turn (`algorithms.ensemble`).
      clients: who holds what (`tfp_bfl.data`).
      rounds: how many in all.
      cohort_size: clients a round, drawn by the seed; None for all of them, or the number that the process's privacy
        is of: those are drawn each for itself.
      seed: Random seed of the cohorts and of the clients' noise, from 0 to 2^31 - 1; None for the process's. The
        initial weights follow from the process's seed alone.
      checkpoint_dir: the run is saved here: state and metrics. A run of the same process, clients and seed goes on from
        the last checkpoint, and ends with the same numbers, bit for bit, as one that was never stopped.
      evaluate: model -> metrics to add to the round's, such as `tfp_bfl.evaluation.evaluator(features, labels)`.
      evaluate_every: rounds between evaluations; the last round is always evaluated.
      on_round: is given each round's metrics, of this call's rounds only.
      start: the weights before the first round, such as pre-trained ones; None for the process's own.
      stop: a round's metrics -> whether it was the last, whatever `rounds` says.
      runtime: what `federated.local_workers` or `remote_workers` gave, for the engine tff; None starts a worker here
        and stops it.
      engine: "tff" or "local": TFF's workers or this process; None for tff where TensorFlow Federated is installed.
        Both give the same numbers to the rounding of sums, and either goes on with the other's checkpoints. Or what
        makes another engine: (process, runtime) -> a context with an `engines.Engine`.
      draws: of a chain, whose rounds are samples of a posterior: which to keep; None for the process's own choice.
        They predict together, and with `checkpoint_dir` each is written there once.
      checkpoint_every: rounds between checkpoints; the last round is always saved, also if the next one fails.
      keep_checkpoints: how many of the last checkpoints stay.
      dropout: the probability that a client of a cohort does not answer, drawn by the seed.
      max_retries: new cohorts that are tried in a round in which no client was sound, where clients are drawn.
      max_restarts: in a round, of local workers that died; the round is then run again.
      popularity: the clients' probabilities of being drawn are Dirichlet of this concentration (`data.cohort`).
      evaluate_cohort: model, features, labels -> metrics on the data of the round's clients, whose names get the prefix
        `"cohort_"` in the round's.
      batch_norm_examples: of the server's own, [N, ...], for posteriors over all weights of a model with BatchNorm
        (`models.predictive_model`).
      average_rounds: number of last rounds to average: the result's model is their average (`averaging.RoundAverage`).
        None or 1: the last round's model.

    Returns:
      The model with the pooled posterior, the last state and all rounds' metrics.

    Raises:
      InvalidArgument: rounds or evaluate_every below 1, or no more than the process's burn-in; a cohort larger than the
        clients, or smaller than the process needs; clients whose data do not fit the model, or are fewer than the
        process needs; checkpoints of another run, or of more rounds, or all damaged; average_rounds beyond the rounds,
        with `stop` or `draws`, or for an algorithm without one Gaussian posterior.
      MissingDependency: the engine is tff, and TensorFlow Federated is not installed.
      Diverged: the server's weights are not finite after its step. The rounds before are kept.
      Error: every client of a round was faulty, in every attempt.
      WorkerError: a worker died, and could not be replaced.
    """
    assert not isinstance(process, Ensemble)
    for name, count in {
        "rounds": rounds,
        "evaluate_every": evaluate_every,
        "checkpoint_every": checkpoint_every,
    }.items():
        check_count(count, name)
    for name, count in {"max_retries": max_retries, "max_restarts": max_restarts}.items():
        check_count(count, name, least=0)
    num_averaged = check_average_rounds(process, average_rounds, rounds)
    if num_averaged > 1 and (stop or draws):
        raise InvalidArgument("average_rounds averages the last of all rounds: leave stop and draws out.")
    seed = int(process.round.seed if seed is None else seed)
    if process.privacy:
        cohort_size = _private_size(process.privacy, clients, cohort_size, popularity)
    check_clients(process, clients, cohort_size)
    if evaluate_cohort and isinstance(clients, Parties):
        raise InvalidArgument(
            "evaluate_cohort is of clients whose data are here, and parties keep theirs: leave it out."
        )
    answering(cohort(clients.num_clients, cohort_size, 0, seed, popularity=popularity), dropout, 0, seed)
    if not 0 <= seed < 2**31:
        raise InvalidArgument(f"seed must be at least 0 and below 2^31, but is {seed}.")
    if process.burn_in_rounds >= rounds:
        raise InvalidArgument(
            f"burn_in_rounds is {process.burn_in_rounds}, but the run has {rounds} rounds: ask for more rounds, or for "
            "fewer of burn-in."
        )
    if engine is None or isinstance(engine, str):
        engine = check_engine("tff" if engine is None and runtime is not None else engine)
    checkpoints = None
    if checkpoint_dir:
        sampling = f"cohorts of {cohort_size or 'all'}, dropout {dropout:g}" + (
            "" if popularity is None else f", popularity {popularity:g}"
        )
        description = {**process.description, "clients": clients.description, "sampling": sampling}
        checkpoints = Checkpoints(checkpoint_dir, description, keep_checkpoints)

    warnings = [one_shot_warning(process.description["rule"], rounds)] if process.one_shot and rounds > 1 else []
    warnings += process.notices if rounds > 1 and clients.num_clients > 1 else ()
    if process.privacy:
        process.privacy.epsilon(clients.num_clients, rounds)  # That it can be told, before work starts.
        always = taking_part_warning(process.privacy, clients.num_clients)
        warnings += [always] if always else []
    for warning in warnings:
        logger.warning(warning)
    draws = draws or process.thinning
    kept = draws and Draws(draws, checkpoint_dir and pathlib.Path(checkpoint_dir) / "draws")
    with (ENGINES[engine] if isinstance(engine, str) else engine)(process, runtime) as running:
        state = running.initialize()._replace(seed=np.int32(seed))
        if start is not None:
            state = process.set_model_weights(state, tf.nest.map_structure(np.asarray, start))
        first_stddev = float(spread(state.weights.posterior).stddev_median)
        found = checkpoints.latest(state, process.state_spec) if checkpoints else None
        state, record = found or (state, Record(first_stddev=first_stddev))
        moved = cores_warning(record.concurrent_calls, running.concurrent_calls)
        record.concurrent_calls = running.concurrent_calls
        if moved:
            logger.warning(moved)
            warnings.append(moved)
        if int(state.round) > rounds:
            raise InvalidArgument(
                f"{checkpoint_dir} holds a run of {int(state.round)} rounds: ask for that many or more."
            )
        state = process.with_clients(state, range(clients.num_clients), clients.sizes)
        if kept:
            kept.restore(record.draws, state.weights)
        attempts = Attempts(
            process,
            running,
            clients,
            Sampling(cohort_size, dropout, seed, max_retries, max_restarts, popularity, process.privacy is not None),
        )
        predictive = lambda state: _predictive(process, state, kept)
        average = RoundAverage(num_averaged, rounds, predictive(state)) if num_averaged > 1 else None
        if average and found:
            average.restore(int(state.round), record.average_from, record.sums)
        record.average_from, record.sums = (average.first, average.sums) if average else (None, [])
        saved = int(state.round) if found else 0
        base: Optional[tf.keras.Model] = None
        try:
            for number in range(int(state.round) + 1, rounds + 1):
                started = time.perf_counter()
                outcome = attempts.run(state)
                row = {"round": number, **_row(outcome), "train_seconds": time.perf_counter() - started}
                if kept:
                    kept.add(number, outcome.state.weights)
                    record.draws = kept.digests
                if number == rounds or ((evaluate or evaluate_cohort) and number % evaluate_every == 0):
                    if process.privacy:
                        row["epsilon"] = process.privacy.epsilon(clients.num_clients, number)
                    base = base or process.model_fn()
                    weights = predictive(outcome.state)
                    model = predictive_model(base, weights, batch_norm_examples)
                    if "stddev_median" not in row:
                        row.update(_spread_of(weights))
                    scores = evaluate(model) if evaluate else {}
                    if evaluate_cohort:
                        scores = {**scores, **_on_cohort(evaluate_cohort, model, clients, outcome)}
                    row.update({name: np.asarray(x).tolist() for name, x in scores.items()})
                row["seconds"] = time.perf_counter() - started
                if record.collapsed is None and has_collapsed(row, record.first_stddev):
                    record.collapsed = number
                    logger.warning(collapse_warning(number))
                record.rows.append(row)
                if average:  # Not before: a checkpoint after an error holds sums and state of one round.
                    average.add(number, functools.partial(predictive, outcome.state))
                    record.sums = average.sums
                state = outcome.state
                if checkpoints and (number % checkpoint_every == 0 or number == rounds):
                    checkpoints.save(state, record)
                    saved = number
                if on_round:
                    on_round(row)
                if stop and stop(row):
                    break
        finally:
            if checkpoints and int(state.round) > saved:
                checkpoints.save(state, record)
    weights = average.weights() if average else predictive(state)
    model = predictive_model(base or process.model_fn(), weights, batch_norm_examples=batch_norm_examples)
    averaged = None
    if average:
        scores = {name: np.asarray(x).tolist() for name, x in (evaluate(model) if evaluate else {}).items()}
        averaged = Averaged(num_averaged, weights, {**_spread_of(weights, process.limits.min_stddev), **scores})
    warnings += [collapse_warning(record.collapsed)] if record.collapsed else []
    same = spread_warning(record.rows[-1])
    if same:
        logger.warning(same)
    warnings += [same] if same else []
    everyone = process.privacy and everyone_clipped_warning(process.privacy, record.rows)
    if everyone:
        logger.warning(everyone)
        warnings.append(everyone)
    noticed = process.server_step.notice(*tf.nest.map_structure(np.asarray, (state.step, state.weights)))
    if noticed:
        logger.warning(noticed)
        warnings.append(noticed)
    warnings += attempts.warnings.values()
    draws_kept = kept.samples() if kept else None
    return SimulationResult(model, state, record.rows, record.collapsed, draws_kept, warnings, averaged)


def _private_size(
    privacy: Privacy, clients: Union[ClientData, Parties], cohort_size: Optional[int], popularity: Optional[float]
) -> int:
    expected = privacy.cohort_size
    if isinstance(clients, Parties):
        raise InvalidArgument(
            "Differential privacy by client is of simulations: its noise follows from the run's seed, and parties know "
            "that."
        )
    if popularity is not None:
        raise InvalidArgument("popularity draws clients unevenly, and privacy must draw them evenly: leave it out.")
    if cohort_size not in (None, expected):
        raise InvalidArgument(
            f"cohort_size is {shown(cohort_size)}, but the process's privacy is of cohorts of {expected}: give that."
        )
    return expected


def _predictive(process: BayesianProcess, state: ServerState, kept: Optional[Draws]) -> ModelWeights:
    weights = process.predictive_weights(state)
    return kept.predictive(weights) if kept else weights


def check_clients(
    process: BayesianProcess, clients: Union[ClientData, Parties], cohort_size: Optional[int] = None
) -> None:
    """Raises InvalidArgument for clients that `simulate` would refuse: too few, too many, or with data unfit."""
    if not isinstance(clients, (ClientData, Parties)):
        raise InvalidArgument(
            f"clients must be Clients, such as Source.partition(...) gives, not {type(clients).__name__}: a process's "
            "own next takes datasets."
        )
    size = cohort_size or clients.num_clients
    if size < process.min_clients:
        raise InvalidArgument(
            f"A round has {size} clients, but the rule, {process.description['rule']}, needs at least "
            f"{process.min_clients}: take larger cohorts, or another rule."
        )
    most = process.server_step.most_clients
    if most is not None and clients.num_clients > most:
        raise InvalidArgument(
            f"There are {clients.num_clients} clients, but the server step {process.server_step.name} has a place for "
            f"{most}: build it for so many, or leave the others out of training."
        )
    most = process.server_step.most_in_round
    if most is not None and size > most:
        raise InvalidArgument(
            f"A round has {size} clients, but the server step {process.server_step.name} is of {most} a round: give "
            f"cohort_size={most}."
        )
    few = np.flatnonzero(clients.sizes < process.min_examples)
    if few.size:
        raise InvalidArgument(
            f"Client {few[0]} has {clients.sizes[few[0]]} examples, but each must have at least "
            f"{process.min_examples} here (too few have {few.size} of {clients.num_clients}): give it more, or "
            "leave it out."
        )
    if clients.source.num_outputs > process.num_outputs:
        raise InvalidArgument(
            f"The model has {process.num_outputs} outputs, but {clients.source.name} wants "
            f"{clients.source.num_outputs}: build it with num_classes of the data, 2 for numbers to regress on."
        )
    want, have = process.element_spec.features, clients.element_spec.features
    if want != have:
        raise InvalidArgument(
            f"The model takes examples of shape {list(want.shape[1:])} and type {want.dtype.name}, but the clients' "
            f"have shape {list(have.shape[1:])} and type {have.dtype.name}: build the process with "
            "element_spec=clients.element_spec, and the model with input_shape of the data."
        )
    if process.client_work.check is not None and isinstance(clients, ClientData):
        process.client_work.check(clients)


def _on_cohort(evaluate: Any, model: tf.keras.Model, clients: Any, outcome: Outcome) -> dict[str, float]:
    present = np.asarray(outcome.metrics["clients"]["client"]).tolist()
    parts = [clients.examples(k) for k in present]
    features, labels = (np.concatenate([getattr(part, name) for part in parts]) for name in ("features", "labels"))
    return {f"cohort_{name}": x for name, x in evaluate(model, features, labels).items()}


def _spread_of(weights: ModelWeights, floor: float = 0.0) -> dict[str, float]:
    """The spread of a posterior that is over point weights: the round itself reports that of the layers' own."""
    found = spread(marginals(weights.posterior), floor)._asdict()
    return {name: float(x) for name, x in found.items() if math.isfinite(x)}


def _row(outcome: Outcome) -> dict[str, Any]:
    """A round's metrics as plain numbers; faulty clients by their number with the reason."""
    row = {name: np.asarray(x).item() for name, x in outcome.metrics.items() if name != "clients"}
    # JSON has no NaN: a model without a posterior has no spread, and any other metric has no value.
    row = {name: value if math.isfinite(value) else None for name, value in row.items()}
    row = {name: value for name, value in row.items() if value is not None or name not in Spread._fields}
    row["num_clients"] += len(outcome.left_out)
    row["num_faulty"] += len(outcome.left_out)
    row["faulty_clients"] = {str(client): reason for client, reason in outcome.faulty.items()}
    return {**row, "num_dropped": outcome.num_dropped, "retries": outcome.retries, "restarts": outcome.restarts}
