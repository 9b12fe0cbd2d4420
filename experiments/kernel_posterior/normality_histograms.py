"""Histograms of normality statistics over all weights of a model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.kernel_posterior.normality_statistics import Normality
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.plots import style

_DASHES = ("-", "--", "-.", ":")
_BINS = 20
_FINE_BINS = 70
# Of all coordinates, on either side of skewness and kurtosis: a few far ones would press the rest together.
_OUTSIDE = 0.02


def normality_histograms(
    results: Mapping[str, Normality], reference: Normality | None = None, title: str = ""
) -> Figure:
    """Draw histograms of Lilliefors' p-values, skewness and excess kurtosis over the coordinates, a line a setting.

    Coordinates without spread are left out. Of skewness and kurtosis the middle 96 % over all settings together are
    shown; shares are of all coordinates.

    Args:
      results: name -> what `normality_statistics.normality` returned.
      reference: the same of Gaussian values of as many clients, drawn as grey areas; its p-values as the level line
        that they are.
      title: instead of none.

    Raises:
      InvalidArgument: there is no setting, or one without a coordinate with spread.
    """
    if not results:
        raise InvalidArgument("normality_histograms needs at least one setting, as a mapping of name to Normality.")
    for name, result in results.items():
        if np.all(np.isnan(result.statistic)):
            raise InvalidArgument(f"In {name!r} all clients agree on every coordinate: there is nothing to draw.")
    figure = style.new_figure(height=4.2, width=11.0)
    panels = figure.subplots(1, 3)
    _draw(panels[0], results, None, "lilliefors_p_value", np.linspace(0, 1, _BINS + 1))
    panels[0].axhline(
        100 / _BINS, color=style.MUTED, linewidth=1.2, linestyle=(0, (1, 1.5)), label="if Gaussian: level"
    )
    style.tidy(panels[0], title, x="Lilliefors p-value", y=f"weights, in % of each bin of {1 / _BINS:g}")
    for axes, name in zip(panels[1:], ("skewness", "excess_kurtosis")):
        together = np.concatenate([getattr(result, name) for result in (*results.values(), reference) if result])
        low, high = np.nanquantile(together, [_OUTSIDE, 1 - _OUTSIDE])
        margin = 0.02 * (high - low) or 0.5
        _draw(axes, results, reference, name, np.linspace(low - margin, high + margin, _FINE_BINS + 1))
        axes.axvline(0, color=style.MUTED, linewidth=1.2, linestyle=(0, (1, 1.5)))
        axes.set_yticks([])
        axes.set_ylim(0, None)
        style.tidy(
            axes, x=f"{name.replace('_', ' ')} (middle {1 - 2 * _OUTSIDE:.0%})", y="density over the weights", grid=None
        )
    handles, names = panels[0].get_legend_handles_labels()
    if reference is not None:
        handles, names = [*handles, panels[1].patches[0]], [*names, "if Gaussian"]
    figure.legend(handles, names, loc="outside lower center", ncols=5, frameon=False, fontsize=style.SIZE - 1)
    return figure


def _draw(
    axes: Axes, results: Mapping[str, Normality], reference: Normality | None, field: str, edges: np.ndarray
) -> None:
    percent = field == "lilliefors_p_value"

    def heights(result: Normality) -> np.ndarray:
        values = getattr(result, field)
        values = values[~np.isnan(values)]
        return np.histogram(values, edges)[0] / len(values) * (100 if percent else 1 / (edges[1] - edges[0]))

    if reference is not None:
        axes.stairs(heights(reference), edges, fill=True, color=style.GRID)
    for i, (name, result) in enumerate(results.items()):
        color, dashes = style.PALETTE[i % len(style.PALETTE)], _DASHES[i % len(_DASHES)]
        label = style.plain(name, 40)
        axes.stairs(heights(result), edges, color=color, linestyle=dashes, linewidth=1.8, label=label)
    axes.set_xlim(edges[0], edges[-1])
