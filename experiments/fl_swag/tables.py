"""The tables of the study: means and standard deviations over seeds, beside the published numbers."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from experiments.fl_swag.config import BASELINE, CORRECTED, DEFAULT_FLOOR, PUBLISHED, PUBLISHED_CALIBRATION
from experiments.records import Record
from experiments.tables import interval, mean_and_sd, paired, write
from tfp_bfl.bench.cells import read_summary

Run = dict[str, Any]
Scores = dict[str, Any]

SCORES = {
    "accuracy": "accuracy",
    "test_nll": "nll",
    "ece": "ece",
    "brier": "brier",
    "epistemic_share": "epistemic share",
}
CLIENTS = ("client, lowest", "client, mean", "client, highest")


def read_cell(folder: pathlib.Path) -> Record:
    """Read the record of a cell: all scores of its rows, and the other columns of the tables."""
    return {name: x for name, x in read_summary(folder).items() if name not in ("options", "server")}


def row_name(method: str, floor: float | None) -> str:
    """Return a row's name with its floor, if it has one."""
    return method if floor is None else f"{method}, {floor:g}"


def rows_of(run: Run) -> list[Scores]:
    """Return the rows of a cell with their share of epistemic uncertainty; instead of each client the lowest, mean,
    highest.

    Lowest and highest are single clients by accuracy, with all their scores.
    """
    rows = [{**row, "epistemic_share": _share(row)} for row in run["rows"]]
    clients = [row for row in rows if row["method"].startswith("client ")]
    rows = [row for row in rows if row not in clients]
    for floor in dict.fromkeys(row["floor"] for row in clients):
        own = sorted((row for row in clients if row["floor"] == floor), key=lambda row: row["accuracy"])
        mean = {name: np.mean([row[name] for row in own]) for name in (*SCORES, "seconds")}
        summaries = zip(CLIENTS, (own[0], mean, own[-1]))
        rows += [{**row, "method": name, "floor": floor} for name, row in summaries]
    return rows


def _share(row: Scores) -> float:
    total = row["aleatoric"] + row["epistemic"]
    return row["epistemic"] / total if total else 0.0


def has_predictions(run: Run) -> bool:
    """Return whether the folder of the cell still exists."""
    return (run["folder"] / "predictions.npz").exists()


def by_dataset(runs: Iterable[Run], *more: str) -> dict[tuple[Any, ...], list[Run]]:
    """Return the runs of each setting and dataset, and of each value of other options."""
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(run["options"][name] for name in ("setting", "dataset", *more)), []).append(run)
    return groups


def by_method(runs: Iterable[Run]) -> dict[tuple[str, Any], list[Scores]]:
    """Return the rows of each method and floor, one a seed."""
    groups: dict[tuple[str, Any], list[Scores]] = {}
    for run in runs:
        for row in rows_of(run):
            train = run.get("train_seconds", 0.0)
            groups.setdefault((row["method"], row["floor"]), []).append({**row, "train_seconds": train})
    return groups


def scores_table(runs: list[Run], *more: str) -> list[list[str]]:
    """Return a row for each dataset, value of other options, method and floor of the variances."""
    header = ["setting", "dataset", *more, "method", "floor", *SCORES.values(), "published accuracy, %"]
    table = [[*header, "seeds", "s to train", "s to pool and predict"]]
    for (setting, dataset, *others), same in by_dataset(runs, *more).items():
        published = PUBLISHED.get((setting, dataset), {})
        for (method, floor), rows in by_method(same).items():
            scores = [mean_and_sd([row[score] for row in rows]) for score in SCORES]
            seconds = [f"{np.median([row[name] for row in rows]):.1f}" for name in ("train_seconds", "seconds")]
            if method == "weights at the start":
                seconds[0] = "0.0"
            where = [setting, dataset, *map(str, others), method, "" if floor is None else f"{floor:g}"]
            table.append(
                [*where, *scores, published.get(method, "") if floor in (None, 1e-6) else "", str(len(rows)), *seconds]
            )
    return table


def calibration_table(runs: list[Run]) -> list[list[str]]:
    """Return ECE x 100, Brier x 10 and NLL x 10 of each method, beside the published ones of FL-SWAG."""
    columns = {"ece x 100": ("ece", 100), "brier x 10": ("brier", 10), "nll x 10": ("test_nll", 10)}
    table = [["dataset", "method", "floor", *columns, "seeds"]]
    for (setting, dataset), same in by_dataset(runs).items():
        if setting == "shared_features" and dataset in PUBLISHED_CALIBRATION:
            published = [f"{x}" for x in PUBLISHED_CALIBRATION[dataset].values()]
            table.append([dataset, "FL-SWAG as published", "", *published, ""])
        for (method, floor), rows in by_method(same).items():
            scores = [mean_and_sd([scale * row[name] for row in rows], 2) for name, scale in columns.values()]
            table.append([dataset, method, "" if floor is None else f"{floor:g}", *scores, str(len(rows))])
    return table


def _training(run: Run) -> list[str]:
    """Return epochs, burn-in, and the rate or step size."""
    options = run["options"]
    rate = options["step_size"] if "sampler" in options else options["learning_rate"]
    return [str(options["local_epochs"]), str(options["burn_in_epochs"]), f"{rate:g}"]


def trainings_table(runs: list[Run]) -> list[list[str]]:
    """Return a row for each training, method and floor of one seed, to choose hyper-parameters and burn-in."""
    table = [["setting", "dataset", "epochs", "burn-in", "rate", "method", "floor", *SCORES.values(), "s to train"]]
    for run in runs:
        options, training = run["options"], _training(run)
        for row in rows_of(run):
            floor = "" if row["floor"] is None else f"{row['floor']:g}"
            scores = [f"{row[score]:.4f}" for score in SCORES]
            where = [options["setting"], options["dataset"], *training, row["method"], floor]
            table.append([*where, *scores, f"{run['train_seconds']:.1f}"])
    return table


def geometry_table(runs: list[Run]) -> list[list[str]]:
    """Return distances of clients and products from theta_0, and widths along the clients' displacements."""
    names = tuple(runs[0]["geometry"])
    header = ["setting", "dataset", "epochs", "burn-in", "rate", *(name.replace("_", " ") for name in names)]
    table = [[*header, "product", "floor", "product moved", "accuracy"]]
    for run in runs:
        options = run["options"]
        accuracy = {(row["method"], row["floor"]): row["accuracy"] for row in run["rows"]}
        where = [options["setting"], options["dataset"], *_training(run)]
        where += [f"{run['geometry'][name]:.3g}" for name in names]
        for key, moved in run["moved"].items():
            method, _, floor = key.rpartition(", ")
            table.append([*where, method, floor, f"{moved:.3g}", f"{accuracy[method, float(floor)]:.4f}"])
    return table


def choice_table(runs: list[Run]) -> list[list[str]]:
    """Return the training and floor of the smallest NLL for each dataset: of FL-SWAG, and of the others."""
    table = [["setting", "dataset", "by the NLL of", "epochs", "burn-in", "rate", "floor", "accuracy", "nll"]]
    for (setting, dataset), same in by_dataset(runs).items():
        for method in ("FL-SWAG", "FL-SWAG, diagonal", CORRECTED, "FedAvg", BASELINE, "sgld", "psgld"):
            found = [(row["test_nll"], i, row) for i, run in enumerate(same) for row in run["rows"]]
            found = [one for one in found if one[2]["method"] == method]
            if not found:
                continue
            nll, i, row = min(found, key=lambda one: one[0])
            training = _training(same[i])
            floor = "" if row["floor"] is None else f"{row['floor']:g}"
            table.append([setting, dataset, method, *training, floor, f"{row['accuracy']:.4f}", f"{nll:.4f}"])
    return table


def truth_table(runs: list[Run]) -> list[list[str]]:
    """Return the distances of each method's test predictions from those of the No-U-Turn chains.

    total variation: mean_b 1/2 sum_c |p_bc - nuts_bc|;   agreement: how often the two name the same class.
    """
    table = [["setting", "dataset", "method", "floor", "total variation", "agreement", "acceptance", "R-hat"]]
    for (setting, dataset, _), same in by_dataset(runs, "seed").items():
        same = [run for run in same if has_predictions(run)]
        for truth in (run for run in same if run["options"].get("sampler") == "nuts"):
            reduction = truth["scale_reduction"]
            facts = [f"{np.mean(truth['acceptance_rate']):.2f}", f"{reduction['median']:.2f}, {reduction['most']:.2f}"]
            with np.load(truth["folder"] / "predictions.npz") as arrays:
                wanted = arrays["nuts"]
            for run in same:
                with np.load(run["folder"] / "predictions.npz") as arrays:
                    for row in run["rows"]:
                        p = arrays[row_name(row["method"], row["floor"])]
                        apart = f"{np.abs(p - wanted).sum(-1).mean() / 2:.4f}"
                        alike = f"{np.mean(p.argmax(-1) == wanted.argmax(-1)):.4f}"
                        floor = "" if row["floor"] is None else f"{row['floor']:g}"
                        table.append([setting, dataset, row["method"], floor, apart, alike, *facts])
                        facts = ["", ""]
    return table


def pairs_table(runs: list[Run], *more: str) -> list[list[str]]:
    """Return FL-SWAG's corrected product less each other method, by seed: mean differences with 95 % intervals."""
    scores = {"accuracy": 100.0, "test_nll": 1.0, "ece": 1.0}
    table = [
        ["setting", "dataset", *more, "FL-SWAG, corrected less", "floor", "accuracy, points", "NLL", "ECE", "seeds"]
    ]
    for (setting, dataset, *others), same in by_dataset(runs, *more).items():
        found: dict[tuple[str, Any], dict[int, Scores]] = {}
        for run in same:
            for row in rows_of(run):
                found.setdefault((row["method"], row["floor"]), {})[run["options"]["seed"]] = row
        own = found.pop((CORRECTED, DEFAULT_FLOOR), {})
        of = lambda rows, score: {seed: row[score] for seed, row in rows.items()}
        for (method, floor), rows in found.items():
            differences = {score: paired(of(own, score), of(rows, score)) for score in scores}
            if all(differences.values()):
                shown = [
                    interval(d, 2 if score == "accuracy" else 4, scores[score]) for score, d in differences.items()
                ]
                where = [setting, dataset, *map(str, others), method, "" if floor is None else f"{floor:g}"]
                table.append([*where, *shown, str(differences["test_nll"].number)])
    return table


def write_tables(table: str, runs: list[Run], output: pathlib.Path) -> None:
    """Write the tables of the runs of a table."""
    more = ("local_epochs",) if table == "drift" else ("limit", "shuffled") if table == "examples" else ()
    if len(pairs := pairs_table(runs, *more)) > 1:
        write(pairs, output / f"{table}_pairs")
    of_one_seed = table in ("choice", "momentum_choice", "central_choice", "burn_in")
    write(trainings_table(runs) if of_one_seed else scores_table(runs, *more), output / table)
    if table in ("choice", "momentum_choice", "central_choice"):
        write(choice_table(runs), output / f"{table}_chosen")
    elif table in ("burn_in", "whole_model", "drift"):
        write(geometry_table([run for run in runs if "geometry" in run]), output / f"{table}_geometry")
    elif table != "examples":
        write(calibration_table(runs), output / f"{table}_calibration")
        if len(truth := truth_table(runs)) > 1:
            write(truth, output / f"{table}_truth")
