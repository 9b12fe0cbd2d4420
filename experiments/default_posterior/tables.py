"""The tables of the study: scores, differences paired by seed, trials and temperatures."""

from __future__ import annotations

import itertools
import pathlib
from collections import defaultdict
from typing import Any

import numpy as np

from experiments.default_posterior.config import METHODS, SHARES, SIZES, TEMPERATURE_SEEDS, TEMPERATURES
from experiments.default_posterior.controls import controls_table, detection_table, parts_table
from experiments.tables import interval, less, mean_and_sd, paired, write

Record = dict[str, Any]
Groups = dict[str, dict[str, dict[int, Record]]]
COLUMNS = ("accuracy", "nll", "ece", "nll_fitted", "ece_fitted", "error_auroc", "ood_auroc_entropy")
COLUMNS += ("ood_auroc_epistemic", "ood_auroc_mutual_information")
# Whose differences to all other methods are shown: what a user gets, and the row with averaged rounds.
REFERENCES = ("default", "variational_inverse")
# Methods whose NLL is with a fitted softmax temperature.
FITTED = ("fed_avg_momentum", "fed_avg_adam", "mc_dropout", "ensemble_5", "ensemble_5_equal_cost")


def write_all(records: dict[str, Record], folder: pathlib.Path) -> None:
    """Write every table of which there is something."""
    done = {name: record for name, record in records.items() if "rows" in record}
    tables = {"trials": trials_table, "temperatures": temperature_table, "controls": controls_table}
    tables |= {"detection": detection_table, "parts": parts_table}
    for name, lines in ((name, table(done)) for name, table in tables.items()):
        if len(lines) > 1:
            write(lines, folder / name)
    for where, methods in grouped(done).items():
        where = where.replace(".", "_")
        write(scores_table(methods), folder / f"scores-{where}")
        write(differences_table(methods), folder / f"differences-{where}")


def grouped(done: dict[str, Record]) -> Groups:
    """Return setting -> method -> seed -> rows of a cell; data other than Fashion-MNIST stand before the partition."""
    groups: Groups = defaultdict(lambda: defaultdict(dict))
    for name, record in done.items():
        kind, *rest = name.split(",")
        if kind in ("study", "cifar10", "digits"):
            method, partition, seed = rest
            where = partition if kind == "study" else f"{kind}-{partition}"
            groups[where][method][int(seed.removeprefix("seed="))] = record["rows"]
    return groups


def of_seeds(rows: dict[int, Record], which: str, column: str) -> dict[int, float]:
    """Return seed -> score of a row, of the seeds that have it."""
    return {seed: row[which][column] for seed, row in rows.items() if row[which].get(column) is not None}


def shown_of(method: str) -> str:
    """Return which weights of a method the page shows: the default has its last round alone, others their average."""
    return "averaged" if METHODS[method] else "last"


def scores_table(methods: dict[str, dict[int, Record]]) -> list[list[str]]:
    """Return mean and standard deviation over seeds."""
    known = {column for rows in methods.values() for row in rows.values() for of in row.values() for column in of}
    columns = [column for column in COLUMNS if column in known]  # Older records are without the last.
    lines = [["method", "weights", *columns, "seeds"]]
    for method in (name for name in METHODS if name in methods):
        for which in ("last", "averaged") if METHODS[method] else ("last",):
            values = [list(of_seeds(methods[method], which, column).values()) for column in columns]
            cells = [mean_and_sd(x, 4) if x else "" for x in values]
            lines.append([method, which, *cells, str(len(methods[method]))])
    return lines


def differences_table(methods: dict[str, dict[int, Record]]) -> list[list[str]]:
    """Return each reference less each baseline, paired by seed, with 95 % intervals: the baselines' NLL and ECE are
    fitted.
    """
    lines = [["method", "less", "weights", "accuracy", "nll", "nll, both fitted", "ece", "seeds"]]
    for reference, method in itertools.product(REFERENCES, METHODS):
        own, other = methods.get(reference, {}), methods.get(method, {})
        seeds = len(own.keys() & other.keys())
        if not seeds or reference == method or method == REFERENCES[0]:
            continue
        for which in ("last", "averaged"):
            of_own = which if METHODS[reference] else "last"
            fitted = "_fitted" if method in FITTED else ""
            pairs = (
                *(("accuracy", "accuracy"), ("nll", "nll" + fitted)),
                *(("nll_fitted", "nll_fitted"), ("ece", "ece" + fitted)),
            )
            less = [paired(of_seeds(own, of_own, a), of_seeds(other, which, b)) for a, b in pairs]
            lines.append([reference, method, which, *(interval(x) if x else "" for x in less), str(seeds)])
    return lines


def trials_table(done: dict[str, Record]) -> list[list[str]]:
    """Return NLL of held-out training images by trial: as it is for the variational rows, fitted for the others."""
    found: dict[tuple[str, str], dict[str, Record]] = defaultdict(dict)
    for name, record in done.items():
        if name.startswith("trial,"):
            _, method, *trial, partition = name.split(",")
            found[method, ", ".join(trial)][partition] = record["rows"]
    partitions = sorted({partition for rows in found.values() for partition in rows})
    lines = [
        ["method", "trial", *(f"{partition}, {which}" for partition in partitions for which in ("last", "averaged"))]
    ]
    for (method, trial), rows in found.items():
        column = "nll_fitted" if method in FITTED else "nll"
        of = lambda p, which: f"{rows[p][which][column]:.4f}" if p in rows else ""  # noqa: B023
        lines.append([method, trial, *(of(p, which) for p in partitions for which in ("last", "averaged"))])
    return lines


def temperature_table(done: dict[str, Record]) -> list[list[str]]:
    """Return NLL of held-out training images by data, share of them and posterior temperature: the mean over the seeds
    that all temperatures have, with the lowest in bold, and differences to it with intervals, paired by seed.
    """
    lines = [["data", "share", "seeds", *(f"T = {t:g}" for t in TEMPERATURES)]]
    for data in SIZES:
        for share in SHARES:
            of = lambda seed: [f"temperature,{data},{share:.2g},{t:g},seed={seed}" for t in TEMPERATURES]  # noqa: B023
            seeds = [seed for seed in TEMPERATURE_SEEDS if all(name in done for name in of(seed))]
            nll = lambda name: done[name]["rows"]["averaged"]["nll"]
            values = [dict(zip(seeds, map(nll, names))) for names in zip(*map(of, seeds))]
            if seeds:
                means = [float(np.mean([*x.values()])) for x in values]
                best = values[int(np.argmin(means))]
                more = lambda x: "" if len(seeds) < 2 or x is best else f" ({less(x, best).strip('*')})"  # noqa: B023
                texts = [f"**{m:.4f}**" if x is best else f"{m:.4f}{more(x)}" for m, x in zip(means, values)]
                lines.append([data, f"{share:.2g}", str(len(seeds)), *texts])
    return lines
