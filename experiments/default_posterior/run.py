"""Run the study: `python -m experiments.default_posterior.run`.

Trials first, on held-out training images; then the study with `config.METHODS`, by five seeds; then controls; then
temperatures. With --curves the cells of `curves` instead.
"""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Iterator
from typing import Any

import click

from experiments.cells import Study, study_options
from experiments.default_posterior.cell import run_cell
from experiments.default_posterior.config import (
    BY_SKEW,
    COMMON,
    METHODS,
    MILD,
    PARTITIONS,
    SCHEDULES,
    SEEDS,
    SEEDS_OF,
    SHARES,
    SIZES,
    TEMPERATURE_SEEDS,
    TEMPERATURES,
    TRIALS,
    TRIED_AT,
    TUNED,
    VARIATIONAL,
)
from experiments.default_posterior.controls import control_cells
from experiments.default_posterior.curve_tables import write_curves
from experiments.default_posterior.curves import curve_cells, run_curves
from experiments.default_posterior.page import fill_page
from experiments.default_posterior.tables import write_all

Options = dict[str, Any]
HERE = pathlib.Path(__file__).parent


def cells() -> Iterator[tuple[str, Options]]:
    """Return the name and the options of each cell, in the order in which they run."""
    images = SIZES["fashion_mnist"]
    of_trials = {"trial": True, "seed": TUNED["seed"]}
    for (method, trials), partition in itertools.product(TRIALS.items(), TUNED["partitions"]):
        for trial in trials:
            said = ",".join(f"{name}={value}" for name, value in trial.items())
            settings = {**METHODS[method], **TRIED_AT.get(method, {}), **trial}
            yield (
                f"trial,{method},{said},{partition}",
                {**images, **of_trials, "settings": settings, "partition": partition},
            )
    for (rate, half), partition in itertools.product(SCHEDULES, TUNED["partitions"]):
        settings = {**VARIATIONAL, "rate": rate, "half_rounds": half}
        name = f"trial,schedule,inverse={rate}/{half},{partition}".replace("/", " ")
        yield name, {**images, **of_trials, "settings": settings, "partition": partition}
    # Three seeds of all but the dearest first.
    for seeds, methods in ((SEEDS[:3], _CHEAP), (SEEDS[3:], _CHEAP), (SEEDS, _DEAR)):
        for seed, where, name in itertools.product(seeds, (*PARTITIONS, "digits", "cifar10"), methods):
            if seed in SEEDS_OF.get(name, SEEDS):
                yield _study_cell(name, where, seed)
    yield from control_cells()
    for data, seed, share, temperature in itertools.product(SIZES, TEMPERATURE_SEEDS, SHARES, TEMPERATURES):
        size, settings = SIZES[data], {**VARIATIONAL, "temperature": temperature}
        share_of = {"examples_per_client": round(share * size.get("examples_per_client", 129))}
        # As many steps as with all data.
        more = {"local_epochs": round(COMMON["local_epochs"] / share)}
        options = {**size, **share_of, **more, "trial": True, "seed": seed, "settings": settings}
        yield f"temperature,{data},{share:.2g},{temperature:g},seed={seed}", {**options, "partition": "dirichlet:0.5"}


_DEAR = ("ensemble_5", "variational_adam_pool")
_CHEAP = tuple(name for name in METHODS if name not in _DEAR)


def _study_cell(name: str, where: str, seed: int) -> tuple[str, Options]:
    """Return the name and the options of a method's training, on a partition of Fashion-MNIST or on other data."""
    kind, data = ("study", "fashion_mnist") if where in PARTITIONS else (where, where)
    partition = {"digits": "label_skew:2", "cifar10": "dirichlet:0.5"}.get(where, where)
    method = {**METHODS[name], **BY_SKEW.get(name, {}).get("mild" if partition in MILD else "strong", {})}
    options = {**SIZES[data], "settings": method, "partition": partition, "seed": seed}
    if not method:  # The default: rounds, and whether they are averaged, are the command's.
        return f"{kind},{name},{partition},seed={seed}", _without(options, "rounds", "average", "model", "num_samples")
    share = method.get("share_of_rounds", 1)
    options.update(rounds=round(share * SIZES[data]["rounds"]), average=round(share * SIZES[data]["average"]))
    return f"{kind},{name},{partition},seed={seed}", options


def _without(options: Options, *names: str) -> Options:
    return {name: value for name, value in options.items() if name not in names}


@click.command()
@study_options("default_posterior", HERE / "results")
@click.option("--curves", is_flag=True, help="Run the cells of the curves that have no record, and no others.")
@click.option("--only", "setting", metavar="SETTING", default="", help="Text in the names of the settings of curves.")
def main(study: Study, curves: bool, setting: str) -> None:
    """Run the cells that are not done, and write the tables."""
    named = lambda of: {name.replace(":", "_"): {**options, "variant": "all"} for name, options in of}
    every, of_curves = named(cells()), named(curve_cells())
    if curves:
        run_curves(study, of_curves, in_a_line, setting)
    else:
        study.run(every, run_cell, in_a_line)
    if not study.listed:
        every |= of_curves
        records = study.records(every)
        write_all(records, study.results)
        write_curves(records, study.results)
        if study.results == HERE / "results":
            fill_page(records)
        click.echo(f"{len(records)} of {len(every)} cells are done: tables in {study.results}")


def in_a_line(summary: dict[str, Any]) -> str:
    """Return a cell's result in a line."""
    seconds = f" ({summary['seconds']:.0f} s)"
    if "failed" in summary:
        return "failed, " + summary["failed"] + seconds
    rows = summary["rows"].items()
    return "; ".join(f"{name} accuracy {row['accuracy']:.4f}, NLL {row['nll']:.4f}" for name, row in rows) + seconds


if __name__ == "__main__":
    main()
