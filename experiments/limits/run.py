"""Prediction sets on clients who were never in training: `python -m experiments.limits.run`.

A cell trains on some clients, finds the limit of the sets on what those held out, and counts how often the sets hold
the label of other clients' examples.
"""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Iterator
from typing import Any

import click
import numpy as np

import tfp_bfl as bfl
from experiments.cells import Study, study_options, write_summary
from experiments.tables import mean_and_sd, write

HERE = pathlib.Path(__file__).parent
Options = dict[str, Any]
COMMON = {
    **{"dataset": "fashion_mnist", "clients": 60, "unseen": 20, "examples_per_client": 200, "hold_out": 0.2},
    **{"rounds": 20, "local_epochs": 2, "learning_rate": 1e-2, "coverage": 0.9, "num_samples": 20},
}
PARTITIONS = ("iid", "dirichlet:0.5", "dirichlet:0.1")
SEEDS = range(5)
# Label in the log -> key of a summary.
COLUMNS = {
    "accuracy, held out": "held_out_accuracy",
    "accuracy, unseen clients": "accuracy",
    "coverage, held out": "held_out_coverage",
    "coverage, unseen clients": "unseen_coverage",
    "of the worst unseen client": "least_coverage",
    "sizes of its sets": "size",
}


def cells() -> Iterator[Options]:
    """Return the options of each cell."""
    for partition, seed in itertools.product(PARTITIONS, SEEDS):
        yield {**COMMON, "partition": partition, "seed": seed}


def cell_name(options: Options) -> str:
    return f"{options['partition']},seed={options['seed']}".replace(":", "_")


def score(options: Options) -> Options:
    """Train, compute the threshold, and count."""
    seed = options["seed"]
    source = bfl.data.load(options["dataset"])
    every = source.partition(bfl.data.parse_partition(options["partition"], options["clients"]), seed=seed)
    every = every.limit(options["examples_per_client"], seed=seed)
    clients, unseen = every.split(options["clients"] - options["unseen"])
    held_out, clients = clients.set_aside(options["hold_out"], seed=seed)
    process = bfl.algorithms.variational(
        lambda: bfl.models.lenet("flipout", source.element_shape, source.num_classes, prior_stddev="fan_in", seed=seed),
        "log_linear_pool",
        local_epochs=options["local_epochs"],
        learning_rate=options["learning_rate"],
        optimizer="adam",
        temperature=0.05,
        element_spec=clients.element_spec,
    )
    result = bfl.simulate(process, clients, rounds=options["rounds"], seed=seed, engine="local")

    def predicted(some: bfl.data.Clients, k: int) -> tuple[np.ndarray, np.ndarray]:
        _, features, labels = some.examples(k)
        samples = bfl.evaluation.predict(result.model, features, options["num_samples"], seed)
        return samples.mean(0), labels

    def held(pair: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return whether each set contains the label, and its number of classes."""
        sets = bfl.evaluation.prediction_sets(pair[0], limit)
        return sets[np.arange(len(sets)), pair[1]], sets.sum(-1)

    half = predicted(held_out, 0)
    order = np.random.default_rng(seed).permutation(len(half[1]))
    first, second = ((half[0][part], half[1][part]) for part in np.array_split(order, 2))
    limit = bfl.evaluation.conformal_limit(*first, options["coverage"])
    of_clients = [predicted(unseen, k) for k in range(unseen.num_clients)]
    inside = [held(pair) for pair in of_clients]
    right = [pair[0].argmax(-1) == pair[1] for pair in of_clients]
    return {
        "held_out_accuracy": float(np.mean(half[0].argmax(-1) == half[1])),
        "accuracy": float(np.mean(np.concatenate(right))),
        "held_out_coverage": float(held(second)[0].mean()),
        "unseen_coverage": float(np.concatenate([own[0] for own in inside]).mean()),
        "least_coverage": float(min(own[0].mean() for own in inside)),
        "size": float(np.concatenate([own[1] for own in inside]).mean()),
    }


def run_cell(folder: pathlib.Path, options: Options) -> None:
    write_summary(folder, options, lambda: score(options))


def told(summary: dict[str, Any]) -> str:
    """Return a cell's result in a line."""
    if "failed" in summary:
        return summary["failed"]
    return f"coverage of unseen clients {summary['unseen_coverage']:.3f} ({summary['seconds']:.0f} s)"


def table(summaries: list[dict[str, Any]]) -> list[list[str]]:
    """Return each partition's means and standard deviations over the seeds."""
    rows = [["partition", *COLUMNS, "seeds"]]
    for partition in PARTITIONS:
        same = [s for s in summaries if s["options"]["partition"] == partition and "failed" not in s]
        if same:
            scores = [mean_and_sd([s[key] for s in same], 3) for key in COLUMNS.values()]
            rows.append([partition, *scores, str(len(same))])
    return rows


@click.command()
@study_options("limits", HERE / "results")
def main(study: Study) -> None:
    """Run the cells that are not done, and write the table."""
    every = {cell_name(options): options for options in cells()}
    study.run(every, run_cell, told)
    if not study.listed:
        records = list(study.records(every).values())
        if records:
            write(table(records), study.results / "sets")


if __name__ == "__main__":
    main()
