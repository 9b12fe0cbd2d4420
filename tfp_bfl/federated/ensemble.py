"""Federated deep ensembles: one simulation after another, from other initial weights, and one model of them all."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.data import Parties
from tfp_bfl.errors import InvalidArgument, check_count
from tfp_bfl.federated.options import SimulationSettings
from tfp_bfl.federated.process import BayesianProcess
from tfp_bfl.weights import ModelWeights, ensemble_model, scaling_bytes

if TYPE_CHECKING:
    from tfp_bfl.federated.simulation import SimulationResult


class Ensemble(NamedTuple):
    """Hold the processes of M members, which `simulate` runs one after another (`algorithms.ensemble`)."""

    processes: tuple[BayesianProcess, ...]


class Members(NamedTuple):
    """The `SimulationResult` of each member of an ensemble, and the metrics of the model of them all."""

    results: Sequence[SimulationResult]
    metrics: dict[str, Any]


def member_seed(seed: int, member: int) -> int:
    """Return the seed of a member's initial weights, cohorts and noise; member 0 has the seed of the run itself."""
    return seed if member == 0 else int(np.random.SeedSequence([seed, member]).generate_state(1)[0] >> 1)


def ensemble(make_process: Callable[[int], BayesianProcess], members: int = 5, seed: int = 0) -> Ensemble:
    """Build a deep ensemble: M federations of one algorithm with averaged predictions.

    p(y | x) = (1 / M) sum_m E_{w ~ q_m} p(y | x, w)

    `simulate` runs the members one after another: each has other initial weights, cohorts and noise, and checkpoints in
    a folder of its own (`member_0`, ...). The result's `model` is that of all members, and `ensemble` holds each
    member's result. At equal rounds an ensemble costs M times the computation, messages and memory of one model.

    Args:
      make_process: builds the process of a member from its seed, which the model must be initialised with.
      members: M, at least 2.
      seed: from which the members' seeds are derived (`federated.member_seed`); member 0 has this one.

    Returns:
      What `simulate` accepts in the place of a process.

    Source: Lakshminarayanan et al. 2017 (arXiv:1612.01474), algorithm 1, without adversarial training.

    Example:
      >>> def make_process(seed):
      ...     return bfl.algorithms.fed_opt(lambda: bfl.models.lenet("deterministic", (8, 8, 1), seed=seed))
      ...
      >>> process = bfl.algorithms.ensemble(make_process, members=3)
    """
    check_count(members, "members", least=2)
    processes = tuple(make_process(member_seed(seed, m)) for m in range(members))
    first = processes[0]
    if first.is_personal:
        raise InvalidArgument(
            "An ensemble predicts with one model of all members, and this algorithm trains a model for each client: "
            "choose another algorithm."
        )
    if first.privacy or first.client_work.needs.is_private:
        raise InvalidArgument(
            "The epsilon of differential privacy is that of one run, and an ensemble trains several on the same "
            "clients: leave privacy or the ensemble out."
        )
    starts = [tf.nest.flatten(process.round.initialize().weights) for process in processes]
    for m, start in enumerate(starts[1:], 1):
        if all(np.array_equal(a, b) for a, b in zip(starts[0], start)):
            raise InvalidArgument(
                f"Members 0 and {m} of the ensemble have the same initial weights: build the model with the seed that "
                "is given to make_process."
            )
    return Ensemble(processes)


def simulate_members(
    simulate: Callable[[BayesianProcess, Any, int, SimulationSettings], SimulationResult],
    ensemble: Ensemble,
    clients: Any,
    rounds: int,
    settings: SimulationSettings,
) -> SimulationResult:
    """Simulate the members of an ensemble one after another by `simulate`, and return their result.

    The settings are those of each member, with the seed of the run; each member has a folder of checkpoints of its own.
    """
    if isinstance(clients, Parties):
        raise InvalidArgument("An ensemble is simulated, and sites train one model: run one federation a member.")
    for name, value in {
        "start": settings.start,
        "batch_norm_examples": settings.prediction.batch_norm_examples,
    }.items():
        if value is not None:
            raise InvalidArgument(f"{name} is the same for all members of an ensemble: leave it out.")
    processes, checkpoints, monitor = ensemble.processes, settings.checkpoints, settings.monitor
    seed = int(processes[0].round.seed if settings.seed is None else settings.seed)
    results: list[SimulationResult] = []
    for m, process in enumerate(processes):
        folder = checkpoints.folder and pathlib.Path(checkpoints.folder) / f"member_{m}"
        on_round = monitor.on_round and functools.partial(
            lambda report, m, row: report({"member": m, **row}), monitor.on_round, m
        )
        member_settings = settings._replace(
            seed=member_seed(seed, m),
            checkpoints=checkpoints._replace(folder=folder),
            monitor=monitor._replace(on_round=on_round),
        )
        results.append(simulate(process, clients, rounds, member_settings))
    weights = [_weights(*pair) for pair in zip(processes, results)]
    regression = getattr(clients.source, "target", None) is not None
    model = scaling_bytes(ensemble_model(processes[0].model_fn(), weights, regression))
    scores = monitor.evaluate(model) if monitor.evaluate else {}
    return results[-1]._replace(
        model=model,
        rounds=[{"member": m, **row} for m, result in enumerate(results) for row in result.rounds],
        collapsed=next((result.collapsed for result in results if result.collapsed), None),
        draws=None,
        warnings=list(dict.fromkeys(words for result in results for words in result.warnings)),
        averaged=None,
        ensemble=Members(results, {name: np.asarray(x).tolist() for name, x in scores.items()}),
    )


def _weights(process: BayesianProcess, result: SimulationResult) -> ModelWeights:
    """Return the weights that a member predicts with."""
    if result.averaged:
        return result.averaged.weights
    weights = process.predictive_weights(result.state)
    return weights if result.draws is None else weights._replace(posterior=result.draws, point=())
