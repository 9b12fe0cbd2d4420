"""The tables of the study: mean and sd over seeds, differences paired by seed, controls, curves, and all as raw CSV."""

from __future__ import annotations

import csv
import itertools
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from experiments.global_posterior.config import BASELINE, CURVE_METHODS, METHODS, PLAN, PUBLISHED_METHODS, VARIANTS
from experiments.global_posterior.figures import curve_figure
from experiments.tables import less, mean_and_sd, write

Summary = dict[str, Any]
Row = dict[str, Any]

# Column -> whether more is better; None where neither is.
SCORES = {
    "accuracy": True,
    "nll": False,
    "ece": False,
    "brier": False,
    "error_auroc": True,
    "ood_auroc_entropy": True,
    "ood_auroc_epistemic": True,
    "ood_auroc_mutual_information": True,
    "retention_area": True,
    "nll_fitted": False,
    "ece_fitted": False,
}
NEW = "ood_auroc_mutual_information"  # Older records are without it.
SPREAD = (
    "epistemic",
    "epistemic_share",
    "sd_q05",
    "sd_median",
    "sd_q95",
    "log_sd_ratio",
    "log_sd_ratio_within",
    "share_at_prior",
)
LOST = ("nll", "nll_permuted", "nll_permuted_sd", "permutation_costs", "nll_of_means")
COSTS = ("train_seconds", "train_cpu_seconds", "megabytes_a_round")
IDENTITY = ("row", "dataset", "method", "partition", "variant", "seed")
# Dropout against none; whether what keeps its spread has less NLL than what loses it; sites against none.
PAIRS = (("mc_dropout", "fed_avg"), ("former_naive_average", "former_conflation"))
PAIRS += tuple((sites, "curvature_0.05") for sites in ("partitioned_vi", "bayesian_admm"))
PAIRED = ("accuracy", "nll", "ece")
# Rounds of a curve that its table shows.
SHOWN = (20, 40, 60, 100, 160, 240, 320, 400, 500)
IN_TABLE = ("accuracy", "test_nll", "ece", "nll_fitted", "ece_fitted", "error_auroc", "ood_auroc_entropy")
IN_TABLE += ("ood_auroc_epistemic", NEW, "train_cpu_seconds")


def rows_of(summaries: Iterable[Summary]) -> list[Row]:
    """Return a row for each set of scores, with the options of its cell and the cost of training."""
    rows = []
    for summary in summaries:
        options, training = summary["options"], summary.get("training", {})
        for name, scores in summary.get("rows", {}).items():
            same = {key: options[key] for key in IDENTITY[1:]}
            costs = {key: training[key] for key in COSTS[:2]}
            row = {"row": name, **same, **scores, **costs, "megabytes_a_round": training["bytes_a_round"] / 1e6}
            row |= {key: training[key] for key in ("faulty", "collapsed_in_round")}
            if "nll_permuted" in row:
                row["permutation_costs"] = row["nll_permuted"] - row["nll"]
            rows.append(row)
    return rows


def write_all(summaries: list[Summary], folder: pathlib.Path) -> None:
    """Write every table of which there is something, the raw numbers and the figure."""
    rows, curves = rows_of(summaries), [s for s in summaries if "curve" in s]
    write_raw(rows, folder / "raw.csv")
    write_failures(summaries, folder / "failures")
    of_all = [row for row in rows if row["variant"] == "all"]
    groups: dict[str, list[Row]] = {}
    for row in of_all:
        groups.setdefault(f"{row['dataset']}-{row['partition']}", []).append(row)
    for group, here in groups.items():
        name = group.removeprefix("fashion_mnist-").replace(":", "_").replace(".", "_")
        write(table(here, tuple(SCORES)), folder / f"scores-{name}")
        write(differences(here), folder / f"differences-{name}")
        write(table(here, SPREAD, digits=None), folder / f"spread-{name}")
        write(table([row for row in here if "nll_permuted" in row], LOST), folder / f"permutation-{name}")
        write(table(here, COSTS, digits=1), folder / f"costs-{name}")
    write(pairs_table(groups), folder / "pairs")
    controls = controls_table(rows)
    if len(controls) > 1:
        write(controls, folder / "controls")
    if curves:
        write(curves_table(curves), folder / "curves")
        write_raw([{**s["options"], **row} for s in curves for row in s["curve"]], folder / "raw_curves.csv")
        curve_figure(curves).savefig(folder / "curves.png", dpi=130)


def table(rows: list[Row], columns: tuple[str, ...], digits: int | None = 4) -> list[list[str]]:
    """Return mean and sd over seeds by row; with no digits, three that count, of the mean alone."""
    columns = recorded(rows, columns)
    lines = [["", *columns, "seeds"]]
    for name, same in by_row(rows).items():
        cells = []
        for column in columns:
            values = [row[column] for row in same if row.get(column) is not None]
            text = f"{np.mean(values):.3g}" if values and digits is None else ""
            cells.append(mean_and_sd(values, digits or 0) if values and digits is not None else text)
        lines.append([name, *cells, str(len(same))])
    return lines


def recorded(rows: list[Row], columns: Iterable[str]) -> tuple[str, ...]:
    """Return the columns without scores that no row has recorded."""
    return tuple(name for name in columns if name != NEW or any(row.get(name) is not None for row in rows))


def differences(rows: list[Row]) -> list[list[str]]:
    """Return each row less the baseline of the same seed, with the 95 % interval of other seeds.

    The baseline has no epistemic part: detection by that is compared with the baseline's detection by entropy.
    """
    columns = recorded(rows, SCORES)
    lines = [["", *columns, "seeds"]]
    groups = by_row(rows)
    base = groups.pop(BASELINE, [])
    for name, same in groups.items():
        seeds = len(of_seeds(same, "nll").keys() & of_seeds(base, "nll").keys())
        as_for = dict.fromkeys(("ood_auroc_epistemic", NEW), "ood_auroc_entropy")
        cells = [less(of_seeds(same, column), of_seeds(base, as_for.get(column, column))) for column in columns]
        lines += [[name, *cells, str(seeds)]] if seeds else []
    return lines


def pairs_table(groups: dict[str, list[Row]]) -> list[list[str]]:
    """Return the differences behind published claims: one row less another, in each setting that has both."""
    lines = [["", "less", "where", *PAIRED, "seeds"]]
    for (first, second), (where, rows) in itertools.product(PAIRS, groups.items()):
        both = [[row for row in rows if row["row"] == name] for name in (first, second)]
        cells = [less(*(of_seeds(own, column) for own in both)) for column in PAIRED]
        seeds = len(of_seeds(both[0], "nll").keys() & of_seeds(both[1], "nll").keys())
        lines += [[first, second, where, *cells, str(seeds)]] if seeds else []
    return lines


def of_seeds(rows: list[Row], column: str) -> dict[int, float]:
    """Return seed -> score, of the seeds that have it."""
    return {row["seed"]: row[column] for row in rows if row.get(column) is not None}


def controls_table(rows: list[Row]) -> list[list[str]]:
    """Return the methods of the controls on each variant of the data."""
    methods = {method for block in PLAN if "variants" in block for method in block["methods"]}  # type: ignore
    columns = ("accuracy", "nll", "epistemic", "epistemic_share", "sd_q05", "sd_median", "sd_q95", "log_sd_ratio")
    lines = [["", "partition", "data", *columns, "seeds"]]
    cell = lambda row: (row["dataset"], row["partition"])
    for dataset, partition in dict.fromkeys(cell(row) for row in rows if row["variant"] != "all"):
        for variant in VARIANTS:
            of_cell = [r for r in rows if (*cell(r), r["variant"]) == (dataset, partition, variant)]
            same = [r for r in of_cell if r["row"] in methods]
            lines += [[row[0], partition, variant, *row[1:]] for row in table(same, columns)[1:]]
    return lines


def curves_table(curves: list[Summary]) -> list[list[str]]:
    """Return scores at some rounds of the long runs, and the CPU seconds of training up to there."""
    lines = [["data", "method", "", *map(str, SHOWN)]]
    order = list(CURVE_METHODS)
    for summary in sorted(curves, key=lambda s: (s["options"]["dataset"], order.index(s["options"]["method"]))):
        by_round = {row["round"]: row for row in summary["curve"]}
        start = [summary["options"]["dataset"], summary["options"]["method"]]
        for name in (name for name in IN_TABLE if any(name in row for row in summary["curve"])):
            lines.append([*start, name, *(f"{by_round[r][name]:.4g}" if r in by_round else "" for r in SHOWN)])
    return lines


def by_row(rows: list[Row]) -> dict[str, list[Row]]:
    """Return the rows that differ by their seed alone, in the order of the config."""
    order = [*METHODS, *PUBLISHED_METHODS, *(row["row"] for row in rows)]
    groups: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (order.index(row["method"]), row["seed"])):
        groups.setdefault(row["row"], []).append(row)
    return groups


def write_failures(summaries: list[Summary], path: pathlib.Path) -> None:
    """Write the failures with their messages, the rounds without clients, and the collapsed posteriors."""
    lines = [["dataset", "method", "partition", "data", "seed", "what happened"]]
    for summary in summaries:
        options, training = summary["options"], summary.get("training", {})
        happened = [summary["failed"].replace("\n", " ").replace("|", "/")] if "failed" in summary else []
        if training.get("faulty"):
            happened.append(f"{training['faulty']} times a client was left out as faulty")
        if training.get("collapsed_in_round"):
            happened.append(f"the posterior collapsed in round {training['collapsed_in_round']}")
        same = [str(options.get(key, "curve")) for key in ("dataset", "method", "partition", "variant", "seed")]
        lines += [[*same, "; ".join(happened)]] if happened else []
    write(lines, path)


def write_raw(rows: list[Row], path: pathlib.Path) -> None:
    """Write every number of every row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = list(
        dict.fromkeys([*(n for n in IDENTITY if rows and n in rows[0]), *(name for row in rows for name in row)])
    )
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
