"""Pictures of weight samples on a plane, and of the loss there."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure

from experiments.fl_swag.surface import Plane, Surface
from tfp_bfl.plots import style

# Of each posterior: more hide one another.
MOST_POINTS = 300
FEW = 10
COLORS = style.PALETTE
MARKERS = "os^Dv"
LEVELS = 14
LOSSES = LinearSegmentedColormap.from_list("losses", ["#FFFFFF", "#E0E0E0", "#A6A6A6", "#707070"])


def scatter_figure(points: dict[str, np.ndarray], plane: Plane) -> Figure:
    """Draw all posteriors' samples on the plane, and beside it the neighbourhood of the second's."""
    figure = style.new_figure(height=4.8, width=9.6)
    whole, near = figure.subplots(1, 2)
    name, cloud = list(points.items())[1]
    low, high = _extent(cloud, 0.25)
    for axes, title in ((whole, "All samples"), (near, f"{name} alone, enlarged")):
        _scatter(axes, points)
        style.tidy(axes, title, x=_label(plane, 0), y=_label(plane, 1) if axes is whole else "", grid="both")
    near.set_xlim(low[0], high[0])
    near.set_ylim(low[1], high[1])
    _legend(figure, whole)
    return figure


def contour_figure(points: dict[str, np.ndarray], plane: Plane, surface: Surface) -> Figure:
    """Draw the likelihood's part of the loss and all of it on the plane, with the samples' projections."""
    figure = style.new_figure(height=4.8, width=9.6)
    panels = figure.subplots(1, 2, sharey=True)
    parts = {"-log p(data | w)": surface.nll, "-log p(w | data) + constant": surface.nll + surface.penalty}
    for axes, (title, loss) in zip(panels, parts.items()):
        levels = _levels(loss)
        norm = LogNorm(levels[0], levels[-1])
        filled = axes.contourf(surface.x, surface.y, loss, levels, cmap=LOSSES, norm=norm, extend="both")
        axes.contour(surface.x, surface.y, loss, levels, colors=style.MUTED, linewidths=0.4)
        bar = figure.colorbar(filled, ax=axes, location="bottom", shrink=0.9, aspect=30, ticks=levels[::3])
        bar.ax.set_xticklabels([f"{level:,.0f}" for level in levels[::3]])
        bar.ax.minorticks_off()
        bar.set_label("nats, at the points of the plane", fontsize=style.SIZE - 1, color=style.INK)
        bar.outline.set_visible(False)
        _scatter(axes, points, size=7)
        style.tidy(axes, title, x=_label(plane, 0), y=_label(plane, 1) if axes is panels[0] else "", grid=None)
        axes.set_xlim(surface.x[0], surface.x[-1])
        axes.set_ylim(surface.y[0], surface.y[-1])
    _legend(figure, panels[0])
    return figure


def surface_figure(points: dict[str, np.ndarray], plane: Plane, surface: Surface) -> Figure:
    """Draw all of the loss as a landscape, log scale, with the samples' projections on it."""
    figure = Figure(figsize=(7.2, 5.6), facecolor="white")
    axes: Any = figure.add_axes((0.02, 0.06, 0.88, 0.88), projection="3d", computed_zorder=False)
    loss = np.log10(surface.nll + surface.penalty)
    x, y = np.meshgrid(surface.x, surface.y)
    axes.plot_surface(x, y, loss, cmap=LOSSES, rcount=60, ccount=60, linewidth=0.1, edgecolor=style.MUTED, alpha=0.85)
    for i, (name, xy) in enumerate(points.items()):
        some = _some(xy)
        height = _interpolated(surface, loss, some) + 0.01 * np.ptp(loss)
        mean = xy.mean(0, keepdims=True)
        height_of_mean = _interpolated(surface, loss, mean) + 0.01 * np.ptp(loss)
        look: dict[str, Any] = {"color": COLORS[i], "marker": MARKERS[i], "depthshade": False}
        axes.scatter(*mean.T, height_of_mean, s=60, edgecolors=style.INK, zorder=4, **look)
        axes.scatter(*some.T, height, s=7, label=name, zorder=3, **look)
    ticks = np.log10(np.outer(10.0 ** np.arange(-3, 6), [1, 1.5, 2, 3, 5, 7])).ravel()
    ticks = ticks[(ticks >= loss.min()) & (ticks <= loss.max())]
    axes.set_zticks(ticks, [f"{10**tick:,.0f}" for tick in ticks])
    axes.set_zlabel("-log p(w | data) + constant, nats", fontsize=style.SIZE - 1, labelpad=8)
    axes.set_xlabel(_label(plane, 0, ""), fontsize=style.SIZE - 1, labelpad=4)
    axes.set_ylabel(_label(plane, 1, ""), fontsize=style.SIZE - 1, labelpad=4)
    axes.tick_params(labelsize=style.SIZE - 2, colors=style.MUTED, labelcolor=style.INK)
    axes.view_init(elev=32, azim=-60)
    _legend(figure, axes, "upper center")
    return figure


def _scatter(axes: Axes, points: dict[str, np.ndarray], size: float = 9) -> None:
    """Draw the samples, and their mean as one larger; few samples are large themselves."""
    large: dict[str, Any] = {"s": 70, "edgecolors": style.INK, "linewidths": 1.3}
    small: dict[str, Any] = {"s": size, "linewidths": 0, "alpha": 0.55}
    looks: list[dict[str, Any]] = [{"color": color, "marker": marker} for color, marker in zip(COLORS, MARKERS)]
    for look, (name, xy) in zip(looks, points.items()):
        some = _some(xy)
        axes.scatter(some[:, 0], some[:, 1], label=name, **look, **(large if len(xy) < FEW else small))
    for look, xy in zip(looks, points.values()):
        if len(xy) >= FEW:
            mean = xy.mean(0)
            axes.scatter(mean[0], mean[1], **look, **large)


def _some(xy: np.ndarray) -> np.ndarray:
    return xy[np.linspace(0, len(xy) - 1, min(MOST_POINTS, len(xy))).astype(int)]


def _extent(xy: np.ndarray, margin: float) -> tuple[np.ndarray, np.ndarray]:
    low, high = xy.min(0), xy.max(0)
    return low - margin * (high - low), high + margin * (high - low)


def _levels(loss: np.ndarray) -> np.ndarray:
    """Return log-spaced levels, from the smallest loss to nearly the largest."""
    return np.geomspace(loss.min(), np.quantile(loss, 0.98), LEVELS)


def _interpolated(surface: Surface, loss: np.ndarray, xy: np.ndarray) -> np.ndarray:
    """Return the surface's height at points [S, 2] inside the grid, bilinear."""
    column, row = ((c - axis[0]) / (axis[1] - axis[0]) for c, axis in zip(xy.T, (surface.x, surface.y)))
    i, j = (np.clip(place.astype(int), 0, len(surface.x) - 2) for place in (column, row))
    a, b = column - i, row - j
    rows = lambda j: (1 - a) * loss[j, i] + a * loss[j, i + 1]
    return (1 - b) * rows(j) + b * rows(j + 1)


def _label(plane: Plane, axis: int, of: str = " of the variance") -> str:
    if plane.explained is None:
        return f"distance along axis {axis + 1}"
    return f"component {axis + 1} ({100 * plane.explained[axis]:.2f} %{of})"


def _legend(figure: Figure, axes: Any, place: Any = "outside upper center") -> None:
    handles, names = axes.get_legend_handles_labels()
    legend: Any = figure.legend(handles, names, loc=place, ncols=5, frameon=False, fontsize=style.SIZE - 1)
    for handle in legend.legend_handles:
        handle.set_sizes([50])
        handle.set_alpha(1)
