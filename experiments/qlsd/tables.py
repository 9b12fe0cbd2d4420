"""The tables of the study: errors and variances beside what is known exactly, and bits."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from experiments.qlsd.config import (
    BUDGET_METHODS,
    CONSISTENCY_METHODS,
    COVERTYPE_METHODS,
    LOGISTIC_METHODS,
    LOGISTIC_RIVALS,
    LOGISTICS,
    MEMORY_METHODS,
    NETWORK_METHODS,
    NETWORKS,
    PREDICTED,
    PUBLISHED_COVERTYPE,
    PUBLISHED_LOGISTIC,
    PUBLISHED_NETWORKS,
    TOY_METHODS,
    TOY_STEPS,
)
from experiments.qlsd.figures import budget_figure, memory_figure, prediction_figures, toy_figure
from experiments.qlsd.logistic import errors_of
from experiments.qlsd.memory import apart, variances
from experiments.tables import less, write

Summary = dict[str, Any]
Lines = list[list[str]]

REFERENCE = "LSD++"
TRUTH = "HMC"
PAIRED_WITH = ("SGLD, one client", "LSD++, 5 of 20")


def write_all(summaries: Sequence[Summary], folder: pathlib.Path) -> None:
    """Write every table and figure of which there is something, and what failed."""
    folder.mkdir(parents=True, exist_ok=True)
    write(failures(summaries), folder / "failures")
    of = {
        study: [s for s in summaries if s["options"]["study"] == study and "failed" not in s]
        for study in ("toy", *LOGISTICS, "budget", "memory", "covertype", "consistency", "predictions", *NETWORKS)
    }
    toy, budget, memory, covertype = (of[study] for study in ("toy", "budget", "memory", "covertype"))
    if toy:
        write(toy_table(toy), folder / "toy")
        write(bits_table(toy), folder / "toy_bits")
        toy_figure(toy).savefig(folder / "toy.png", dpi=130)
    for name in LOGISTICS:
        if any(s["options"]["method"] == REFERENCE for s in of[name]):
            write(logistic_table(of[name]), folder / name)
            write(quantile_table(of[name]), folder / f"{name}_quantiles")
    if budget:
        write(budget_table(budget), folder / "budget")
        budget_figure(budget).savefig(folder / "budget.png", dpi=130)
    if {TRUTH, REFERENCE} <= {s["options"]["method"] for s in memory}:
        write(memory_table(memory), folder / "memory")
        memory_figure(*memory_points(memory)).savefig(folder / "memory.png", dpi=130)
    if any(s["options"]["method"] == "MALA" for s in covertype):
        write(covertype_table(covertype), folder / "covertype")
    if of["consistency"]:
        write(consistency_table(of["consistency"]), folder / "consistency")
    if of["predictions"]:
        write(predictions_table(of["predictions"]), folder / "predictions")
        for name, figure in prediction_figures(ordered(of["predictions"], PREDICTED)).items():
            figure.savefig(folder / f"{name}.png", dpi=130)
    for name in NETWORKS:
        if of[name]:
            write(network_table(of[name]), folder / name)
            write(network_pairs(of[name]), folder / f"{name}_pairs")
            write(movement_table(of[name]), folder / f"{name}_movement")


def ordered(summaries: Iterable[Summary], methods: Iterable[str]) -> list[Summary]:
    """Sort by the order of the methods, then by falling steps and rising levels."""
    places = list(methods)
    key = lambda o: (places.index(o["method"]), -o.get("step", 0), o.get("levels", 0))
    return sorted(summaries, key=lambda s: key(s["options"]))


def with_error(value: float, error: float) -> str:
    """Return value +- standard error, three digits that count."""
    return f"{value:.3g} +- {error:.1g}"


def toy_table(summaries: Sequence[Summary]) -> Lines:
    """Return a row for each method and step size: variances and errors of the mean norm, measured and known."""
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
    """Return bits of a client's message: bound, entropy, coder, and the ratios to the bits without compression."""
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
    """Return a row for each method: errors of the 99 % HPD region against LSD++, its noise against itself, and bits."""
    reference = next(s for s in summaries if s["options"]["method"] == REFERENCE)
    head = [
        "",
        "HPD error of U, same seed",
        "of U, other seeds",
        "of U - min U, same seed",
        "of U - min U, other seeds",
    ]
    head += ["bits by bound", "times fewer by bound", "bits by entropy", "bits by coder", "times fewer by coder"]
    head += ["seconds", "seconds per 1e5 rounds of a chain", "published error", "published times fewer"]
    lines = [head]
    for s in ordered(summaries, (*LOGISTIC_METHODS, *LOGISTIC_RIVALS)):
        row = [s["options"]["method"]]
        for name, same in itertools.product(("quantile", "quantile_above_least"), (True, False)):
            row.append(mean_and_spread(errors_of(s[name], reference[name], same)))
        row += [f"{s['bits_bound']:.0f}", f"{reference['bits_bound'] / s['bits_bound']:.2f}"]
        row += [f"{s['bits_entropy']:.0f}" if "bits_entropy" in s else "", f"{s['bits_coder']:.0f}"]
        row.append(f"{reference['bits_coder'] / s['bits_coder']:.2f}")
        row += [f"{s[name]:.0f}" for name in ("seconds", "seconds_per_1e5_steps")]
        published = PUBLISHED_LOGISTIC.get(s["options"]["method"])
        lines.append([*row, *([f"{published[0]:.1e}", f"{published[1]:g}"] if published else ["", ""])])
    return lines


def mean_and_spread(values: Sequence[float]) -> str:
    """Return mean (least to most) of errors."""
    return f"{np.mean(values):.1e} ({min(values):.1e} to {max(values):.1e})" if values else ""


def quantile_table(summaries: Sequence[Summary]) -> Lines:
    """Return a row for each method: what the chains' U - min U are, mean +- sd over seeds."""
    lines = [["", "mean of U - min U", "99 % quantile of U - min U", "99 % quantile of U", "min U", "rounds", "seeds"]]
    for s in ordered(summaries, (*LOGISTIC_METHODS, *LOGISTIC_RIVALS)):
        row = [s["options"]["method"]]
        for name in ("mean_above_least", "quantile_above_least", "quantile"):
            spread = f" +- {np.std(s[name], ddof=1):.2f}" if len(s[name]) > 1 else ""
            row.append(f"{np.mean(s[name]):.2f}{spread}")
        lines.append([*row, f"{s['least']:.2f}", str(s["options"]["rounds"]), str(s["options"]["runs"])])
    return lines


def budget_table(summaries: Sequence[Summary]) -> Lines:
    """Return a row for each method, step size and number of levels: the error that a budget of bits buys."""
    head = ["method", "step x L", "levels", "bits a round", "rounds", "squared error of mean norm", "expected"]
    lines = [[*head, "variance / posterior's", "runs"]]
    for s in ordered(summaries, BUDGET_METHODS):
        options = s["options"]
        row = [options["method"], f"{options['step']:g}", str(options["levels"]), f"{s['bits_bound']:.0f}"]
        row += [str(s["rounds"]), with_error(s["error"], s["error_se"]), f"{s['expected_error']:.3g}"]
        lines.append([*row, with_error(s["ratio"], s["ratio_se"]), str(options["runs"])])
    return lines


def memory_table(summaries: Sequence[Summary]) -> Lines:
    """Return a row for each method: how far the variances of its chains are from the truth, and from LSD++.

    The first rows say what is scored without a chain, by the prior's variances, and by chains of the posterior itself,
    each against the mean of the others.
    """
    found = {s["options"]["method"]: s for s in ordered(summaries, MEMORY_METHODS)}
    exact, reference = variances(found[TRUTH]), variances(found[REFERENCE])
    truth = exact.mean(0)
    prior = np.full_like(truth, 1 / found[TRUTH]["options"]["prior_precision"])
    others = (exact.sum(0) - exact) / (len(exact) - 1)
    head = ["", "error of the variances", "over their norm", "variance / posterior's", "from LSD++, same seed"]
    lines = [[*head, "from LSD++, other seeds", "error without memory less that with", "rounds", "chains"]]
    lines.append(["the prior's variances", *variance_scores(prior[np.newaxis], truth, truth), "", "", "", "", ""])
    for method, s in found.items():
        own = variances(s)
        row = [method, *variance_scores(own, others if method == TRUTH else truth, truth)]
        if method == TRUTH:
            row += ["", ""]
        else:
            same, several = min(len(own), len(reference)), range(1, len(reference))
            row.append(mean_with_error(apart(own[:same], reference[:same])))
            turned = [x for k in several for x in apart(own[:same], np.roll(reference[:same], k, 0))]
            row.append(f"{np.mean(turned):.3g}" if turned else "")
        without = found.get(f"{method}, no memory")
        gain = lambda without, own=own: np.subtract(apart(variances(without), truth), apart(own, truth))
        row.append(mean_with_error(gain(without)) if without else "")
        lines.append([*row, str(s["options"]["rounds"]), str(s["options"]["runs"])])
    return lines


def covertype_table(summaries: Sequence[Summary]) -> Lines:
    """Return a row for each method: errors of the 99 % HPD region against each chain of MALA, and bits.

    MALA's own row is of pairs of different chains.
    """
    reference = next(s for s in summaries if s["options"]["method"] == "MALA")
    lines = [["", "HPD error of U", "of U - min U", "bits by bound", "bits by coder", "published error", "chains"]]
    for s in ordered(summaries, COVERTYPE_METHODS):
        row = [s["options"]["method"]]
        for name in ("quantile", "quantile_above_least"):
            same = [] if s is reference else errors_of(s[name], reference[name], True)
            row.append(mean_and_spread(same + errors_of(s[name], reference[name], False)))
        row += [f"{s[name]:.0f}" if name in s else "" for name in ("bits_bound", "bits_coder")]
        published = PUBLISHED_COVERTYPE.get(s["options"]["method"])
        lines.append([*row, f"{published:.1e}" if published else "", str(s["options"]["runs"])])
    return lines


def network_table(summaries: Sequence[Summary]) -> Lines:
    """Return a row for each method: scores of mean predictions, means over seeds, and how near they are to HMC's.

    HMC's own agreement and total variation are those of its first chain with its last. What the source has beside is of
    the published size.
    """
    names = ("accuracy", "ece", "brier", "nll", "auroc", "agreement", "total_variation")
    published = PUBLISHED_NETWORKS.get(summaries[0]["options"]["study"], {})
    theirs = [name for name in names if any(name in row for row in published.values())]
    head = ["", *(name.replace("_", " ") for name in names), "draws", "rounds", "seeds", "seconds"]
    lines = [[*head, *(f"published {name.replace('_', ' ')}" for name in theirs)]]
    for s in ordered(summaries, NETWORK_METHODS):
        row = [
            s["options"]["method"],
            *(mean_with_error(s[name]) if name in s else "" for name in names),
            str(s["draws"]),
        ]
        rounds = s["options"].get("rounds", 0) * s["options"].get("times_as_long", 1)
        row += [str(rounds or ""), str(len(s["accuracy"])), f"{s['seconds']:.0f}"]
        found = published.get(s["options"]["method"], {})
        lines.append([*row, *(f"{found[name]:g}" if name in found else "" for name in theirs)])
    return lines


def network_pairs(summaries: Sequence[Summary]) -> Lines:
    """Return each chain's scores less those of SGLD and of LSD++ in equal seeds, with 95 % intervals."""
    names = ("accuracy", "agreement", "total_variation")
    lines = [["", "less", *(name.replace("_", " ") for name in names)]]
    several = [s for s in ordered(summaries, NETWORK_METHODS) if len(s["accuracy"]) > 1]
    for base in (s for s in several if s["options"]["method"] in PAIRED_WITH):
        for s in several:
            if s is not base:
                cells = [less(*(dict(enumerate(one[name])) for one in (s, base))) for name in names]
                lines.append([s["options"]["method"], base["options"]["method"], *cells])
    return lines


def movement_table(summaries: Sequence[Summary]) -> Lines:
    """Return a row for each method: how far its weights went, and how wide its draws are."""
    names = ("travelled", "spread", "unlit_spread", "unlit_rms")
    head = ["", "way from the start / its norm", "sd of weights / prior's", "of unlit pixels: sd / prior's"]
    lines = [[*head, "root mean square / prior's sd", "step size", "draws", "seeds"]]
    for s in ordered(summaries, NETWORK_METHODS):
        row = [s["options"]["method"], *(mean_with_error(s[name]) if name in s else "" for name in names)]
        step = s["options"].get("step_size", 0) * s["options"].get("step_factor", 1)
        lines.append([*row, f"{step:g}" if step else "", str(s["draws"]), str(len(s["travelled"]))])
    return lines


def consistency_table(summaries: Sequence[Summary]) -> Lines:
    """Return a row for each number of examples and method: variances measured and known, and biases."""
    head = ["N", "method", "variance", "variance / posterior's", "closed form", "bias / posterior's sd"]
    lines = [[*head, "rounds", "runs", "seconds"]]
    for examples in sorted({s["options"]["examples"] for s in summaries}):
        here = [s for s in summaries if s["options"]["examples"] == examples]
        for s in ordered(here, CONSISTENCY_METHODS):
            row = [str(examples), s["options"]["method"], with_error(s["variance"], s["variance_se"])]
            row += [f"{s[name]:.3g}" for name in ("ratio", "expected_ratio", "bias")]
            lines.append([*row, str(s["options"]["rounds"]), str(s["options"]["runs"]), f"{s['seconds']:.0f}"])
    return lines


def predictions_table(summaries: Sequence[Summary]) -> Lines:
    """Return a row for each method: scores of the mean prediction, and of the network at the mean of the weights."""
    names = ("accuracy", "nll", "auroc", "accuracy_of_mean_weights", "nll_of_mean_weights")
    lines = [["", *(name.replace("_", " ") for name in names), "test images", "seeds"]]
    for s in ordered(summaries, PREDICTED):
        row = [s["options"]["method"], *(f"{s[name]:.3f}" for name in names)]
        lines.append([*row, str(len(s["confidences"])), str(s["options"]["runs"])])
    return lines


def memory_points(summaries: Sequence[Summary]) -> tuple[dict[str, list[tuple[int, float, float]]], dict[str, float]]:
    """Return the points of `memory_figure`: relative errors by levels, of LSD++ and of the prior's variances."""
    found = {s["options"]["method"]: s for s in ordered(summaries, MEMORY_METHODS)}
    truth = variances(found[TRUTH]).mean(0)
    relative = lambda own: np.divide(apart(own, truth), np.linalg.norm(truth))
    points: dict[str, list[tuple[int, float, float]]] = {}
    for s in found.values():
        kind, _, levels = s["options"].get("compressor", "").partition(":")
        if kind == "quantiser":
            errors = relative(variances(s))
            label = "QLSD++" if s["options"]["memory"] else "QLSD++ without memory"
            points.setdefault(label, []).append(
                (int(levels), errors.mean(), errors.std() / max(len(errors) - 1, 1) ** 0.5)
            )
    prior = np.full((1, len(truth)), 1 / found[TRUTH]["options"]["prior_precision"])
    return points, {"LSD++": relative(variances(found[REFERENCE])).mean(), "the prior's variances": relative(prior)[0]}


def variance_scores(own: np.ndarray, truth: np.ndarray, norm_of: np.ndarray) -> list[str]:
    """Return ||v - v*||, that over ||v*||, and the mean of v / v* over coordinates, of chains [M, D]."""
    errors = apart(own, truth)
    relative = np.divide(errors, np.linalg.norm(norm_of))
    return [mean_with_error(errors), mean_with_error(relative), mean_with_error((own / truth).mean(-1))]


def mean_with_error(values: Any) -> str:
    """Return mean +- its standard error; the mean alone of a single value."""
    values = np.asarray(values, float)
    if len(values) == 1:
        return f"{values[0]:.3g}"
    return with_error(float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5))


def failures(summaries: Sequence[Summary]) -> Lines:
    """Return the failures with their reasons."""
    rows = [
        [s["options"]["study"], s["options"]["method"], *steps_of(s), s["failed"]] for s in summaries if "failed" in s
    ]
    return [["study", "method", "step x L", "levels", "what"], *rows]


def steps_of(summary: Summary) -> list[str]:
    return [f"{summary['options'][key]:g}" if key in summary["options"] else "" for key in ("step", "levels")]
