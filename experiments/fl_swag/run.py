"""Run the FL-SWAG study: `python -m experiments.fl_swag.run --table logistic_regression --size full`.

A cell is a folder under OUTPUT/SIZE/cells, a pre-trained network one under OUTPUT/SIZE/pretrained. What is done is not
run again, whichever table asked for it. Tables are of the records of cells in RESULTS/SIZE, which outlive their
folders; figures, and distances from the truth, of the folders that are there.
"""

from __future__ import annotations

import functools
import itertools
import json
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import click
import numpy as np
import tensorflow as tf

import tfp_bfl as bfl
from experiments.cells import Study, study_options
from experiments.fl_swag import central, controls, methods, momentum
from experiments.fl_swag.config import BASELINE, CHOSEN_RATE, COMMON, SETTINGS, SIZES, TABLES
from experiments.fl_swag.federation import Cell, Federation, federation, model
from experiments.fl_swag.figures import write_figures
from experiments.fl_swag.geometry import flat, geometry
from experiments.fl_swag.tables import read_cell, row_name, write_tables
from experiments.records import Record, best_trial, read_records
from tfp_bfl.algorithms.swag.work import with_curvature
from tfp_bfl.bench.cells import SUMMARY

HERE = pathlib.Path(__file__).parent


def cells(table: str, size: str, records: Mapping[str, Record] | None = None) -> Iterator[Cell]:
    """Return the options of each cell of a table; with a rate that trials choose, once the records have all of them."""
    content, sizes = TABLES[table], SIZES[size]
    for setting in content["settings"]:
        for dataset in sizes["datasets"][setting]:
            own = {**COMMON, **SETTINGS[setting], **sizes["options"].get((setting, dataset), {}), **content["options"]}
            names = [content[key] for key in ("trainings", "chains", "baselines") if key in content]
            by_data = [sizes["trainings"][name] for name in names]
            trainings = itertools.chain(*(each.get((setting, dataset), each.get(None, [])) for each in by_data))
            for training in trainings:
                if training["learning_rate"] == CHOSEN_RATE:
                    training = chosen(setting, dataset, size, records or {})
                if training is None:
                    continue
                for seed in sizes["seeds"]["chains" if "sampler" in training else table]:
                    yield {**own, "setting": setting, "dataset": dataset, **training, "seed": seed}


def chosen(setting: str, dataset: str, size: str, records: Mapping[str, Record]) -> Cell | None:
    """Return the training of the best trial of FedAvg by momentum; None if a trial has no record."""
    trials = {
        cell_name(cell): cell
        for cell in cells("momentum_choice", size)
        if (cell["setting"], cell["dataset"]) == (setting, dataset)
    }
    score = lambda record: next(row["test_nll"] for row in record["rows"] if row["method"] == BASELINE)
    best = best_trial(trials, score, records)
    grid = SIZES[size]["trainings"]["momentum_grid"]
    same = lambda training: training["learning_rate"] == best["learning_rate"]
    return best and next(filter(same, grid.get((setting, dataset), grid.get(None))))


def cell_name(cell: Cell) -> str:
    """Return the folder of a cell: what tables vary."""
    parts = [
        cell["dataset"],
        cell["setting"],
        cell.get("sampler", "momentum" if "baseline" in cell else "clients"),
        f"epochs={cell['local_epochs']}",
    ]
    parts += [f"burn_in={cell['burn_in_epochs']}"]
    if "sampler" in cell:
        parts += [f"step={cell['step_size']:g}"]
    else:
        parts += [f"rate={cell['learning_rate']:g}"]
    if cell["floors"]:
        parts += [f"floors={'+'.join(f'{floor:g}' for floor in cell['floors'])}"]
    parts += [f"seed={cell['seed']}"]
    parts += [f"{name}={cell[name]}" for name in ("limit",) if cell[name]]
    flags = {
        "holdout": cell["holdout"],
        "pooled": not cell["alone"],
        "alike": cell["alike"],
        "shuffled": cell["shuffled"],
    }
    return ",".join(parts + [name for name, there in flags.items() if there])


def train(cell: Cell, data: Federation, runtime: bfl.engines.tff.Runtime) -> tuple[Any, float]:
    """Return the clients' posteriors, and the seconds of the round."""
    process = bfl.algorithms.fl_swag(
        data.model_fn,
        last_layer=cell["last_layer"],
        min_examples=1,
        max_columns=cell["max_columns"],
        curvature=False,  # It is added to their messages, in separate rows.
        element_spec=data.clients.element_spec,
        local_epochs=cell["local_epochs"],
        burn_in_epochs=cell["burn_in_epochs"],
        min_variance=min(cell["floors"]),
        batch_size=cell["batch_size"],
        learning_rate=cell["learning_rate"],
    )
    options = {"rounds": 1, "seed": cell["seed"], "runtime": runtime}
    if not cell["own_starts"]:
        result = bfl.simulate(process, data.clients, start=data.start, **options)
        return result.state.step, result.rounds[0]["train_seconds"]
    results = []
    for k, indices in enumerate(data.clients.indices):
        start = bfl.weights.get_weights(model(cell, 1000 * (cell["seed"] + 1) + k))
        one = bfl.data.Clients(data.clients.source, [indices])
        results.append(bfl.simulate(process, one, start=start, **options))
    stacked = tf.nest.map_structure(lambda *x: np.concatenate(x), *(result.state.step for result in results))
    stacked = stacked._replace(client=np.arange(len(results)))
    return stacked, sum(result.rounds[0]["train_seconds"] for result in results)


def run_clients(cell: Cell, pretrained: pathlib.Path) -> tuple[list[methods.Row], dict[str, Any]]:
    """Return all rows of one training of the clients, and what else is to know of it."""
    with bfl.engines.tff.local_workers() as runtime:
        data = federation(cell, pretrained, runtime)
        clients, seconds = train(cell, data, runtime)
    net = methods.network(data, cell["last_layer"], cell["num_samples"])
    start = [np.asarray(x) for x in net.model.trainable_variables]
    posteriors = methods.posteriors_of(clients)
    held = controls.held(data, cell["last_layer"])
    curvatures = controls.curvatures(held, posteriors)
    known = [with_curvature(q, h) for q, h in zip(posteriors, curvatures)]
    moved = {
        row_name(name, floor): float(np.linalg.norm(flat(product().mean) - flat(start)))
        for floor in cell["floors"]
        for name, product in methods.products(posteriors, known, floor)
    }
    rows = [methods.unchanged(net)] if cell["server"] else []
    num_collected = cell["local_epochs"] - cell["burn_in_epochs"]
    rows += methods.rows(net, clients, cell["floors"], num_collected, cell["alone"], held, known)
    facts = {
        "server": data.server,
        "geometry": geometry(posteriors, start),
        "moved": moved,
        "curvature": [float(flat(h).mean()) for h in curvatures],  # a weight's, of each client
    }
    return rows, {**facts, "train_seconds": seconds, "sizes": data.clients.sizes.tolist()}


def run_cell(folder: pathlib.Path, cell: Cell, *, pretrained: pathlib.Path) -> None:
    """Run a cell: its scores as JSON, and the predictions on the test set."""
    started = time.perf_counter()
    baseline = momentum.run_fedavg if "baseline" in cell else run_clients
    work = central.run_sampler if "sampler" in cell else baseline
    rows, facts = work(cell, pretrained)
    scores = [
        {"method": row.method, "floor": row.floor, **row.evaluation.metrics, "seconds": row.seconds} for row in rows
    ]
    folder.mkdir(parents=True)
    if not cell["holdout"]:
        probabilities = {row_name(row.method, row.floor): row.evaluation.probabilities for row in rows}
        np.savez_compressed(folder / "predictions.npz", **probabilities)
    summary = {"options": cell, "rows": scores, **facts, "cell_seconds": time.perf_counter() - started}
    (folder / SUMMARY).write_text(json.dumps(summary, indent=1))


def describe(summary: dict[str, Any]) -> str:
    """Return a cell's result in a line."""
    accuracies = ", ".join(f"{row['method']} {row['accuracy']:.4f}" for row in summary["rows"][:6])
    return f"{accuracies} ({summary['cell_seconds']:.0f} s)"


@click.command()
@click.option("--table", "tables", type=click.Choice(list(TABLES)), multiple=True, help="Table to run; default: all.")
@click.option("--size", type=click.Choice(list(SIZES)), default="small", show_default=True)
@study_options("fl_swag", HERE / "results")
def main(study: Study, tables: tuple[str, ...], size: str) -> None:
    """Run the cells that are not done, and write their tables and figures."""
    study = study.of_size(size)
    recorded = read_records(study.results)
    every = {table: {cell_name(cell): cell for cell in cells(table, size, recorded)} for table in TABLES}
    todo = {name: cell for table in tables or TABLES for name, cell in every[table].items()}
    study.run(todo, functools.partial(run_cell, pretrained=study.output.parent / "pretrained"), describe)
    if study.listed:
        return
    records = study.records({name: cell for named in every.values() for name, cell in named.items()}, read_cell)
    for table in tables or TABLES:
        runs = [{**records[name], "folder": study.output / name} for name in every[table] if name in records]
        if "baselines" in TABLES[table] and not any("baseline" in run["options"] for run in runs):
            continue  # The others are in tables of their own.
        if runs:
            write_tables(table, runs, study.results)
            write_figures(table, runs, study.results)


if __name__ == "__main__":
    main()
