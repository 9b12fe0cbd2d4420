"""The driver of simulations: rounds over a cohort of clients, with metrics, evaluation and a model at the end."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np
import tensorflow as tf

from tfp_bfl.data import Clients, cohort
from tfp_bfl.errors import Error, InvalidArgument, check_count
from tfp_bfl.federated._installation import require_tff
from tfp_bfl.federated.checkpoints import Checkpoints
from tfp_bfl.federated.context import Runtime, local_workers
from tfp_bfl.federated.faults import FAULTS
from tfp_bfl.federated.process import BayesianProcess, ServerState
from tfp_bfl.models import ModelWeights, assign_weights
from tfp_bfl.posterior import Spread, spread

logger = logging.getLogger(__name__)

# The posterior counts as collapsed once its median standard deviation is this share of what it was at first, or most
# weights are at the floor.
COLLAPSED_SHARE = 0.05


class SimulationResult(NamedTuple):
    """What a simulation leaves.

    Fields:
      model: the Keras model with the last round's weights.
      state: the process's last state.
      rounds: each round's metrics, plain numbers.
      collapsed: the round in which the posterior lost its spread, None if it kept it.
    """

    model: tf.keras.Model
    state: ServerState
    rounds: list[dict[str, Any]]
    collapsed: Optional[int]


def simulate(
    process: BayesianProcess,
    clients: Clients,
    rounds: int,
    cohort_size: Optional[int] = None,
    seed: int = 0,
    checkpoint_dir: Union[str, os.PathLike, None] = None,
    evaluate: Optional[Callable[[tf.keras.Model], dict[str, float]]] = None,
    evaluate_every: int = 1,
    on_round: Optional[Callable[[dict[str, Any]], None]] = None,
    start: Optional[ModelWeights] = None,
    stop: Optional[Callable[[dict[str, Any]], bool]] = None,
    runtime: Optional[Runtime] = None,
) -> SimulationResult:
    """Runs a process for a number of rounds.

    Everything random is a function of the seed, the round, the client and the step: not of the number of workers.

    Args:
      process: of `tfp_bfl.algorithms`.
      clients: who holds what (`tfp_bfl.data`).
      rounds: how many in all.
      cohort_size: clients a round, drawn by the seed; None for all of them.
      seed: of the cohorts and of the clients' noise.
      checkpoint_dir: each round's state is saved here; a run of the same process and seed goes on from the last.
      evaluate: model -> metrics to add to the round's, such as `tfp_bfl.evaluation.evaluator(features, labels)`.
      evaluate_every: rounds between evaluations; the last round is always evaluated.
      on_round: is given each round's metrics.
      start: the weights before the first round, such as pre-trained ones; None for the process's own.
      stop: a round's metrics -> whether it was the last, whatever `rounds` says.
      runtime: what `federated.local_workers` or `remote_workers` gave; None starts a worker here and stops it.

    Returns:
      The model with the pooled posterior, the last state and the metrics.

    Raises:
      InvalidArgument: rounds or evaluate_every below 1, a cohort larger than the clients, clients whose data do not fit
        the model, checkpoints of another seed or model, or of more rounds.
      Error: every client of a round was faulty.
    """
    check_count(rounds, "rounds")
    check_count(evaluate_every, "evaluate_every")
    cohort(clients.num_clients, cohort_size, 0, seed)
    if not 0 <= seed < 2**31:
        raise InvalidArgument(f"seed must be at least 0 and below 2^31, but is {seed}.")
    _check_data(process, clients)

    history: list[dict[str, Any]] = []
    collapsed = None
    checkpoints = Checkpoints(checkpoint_dir) if checkpoint_dir else None
    with _running(runtime) as runtime:
        state = process.initialize()._replace(seed=np.int32(seed))
        if start is not None:
            state = process.set_model_weights(state, tf.nest.map_structure(np.asarray, start))
        first_spread = spread(state.weights.posterior)
        state = (checkpoints.latest(state) if checkpoints else None) or state
        if int(state.round) > rounds:
            raise InvalidArgument(
                f"{checkpoint_dir} holds a run of {int(state.round)} rounds: ask for that many or more."
            )
        datasets, model = None, None
        for number in range(int(state.round) + 1, rounds + 1):
            started = time.perf_counter()
            if cohort_size is not None or datasets is None:
                chosen = cohort(clients.num_clients, cohort_size, number, seed)
                datasets = clients.shards(chosen, runtime.concurrent_calls)
            output = process.next(state, datasets)
            state = output.state
            row = {"round": number, **_row(output.metrics), "train_seconds": time.perf_counter() - started}
            learnt = row["num_faulty"] < row["num_clients"]
            if checkpoints and learnt:
                checkpoints.save(state)
            if number == rounds or (evaluate and number % evaluate_every == 0):
                model = model or process.model_fn()
                assign_weights(model, state.weights)
                row.update(evaluate(model) if evaluate else {})
            row["seconds"] = time.perf_counter() - started
            history.append(row)
            if on_round:
                on_round(row)
            if not learnt:
                raise Error(f"Every client of round {number} was faulty ({row['faulty_clients']}): nothing was learnt.")
            if collapsed is None and _has_collapsed(row, first_spread):
                collapsed = number
                logger.warning(collapse_warning(number))
            if stop and stop(row):
                break
    model = model or process.model_fn()
    assign_weights(model, state.weights)
    return SimulationResult(model, state, history, collapsed)


@contextlib.contextmanager
def _running(runtime: Optional[Runtime]) -> Iterator[Runtime]:
    """The runtime, its context installed for this thread; one of our own if there is none."""
    if runtime is None:
        with local_workers() as own:
            yield own
    else:
        with require_tff().framework.get_context_stack().install(runtime.context):
            yield runtime


def collapse_warning(number: int) -> str:
    """What to tell the user when the posterior has lost its spread."""
    return (
        f"The posterior collapsed in round {number}: its median standard deviation is below {COLLAPSED_SHARE:.0%} of "
        "what it was at first, or at its floor: the model is all but deterministic, its epistemic uncertainty near "
        "zero; rules such as log_linear_pool or naive_weighted_average keep the spread."
    )


def _has_collapsed(row: dict[str, Any], first: Spread) -> bool:
    if "stddev_median" not in row:
        return False
    shrunk = row["stddev_median"] < COLLAPSED_SHARE * float(first.stddev_median)
    return shrunk or (row["share_at_floor"] > 0.5 and row["stddev_median"] < float(first.stddev_median))


def _check_data(process: BayesianProcess, clients: Clients) -> None:
    if clients.source.num_classes > process.num_outputs:
        raise InvalidArgument(
            f"The model has {process.num_outputs} outputs, but {clients.source.name} has {clients.source.num_classes} "
            "classes: build it with num_classes of the data."
        )
    want, have = process.element_spec.features, clients.element_spec.features
    if want != have:
        raise InvalidArgument(
            f"The model takes examples of shape {list(want.shape[1:])} and type {want.dtype.name}, but the clients' "
            f"have shape {list(have.shape[1:])} and type {have.dtype.name}: build the process with "
            "element_spec=clients.element_spec, and the model with input_shape of the data."
        )


def _row(metrics: Any) -> dict[str, Any]:
    """A round's metrics as plain numbers; faulty clients by their number with the reason."""
    metrics = dict(metrics)
    report = metrics.pop("clients")
    row = {name: np.asarray(value).item() for name, value in metrics.items()}
    # JSON has no NaN: a model without a posterior has no spread, and any other metric has no value.
    row = {name: value if math.isfinite(value) else None for name, value in row.items()}
    row = {name: value for name, value in row.items() if value is not None or name not in Spread._fields}
    row["faulty_clients"] = {
        str(client): FAULTS[fault]
        for client, fault in zip(report["client"].tolist(), report["fault"].tolist())
        if fault
    }
    return row
