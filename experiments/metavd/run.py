"""Run the study: `python -m experiments.metavd.run`.

A cell is a folder under OUTPUT with one summary; what is done is not run again. Tables and the figure are written at
the end, and by --tables at any time, for what is there.
"""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Iterator
from typing import Any

import click

from experiments.cells import Study, study_options
from experiments.metavd.cell import run_cell
from experiments.metavd.config import FULL, PLAN, SIZES
from tfp_bfl.bench.cells import SUMMARY, read_summary

Options = dict[str, Any]
HERE = pathlib.Path(__file__).parent


def cells(plan: Any = PLAN) -> Iterator[Options]:
    """Return the options of each cell, in the order in which they run."""
    for block in plan:
        options = {"size": block["size"], **SIZES[block["size"]], **block.get("change", {})}
        for seed, method in itertools.product(block["seeds"], block["methods"]):
            yield {**options, "method": method, "seed": seed}


def cell_name(options: Options) -> str:
    """Return the name of a cell's folder."""
    of_data = f"concentration={options['concentration']:g},cohort={options['cohort']}"
    return f"{options['size']},{options['method']},{of_data},seed={options['seed']}"


@click.command()
@click.option("--full", is_flag=True, help="Run the published size, which takes days.")
@study_options("metavd", HERE / "results")
def main(study: Study, full: bool) -> None:
    """Run the cells that are not done, and write tables and the figure."""
    from experiments.metavd.tables import kept, write_all

    every = {cell_name(options): options for options in cells(FULL if full else PLAN)}
    study.run(every, run_cell, describe)
    if not study.listed:
        records = study.records(every, lambda folder: kept(read_summary(folder)))
        summaries = [read_summary(path.parent) for path in sorted(study.output.glob(f"*/{SUMMARY}"))]
        write_all(list(records.values()), summaries, study.results)
        click.echo(f"{len(records)} cells are done: tables in {study.results}")


def describe(summary: dict[str, Any]) -> str:
    """Return a cell's result in a line."""
    seconds = f" ({summary['seconds']:.0f} s)"
    if "failed" in summary:
        return "failed, " + summary["failed"] + seconds
    pairs = [
        f"{who} {scores['before']['accuracy_uniform']:.4f} -> {scores['after']['accuracy_uniform']:.4f}"
        for who, scores in summary["scores"].items()
        if who.endswith("matched")
    ]
    return "accuracy " + "; ".join(pairs) + seconds


if __name__ == "__main__":
    main()
