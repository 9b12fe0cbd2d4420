"""Runs the comparison of aggregation rules: `python -m experiments.rules.run digits`.

Each cell is a run folder; cells that are done are not run again. The tables are written as Markdown and CSV.
"""

from __future__ import annotations

import csv
import json
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import click
import numpy as np

from experiments.rules.config import RULES, STUDIES
from tfp_bfl.config import make_config
from tfp_bfl.run import execute

SCORES = ("accuracy", "nll", "ece", "epistemic_share")


def cells(study: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each cell's name and options."""
    settings = STUDIES[study]
    for variant in settings["variants"]:
        for rule in RULES:
            for seed in settings["seeds"]:
                name = f"{rule}-epochs{variant['local_epochs']}-seed{seed}"
                yield name, {**settings["options"], **variant, "rule": rule, "seed": seed}


def results(folder: pathlib.Path) -> dict[str, Any]:
    """What one run left: its options, final scores, and the median standard deviation after each round."""
    summary = json.loads((folder / "summary.json").read_text())
    rounds = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    seconds = np.median([row["train_seconds"] for row in rounds[1:]])
    config = make_config(folder / "config.yaml", {}).model_dump()
    return {**config, **summary, "stddevs": [row["stddev_median"] for row in rounds], "round_seconds": seconds}


def table(runs: list[dict[str, Any]]) -> list[list[str]]:
    """Mean +- sd over seeds of the scores, a row for each rule and number of local epochs."""
    rows = [["rule", "local epochs", "rounds", *SCORES, "median sd, first and last round", "s a round", "ms a step"]]
    keys = list(dict.fromkeys((run["local_epochs"], run["rule"]) for run in runs))
    for epochs, rule in keys:
        same = [run for run in runs if (run["local_epochs"], run["rule"]) == (epochs, rule)]
        scores = [_mean_and_sd([run[score] for run in same]) for score in SCORES]
        spread = " -> ".join(f"{np.mean([run['stddevs'][i] for run in same]):.2g}" for i in (0, -1))
        speed = [f"{np.median([run[name] for run in same]):.2f}" for name in ("round_seconds", "ms_per_step")]
        rows.append([rule, str(epochs), str(same[0]["rounds"]), *scores, spread, *speed])
    return rows


def spreads(runs: list[dict[str, Any]]) -> list[list[str]]:
    """The median standard deviation after each round, for studies of few rounds."""
    first = [run for run in runs if run["seed"] == runs[0]["seed"]]
    rows = [["rule", *(str(i + 1) for i in range(len(first[0]["stddevs"])))]]
    return rows + [[run["rule"], *(f"{s:.2g}" for s in run["stddevs"])] for run in first]


def _mean_and_sd(values: list[float]) -> str:
    mean = f"{np.mean(values):.4f}"
    return f"{mean} +- {np.std(values, ddof=1):.4f}" if len(values) > 1 else mean


def _write(rows: list[list[str]], path: pathlib.Path) -> None:
    with open(path.with_suffix(".csv"), "w", newline="") as file:
        csv.writer(file).writerows(rows)
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    path.with_suffix(".md").write_text("\n".join(lines) + "\n")


@click.command()
@click.argument("study", type=click.Choice(sorted(STUDIES)))
@click.option(
    "--output", type=click.Path(path_type=pathlib.Path), default=pathlib.Path("runs/rules"), show_default=True
)
def main(study: str, output: pathlib.Path) -> None:
    """Runs every cell of STUDY that is not done, and writes its tables."""
    runs = []
    for name, options in cells(study):
        folder = output / study / name
        if not (folder / "summary.json").exists():
            shutil.rmtree(folder, ignore_errors=True)  # Half a cell, from a run that was killed.
            execute(make_config(None, options), folder)
        runs.append(results(folder))
        run = runs[-1]
        click.echo(f"{name}: " + "  ".join(f"{score} {run[score]:.4f}" for score in SCORES))
    _write(table(runs), output / f"{study}")
    if runs[0]["rounds"] <= 20:
        _write(spreads(runs), output / f"{study}_stddev")


if __name__ == "__main__":
    main()
