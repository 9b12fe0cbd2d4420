"""Predictions of numbers as pictures: where they are, whether intervals hold, whether the unsure ones are wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy import special

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.plots import style

_MOST_INTERVALS = 80


def regression_figures(numbers: Mapping[str, Any], labels: object) -> dict[str, Figure]:
    """Return all figures of a regression, by name; `numbers` holds arrays [N] by name, and labels are [N]."""
    figures = (predicted_against_true, interval_coverage, error_retention)
    return {draw.__name__: draw(numbers, labels) for draw in figures}


def predicted_against_true(numbers: Mapping[str, Any], labels: object) -> Figure:
    """Draw each "mean" against the truth, some with their interval from "low" to "high" (90 %)."""
    mean, low, high = (_checked(numbers, name, labels) for name in ("mean", "low", "high"))
    truth = np.asarray(labels)
    figure, axes = style.one_panel(4.8)
    few = np.linspace(0, len(truth) - 1, min(len(truth), _MOST_INTERVALS)).astype(int)
    errors = np.maximum(np.stack([mean - low, high - mean])[:, few], 0)
    axes.errorbar(
        truth[few], mean[few], errors, fmt="none", ecolor=style.SKY, elinewidth=1.2, label="90 % interval", zorder=1
    )
    axes.scatter(truth, mean, s=12, color=style.BLUE, label="mean", zorder=2)
    ends = [min(truth.min(), mean.min()), max(truth.max(), mean.max())]
    axes.plot(ends, ends, color=style.INK, linestyle="--", linewidth=1.2, label="predicted = true")
    style.tidy(axes, "Predictions of the test set", x="true", y="predicted", grid="both")
    style.figure_legend(figure, axes)
    return figure


def interval_coverage(numbers: Mapping[str, Any], labels: object) -> Figure:
    """Draw how many labels lie within "mean" -+ z "stddev" against how many should, for all z."""
    mean, stddev = (_checked(numbers, name, labels) for name in ("mean", "stddev"))
    wanted = np.linspace(0.02, 0.98, 49)
    z = np.abs(np.asarray(labels) - mean) / np.maximum(stddev, np.finfo(np.float32).tiny)
    coverage = np.mean(z[:, None] <= special.ndtri(0.5 + wanted / 2), 0)
    error = 2 * np.sqrt(wanted * (1 - wanted) / len(z))
    figure, axes = style.one_panel(4.6)
    axes.fill_between(wanted, wanted - error, wanted + error, color=style.GRID, linewidth=0, label="chance, ±2 sd")
    axes.plot([0, 1], [0, 1], color=style.INK, linestyle="--", linewidth=1.2, label="calibrated")
    axes.plot(wanted, coverage, color=style.BLUE, linewidth=1.8, label="observed")
    axes.set(xlim=(0, 1), ylim=(0, 1))
    style.tidy(axes, "Coverage of the intervals", x="nominal coverage", y="observed coverage", grid="both")
    style.figure_legend(figure, axes)
    return figure


def error_retention(numbers: Mapping[str, Any], labels: object) -> Figure:
    """Draw the RMSE of the most certain predictions against coverage, by "stddev", "epistemic" and "aleatoric"."""
    squares = np.square(np.asarray(labels) - _checked(numbers, "mean", labels))
    fraction = np.arange(1, len(squares) + 1) / len(squares)
    figure, axes = style.one_panel(4.2)
    for i, name in enumerate(name for name in ("stddev", "epistemic", "aleatoric") if name in numbers):
        order = np.argsort(_checked(numbers, name, labels), kind="stable")
        errors = np.sqrt(np.cumsum(squares[order]) / np.arange(1, len(squares) + 1))
        first = max(1, len(squares) // 20)  # The mean of a few says little.
        axes.plot(fraction[first - 1 :], errors[first - 1 :], linewidth=1.8, label=f"by {name}", **style.line(i))
    level = float(np.sqrt(squares.mean()))
    axes.axhline(level, color=style.MUTED, linewidth=1.5, linestyle=(0, (1, 1.5)), label=f"random ({level:.4g})")
    axes.set_xlim(0, 1)
    style.tidy(axes, "RMSE against coverage", x="coverage: fraction of examples answered", y="RMSE")
    style.figure_legend(figure, axes)
    return figure


def _checked(numbers: Mapping[str, Any], name: str, labels: Any) -> np.ndarray:
    values = np.asarray(numbers.get(name), np.float64)
    if values.ndim != 1 or not len(values) or values.shape != np.shape(labels):
        raise InvalidArgument(f"{name} has the shape {list(values.shape)}, but must be [N], as the labels.")
    return values
