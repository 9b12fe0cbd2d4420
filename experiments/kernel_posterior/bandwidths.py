"""The effect of the bandwidth on one round: `python -m experiments.kernel_posterior.bandwidths --size small`.

Clients train once from the same global weights (`client_stacks`); groups of them are pooled by every bandwidth, kernel
and scale, and the pooled weights are scored on the test set beside the clients' mean.
"""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import click
import numpy as np

import tfp_bfl as bfl
from experiments.kernel_posterior import client_stacks
from experiments.kernel_posterior.bandwidth_figures import write_figures
from experiments.kernel_posterior.config import BANDWIDTH_STUDY
from experiments.tables import mean_and_sd, write
from tfp_bfl import errors
from tfp_bfl.algorithms.kernel import rule as kernel
from tfp_bfl.bench.cells import SUMMARY, check_cells, read_summary, run_once

MEAN = "clients' mean"


class Pooling(NamedTuple):
    """A method that pools the weights of a group; `start` is None for the mean."""

    start: str | None = None
    kernel: str = ""
    bandwidth: str = MEAN
    scale: float = 1.0


def poolings(size: str) -> list[Pooling]:
    """Return the mean; every bandwidth at scale 1; Silverman's at every scale with both kernels."""
    scales = BANDWIDTH_STUDY[size]["scales"]
    found = [Pooling()]
    for start in kernel.STARTS:
        found += [Pooling(start, "epanechnikov", name) for name in kernel.BANDWIDTHS]
        found += [Pooling(start, k, "silverman", scale) for k in kernel.KERNELS for scale in scales]
    return list(dict.fromkeys(found))


def pool(stack: np.ndarray, pooling: Pooling) -> tuple[np.ndarray, dict[str, int]]:
    """Return the pooled weights [D] of a group [S, D], and how many of them each count of `KernelModes` names."""
    if pooling.start is None:
        return stack.mean(0), {}
    found = bfl.algorithms.kernel.kernel_modes(stack, *pooling)
    return found.mode.numpy(), {name: int(x) for name, x in found._asdict().items() if name != "mode"}


def scored(size: str, alpha: float, stacks: pathlib.Path) -> Iterator[dict[str, Any]]:
    """Return a row for each group, seed and pooling; distance is ||pooled - mean|| / ||mean - start||."""
    options = BANDWIDTH_STUDY[size]
    base = client_stacks.base(options["clients_of"])
    setting = base._replace(alpha=alpha, clients=options["clients"], round=options["round"])
    for seed in options["seeds"]:
        cell = client_stacks.cell_of(setting, options["clients_of"], seed)
        test = client_stacks.clients_and_test(cell)[1]
        test = test.subset(min(2000, test.num_examples), seed=0)
        model = client_stacks.model_of(cell)
        start = client_stacks.global_weights(setting, stacks, seed)
        for group, stack in enumerate(client_stacks.groups(setting, stacks, [seed])):
            mean = stack.mean(0)
            for pooling in poolings(size):
                weights, counts = pool(stack, pooling)
                for variable, value in zip(model.trainable_variables, client_stacks.unflat(weights, model).point):
                    variable.assign(value)
                metrics = bfl.evaluation.evaluate(model, test.features, test.labels).metrics
                shares = {name: count / stack.shape[1] for name, count in counts.items()}
                shares["distance"] = float(np.linalg.norm(weights - mean) / np.linalg.norm(mean - start))
                where = {"alpha": alpha, "seed": seed, "group": group, **pooling._asdict()}
                yield {**where, "accuracy": metrics["accuracy"], "test_nll": metrics["test_nll"], **shares}


def write_scores(folder: pathlib.Path, size: str, cell: dict[str, Any], stacks: pathlib.Path) -> None:
    """Pool the groups of an alpha, and keep their rows."""
    rows = list(scored(size, cell["alpha"], stacks))
    folder.mkdir(parents=True)
    (folder / SUMMARY).write_text(json.dumps({"options": cell, "rows": rows}))


def write_tables(rows: list[dict[str, Any]], output: pathlib.Path) -> None:
    """Write bandwidths.md and .csv: the mean over groups and seeds of each alpha and pooling, with its sd."""
    counts = ("num_empty_windows", "num_zero_bandwidths", "num_unconverged", "num_fallbacks")
    header = ["alpha", "start", "kernel", "bandwidth", "scale", "accuracy", "less the mean's", "test NLL"]
    header.append("distance to the mean, of its step")
    table = [[*header, *(f"share {name[4:].replace('_', ' ')}" for name in counts)]]
    key = lambda row: (row["alpha"], *(row[name] for name in Pooling._fields))
    means = {(row["alpha"], row["seed"], row["group"]): row["accuracy"] for row in rows if row["start"] is None}
    for which in dict.fromkeys(map(key, rows)):
        same = [row for row in rows if key(row) == which]
        alpha, start, kind, bandwidth, scale = which
        gain = [row["accuracy"] - means[row["alpha"], row["seed"], row["group"]] for row in same]
        shares = [f"{np.mean([row[name] for row in same]):.4f}" if name in same[0] else "" for name in counts]
        scores = [mean_and_sd([row[name] for row in same], 3) for name in ("accuracy", "test_nll")]
        scores.insert(1, mean_and_sd(gain, 3) if start else "")
        scores.append(mean_and_sd([row["distance"] for row in same], 3) if start else "")
        table.append([f"{alpha:g}", start or "", kind, bandwidth, f"{scale:g}" if start else "", *scores, *shares])
    write(table, output / "bandwidths")


@click.command()
@click.option("--size", type=click.Choice(list(BANDWIDTH_STUDY)), default="small", show_default=True)
@click.option(
    "--output",
    type=click.Path(path_type=pathlib.Path),
    default=pathlib.Path("runs/kernel_posterior/bandwidths"),
    show_default=True,
)
@click.option(
    "--stacks",
    type=click.Path(path_type=pathlib.Path),
    default=pathlib.Path("runs/kernel_posterior/normality"),
    show_default=True,
    help="Folder of the stacks of the normality study, which are shared.",
)
def main(size: str, output: pathlib.Path, stacks: pathlib.Path) -> None:
    """Train the clients that are missing, pool them, and write the table and the figure."""
    options = BANDWIDTH_STUDY[size]
    output, stacks = output / size, stacks / options["clients_of"]
    cells = {f"alpha={alpha:g}": {**options, "alpha": alpha} for alpha in options["alphas"]}
    try:
        check_cells(cells, output)
        client_stacks.collect(options["clients_of"], stacks, options["seeds"])
    except errors.InvalidArgument as error:
        raise click.UsageError(str(error)) from None
    rows: list[dict[str, Any]] = []
    for name, cell in cells.items():
        run_once(output / name, functools.partial(write_scores, output / name, size, cell, stacks))
        rows += read_summary(output / name)["rows"]
        click.echo(f"{name}: {len(rows)} rows so far")
    write_tables(rows, output)
    write_figures(rows, output / "figures")


if __name__ == "__main__":
    main()
