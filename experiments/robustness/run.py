"""Runs the robustness study: `python -m experiments.robustness.run`.

A cell is a rule, an attack and a defence, over all seeds: a file under OUTPUT/cells. What is done is not run again;
the tables are of what is there.
"""

from __future__ import annotations

import functools
import itertools
import json
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import click
import numpy as np
import tensorflow as tf

import tfp_bfl as bfl
from experiments.robustness import config
from experiments.robustness.attacks import attacked
from experiments.tables import write

Cell = tuple[str, str, str]

SCORES = ("accuracy", "test_nll", "ece", "stddev_median")


def cells() -> list[Cell]:
    """(rule, attack, defence) of every cell."""
    return list(itertools.product(config.RULES, config.ATTACKS, config.DEFENCES))


def model(shape: Sequence[int], seed: int = 0) -> tf.keras.Model:
    return bfl.models.mlp(input_shape=shape, seed=seed, **config.MODEL)


def build(rule: str, attack: str, defence: str, shape: Sequence[int]) -> bfl.federated.BayesianProcess:
    """`bfl.algorithms.variational`, with hostile clients."""
    model_fn = functools.partial(model, shape)
    work = bfl.clients.variational(model_fn, **config.TRAINING)
    work = work if attack == "none" else attacked(work, config.HOSTILE, *config.ATTACKS[attack])
    robust = None if defence == "none" else defence
    return bfl.algorithms.compose(model_fn, work, rule, bfl.servers.replace(), weighting="equal", robust=robust)


def run_cell(rule: str, attack: str, defence: str) -> dict[str, list[Any]]:
    """Each score of the last round, a value a seed; None where the training left no finite weights."""
    train, test = (bfl.data.load(config.DATASET, split=split) for split in ("train", "test"))
    partition = bfl.data.parse_partition(config.PARTITION, config.CLIENTS)
    scores: dict[str, list[Any]] = {name: [] for name in SCORES}
    with bfl.federated.local_workers() as runtime:
        process = build(rule, attack, defence, train.element_shape)
        for seed in config.SEEDS:
            try:
                last = bfl.simulate(
                    process,
                    train.partition(partition, seed=seed),
                    rounds=config.ROUNDS,
                    seed=seed,
                    start=bfl.models.get_weights(model(train.element_shape, seed)),
                    evaluate=bfl.evaluation.evaluator(
                        test.features, test.labels, num_samples=config.NUM_SAMPLES, seed=seed
                    ),
                    evaluate_every=config.ROUNDS,
                    runtime=runtime,
                ).rounds[-1]
            except bfl.errors.WorkerError:
                raise
            except bfl.errors.Error:  # every client faulty, or predictions that are not finite
                last = {}
            for name in SCORES:
                scores[name].append(last.get(name))
    return scores


def table(results: dict[Cell, dict[str, list[Any]]], score: str) -> list[list[str]]:
    """A row for each rule and defence, a column for each attack: mean +- standard deviation over seeds."""

    def entry(cell: Cell) -> str:
        values = results.get(cell, {}).get(score, [])
        if None in values:
            return "not finite"
        return f"{np.mean(values):.3g} +- {np.std(values, ddof=1):.2g}" if values else ""

    rows = [
        [rule, defence, *(entry((rule, attack, defence)) for attack in config.ATTACKS)]
        for rule, defence in itertools.product(config.RULES, config.DEFENCES)
    ]
    return [["rule", "defence", *(f"attack: {attack}" for attack in config.ATTACKS)], *rows]


@click.command()
@click.option("--cell", "only", default="", metavar="TEXT", help="Only cells whose name holds this.")
@click.option(
    "--output", type=click.Path(path_type=pathlib.Path), default=pathlib.Path("runs/robustness"), show_default=True
)
def main(only: str, output: pathlib.Path) -> None:
    """Runs the cells that are not done, and writes a table of each score."""
    (output / "cells").mkdir(parents=True, exist_ok=True)
    results = {}
    for cell in cells():
        name = ",".join(cell).replace(":", "_")
        file = output / "cells" / f"{name}.json"
        if not file.exists() and only in name:
            started = time.perf_counter()
            scores = run_cell(*cell)
            file.write_text(json.dumps(scores))
            click.echo(f"{name}: accuracy {scores['accuracy']} ({time.perf_counter() - started:.0f} s)")
        if file.exists():
            results[cell] = json.loads(file.read_text())
    for score in SCORES:
        write(table(results, score), output / score)


if __name__ == "__main__":
    main()
