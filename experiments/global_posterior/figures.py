"""The figure of the long runs: does accuracy or NLL decay?"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from experiments.global_posterior.config import CURVE_METHODS
from tfp_bfl.plots import style

PANELS = (("accuracy", "accuracy"), ("test_nll", "test NLL (nats, logarithmic)"))


def curve_figure(curves: list[dict[str, Any]]) -> Figure:
    """Draw a column of panels for each dataset, a line for each method."""
    datasets = sorted({summary["options"]["dataset"] for summary in curves})
    figure = style.new_figure(height=6.4, width=5.2 * len(datasets))
    panels = figure.subplots(len(PANELS), len(datasets), squeeze=False)
    for column, dataset in enumerate(datasets):
        for row, (name, label) in enumerate(PANELS):
            axes = panels[row][column]
            for summary in curves:
                if summary["options"]["dataset"] == dataset:
                    method = summary["options"]["method"]
                    points = [(r["round"], r[name]) for r in summary["curve"]]
                    axes.plot(*zip(*points), **style.line(CURVE_METHODS.index(method)), label=method.replace("_", " "))
            style.tidy(axes, dataset if row == 0 else "", x="round", y=label)
            if name == "test_nll":
                axes.set_yscale("log")
    max(panels[0], key=lambda axes: len(axes.lines)).legend(frameon=False, fontsize=style.SIZE - 2)
    return figure
