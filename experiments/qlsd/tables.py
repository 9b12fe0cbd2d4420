"""The tables of the study: errors and variances beside what is known exactly, bits, and every number as CSV."""

from __future__ import annotations

import csv
import itertools
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from experiments.qlsd.config import (
    BUDGET_METHODS,
    LOGISTIC_METHODS,
    PUBLISHED_LOGISTIC,
    TOY_METHODS,
    TOY_STEPS,
)
from experiments.qlsd.figures import budget_figure, toy_figure
from experiments.qlsd.logistic import errors_of
from experiments.tables import write

Summary = dict[str, Any]
Lines = list[list[str]]

REFERENCE = "LSD++"


def write_all(summaries: Sequence[Summary], folder: pathlib.Path) -> None:
    """Writes every table and figure of which there is something, the raw numbers, and what failed."""
    folder.mkdir(parents=True, exist_ok=True)
    write_raw(summaries, folder / "raw.csv")
    write(failures(summaries), folder / "failures")
    toy, logistic, budget = (
        [s for s in summaries if s["options"]["study"] == study and "failed" not in s]
        for study in ("toy", "logistic", "budget")
    )
    if toy:
        write(toy_table(toy), folder / "toy")
        write(bits_table(toy), folder / "toy_bits")
        toy_figure(toy).savefig(folder / "toy.png", dpi=130)
    if any(s["options"]["method"] == REFERENCE for s in logistic):
        write(logistic_table(logistic), folder / "logistic")
        write(quantile_table(logistic), folder / "logistic_quantiles")
    if budget:
        write(budget_table(budget), folder / "budget")
        budget_figure(budget).savefig(folder / "budget.png", dpi=130)


def ordered(summaries: Iterable[Summary], methods: Iterable[str]) -> list[Summary]:
    """In the order of the methods, then of falling steps and rising levels."""
    places = list(methods)
    key = lambda o: (places.index(o["method"]), -o.get("step", 0), o.get("levels", 0))
    return sorted(summaries, key=lambda s: key(s["options"]))


def with_error(value: float, error: float) -> str:
    """Value +- standard error, three digits that count."""
    return f"{value:.3g} +- {error:.1g}"


def toy_table(summaries: Sequence[Summary]) -> Lines:
    """A row for each method and step size: variances and errors of the mean norm, measured and known."""
    head = ["step x L", "method", "variance / posterior's", "closed form", "bias of the norm"]
    head += ["squared error of mean norm", "expected", "an exact sampler as slow", "independent exact draws"]
    head += ["independent draws at twice the variance", "rounds", "kept", "runs"]
    lines = [head]
    for step in TOY_STEPS:
        for s in ordered((s for s in summaries if s["options"]["step"] == step), TOY_METHODS):
            options = s["options"]
            row = [f"{step:g}", options["method"], with_error(s["ratio"], s["ratio_se"]), f"{s['expected_ratio']:.4g}"]
            row += [with_error(s["bias"], s["bias_se"]), with_error(s["error"], s["error_se"])]
            row += [f"{s[name]:.3g}" for name in ("expected_error", "exact_chain", "exact_draws", "twice_the_variance")]
            row += [str(options["rounds"]), str(options["rounds"] - options["burn_in"]), str(options["runs"])]
            lines.append(row)
    return lines


def bits_table(summaries: Sequence[Summary]) -> Lines:
    """Bits of a client's message: bound, entropy and coder, and how many times fewer than without compression."""
    head = ["step x L", "method", "bound", "entropy", "coder", "times fewer, bound", "times fewer, coder"]
    lines = [[*head, "seconds per 1e5 rounds"]]
    for s in ordered(summaries, TOY_METHODS):
        plain = [t["bits_bound"] for t in summaries if t["options"]["compressor"] == "none"]
        row = [f"{s['options']['step']:g}", s["options"]["method"]]
        row += [f"{s[name]:.1f}" for name in ("bits_bound", "bits_entropy", "bits_coder")]
        row += [f"{plain[0] / s[name]:.2f}" if plain else "" for name in ("bits_bound", "bits_coder")]
        lines.append([*row, f"{s['seconds_per_1e5_steps']:.1f}"])
    return lines


def logistic_table(summaries: Sequence[Summary]) -> Lines:
    """A row for each method: errors of the 99 % HPD region against LSD++, its noise against itself, and bits."""
    reference = next(s for s in summaries if s["options"]["method"] == REFERENCE)
    head = [
        "",
        "HPD error of U, same seed",
        "of U, other seeds",
        "of U - min U, same seed",
        "of U - min U, other seeds",
    ]
    head += ["bits by bound", "times fewer by bound", "bits by coder", "times fewer by coder"]
    head += ["published error", "published times fewer"]
    lines = [head]
    for s in ordered(summaries, LOGISTIC_METHODS):
        row = [s["options"]["method"]]
        for name, same in itertools.product(("quantile", "quantile_above_least"), (True, False)):
            row.append(mean_and_spread(errors_of(s[name], reference[name], same)))
        for name in ("bits_bound", "bits_coder"):
            row += [f"{s[name]:.0f}", f"{reference[name] / s[name]:.2f}"]
        published = PUBLISHED_LOGISTIC.get(s["options"]["method"])
        lines.append([*row, *([f"{published[0]:.1e}", f"{published[1]:g}"] if published else ["", ""])])
    return lines


def mean_and_spread(values: Sequence[float]) -> str:
    """Mean (least to most) of errors."""
    return f"{np.mean(values):.1e} ({min(values):.1e} to {max(values):.1e})" if values else ""


def quantile_table(summaries: Sequence[Summary]) -> Lines:
    """A row for each method: what the chains' U - min U are, mean +- sd over seeds."""
    lines = [["", "mean of U - min U", "99 % quantile of U - min U", "99 % quantile of U", "min U", "rounds", "seeds"]]
    for s in ordered(summaries, LOGISTIC_METHODS):
        row = [s["options"]["method"]]
        for name in ("mean_above_least", "quantile_above_least", "quantile"):
            spread = f" +- {np.std(s[name], ddof=1):.2f}" if len(s[name]) > 1 else ""
            row.append(f"{np.mean(s[name]):.2f}{spread}")
        lines.append([*row, f"{s['least']:.2f}", str(s["options"]["rounds"]), str(s["options"]["runs"])])
    return lines


def budget_table(summaries: Sequence[Summary]) -> Lines:
    """A row for each method, step size and number of levels: the error that a budget of bits buys."""
    head = ["method", "step x L", "levels", "bits a round", "rounds", "squared error of mean norm", "expected"]
    lines = [[*head, "variance / posterior's", "runs"]]
    for s in ordered(summaries, BUDGET_METHODS):
        options = s["options"]
        row = [options["method"], f"{options['step']:g}", str(options["levels"]), f"{s['bits_bound']:.0f}"]
        row += [str(s["rounds"]), with_error(s["error"], s["error_se"]), f"{s['expected_error']:.3g}"]
        lines.append([*row, with_error(s["ratio"], s["ratio_se"]), str(options["runs"])])
    return lines


def failures(summaries: Sequence[Summary]) -> Lines:
    """What failed, and why."""
    rows = [
        [s["options"]["study"], s["options"]["method"], *steps_of(s), s["failed"]] for s in summaries if "failed" in s
    ]
    return [["study", "method", "step x L", "levels", "what"], *rows]


def steps_of(summary: Summary) -> list[str]:
    return [f"{summary['options'][key]:g}" if key in summary["options"] else "" for key in ("step", "levels")]


def write_raw(summaries: Sequence[Summary], path: pathlib.Path) -> None:
    """Every number of every cell; several values of one are split by blanks."""
    rows = []
    for s in summaries:
        row = {**s["options"], **{key: value for key, value in s.items() if key != "options"}}
        rows.append({key: " ".join(map(repr, x)) if isinstance(x, list) else x for key, x in row.items()})
    names = list(dict.fromkeys(name for row in rows for name in row))
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
