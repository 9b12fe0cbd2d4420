"""Coefficients of clients side by side: the forest plot of a meta-analysis."""

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.plots import style

# Letters of a title above one of two panels beside each other, of a line of a title, and of a title.
_SHORT, _TITLE, _LONGEST = 12, 26, 78
_LINE, _FRAME = 0.17, 1.1


class Estimate(NamedTuple):
    """The value and interval of each coefficient [p] at a client, NaN where its rows do not determine it, or pooled."""

    label: str
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    is_pooled: bool = False


def forest_plot(names: Sequence[str], estimates: Sequence[Estimate]) -> Figure:
    """Draw a panel for each coefficient, a line for each estimate with its interval, and the pooled ones apart."""
    if not names or not estimates or any(np.shape(e.mean) != (len(names),) for e in estimates):
        raise InvalidArgument("A forest plot needs coefficients, and estimates that each have all of them.")
    columns = min(2 if max(map(len, names)) <= _SHORT else 1, len(names))
    rows = -(-len(names) // columns)
    figure = style.new_figure(height=rows * (_FRAME + _LINE * len(estimates)))
    panels = np.atleast_1d(figure.subplots(rows, columns, sharey=True, squeeze=False)).ravel()
    heights = np.arange(len(estimates))[::-1]
    for number, (axes, name) in enumerate(zip(panels, names)):
        for estimate, height in zip(estimates, heights):
            mean, low, high = estimate.mean[number], estimate.low[number], estimate.high[number]
            if not np.isfinite(mean):
                continue
            color = style.ORANGE if estimate.is_pooled else style.BLUE
            axes.plot([low, high], [height, height], color=color, linewidth=2.4 if estimate.is_pooled else 1.2)
            axes.plot(mean, height, "D" if estimate.is_pooled else "o", color=color, markersize=4)
        pooled = [e.mean[number] for e in estimates if e.is_pooled]
        if pooled:
            axes.axvline(pooled[-1], color=style.MUTED, linewidth=0.8, linestyle="--")
        style.tidy(axes, "\n".join(textwrap.wrap(style.plain(name, _LONGEST), _TITLE)), grid="x")
        axes.set_yticks(heights, [style.plain(e.label, 30) for e in estimates])
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    return figure
