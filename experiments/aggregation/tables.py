"""The tables of the study: mean and standard deviation over seeds."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.records import Record
from experiments.tables import mean_and_sd, write
from tfp_bfl.app.one_run.records import HELD_OUT
from tfp_bfl.app.options.config import RunConfig, make_config
from tfp_bfl.evaluation import negative_log_likelihood, retention_curve

Run = dict[str, Any]

UNCERTAINTIES = ("entropy", "aleatoric", "epistemic")
# Retention: the area under the curve of accuracy on the surest examples, less the accuracy.
RETENTION = tuple(f"retention by {name}" for name in UNCERTAINTIES)
OF_ROUNDS = ("round", "accuracy", "test_nll", "stddev_median", "kept_weights")
OF_STARTS = ("pretrained_epochs", "pretrained_test_accuracy", "pretrained_test_nll")
OF_TRIALS = ("train_nll", "held_out_nll")
SCORES = ("accuracy", "nll", "ece", "brier", "epistemic_share", *RETENTION)
# Options in which the rows of a table may differ; options with one value in all rows are left out.
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
    "output_dropout",
    "optimizer",
    "learning_rate",
    "local_epochs",
    "rounds",
)


def read_cell(folder: pathlib.Path) -> Record:
    """Read the record of a run: its final scores, the scores of evaluated rounds, and its retention curves."""
    summary = json.loads((folder / "summary.json").read_text())
    if "failed" in summary:
        return {"failed": summary["failed"]}
    rounds = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [{name: row[name] for name in OF_ROUNDS if name in row} for row in rounds]
    found = {"nll": summary.get("test_nll"), **summary}  # Older runs called it as the tables do.
    curves = curves_of(folder)
    # Of a run in several pieces, the summary has the seconds of the last: all rounds took as long as that at least.
    found["seconds"] = max(found["seconds"], sum(row.get("seconds", 0.0) for row in rounds))
    found["train_nll"] = rounds[-1].get("nll")
    if (folder / HELD_OUT).is_file():
        with np.load(folder / HELD_OUT) as arrays:
            found["held_out_nll"] = float(negative_log_likelihood(arrays["probabilities"], arrays["labels"]))
    return {
        **{name: found[name] for name in (*SCORES, *OF_STARTS, *OF_TRIALS, "seconds") if found.get(name) is not None},
        # The least share of a curve is 1 / P: a curve at the level of the accuracy has the area of the accuracy.
        **{f"retention by {name}": float(np.mean(curve)) - curve[-1] for name, curve in curves.items()},
        "curves": curves,
        "per_round": [row for row in rows if "accuracy" in row or row["round"] == 1],
    }


def curves_of(folder: pathlib.Path) -> dict[str, list[float]]:
    """Return accuracy on the surest examples, for growing shares of them, by each uncertainty."""
    with np.load(folder / "predictions.npz") as arrays:
        curves = [retention_curve(arrays["probabilities"], arrays["labels"], arrays[name]) for name in UNCERTAINTIES]
    return {name: [float(x) for x in curve.accuracy] for name, curve in zip(UNCERTAINTIES, curves)}


def run_of(record: Record) -> Run:
    """Return a record with all options of its run, those that its cell does not name too."""
    return {**config_of(record["options"]).model_dump(), **record}


def config_of(options: Mapping[str, Any]) -> RunConfig:
    return make_config(None, {name: value for name, value in options.items() if value is not None})


def grouped(runs: list[Run]) -> dict[tuple[Any, ...], list[Run]]:
    """Return the runs that differ by their seed alone, by their values of `KEYS`."""
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(run[key] for key in KEYS), []).append(run)
    return groups


def labelled(runs: list[Run]) -> tuple[list[str], list[tuple[list[str], list[Run]]]]:
    """Return the keys in which the settings of a table differ, and each setting's values of them with its runs."""
    groups = grouped(runs)
    shown = [i for i, key in enumerate(KEYS) if len({values[i] for values in groups}) > 1 or key == "rule"]
    return [KEYS[i] for i in shown], [([str(values[i]) for i in shown], same) for values, same in groups.items()]


def spread_of(runs: list[Run]) -> list[float]:
    """Return the median standard deviation after each round, averaged over seeds; empty without a posterior."""
    rows = [[row["stddev_median"] for row in run["per_round"] if "stddev_median" in row] for run in runs]
    return np.mean(rows, 0).tolist() if all(rows) else []


def scores_table(runs: list[Run]) -> list[list[str]]:
    """Return a row for each setting, its scores over seeds, and the seconds of a run."""
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
    """Return accuracy and the median standard deviation after each evaluated round, averaged over seeds."""
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
