"""Run the aggregation study: `python -m experiments.aggregation.run rules --size fashion_mnist`.

A cell is a run folder under OUTPUT/SIZE/cells; what is done is not run again, whichever table asked for it. Tables,
figures and findings are of the records of cells in RESULTS/SIZE, which outlive their folders.
"""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import click

from experiments.aggregation.config import CHOSEN, COMMON, FIGURES, RATES_OF, SIZES, TABLES, TRIED_ON, UNUSED
from experiments.aggregation.figures import write_figures
from experiments.aggregation.findings import write_findings
from experiments.aggregation.tables import config_of, read_cell, run_of, write_tables
from experiments.cells import Study, study_options
from experiments.records import Record, best_trial, read_records
from tfp_bfl import errors
from tfp_bfl.app.options.resolve import resolved
from tfp_bfl.bench.cells import SUMMARY
from tfp_bfl.bench.sweep import options_of_run, run_or_resume

Options = dict[str, Any]
HERE = pathlib.Path(__file__).parent

# What the trials of a method share with it.
TRIED = ("kind", "rule", "initial_stddev")
NAMED = ("kind", "rule", "weighting", "partition", "clients", "local_epochs", "rounds", "seed")


def cells(table: str, size: str, records: Mapping[str, Record] | None = None) -> Iterator[Options]:
    """Return the options of each cell of a table; with a rate that trials choose, once the records have all of them."""
    settings = SIZES[size]
    for block in TABLES[table]:
        for values in itertools.product(*block.values()):
            varied = dict(zip(block, values))
            rounds, local_epochs = settings["lengths"][varied.pop("length")]
            options = {**COMMON, **settings["options"], **varied, "rounds": rounds, "local_epochs": local_epochs}
            if options["clients"] == 1 and "examples_per_client" in options:
                options["examples_per_client"] *= COMMON["clients"]  # all that the federation has
            if options["clients"] > 1 and options["partition"] not in settings.get(
                "partitions", [options["partition"]]
            ):
                continue
            if options["learning_rate"] == CHOSEN:
                options["learning_rate"] = chosen_rate(table, size, options, records or {})
            for seed in settings["seeds"][table] if options["learning_rate"] else ():
                yield {**options, "seed": seed}


def chosen_rate(table: str, size: str, options: Options, records: Mapping[str, Record]) -> float | None:
    """Return the rate of the best trial of a method on its partition or its kind; None if a trial has no record."""
    trials, score = RATES_OF[table]
    places = (options["partition"], TRIED_ON[options["partition"]])
    same = [o for o in cells(trials, size) if all(o[name] == options[name] for name in TRIED)]
    tried = {cell_name(o): o for o in same if o["partition"] in places}
    best = best_trial(tried, lambda record: record.get(score), records)
    return best and best["learning_rate"]


def used(options: Options) -> Options:
    """Return the options that the weights of a cell's kind use; a run refuses the others."""
    return {name: x for name, x in options.items() if name not in UNUSED[options.get("kind", COMMON["kind"])]}


def cell_name(options: Options) -> str:
    """Return the folder of a cell: what tables vary."""
    parts = [f"{name}={options[name]}" for name in NAMED]
    if options.get("pretrain_share"):
        parts.append(f"pretrained={options['pretrain_share']}")
    if options.get("update_prior"):
        parts.append("updated_prior")
    if options.get("pretrained"):
        parts.append("start_as_prior")
    if options.get("output_dropout"):
        parts.append("output_dropout")
    if options["optimizer"] != COMMON["optimizer"]:
        parts.append(f"optimizer={options['optimizer']},learning_rate={options['learning_rate']}")
    if options.get("hold_out"):
        parts.append(f"hold_out={options['hold_out']}")
    if options.get("augmentation"):
        parts.append(f"augmentation={options['augmentation']}")
    if options["initial_stddev"] != COMMON["initial_stddev"]:
        parts.append(f"initial_stddev={options['initial_stddev']}")
    if options["inference"] != COMMON["inference"]:
        parts.append(f"inference={options['inference']}")
    if options.get("precision"):
        parts.append(f"precision={options['precision']}")
    return ",".join(parts).replace(":", "_")


@click.command()
@click.argument("tables", nargs=-1, type=click.Choice(list(TABLES)))
@click.option("--size", type=click.Choice(list(SIZES)), default="fashion_mnist", show_default=True)
@study_options("aggregation", HERE / "results")
def main(study: Study, tables: tuple[str, ...], size: str) -> None:
    """Run the cells of TABLES (all of the size's if none is named), and write tables, figures and findings.

    If no table is named, figures are those that the page shows.
    """
    study, own = study.of_size(size), SIZES[size]["seeds"]
    for table in tables:
        if table not in own:
            raise errors.InvalidArgument(f"The size {size} has no table {table}: it has {', '.join(own)}.")
    recorded = read_records(study.results)
    every = {table: {cell_name(options): options for options in cells(table, size, recorded)} for table in own}
    for table in tables:
        if not every[table]:
            raise errors.InvalidArgument(
                f"The rates of {table} are those of the best trials, and trials lack records: run {RATES_OF[table][0]} "
                "first."
            )
    todo = {
        name: resolved(config_of(used(o)), regression=False).recorded()
        for table in tables or own
        for name, o in every[table].items()
    }
    study.run(todo, run_cell, describe, held=options_of_run, goes_on=True)
    if not study.listed:
        records = study.records({name: o for named in every.values() for name, o in named.items()}, read_cell)
        runs = {name: run_of(record) for name, record in records.items() if "failed" not in record}
        for table in tables or own:
            of_table = [runs[name] for name in every[table] if name in runs]
            if of_table:
                write_tables(table, of_table, study.results)
                if table in (tables or FIGURES):
                    write_figures(table, of_table, study.results / "figures")
        write_findings([run for run in runs.values() if not run["hold_out"]], study.results)


def run_cell(folder: pathlib.Path, options: Options) -> None:
    """Run a cell or resume it. A trial that fails has this as its result: its rate is not chosen."""
    try:
        run_or_resume(folder, used(options))
    except errors.Error as error:
        if not options.get("hold_out"):
            raise
        reason = f"{type(error).__name__}: {error}"[:300]
        (folder / SUMMARY).write_text(json.dumps({"options": options, "failed": reason}, indent=1) + "\n")


def describe(summary: dict[str, Any]) -> str:
    """Return a cell's result in a line."""
    if "failed" in summary:
        return "failed, " + summary["failed"]
    return f"accuracy {summary['accuracy']:.4f} ({summary['seconds']:.0f} s)"


if __name__ == "__main__":
    main()
