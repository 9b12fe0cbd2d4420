"""Who holds which labels, as a picture."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.plots import style

# Beyond these a number no longer fits into its cell, or a name beside its row.
_MAX_CLIENTS_WITH_NUMBERS = 12
_MAX_CLASS_NAMES = 30


def client_labels(label_counts: Any, class_names: Sequence[str]) -> Figure:
    """Draws how many examples of each class each client holds, beneath each client's number of examples.

    Args:
      label_counts: [K, C], numbers of examples, K clients and C classes.
      class_names: C names.

    Raises:
      InvalidArgument: the counts are not of shape [K, C] with K, C > 0, are negative or not finite, or the
        names are not C.
    """
    counts = np.asarray(label_counts)
    if counts.ndim != 2 or not counts.size or counts.dtype.kind not in "iuf":
        raise InvalidArgument(f"The label counts must be numbers of shape [K, C], not {counts.dtype} {counts.shape}.")
    if not np.all(np.isfinite(counts)) or counts.min() < 0:
        raise InvalidArgument("The label counts must be finite and not negative.")
    if len(class_names) != counts.shape[1]:
        raise InvalidArgument(
            f"There must be a name for each of the {counts.shape[1]} classes, not {len(class_names)}."
        )
    num_clients, num_classes = counts.shape

    rows = min(max(num_classes, 3), _MAX_CLASS_NAMES)
    figure = style.new_figure(height=2.2 + 0.28 * rows)
    top, main = figure.subplots(2, 1, sharex=True, height_ratios=[1.0, 0.28 * rows])
    clients = np.arange(num_clients)
    top.bar(clients, counts.sum(axis=1), width=0.8 if num_clients <= 40 else 1.0, color=style.BLUE)
    style.tidy(top, f"Labels of {num_clients} client{'s' if num_clients > 1 else ''}", y="examples")
    top.tick_params(bottom=False)
    top.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))

    picture = main.imshow(
        counts.T, aspect="auto", cmap="Blues", vmin=0, vmax=max(counts.max(), 1), interpolation="none"
    )
    if num_clients <= _MAX_CLIENTS_WITH_NUMBERS and num_classes <= _MAX_CLASS_NAMES:
        _write_numbers(main, counts)
    style.tidy(main, x="client", grid=None)
    main.spines[["left", "bottom"]].set_visible(False)
    main.tick_params(length=0)
    main.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, nbins=12))
    step = -(-num_classes // _MAX_CLASS_NAMES)
    main.set_yticks(range(0, num_classes, step), [style.plain(name, 18) for name in class_names[::step]])
    bar = figure.colorbar(picture, ax=main, pad=0.02, aspect=30)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=style.SIZE - 2, length=0)
    bar.set_label("examples", fontsize=style.SIZE - 1, color=style.INK)
    return figure


def _write_numbers(axes: Axes, counts: np.ndarray) -> None:
    half = counts.max() / 2
    for (client, label), count in np.ndenumerate(counts):
        if count:
            color = "white" if count > half else style.INK
            axes.text(client, label, f"{count:g}", ha="center", va="center", fontsize=style.SIZE - 3, color=color)
