"""Run the robustness study: `python -m experiments.robustness.run`.

A cell is a kind of model, a partition, a rule, an attack and a robust aggregation, over all seeds: a folder under
OUTPUT with one summary. Finished cells are not run again; their scores by seed stay in the records.
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
from experiments.tables import interval, paired, write

HERE = pathlib.Path(__file__).parent
SCORES = ("accuracy", "test_nll", "ece", "stddev_median")
Options = dict[str, Any]


def rows_of(kind: str, partition: str) -> list[tuple[str, str]]:
    """Return the rules, each with each robust aggregation, or the kernel posterior with what finds its modes."""
    rows = []
    for rule in config.PARTITIONS[kind][partition]:
        defences = config.KERNELS if rule == config.KERNEL else config.DEFENCES
        rows += [(rule, defence) for defence in defences if defence not in config.LEFT_OUT[kind]]
    return rows


def attacks_of(kind: str) -> list[str]:
    return [attack for attack in config.ATTACKS if attack not in config.LEFT_OUT[kind]]


def cells() -> Iterator[Options]:
    """Return the options of each cell, in the order in which they run."""
    given = {"rounds": config.ROUNDS, "seeds": list(config.SEEDS)}
    for kind, partitions in config.PARTITIONS.items():
        for partition, rules in partitions.items():
            for rule in rules:
                defences = [own for other, own in rows_of(kind, partition) if other == rule]
                pairs = list(itertools.product(attacks_of(kind), defences))
                if rule != config.KERNEL:
                    pairs.insert(0, (config.ABSENT, "none"))
                for attack, defence in pairs:
                    cell = {"partition": partition, "rule": rule, "attack": attack, "defence": defence, **given}
                    yield {"model": kind, **cell}


def cell_name(options: Options) -> str:
    """Return the name of a cell's folder; it omits the kind of Flipout models, the default."""
    parts = [options[name] for name in ("model", "partition", "rule", "attack", "defence")]
    return ",".join(parts[parts[0] == "flipout" :]).replace(":", "_").replace(" ", "_")


def model(shape: Sequence[int], seed: int = 0, kind: str = "flipout") -> tf.keras.Model:
    return bfl.models.mlp(kind, input_shape=shape, seed=seed, **config.MODELS[kind])


def build(options: Options, shape: Sequence[int]) -> bfl.federated.BayesianProcess:
    """Return `bfl.algorithms.variational`, with hostile clients."""
    model_fn = functools.partial(model, shape, kind=options["model"])
    work = bfl.clients.variational(model_fn, **config.TRAINING)
    if options["attack"] not in ("none", config.ABSENT):
        work = attacked(work, config.HOSTILE, *config.ATTACKS[options["attack"]])
    rule, robust = options["rule"], None if options["defence"] == "none" else options["defence"]
    if rule == config.KERNEL:
        rule, robust = bfl.algorithms.kernel.kernel_posterior(**config.KERNELS[options["defence"]]), None
    return bfl.algorithms.compose(model_fn, work, rule, bfl.servers.replace(), weighting="equal", robust=robust)


def clients_of(source: bfl.data.Source, options: Options, seed: int) -> bfl.data.Clients:
    """Return all clients, or where the hostile ones are absent all others."""
    everybody = source.partition(bfl.data.parse_partition(options["partition"], config.CLIENTS), seed=seed)
    return everybody.split(config.HOSTILE)[1] if options["attack"] == config.ABSENT else everybody


def run_cell(options: Options) -> dict[str, list[Any]]:
    """Return each score of the last round, a value a seed; None where the training left no finite weights."""
    train, test = (bfl.data.load(config.DATASET, split=split) for split in ("train", "test"))
    scores: dict[str, list[Any]] = {name: [] for name in SCORES}
    process = build(options, train.element_shape)
    for seed in options["seeds"]:
        evaluate = bfl.evaluation.evaluator(test.features, test.labels, num_samples=config.NUM_SAMPLES, seed=seed)
        try:
            last = bfl.simulate(
                process,
                clients_of(train, options, seed),
                rounds=options["rounds"],
                seed=seed,
                start=bfl.weights.get_weights(model(train.element_shape, seed, options["model"])),
                evaluate=evaluate,
                evaluate_every=options["rounds"],
                engine="local",
            ).rounds[-1]
        except bfl.errors.Error:  # every client faulty, or predictions that are not finite
            last = {}
        for name in SCORES:
            scores[name].append(last.get(name))
    return scores


def table(records: list[Options], kind: str, partition: str, score: str) -> list[list[str]]:
    """Return a row for each rule and robust aggregation, a column for each attack: mean +- standard deviation over
    seeds.
    """
    results = {_key(record["options"]): record.get(score, [None]) for record in records}
    attacks = attacks_of(kind)

    def entry(*cell: str) -> str:
        values = results.get((kind, partition, *cell), [])
        if None in values:
            return "not finite"
        return f"{np.mean(values):.3f} +- {np.std(values, ddof=1):.3f}" if values else ""

    rows: list[list[str]] = []
    for rule, defence in rows_of(kind, partition):
        if defence == "none":
            absent = entry(rule, config.ABSENT, defence)
            rows.append([rule, "hostile clients absent", absent, *[""] * (len(attacks) - 1)])
        row = [rule, defence, *(entry(rule, attack, defence) for attack in attacks)]
        rows += [row] if rule != config.KERNEL or any(row[2:]) else []
    return [["rule", "robust aggregation", *(f"attack: {attack}" for attack in attacks)], *rows]


def pairs_table(records: list[Options], kind: str, partition: str) -> list[list[str]]:
    """Return accuracy less that of others under the same attack with the same seeds, in points, with 95 % t intervals.

    The others are the first rule without robust aggregation, and with the median.
    """
    by_seed = {_key(x["options"]): dict(zip(x["options"]["seeds"], x.get("accuracy", []))) for x in records}
    first = config.PARTITIONS[kind][partition][0]
    rows = [["rule", "robust aggregation", "less", *(f"attack: {attack}" for attack in attacks_of(kind))]]
    for (rule, defence), other in itertools.product(rows_of(kind, partition), ("none", "median")):
        if (rule, defence) == (first, other):
            continue
        differences = []
        for attack in attacks_of(kind):
            own, base = (
                {seed: x for seed, x in by_seed.get((kind, partition, *key), {}).items() if x is not None}
                for key in ((rule, attack, defence), (first, attack, other))
            )
            difference = paired(own, base)
            differences.append(interval(difference, 1, 100) if difference else "")
        if any(differences):
            rows.append([rule, defence, f"{first}, {other}", *differences])
    return rows


def write_told(rows: list[list[str]], path: pathlib.Path) -> None:
    """Write a table unless it is empty."""
    if any(any(row[2:]) for row in rows[1:]):
        write(rows, path)


def _key(options: Options) -> tuple[str, ...]:
    return tuple(options[name] for name in ("model", "partition", "rule", "attack", "defence"))


def write_cell(folder: pathlib.Path, options: Options) -> None:
    write_summary(folder, options, lambda: run_cell(options))


def describe(summary: dict[str, Any]) -> str:
    """Return a cell's result in a line."""
    return f"{summary.get('failed', '')}{summary.get('accuracy', '')} ({summary['seconds']:.0f} s)"


@click.command()
@study_options("robustness", HERE / "results")
def main(study: Study) -> None:
    """Run the cells that are not done, and write a table of each score on each partition."""
    every = {cell_name(options): options for options in cells()}
    study.run(every, write_cell, describe)
    if study.listed:
        return
    records = list(study.records(every).values())
    for kind, partitions in config.PARTITIONS.items():
        for partition in partitions:
            where = f"{'' if kind == 'flipout' else f'{kind}-'}{partition.replace(':', '_')}"
            for score in SCORES if kind == "flipout" else SCORES[:3]:
                write_told(table(records, kind, partition, score), study.results / f"{score}-{where}")
            write_told(pairs_table(records, kind, partition), study.results / f"pairs-{where}")


if __name__ == "__main__":
    main()
