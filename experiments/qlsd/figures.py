"""The figures: errors against bits, what a budget of bits buys, and what a memory is for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from experiments.figures import accuracy_confidence
from experiments.qlsd.config import BUDGET_METHODS, TOY_STEPS
from experiments.qlsd.predictions import distributions
from tfp_bfl import plots
from tfp_bfl.plots import style

FAMILIES = {"LSD#": "QLSD# ", "whole gradients": "whole gradients", "LSD*": "QLSD* "}


def toy_figure(summaries: Sequence[dict[str, Any]]) -> Figure:
    """Draw a panel for each step size: the error of the mean norm against the coder's bits, a line for each
    estimator.
    """
    steps = [step for step in TOY_STEPS if step in {s["options"]["step"] for s in summaries}]
    figure = style.new_figure(height=4.2, width=4 * len(steps))
    panels = figure.subplots(1, len(steps), sharey=True, squeeze=False)[0]
    for axes, step in zip(panels, steps):
        here = [s for s in summaries if s["options"]["step"] == step]
        for number, (alone, start) in enumerate(FAMILIES.items()):
            rows = [s for s in here if s["options"]["method"].startswith(start) or s["options"]["method"] == alone]
            points = sorted((s["bits_coder"], s["error"]) for s in rows)
            if points:
                axes.plot(*zip(*points), **style.line(number), marker="o", label=start.strip())
        for s in here[:1]:
            axes.axhline(s["exact_chain"], color=style.MUTED, linestyle=":", label="an exact sampler as slow")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter("{x:.0f}")
        label = "squared error of the mean norm" if axes is panels[0] else ""
        style.tidy(axes, f"step {step:g} / L", x="bits of a message, as coded", y=label)
    style.legend(panels[0])
    return figure


def budget_figure(summaries: Sequence[dict[str, Any]]) -> Figure:
    """Draw a panel for each estimator: the error that the budget buys against the number of levels, a line for each
    step.
    """
    figure = style.new_figure(height=4.2, width=10)
    panels = figure.subplots(1, len(BUDGET_METHODS), sharey=True, squeeze=False)[0]
    steps = sorted({s["options"]["step"] for s in summaries}, reverse=True)
    for axes, method in zip(panels, BUDGET_METHODS):
        for number, step in enumerate(steps):
            rows = [s for s in summaries if (s["options"]["method"], s["options"]["step"]) == (method, step)]
            points = sorted((s["options"]["levels"], s["error"]) for s in rows)
            if points:
                color = matplotlib.colormaps["viridis"](0.9 * number / max(1, len(steps) - 1))
                axes.plot(*zip(*points), color=color, marker="o", markersize=4, label=f"step {step:g} / L")
        axes.set_xscale("log")
        axes.set_yscale("log")
        label = "squared error of the mean norm" if axes is panels[0] else ""
        style.tidy(axes, method, x="levels s", y=label)
    style.legend(panels[0])
    return figure


def memory_figure(points: dict[str, list[tuple[int, float, float]]], levels: dict[str, float]) -> Figure:
    """Draw errors of the posterior's variances against the number of levels.

    Args:
      points: label -> (levels, error, its standard error) in rising levels, a line each.
      levels: label -> error of what has no levels, a dotted line each.
    """
    figure = style.new_figure(height=4.2, width=6)
    axes = figure.subplots()
    for number, (label, rows) in enumerate(points.items()):
        x, y, error = zip(*rows)
        axes.errorbar(x, y, yerr=error, **style.line(number), marker="o", label=label)
    for number, (label, value) in enumerate(levels.items(), len(points)):
        axes.axhline(value, color=style.line(number)["color"], linestyle=":", label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:.0f}")
    style.tidy(axes, "error of the posterior's variances", x="levels s", y="||v - v*|| / ||v*||")
    style.legend(axes)
    return figure


def prediction_figures(summaries: Sequence[dict[str, Any]]) -> dict[str, Figure]:
    """Draw what the cells of `predictions` recorded with the library's plots.

    Returns:
      client_sizes: examples of each client.
      confidence: accuracy above a confidence against that confidence, a line for each method.
      calibration_METHOD, entropy_METHOD: reliability diagram, and densities of the predictive entropy in and out of
        distribution, of each chain of federated clients.
    """
    several = [s for s in summaries if len(s["sizes"]) > 1]
    shown = {s["options"]["method"]: distributions(s["confidences"]) for s in summaries}
    labels = next(iter(shown.values()))[1]
    figures = {"confidence": accuracy_confidence({name: p for name, (p, _) in shown.items()}, labels)}
    if several:
        figures["client_sizes"] = plots.client_sizes(several[0]["sizes"])
    for s in several:
        name = s["options"]["method"].lower().replace(",", "").replace(" ", "_").replace("+", "p")
        figures[f"calibration_{name}"] = plots.reliability_diagram(*shown[s["options"]["method"]])
        figures[f"entropy_{name}"] = plots.uncertainty_density(
            s["entropies"], s["entropies_elsewhere"], name_in="MNIST", name_out="Fashion-MNIST"
        )
    return figures
