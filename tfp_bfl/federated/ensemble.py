"""Federated deep ensembles: one simulation after another, from other initial weights, and one model of them all."""

from __future__ import annotations

import functools
import inspect
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, TypeVar, Union, cast

import numpy as np
import tensorflow as tf

from tfp_bfl.data import Parties
from tfp_bfl.errors import InvalidArgument, check_count
from tfp_bfl.federated.process import BayesianProcess
from tfp_bfl.weights import ModelWeights, ensemble_model

if TYPE_CHECKING:
    from tfp_bfl.federated.simulation import SimulationResult

_Simulate = TypeVar("_Simulate", bound=Callable[..., Any])


class Ensemble(NamedTuple):
    """Hold the processes of M members, which `simulate` runs one after another (`algorithms.ensemble`)."""

    processes: tuple[BayesianProcess, ...]


class Members(NamedTuple):
    """Hold what the simulation of an ensemble returned for its members.

    Fields:
      results: a `SimulationResult` of each member.
      metrics: what `evaluate` returned for the model of all members.
    """

    results: Sequence[SimulationResult]
    metrics: dict[str, Any]


def member_seed(seed: int, member: int) -> int:
    """Return the seed of a member's initial weights, cohorts and noise; member 0 has the seed of the run itself."""
    return seed if member == 0 else int(np.random.SeedSequence([seed, member]).generate_state(1)[0] >> 1)


def make_ensemble(make_process: Callable[[int], BayesianProcess], members: int, seed: int = 0) -> Ensemble:
    """Build the processes of an ensemble (`algorithms.ensemble`).

    Raises:
      InvalidArgument: fewer than two members; members with equal initial weights, personal models or privacy.
    """
    check_count(members, "members", least=2)
    processes = tuple(make_process(member_seed(seed, m)) for m in range(members))
    first = processes[0]
    if first.is_personal:
        raise InvalidArgument(
            "An ensemble predicts with one model of all members, and this algorithm trains a model for each client: "
            "choose another algorithm."
        )
    if first.privacy:
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


def over_members(simulate: _Simulate) -> _Simulate:
    """Let `simulate` run an `Ensemble` as well: its members one after another."""
    signature = inspect.signature(simulate)

    @functools.wraps(simulate)
    def run(process: Union[BayesianProcess, Ensemble], *args: Any, **options: Any) -> SimulationResult:
        # Not by isinstance, which asks a process for TensorFlow Federated's class.
        if type(process) is not Ensemble:
            return simulate(process, *args, **options)
        given = signature.bind(process, *args, **options).arguments
        return _simulate_members(simulate, **given)

    return cast(_Simulate, run)


def _simulate_members(
    simulate: Callable[..., SimulationResult],
    process: Ensemble,
    clients: Any,
    rounds: int,
    *,
    seed: Optional[int] = None,
    checkpoint_dir: Union[str, os.PathLike, None] = None,
    evaluate: Optional[Callable[[tf.keras.Model], dict[str, float]]] = None,
    on_round: Optional[Callable[[dict[str, Any]], None]] = None,
    **options: Any,
) -> SimulationResult:
    if isinstance(clients, Parties):
        raise InvalidArgument("An ensemble is simulated, and parties train one model: run one federation a member.")
    for name in ("start", "batch_norm_examples"):
        if options.get(name) is not None:
            raise InvalidArgument(f"{name} is the same for all members of an ensemble: leave it out.")
    seed = int(process.processes[0].round.seed if seed is None else seed)
    results: list[SimulationResult] = []
    for m, member in enumerate(process.processes):
        results.append(
            simulate(
                member,
                clients,
                rounds,
                seed=member_seed(seed, m),
                checkpoint_dir=checkpoint_dir and pathlib.Path(checkpoint_dir) / f"member_{m}",
                evaluate=evaluate,
                on_round=on_round and functools.partial(_of_member, on_round, m),
                **options,
            )
        )
    weights = [_weights(*pair) for pair in zip(process.processes, results)]
    regression = getattr(clients.source, "target", None) is not None
    model = ensemble_model(process.processes[0].model_fn(), weights, regression)
    metrics = {name: np.asarray(x).tolist() for name, x in (evaluate(model) if evaluate else {}).items()}
    return results[-1]._replace(
        model=model,
        rounds=[{"member": m, **row} for m, result in enumerate(results) for row in result.rounds],
        collapsed=next((result.collapsed for result in results if result.collapsed), None),
        draws=None,
        warnings=list(dict.fromkeys(words for result in results for words in result.warnings)),
        averaged=None,
        ensemble=Members(results, metrics),
    )


def _of_member(on_round: Callable[[dict[str, Any]], None], member: int, row: Mapping[str, Any]) -> None:
    on_round({"member": member, **row})


def _weights(process: BayesianProcess, result: SimulationResult) -> ModelWeights:
    """Return the weights that a member predicts with."""
    if result.averaged:
        return result.averaged.weights
    weights = process.predictive_weights(result.state)
    return weights if result.draws is None else weights._replace(posterior=result.draws, point=())
