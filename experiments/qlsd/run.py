"""Run the study: `python -m experiments.qlsd.run`.

A cell is a folder under OUTPUT with one summary; what is done is not run again. Tables and figures are written at the
end, and by --tables at any time, for what is there.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import click

from experiments.cells import Study, study_options
from experiments.qlsd import consistency, covertype, logistic, memory, network, predictions, toy
from experiments.qlsd.config import (
    BUDGET_BITS,
    BUDGET_METHODS,
    CONSISTENCY,
    CONSISTENCY_EXAMPLES,
    CONSISTENCY_METHODS,
    COVERTYPE,
    COVERTYPE_METHODS,
    LOGISTIC_METHODS,
    LOGISTIC_RIVALS,
    LOGISTICS,
    MEMORY,
    MEMORY_METHODS,
    NETWORK_CHAINS,
    NETWORK_TRAINING,
    NETWORKS,
    PREDICTED,
    PUBLISHED_DATA,
    SIZES,
    TOY_METHODS,
    TOY_STEPS,
)
from experiments.qlsd.tables import write_all
from tfp_bfl import errors
from tfp_bfl.bench.cells import SUMMARY

Options = dict[str, Any]
HERE = pathlib.Path(__file__).parent
# Of the options, and of the folder of the cell where a study leaves or reads more than numbers.
STUDIES: dict[str, Callable[[Options, pathlib.Path], dict[str, Any]]] = {
    "toy": lambda options, folder: toy.run(options),
    **dict.fromkeys((*LOGISTICS, *PUBLISHED_DATA), lambda options, folder: logistic.run(options)),
    "memory": lambda options, folder: memory.run(options),
    "budget": lambda options, folder: toy.run_budget(options),
    "consistency": lambda options, folder: consistency.run(options),
    "predictions": predictions.run,
    **dict.fromkeys(NETWORKS, network.run),
    "covertype": lambda options, folder: covertype.run(options),
}


def cells(size: str, runs: int | None = None) -> Iterator[Options]:
    """Return the options of each cell, in the order in which they run."""
    settings: Any = SIZES[size]
    more = {} if runs is None else {"runs": runs}
    for step in TOY_STEPS:
        for method, (estimator, compressor, share) in TOY_METHODS.items():
            how = {"estimator": estimator, "compressor": compressor, "batch_size": share, "step": step}
            yield {"study": "toy", "method": method, **how, **settings["toy"], **more}
    how_of: dict[str, Any] = {**{name: {"compressor": c} for name, c in LOGISTIC_METHODS.items()}, **LOGISTIC_RIVALS}
    for study, own in LOGISTICS.items():
        for method, chosen in how_of.items():
            yield {"study": study, "method": method, **chosen, **own, **settings[study], **more}
    for method, pair in MEMORY_METHODS.items():
        kept: Options = dict(zip(("compressor", "memory"), pair)) if pair else {}
        lengths = settings["memory" if pair else "memory_exact"]
        yield {"study": "memory", "method": method, **kept, **MEMORY, **lengths, **(more if pair else {})}
    for method, (estimator, share) in BUDGET_METHODS.items():
        for step in settings["budget_steps"]:
            for levels in settings["budget_levels"]:
                how = {"estimator": estimator, "compressor": f"quantiser:{levels}", "batch_size": share, "step": step}
                yield {
                    "study": "budget",
                    "method": method,
                    "levels": levels,
                    "bits": BUDGET_BITS,
                    **how,
                    **settings["budget"],
                    **more,
                }
    if size == "reduced":
        yield from figure_cells(settings, more)
    for study in NETWORKS:
        if study in settings:
            yield from network_cells(study, settings[study], more)
    # Last, as its data may not be there.
    rivals: dict[str, Any] = COVERTYPE_METHODS
    for method, how in rivals.items():
        yield {"study": "covertype", "method": method, **how, **COVERTYPE, **settings["covertype"], **more}


def figure_cells(settings: Any, more: Options) -> Iterator[Options]:
    """Yield the cells of consistency and of the predictions that figures show, which have one size."""
    for examples in CONSISTENCY_EXAMPLES:
        for method, (estimator, compressor) in CONSISTENCY_METHODS.items():
            how = {"estimator": estimator, "compressor": compressor, "examples": examples}
            yield {"study": "consistency", "method": method, **how, **CONSISTENCY, **more}
    for options in network_cells("network", settings["network"], {}):
        if options["method"] in PREDICTED:
            yield {**options, "study": "predictions", "test_examples": 1_000, "runs": 1}


def network_cells(study: str, settings: Any, more: Options) -> Iterator[Options]:
    """Return the cells of a network; HMC is first, since the others are compared with it."""
    shared = {"study": study, **NETWORKS[study], **settings["of_all"]}
    yield {**shared, "method": "HMC", "algorithm": "hmc", **settings["hmc"]}
    groups: Any = ((NETWORK_CHAINS, settings["chains"]), (NETWORK_TRAINING, settings["training"]))
    for methods, of_group in groups:
        for method, how in methods.items():
            if method not in settings.get("methods", methods):
                continue
            own = settings["sgld"] if how["algorithm"] == "sgld" else {}
            yield {**shared, "method": method, **how, **of_group, **own, **more}


def cell_name(options: Options) -> str:
    parts = [options["study"], options["method"].replace(",", "").replace(" ", "_")]
    parts += [f"{key}={options[key]:g}" for key in ("step", "levels") if key in options]
    parts += [f"examples={options['examples']}"] if options["study"] == "consistency" else []
    return ",".join(parts)


def run_cell(folder: pathlib.Path, options: Options) -> None:
    """Run a cell and write its summary, or the reason of its failure."""
    folder.mkdir(parents=True)
    try:
        found = STUDIES[options["study"]](options, folder)
    except errors.Error as error:
        found = {"failed": f"{type(error).__name__}: {error}", "seconds": 0.0}
    (folder / SUMMARY).write_text(json.dumps({"options": options, **found}, indent=1) + "\n")


@click.command()
@click.option("--size", type=click.Choice(list(SIZES)), default="reduced", show_default=True)
@click.option("--seeds", type=click.IntRange(min=1), help="Number of chains of a cell; default: by the size.")
@study_options("qlsd", HERE / "results")
def main(study: Study, size: str, seeds: int | None) -> None:
    """Run the cells that are not done, and write tables and figures."""
    every = {cell_name(options): options for options in cells(size, seeds)}
    study.run(every, run_cell, describe)
    if not study.listed:
        records = study.records(every)
        write_all(list(records.values()), study.results)
        click.echo(f"{len(records)} of {len(every)} cells are done: tables in {study.results}")


def describe(summary: dict[str, Any]) -> str:
    """Return a cell's result in a line."""
    seconds = f" ({summary['seconds']:.0f} s)"
    if "failed" in summary:
        return "failed, " + summary["failed"] + seconds
    if "error" in summary:
        return f"error {summary['error']:.3g}, variance ratio {summary['ratio']:.4g}" + seconds
    if "agreement" in summary:
        mean = lambda name: sum(summary[name]) / len(summary[name])
        return f"accuracy {mean('accuracy'):.4f}, agreement {mean('agreement'):.4f}" + seconds
    if "entropies" in summary:
        return f"accuracy {summary['accuracy']:.4f}" + seconds
    if "variance" in summary:
        return f"variance ratio {summary['ratio']:.4g}" + seconds
    if "variances" in summary:
        return f"mean variance {sum(summary['variances']) / len(summary['variances']):.4g}" + seconds
    return f"99 % quantile of U {sum(summary['quantile']) / len(summary['quantile']):.3f}" + seconds


if __name__ == "__main__":
    main()
