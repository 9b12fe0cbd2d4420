"""Runs of an ensemble: its processes, its rounds in one sequence, and its scores beside those of its members."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.options.config import RunConfig
from tfp_bfl.faces import Later

if TYPE_CHECKING:
    import tensorflow as tf

    from tfp_bfl import keras
else:
    tf = Later("tensorflow")

# The mean of these scores over the members is reported beside the ensemble's scores.
_SCORES = ("accuracy", "rmse", "test_nll", "ece", "coverage")


def processes(
    config: RunConfig, build: Callable[[RunConfig], bfl.federated.BayesianProcess]
) -> tuple[bfl.federated.BayesianProcess, Any]:
    """Return the process of the first member, and what `simulate` runs: the same, or all members."""
    if config.ensemble is None:
        process = build(config)
        return process, process
    make = lambda seed: build(config.model_copy(update={"seed": seed}))
    ensemble = bfl.algorithms.ensemble(make, config.ensemble, config.seed)
    return ensemble.processes[0], ensemble


def num_samples(config: RunConfig) -> int:
    """Return the number of weight samples of a prediction: equally many of each member."""
    members = config.ensemble or 1
    return -(-config.num_samples // members) * members


def place(config: RunConfig, row: Mapping[str, Any]) -> int:
    """Return the number of a round in the run, from 1, the rounds of all members counted."""
    return int(row.get("member", 0)) * config.rounds + int(row["round"])


def over_members(rounds: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each round: of an ensemble with the mean of each number over the members."""
    if not any("member" in row for row in rounds):
        return [dict(row) for row in rounds]
    by_round: dict[int, list[Mapping[str, Any]]] = {}
    for row in rounds:
        by_round.setdefault(int(row["round"]), []).append(row)
    return [{**_mean(rows), "round": number} for number, rows in sorted(by_round.items())]


def _mean(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    is_number = lambda x: isinstance(x, (int, float)) and not isinstance(x, bool)
    names = [name for name, x in rows[0].items() if name != "member" and is_number(x)]
    faulty = {client: reason for row in rows for client, reason in (row.get("faulty_clients") or {}).items()}
    means = {name: float(np.mean([row[name] for row in rows])) for name in names if all(name in row for row in rows)}
    return {**means, "faulty_clients": faulty}


def scores(result: bfl.federated.SimulationResult, score: Callable[[keras.Model], Any]) -> dict[str, float]:
    """Return the number and the size of the members, and the means of their own scores; nothing without an ensemble."""
    if result.ensemble is None:
        return {}
    results = result.ensemble.results
    each_score = [score(member.model).metrics for member in results]
    num_bytes = sum(np.asarray(x).nbytes for member in results for x in tf.nest.flatten(member.state.weights))
    means = {name: float(np.mean([each[name] for each in each_score])) for name in _SCORES if name in each_score[0]}
    return {
        "members": len(results),
        "weights_mb": num_bytes / 2**20,
        **{f"member_{name}": x for name, x in means.items()},
    }
