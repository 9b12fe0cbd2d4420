"""Run the study: `python -m experiments.global_posterior.run`.

A cell is a folder under OUTPUT with one summary; what is done is not run again. Tables and the figure are written at
the end, and by --tables at any time, of the records of cells in RESULTS, which outlive their folders.
"""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Iterator
from typing import Any

import click

from experiments.cells import Study, study_options
from experiments.global_posterior.cell import read_cell, run_cell
from experiments.global_posterior.config import (
    CURVE_METHODS,
    CURVES,
    METHODS,
    PLAN,
    PUBLISHED,
    PUBLISHED_DATA,
    SIZES,
)
from experiments.global_posterior.tables import write_all

Options = dict[str, Any]
HERE = pathlib.Path(__file__).parent


def cells() -> Iterator[Options]:
    """Return the options of each cell, in the order in which they run."""
    for block in PLAN:
        if block == "published":
            for seed, (dataset, methods) in itertools.product((0, 1, 2), PUBLISHED_DATA.items()):
                for method in methods:
                    yield {**PUBLISHED, "dataset": dataset, "method": method, "variant": "all", "seed": seed}
            continue
        if block == "curves":
            for name, method in itertools.product(CURVES, CURVE_METHODS):
                yield {**CURVES[name], "method": method, "seed": 0}
            continue
        methods, variants = block.get("methods", METHODS), block.get("variants", ("all",))
        size = SIZES[block.get("dataset", "fashion_mnist")]
        for seed, partition, variant, method in itertools.product(
            block["seeds"], block["partitions"], variants, methods
        ):
            yield {**size, "method": method, "partition": partition, "variant": variant, "seed": seed}


def cell_name(options: Options) -> str:
    of_data = "" if options["dataset"] == "fashion_mnist" else options["dataset"] + ","
    start = f"curve,{options['dataset']}" if "evaluate_every" in options else of_data + options["variant"]
    parts = (start, options["method"], options["partition"], f"seed={options['seed']}")
    return ",".join(parts).replace(":", "_")


@click.command()
@study_options("global_posterior", HERE / "results")
def main(study: Study) -> None:
    """Run the cells that are not done, and write tables and the figure."""
    every = {cell_name(options): options for options in cells()}
    study.run(every, run_cell, describe)
    if not study.listed:
        records = study.records(every, read_cell)
        write_all(list(records.values()), study.results)
        click.echo(f"{len(records)} of {len(every)} cells are done: tables in {study.results}")


def describe(summary: dict[str, Any]) -> str:
    """Return a cell's result in a line."""
    seconds = f" ({summary['seconds']:.0f} s)"
    if "failed" in summary:
        return "failed, " + summary["failed"] + seconds
    if "curve" in summary:
        last = summary["curve"][-1]
        return f"accuracy {last['accuracy']:.4f}, NLL {last['test_nll']:.4f}" + seconds
    rows = summary["rows"].items()
    return "; ".join(f"{name} accuracy {row['accuracy']:.4f}, NLL {row['nll']:.4f}" for name, row in rows) + seconds


if __name__ == "__main__":
    main()
