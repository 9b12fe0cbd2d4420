"""Runs the robustness study: `python -m experiments.robustness.run`.

A cell is a partition, a rule, an attack and a defence, over all seeds: a folder under OUTPUT with one summary. What is
done is not run again; the tables are of what is there.
"""

from __future__ import annotations

import functools
import itertools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import click
import numpy as np
import tensorflow as tf

import tfp_bfl as bfl
from experiments.cells import Study, study_options, write_summary
from experiments.robustness import config
from experiments.robustness.attacks import attacked
from experiments.tables import write
from tfp_bfl.app.cells import read_cells

HERE = pathlib.Path(__file__).parent
SCORES = ("accuracy", "test_nll", "ece", "stddev_median")
Options = dict[str, Any]


def cells() -> Iterator[Options]:
    """The options of each cell, in the order in which they run."""
    given = {"rounds": config.ROUNDS, "seeds": list(config.SEEDS)}
    for partition, rules in config.PARTITIONS.items():
        for rule in rules:
            pairs = [(config.ABSENT, "none"), *itertools.product(config.ATTACKS, config.DEFENCES)]
            for attack, defence in pairs:
                yield {"partition": partition, "rule": rule, "attack": attack, "defence": defence, **given}


def cell_name(options: Options) -> str:
    """Its folder's name."""
    return ",".join(options[name] for name in ("partition", "rule", "attack", "defence")).replace(":", "_")


def model(shape: Sequence[int], seed: int = 0) -> tf.keras.Model:
    return bfl.models.mlp(input_shape=shape, seed=seed, **config.MODEL)


def build(rule: str, attack: str, defence: str, shape: Sequence[int]) -> bfl.federated.BayesianProcess:
    """`bfl.algorithms.variational`, with hostile clients."""
    model_fn = functools.partial(model, shape)
    work = bfl.clients.variational(model_fn, **config.TRAINING)
    if attack not in ("none", config.ABSENT):
        work = attacked(work, config.HOSTILE, *config.ATTACKS[attack])
    robust = None if defence == "none" else defence
    return bfl.algorithms.compose(model_fn, work, rule, bfl.servers.replace(), weighting="equal", robust=robust)


def clients_of(source: bfl.data.Source, options: Options, seed: int) -> bfl.data.Clients:
    """All clients, or where the hostile ones are absent all others."""
    everybody = source.partition(bfl.data.parse_partition(options["partition"], config.CLIENTS), seed=seed)
    return everybody.split(config.HOSTILE)[1] if options["attack"] == config.ABSENT else everybody


def run_cell(options: Options) -> dict[str, list[Any]]:
    """Each score of the last round, a value a seed; None where the training left no finite weights."""
    train, test = (bfl.data.load(config.DATASET, split=split) for split in ("train", "test"))
    scores: dict[str, list[Any]] = {name: [] for name in SCORES}
    process = build(options["rule"], options["attack"], options["defence"], train.element_shape)
    for seed in options["seeds"]:
        evaluate = bfl.evaluation.evaluator(test.features, test.labels, num_samples=config.NUM_SAMPLES, seed=seed)
        try:
            last = bfl.simulate(
                process,
                clients_of(train, options, seed),
                rounds=options["rounds"],
                seed=seed,
                start=bfl.models.get_weights(model(train.element_shape, seed)),
                evaluate=evaluate,
                evaluate_every=options["rounds"],
                engine="local",
            ).rounds[-1]
        except bfl.errors.Error:  # every client faulty, or predictions that are not finite
            last = {}
        for name in SCORES:
            scores[name].append(last.get(name))
    return scores


def table(found: list[dict[str, Any]], partition: str, score: str) -> list[list[str]]:
    """A row for each rule and defence, a column for each attack: mean +- standard deviation over seeds."""
    key = lambda options: tuple(options[name] for name in ("partition", "rule", "attack", "defence"))
    results = {key(summary["options"]): summary.get(score, [None]) for summary in found}

    def entry(*cell: str) -> str:
        values = results.get((partition, *cell), [])
        if None in values:
            return "not finite"
        return f"{np.mean(values):.3f} +- {np.std(values, ddof=1):.3f}" if values else ""

    rows = []
    for rule in config.PARTITIONS[partition]:
        rows.append(
            [rule, "hostile clients absent", entry(rule, config.ABSENT, "none"), *[""] * (len(config.ATTACKS) - 1)]
        )
        for defence in config.DEFENCES:
            rows.append([rule, defence, *(entry(rule, attack, defence) for attack in config.ATTACKS)])
    return [["rule", "defence", *(f"attack: {attack}" for attack in config.ATTACKS)], *rows]


def write_cell(folder: pathlib.Path, options: Options) -> None:
    write_summary(folder, options, lambda: run_cell(options))


def told(summary: dict[str, Any]) -> str:
    """A cell's result in a line."""
    return f"{summary.get('failed', '')}{summary.get('accuracy', '')} ({summary['seconds']:.0f} s)"


@click.command()
@study_options("robustness", HERE / "results")
def main(study: Study) -> None:
    """Runs the cells that are not done, and writes a table of each score on each partition."""
    every = {cell_name(options): options for options in cells()}
    study.run(every, write_cell, told)
    if not study.listed:
        for partition, score in itertools.product(config.PARTITIONS, SCORES):
            write(
                table(read_cells(study.output), partition, score),
                study.results / f"{score}-{partition.replace(':', '_')}",
            )


if __name__ == "__main__":
    main()
