"""Run the kernel-posterior study: `python -m experiments.kernel_posterior.run --table alphas --size small`.

A cell is a folder under OUTPUT/SIZE. Complete cells are not run again, also for other tables; interrupted cells resume
from their last checkpoints. The results of a cell are stored by seed beside the tables and figures, in RESULTS/SIZE.

The table "writers" requires FEMNIST, "pachinko" CIFAR-100. If these are not available, made writers and CIFAR-10
replace them, which is stated on the console, in names and summaries of cells, and in the tables. --characters and
--cifar request one of them.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import click
import numpy as np

import tfp_bfl as bfl
from experiments.cells import Study, study_options
from experiments.kernel_posterior import femnist, writers
from experiments.kernel_posterior.config import (
    ALGORITHMS,
    CHOICES,
    CHOSEN,
    DATASETS,
    SERVERS,
    SIZES,
    TABLES,
    TRIED_ON,
)
from experiments.kernel_posterior.figures import write_figures
from experiments.kernel_posterior.models import NETWORKS
from experiments.kernel_posterior.tables import write_tables
from experiments.records import Record, best_trial, read_records
from tfp_bfl import errors
from tfp_bfl.bench.cells import SUMMARY, read_summary

HERE = pathlib.Path(__file__).parent
Cell = dict[str, Any]


def cells(
    table: str, size: str, chosen: Mapping[str, str] = {}, records: Mapping[str, Record] | None = None
) -> Iterator[Cell]:
    """Return the options of each cell of a table, of CHOICES with what was chosen, else with the last.

    Cells with a rate that trials choose are there once the records have all of them.
    """
    content = TABLES[table]
    kind = content["dataset"]
    dataset = chosen.get(kind, CHOICES.get(kind, (kind,))[-1])
    options = {**DATASETS[dataset], **SIZES[size][kind]}
    for partition in content["partitions"]:
        for own in content["cells"]:
            if own.get("learning_rate") == CHOSEN:
                own = {**own, "learning_rate": chosen_rate(partition, own, size, records or {})}
                if own["learning_rate"] is None:
                    continue
            cohort_size = max(1, round(own.get("cohort_share", 1) * options["cohort_size"]))
            for seed in own.get("seeds", content.get("seeds", options["seeds"])):
                cell = {"dataset": dataset, "partition": partition, **options, **own}
                yield {**cell, "cohort_size": cohort_size, "seed": seed, "seeds": None}


def chosen_rate(partition: str, own: Cell, size: str, records: Mapping[str, Record]) -> float | None:
    """Return the rate of the best trial of an algorithm and its server's step; None if a trial has no record."""
    same = {"partition": TRIED_ON[partition], "algorithm": own["algorithm"], "server": own["server"]}
    trials = {cell_name(cell): cell for cell in cells("rate_trials", size) if same.items() <= cell.items()}
    best = best_trial(trials, lambda record: record["metrics"]["test_nll"], records)
    return best and best["learning_rate"]


def cell_name(cell: Cell) -> str:
    """Return the folder of a cell: all that tables vary."""
    parts = [cell["dataset"], cell["partition"], cell["algorithm"], cell["server"]]
    parts += [f"epochs={cell['local_epochs']}", f"cohort={cell['cohort_size']}"]
    parts += [f"popularity={cell['popularity']:g}"] if cell.get("popularity") else []
    default = DATASETS[cell["dataset"]]["learning_rate"]
    parts += [f"rate={cell['learning_rate']:g}"] if cell["learning_rate"] != default else []
    parts += [f"hold_out={cell['hold_out']:g}"] if cell.get("hold_out") else []
    parts += [cell["network"]] if cell["network"] != DATASETS[cell["dataset"]]["network"] else []
    return ",".join([*parts, f"seed={cell['seed']}"]).replace(", ", "_").replace(" ", "_").replace(":", "_")


def clients_and_test(cell: Cell) -> tuple[bfl.data.Clients, bfl.data.Source]:
    """Return the clients and the test set: of a trial, held-out training images in its place."""
    seed, examples = cell["seed"], cell["examples"]
    if cell["dataset"] == "femnist":
        clients, test = femnist.load(cell["clients"], seed, cell.get("cache_dir"))
        return clients.limit(examples, seed), test
    if cell["dataset"] == "mnist_writers":
        clients = writers.writers(cell["clients"], seed).limit(examples, seed)
        return clients, writers.unseen_writers(100, 2000, seed)
    partition = bfl.data.parse_partition(cell["partition"], cell["clients"])
    clients = bfl.data.load(cell["dataset"]).partition(partition, seed=seed)
    if cell.get("hold_out"):
        held_out, clients = clients.limit(round(examples / (1 - cell["hold_out"])), seed).set_aside(
            cell["hold_out"], seed
        )
        _, features, labels = held_out.examples(0)
        return clients, dataclasses.replace(clients.source, features=features, labels=labels)
    clients = clients.limit(examples, seed)
    return clients, bfl.data.load(cell["dataset"], split="test")


def choose(kind: str, asked: str | None, cache_dir: str | None = None) -> str:
    """Return the requested dataset of a choice, or else the first available one, and print its name.

    Raises:
      InvalidArgument: what is asked for can't be had.
    """
    *wanted, last = CHOICES[kind]
    for name in [asked] if asked else wanted:
        try:
            if name == "femnist":
                femnist.load_data(cache_dir)
            elif name != "mnist_writers":
                bfl.data.peek(name)
            return name
        except errors.InvalidArgument as error:
            if asked:
                raise
            click.echo(f"{last} takes the place of {name}: {error}")
    return last


def build(cell: Cell, clients: bfl.data.Clients) -> bfl.federated.BayesianProcess:
    """Return the process of a cell."""
    recipe, options = ALGORITHMS[cell["algorithm"]]
    options = dict(options)
    if "shrinkage" in options:
        options["shrinkage"] = cell.get("shrinkage", options["shrinkage"])
    if "burn_in_share" in options:
        options["burn_in_rounds"] = int(options.pop("burn_in_share") * cell["rounds"])
    if recipe == "fed_be":
        # Of the clients' own data, without labels: the server of the study holds some.
        rows = np.random.default_rng([cell["seed"], 8]).permutation(np.concatenate(clients.indices))[
            : cell["unlabelled"]
        ]
        options["features"] = clients.source.features[rows]
    server = SERVERS[cell["server"]]
    optimizer = bfl.federated.server_optimizer(**server) if server else None
    model_fn = lambda: NETWORKS[cell["network"]](clients.source.num_classes, cell["seed"])
    local = {name: cell[name] for name in ("local_epochs", "batch_size", "learning_rate")}
    shared = {"weighting": "train_size", "element_spec": clients.element_spec}
    if "averaged_rounds" in options:  # Federated averaging with the samples of a chain: its later rounds.
        thinning = bfl.federated.Thinning(options.pop("burn_in_rounds"), most=options.pop("averaged_rounds"))
        work, step = bfl.clients.variational(model_fn, **local, **options), bfl.servers.optimize(optimizer)
        return bfl.algorithms.compose(model_fn, work, "naive_weighted_average", step, thinning=thinning, **shared)
    return getattr(bfl.algorithms, recipe)(model_fn, server_optimizer=optimizer, **shared, **local, **options)


def run_cell(folder: pathlib.Path, cell: Cell) -> None:
    """Run a cell, or resume it: its rounds and scores as JSON."""
    started = time.perf_counter()
    clients, test = clients_and_test(cell)
    shown = test.subset(min(2000, test.num_examples), seed=0)
    score = lambda model, features, labels: bfl.evaluation.evaluate(model, features, labels, num_samples=5).metrics
    with bfl.engines.tff.local_workers() as runtime:
        result = bfl.simulate(
            build(cell, clients),
            clients,
            rounds=cell["rounds"],
            cohort_size=cell["cohort_size"],
            seed=cell["seed"],
            checkpoint_dir=folder / "checkpoints",
            checkpoint_every=5,
            keep_checkpoints=1,
            evaluate=bfl.evaluation.evaluator(shown.features, shown.labels, num_samples=5),
            evaluate_cohort=score,
            evaluate_every=max(1, cell["rounds"] // 50),
            popularity=cell.get("popularity"),
            runtime=runtime,
        )
    final = bfl.evaluation.evaluate(result.model, test.features, test.labels, num_samples=20)
    summary = {
        "options": cell,
        "metrics": final.metrics,
        "rounds": result.rounds,
        **({} if result.draws is None else {"alone": alone(result.draws, cell, shown)}),
        "seconds": time.perf_counter() - started,
    }
    draft = folder / "summary.draft"
    draft.write_text(json.dumps(summary))
    draft.replace(folder / SUMMARY)


def alone(draws: bfl.posterior.Samples, cell: Cell, shown: bfl.data.Source) -> list[float]:
    """Return the accuracy of each stored round by itself, if the rounds predict together."""
    model = NETWORKS[cell["network"]](shown.num_classes, cell["seed"])
    found = []
    for values in zip(*draws.values):
        for variable, value in zip(model.trainable_variables, values):
            variable.assign(value)
        found.append(bfl.evaluation.evaluate(model, shown.features, shown.labels).metrics["accuracy"])
    return found


@click.command()
@click.option("--table", "tables", type=click.Choice(list(TABLES)), multiple=True, help="Table to run; default: all.")
@click.option("--size", type=click.Choice(list(SIZES)), default="small", show_default=True)
@click.option("--seed", "seeds", type=int, multiple=True, help="Seed of the cells to run; default: all.")
@click.option("--cifar", type=click.Choice(CHOICES["cifar"]), help="Default: cifar100 if TFDS has it, or else cifar10.")
@click.option(
    "--characters",
    type=click.Choice(CHOICES["characters"]),
    help="Default: femnist if TFF has it, or else mnist_writers.",
)
@click.option("--cache-dir", help="Folder of FEMNIST; default: TFF's cache.")
@study_options("kernel_posterior", HERE / "results")
def main(
    study: Study,
    tables: tuple[str, ...],
    size: str,
    seeds: tuple[int, ...],
    cache_dir: str | None,
    **asked: str | None,
) -> None:
    """Run the cells that are not done, and write their tables and figures."""
    study, names = study.of_size(size), tables or tuple(TABLES)
    kinds = {TABLES[table]["dataset"] for table in names} & CHOICES.keys()
    datasets = {kind: choose(kind, asked[kind], cache_dir) for kind in sorted(kinds)}
    recorded = read_records(study.results)
    chosen = study.cells_of({table: cells(table, size, datasets, recorded) for table in names}, cell_name)
    if "chosen_rates" in tables and not chosen["chosen_rates"] and not study.only:
        raise errors.InvalidArgument("The rates of chosen_rates are those of the best trials: run rate_trials first.")
    everything = {
        name: {**cell, "cache_dir": cache_dir}
        for table in chosen.values()
        for name, cell in table.items()
        if not seeds or cell["seed"] in seeds
    }
    study.run(everything, run_cell, describe, goes_on=True)
    if not study.listed:
        for table in names:
            every = {cell_name(cell): cell for cell in cells(table, size, datasets, recorded)}
            runs = list(study.records(every, record_of).values())
            write_tables(table, runs, study.results)
            write_figures(table, runs, study.results / "figures")


def record_of(folder: pathlib.Path) -> dict[str, Any]:
    """Return the record of a complete cell: of each round only its accuracies."""
    summary = read_summary(folder)
    shown = ("round", "accuracy", "cohort_accuracy")
    rounds = [{name: row[name] for name in shown if name in row} for row in summary["rounds"]]
    return {**summary, "rounds": rounds}


def describe(summary: dict[str, Any]) -> str:
    """Return a cell's result in a line."""
    return f"accuracy {summary['metrics']['accuracy']:.4f} ({summary['seconds']:.0f} s)"


if __name__ == "__main__":
    main()
