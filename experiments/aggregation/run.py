"""Runs the aggregation study: `python -m experiments.aggregation.run rules --size fashion_mnist`.

A cell is a run folder under OUTPUT/SIZE/cells; what is done is not run again, whichever table asked for it. Tables,
figures and findings are written for what is there.
"""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Iterator
from typing import Any

import click

from experiments.aggregation.config import COMMON, SIZES, TABLES
from experiments.aggregation.figures import write_figures
from experiments.aggregation.findings import write_findings
from experiments.aggregation.tables import read_cell, write_tables
from experiments.cells import run_study
from tfp_bfl import errors
from tfp_bfl.app.config import RunConfig, make_config
from tfp_bfl.app.sweep import options_of_run, run_or_resume

Options = dict[str, Any]

NAMED = ("kind", "rule", "weighting", "partition", "clients", "local_epochs", "rounds", "seed")


def cells(table: str, size: str) -> Iterator[Options]:
    """The options of each cell of a table."""
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
            for seed in settings["seeds"][table]:
                yield {**options, "seed": seed}


def cell_name(options: Options) -> str:
    """The folder of a cell: what tables vary."""
    parts = [f"{name}={options[name]}" for name in NAMED]
    if options.get("pretrain_share"):
        parts.append(f"pretrained={options['pretrain_share']}")
    if options.get("update_prior"):
        parts.append("updated_prior")
    if options["initial_stddev"] != COMMON["initial_stddev"]:
        parts.append(f"initial_stddev={options['initial_stddev']}")
    if options["inference"] != COMMON["inference"]:
        parts.append(f"inference={options['inference']}")
    return ",".join(parts).replace(":", "_")


def config_of(options: Options) -> RunConfig:
    return make_config(None, {name: value for name, value in options.items() if value is not None})


@click.command()
@click.argument("tables", nargs=-1, type=click.Choice(list(TABLES)))
@click.option("--size", type=click.Choice(list(SIZES)), default="fashion_mnist", show_default=True)
@click.option("--cell", "only", metavar="TEXT", help="Only cells whose name holds this, such as 'rule=conflation'.")
@click.option("--list", "listed", is_flag=True, help="Only list the cells, and which are done.")
@click.option(
    "--output", type=click.Path(path_type=pathlib.Path), default=pathlib.Path("runs/aggregation"), show_default=True
)
def main(tables: tuple[str, ...], size: str, only: str | None, listed: bool, output: pathlib.Path) -> None:
    """Runs the cells of TABLES (all of the size's if none is named), and writes tables, figures and findings."""
    try:
        _run(tables or tuple(SIZES[size]["seeds"]), size, only, listed, output / size)
    except errors.InvalidArgument as error:
        raise click.UsageError(str(error)) from None


def _run(tables: tuple[str, ...], size: str, only: str | None, listed: bool, output: pathlib.Path) -> None:
    for table in tables:
        if table not in SIZES[size]["seeds"]:
            raise errors.InvalidArgument(
                f"The size {size} has no table {table}: it has {', '.join(SIZES[size]['seeds'])}."
            )
    chosen = {table: {cell_name(o): o for o in cells(table, size) if (only or "") in cell_name(o)} for table in tables}
    everything = {name: config_of(o).told() for table in chosen.values() for name, o in table.items()}
    folder = output / "cells"
    told = lambda summary: f"accuracy {summary['accuracy']:.4f} ({summary['seconds']:.0f} s)"
    run_study(everything, "", folder, run_or_resume, told, listed=listed, held=options_of_run, goes_on=True)
    if not listed:
        for table, names in chosen.items():
            runs = [read_cell(folder / name) for name in names]
            write_tables(table, runs, output)
            write_figures(table, runs, output / "figures")
        write_findings([read_cell(path.parent) for path in sorted(output.glob("cells/*/summary.json"))], output)


if __name__ == "__main__":
    main()
