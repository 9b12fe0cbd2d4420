"""Figures of the clients' sizes and labels."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.plots import style

# Beyond these a number no longer fits into its cell, a name beside its row, or a gap between two bars.
_MAX_CLIENTS_WITH_NUMBERS = 12
_MAX_CLASS_NAMES = 30
_MAX_CLIENTS_WITH_GAPS = 40

# By opacity, so that on a dark page too more examples stand out more.
_SHADES = LinearSegmentedColormap.from_list("shades", [to_rgba(style.BLUE, alpha) for alpha in (0.0, 1.0)])


def client_labels(label_counts: object, class_names: Sequence[str], client_names: Sequence[str] = ()) -> Figure:
    """Draw the numbers of examples [K, C] of K clients and C classes, beneath each client's number of examples.

    Without `client_names` the clients have numbers.

    Example:
      >>> clients = bfl.data.load("digits").partition(bfl.data.dirichlet(num_clients=10, alpha=0.5), seed=0)
      >>> figure = bfl.plots.client_labels(clients.label_counts(), clients.source.class_names)
      >>> figure.savefig("clients.png")
    """
    counts = _checked(label_counts, "[K, C]")
    num_clients, num_classes = counts.shape
    if len(class_names) != num_classes:
        raise InvalidArgument(f"There must be a name for each of the {num_classes} classes, not {len(class_names)}.")
    if client_names and len(client_names) != num_clients:
        raise InvalidArgument(f"There must be a name for each of the {num_clients} clients, not {len(client_names)}.")
    rows = min(max(num_classes, 3), _MAX_CLASS_NAMES)
    figure = style.new_figure(height=2.2 + 0.28 * rows)
    top, main = figure.subplots(2, 1, sharex=True, height_ratios=[1.0, 0.28 * rows])
    _draw_sizes(top, counts.sum(axis=1))
    style.tidy(top, f"Labels of {num_clients} client{'s' if num_clients > 1 else ''}", y="examples")
    top.tick_params(bottom=False)
    top.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))

    picture = main.imshow(
        counts.T, aspect="auto", cmap=_SHADES, vmin=0, vmax=max(counts.max(), 1), interpolation="none"
    )
    if num_clients <= _MAX_CLIENTS_WITH_NUMBERS and num_classes <= _MAX_CLASS_NAMES:
        _write_numbers(main, counts)
    style.tidy(main, x="client", grid=None)
    main.spines[["left", "bottom"]].set_visible(False)
    main.tick_params(length=0)
    if client_names and num_clients <= _MAX_CLIENTS_WITH_NUMBERS:
        names = [style.plain(name, 18) for name in client_names]
        main.set_xticks(range(num_clients), names, rotation=30, ha="right", rotation_mode="anchor")
    else:
        main.xaxis.set_major_locator(_locator())
    step = -(-num_classes // _MAX_CLASS_NAMES)
    main.set_yticks(range(0, num_classes, step), [style.plain(name, 18) for name in class_names[::step]])
    bar = figure.colorbar(picture, ax=main, pad=0.02, aspect=30, ticks=MaxNLocator(nbins=8, integer=True))
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=style.SIZE - 2, labelcolor=style.INK, length=0)
    bar.set_label("examples", fontsize=style.SIZE - 1, color=style.INK)
    return figure


def client_sizes(sizes: object) -> Figure:
    """Draw how many examples [K] each client holds, such as `Clients.sizes`, as bars in the order of the clients."""
    sizes = _checked(sizes, "[K]")
    figure, axes = style.one_panel(2.8)
    _draw_sizes(axes, sizes, with_numbers=sizes.size <= _MAX_CLIENTS_WITH_NUMBERS)
    style.tidy(axes, f"Sizes of {sizes.size} client{'s' if sizes.size > 1 else ''}", x="client", y="examples")
    axes.set_xlim(-0.5, sizes.size - 0.5)
    axes.set_ylim(0, 1.1 * max(sizes.max(), 1))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.xaxis.set_major_locator(_locator())
    return figure


def _checked(numbers: object, shape: str) -> np.ndarray:
    counts = np.asarray(numbers)
    if counts.ndim != shape.count(",") + 1 or not counts.size or counts.dtype.kind not in "iuf":
        raise InvalidArgument(f"Numbers of examples must be of shape {shape}, not {counts.dtype} {counts.shape}.")
    if not np.all(np.isfinite(counts)) or counts.min() < 0:
        raise InvalidArgument("Numbers of examples must be finite and not negative.")
    return counts


def _locator() -> MaxNLocator:
    return MaxNLocator(integer=True, min_n_ticks=1, nbins=12)


def _draw_sizes(axes: Axes, sizes: np.ndarray, with_numbers: bool = False) -> None:
    if len(sizes) <= _MAX_CLIENTS_WITH_GAPS:
        bars = axes.bar(np.arange(len(sizes)), sizes, width=0.8, color=style.BLUE)
        if with_numbers:
            numbers = [f"{size:.10g}" for size in sizes]
            axes.bar_label(bars, numbers, padding=1, fontsize=style.SIZE - 3, color=style.INK)
    else:  # One shape: between bars without a gap the white would shine through.
        axes.stairs(sizes, np.arange(len(sizes) + 1) - 0.5, fill=True, color=style.BLUE)


def _write_numbers(axes: Axes, counts: np.ndarray) -> None:
    # Up to this shade dark numbers stand out more.
    dark = 0.8 * counts.max()
    for (client, label), count in np.ndenumerate(counts):
        if count:
            color = style.ON_BLUE if count > dark else style.INK
            axes.text(client, label, f"{count:g}", ha="center", va="center", fontsize=style.SIZE - 3, color=color)
