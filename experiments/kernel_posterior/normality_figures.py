"""The figures of the normality study: histograms over all weights, and the kernel densities of single ones."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

from experiments.kernel_posterior.client_stacks import (
    along,
    base,
    cell_of,
    global_weights,
    groups,
    leaves,
    model_of,
)
from experiments.kernel_posterior.normality_histograms import normality_histograms
from experiments.kernel_posterior.normality_statistics import Normality, normality
from experiments.kernel_posterior.normality_tables import reference, silverman_bandwidths
from tfp_bfl import plots
from tfp_bfl.algorithms.kernel import kernel_mode
from tfp_bfl.algorithms.kernel.bandwidths import BANDWIDTHS
from tfp_bfl.plots import style
from tfp_bfl.plots.density import density_legend, kernel_density

DPI = 80
AXIS = "change in local training"
FACTORS = {"alpha": "alpha {:g}", "local_epochs": "{:g} local epochs", "round": "round {:g}"}


def write_figures(size: str, output: pathlib.Path, seeds: Sequence[int]) -> None:
    """Write normality_FACTOR.png, density_alpha=ALPHA.png and bandwidths.png, of the first seed."""
    folder = output / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    first = lambda setting: next(groups(setting, output, seeds[:1]))
    changes = lambda setting: first(setting) - global_weights(setting, output, seeds[0])
    figures = {}
    for factor, label in FACTORS.items():
        results = {label.format(getattr(s, factor)): normality(first(s)) for s in along(size, factor)}
        figures[f"normality_{factor}"] = normality_histograms(results, reference(base(size).clients))
    model = model_of(cell_of(base(size), size, seeds[0]))
    for setting in along(size, "alpha"):
        figures[f"density_alpha={setting.alpha:g}"] = density_figure(changes(setting), model, str(setting))
    figures["bandwidths"] = bandwidth_figure(changes(base(size)), model)
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png", dpi=DPI)


def chosen(result: Normality, spread: np.ndarray, h: np.ndarray, model: tf.keras.Model) -> list[tuple[str, int]]:
    """Return the weights to show: the least and the most normal by their distance, the median one, and one of each
    kernel, drawn by a seed.

    Only weights with a bandwidth h [D] above zero and at least the median standard deviation `spread` [D] are shown:
    the least normal of all weights hardly move at any client.
    """
    order = np.argsort(result.statistic)
    order = order[(h[order] > 0) & (spread[order] >= np.median(spread))]
    found = [("least normal", order[-1]), ("median", order[len(order) // 2]), ("most normal", order[0])]
    rng, start = np.random.default_rng(0), 0
    for name, shape in leaves(model):
        number = int(np.prod(shape))
        own = order[(order >= start) & (order < start + number)]
        if name.endswith("kernel") and len(own):
            found.append(("drawn", rng.choice(np.sort(own))))
        start += number
    return [(name, int(d)) for name, d in found]


def place(coordinate: int, model: tf.keras.Model) -> str:
    """Return the name of the weight at a coordinate, such as `conv2d 1 kernel [0, 3, 0, 7]`."""
    for name, shape in leaves(model):
        number = int(np.prod(shape))
        if coordinate < number:
            return f"{name} [{', '.join(str(i) for i in np.unravel_index(coordinate, shape))}]"
        coordinate -= number
    raise IndexError(coordinate)


def modes(values: np.ndarray) -> dict[str, np.ndarray]:
    """Return the clients' mean and what FedKP makes of it, of every column: [D] each."""
    return {
        "mean": values.mean(0),
        "mode from the mean": kernel_mode(values, "mean").numpy(),
        "clustered mode": kernel_mode(values, "clients").numpy(),
    }


def density_figure(changes: np.ndarray, model: tf.keras.Model, title: str) -> Figure:
    """Draw kernel densities of the changes [S, D] of the chosen weights in their clients' training, a panel each."""
    result = normality(changes)
    bandwidths = silverman_bandwidths(changes)
    which = chosen(result, changes.std(0), bandwidths, model)
    coordinates = [d for _, d in which]
    values, h = changes[:, coordinates].astype(np.float64), bandwidths[coordinates]
    marks = modes(values)
    columns = 3
    rows = -(-len(which) // columns)
    figure = style.new_figure(height=3.3 * rows + 1.0, width=12.0)
    figure.suptitle(title, x=0.01, ha="left", fontsize=style.SIZE + 1, color=style.INK, fontweight="bold")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for i, (axes, (name, d)) in enumerate(zip(panels, which)):
        curves = {"Epanechnikov's kernel": ("epanechnikov", h[i]), "Gaussian kernel": ("gaussian", h[i])}
        kernel_density(values[:, i], curves, {mark: x[i] for mark, x in marks.items()}, label=AXIS, axes=axes)
        p = result.lilliefors_p_value[d]
        shown = "p < 0.001" if p < 0.001 else f"p = {p:.2g}"
        text = f"{name}: {place(d, model)}\nKS distance {result.statistic[d]:.2f}, Lilliefors {shown}"
        axes.set_title(text, loc="left", fontsize=style.SIZE - 1, color=style.INK)
    for axes in panels[len(which) :]:
        axes.set_visible(False)
    density_legend(figure, panels[0])
    return figure


def bandwidth_figure(changes: np.ndarray, model: tf.keras.Model) -> Figure:
    """Draw one weight, that drawn from the last layer, under every rule for the bandwidth."""
    d = chosen(normality(changes), changes.std(0), silverman_bandwidths(changes), model)[-1][1]
    values = changes[:, d].astype(np.float64)
    ordered = tf.constant(np.sort(values)[np.newaxis])
    found = {name: float(rule(ordered, False)[0][0]) for name, rule in BANDWIDTHS.items()}
    curves = {f"{name}, h = {h:.2g}": ("epanechnikov", h) for name, h in found.items()}
    marks = {"mean": float(values.mean())}
    return plots.kernel_density(values, curves, marks, place(d, model), AXIS)
