"""The tables of the study: mean and standard deviation over seeds."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np

from experiments.tables import mean_and_sd, write
from tfp_bfl.app.config import make_config
from tfp_bfl.evaluation import area_under_retention_curve, retention_curve

Run = dict[str, Any]

UNCERTAINTIES = ("entropy", "aleatoric", "epistemic")
# Retention: the area under the curve of accuracy on the surest examples, less the accuracy.
RETENTION = tuple(f"retention by {name}" for name in UNCERTAINTIES)
SCORES = ("accuracy", "nll", "ece", "brier", "epistemic_share", *RETENTION)
# What tells the rows of a table apart; those that are the same in all of its rows are left out.
KEYS = (
    "partition",
    "kind",
    "clients",
    "rule",
    "weighting",
    "initial_stddev",
    "pretrain_share",
    "update_prior",
    "pretrained",
    "local_epochs",
    "rounds",
)


def read_cell(folder: pathlib.Path) -> Run:
    """What one run left: its options, final scores, each round's metrics, and its folder."""
    summary = json.loads((folder / "summary.json").read_text())
    rounds = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    scores = {"nll": summary.get("test_nll"), **summary, **retention(folder)}  # Older runs called it as the tables do.
    return {**make_config(folder / "config.yaml", {}).model_dump(), **scores, "per_round": rounds, "folder": folder}


def retention(folder: pathlib.Path) -> dict[str, float]:
    """By how much more accuracy there is on the surest examples, over all shares of them: 0 of what knows nothing."""
    with np.load(folder / "predictions.npz") as arrays:
        curves = [retention_curve(arrays["probabilities"], arrays["labels"], arrays[name]) for name in UNCERTAINTIES]
    # The least share of a curve is 1 / P: a curve at the level of the accuracy has the area of the accuracy.
    return {n: float(area_under_retention_curve(c)) - float(c.accuracy[-1]) for n, c in zip(RETENTION, curves)}


def grouped(runs: list[Run]) -> dict[tuple[Any, ...], list[Run]]:
    """The runs that differ by their seed alone, by their values of `KEYS`."""
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(run[key] for key in KEYS), []).append(run)
    return groups


def labelled(runs: list[Run]) -> tuple[list[str], list[tuple[list[str], list[Run]]]]:
    """The keys that tell the settings of a table apart, and each setting's values of them with its runs."""
    groups = grouped(runs)
    shown = [i for i, key in enumerate(KEYS) if len({values[i] for values in groups}) > 1 or key == "rule"]
    return [KEYS[i] for i in shown], [([str(values[i]) for i in shown], same) for values, same in groups.items()]


def spread_of(runs: list[Run]) -> list[float]:
    """The median standard deviation after each round, averaged over seeds; empty without a posterior."""
    rows = [[row["stddev_median"] for row in run["per_round"] if "stddev_median" in row] for run in runs]
    return np.mean(rows, 0).tolist() if all(rows) else []


def scores_table(runs: list[Run]) -> list[list[str]]:
    """A row for each setting, its scores over seeds, and the seconds of a run."""
    keys, settings = labelled(runs)
    rows = [[*keys, *SCORES, "seeds", "median sd, first and last round", "s a run"]]
    for values, same in settings:
        spread = spread_of(same)
        scores = [mean_and_sd([run[score] for run in same]) for score in SCORES]
        ends = f"{spread[0]:.2g} -> {spread[-1]:.2g}" if spread else ""
        seconds = f"{np.median([run['seconds'] for run in same]):.0f}"
        rows.append([*values, *scores, str(len(same)), ends, seconds])
    return rows


def spread_table(runs: list[Run]) -> list[list[str]]:
    """Accuracy and the median standard deviation after each evaluated round, averaged over seeds."""
    keys, settings = labelled(runs)
    rows = [[*keys, "round", "accuracy", "median sd"]]
    for values, same in settings:
        spread = spread_of(same)
        for i, row in enumerate(same[0]["per_round"]):
            if "accuracy" in row:
                accuracy = np.mean([run["per_round"][i]["accuracy"] for run in same])
                sd = f"{spread[i]:.3g}" if spread else ""
                rows.append([*values, str(row["round"]), f"{accuracy:.4f}", sd])
    return rows


def write_tables(table: str, runs: list[Run], output: pathlib.Path) -> None:
    write(scores_table(runs), output / table)
    write(spread_table(runs), output / f"{table}_rounds")
