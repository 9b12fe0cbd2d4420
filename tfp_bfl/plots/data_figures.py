"""Figures of the clients' sizes and labels, and of images with the lowest and the highest uncertainty."""

from collections.abc import Sequence, Sized

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tfp_bfl.errors import InvalidArgument, check_count, counted
from tfp_bfl.evaluation.metrics import check_batch, check_labels, check_probabilities, to_tensor
from tfp_bfl.plots import style

_COLUMNS = 4


def uncertain_examples(
    features: object,
    labels: object,
    mean_probabilities: object,
    uncertainty: object,
    class_names: Sequence[str],
    count: int = 8,
) -> Figure | None:
    """Draw the `count` images of least and the `count` of most uncertainty [N], with the predictions [N, C].

    Features are uint8 images [N, H, W, 1] or [N, H, W, 3]; None is returned for other data. With fewer than 2 `count`
    examples, each is shown once.

    Example:
      >>> test = bfl.data.load("digits", split="test")
      >>> images, labels = test.features[:100], test.labels[:100]
      >>> p = np.random.default_rng(0).dirichlet(np.ones(10), 100)
      >>> figure = bfl.plots.uncertain_examples(images, labels, p, 1 - p.max(1), test.class_names)
      >>> figure.savefig("uncertain.png")
    """
    images = np.asarray(features)
    if not are_images(images):
        return None
    count = check_count(count, "count")
    probabilities = check_probabilities(mean_probabilities, "[N, C]")
    truth = check_labels(labels, probabilities).numpy()
    values = to_tensor(uncertainty, "uncertainty values")
    check_batch(values, probabilities, "uncertainty values")
    if len(images) != len(truth):
        raise InvalidArgument(f"There must be an image for each of the {len(truth)} labels, not {len(images)}.")
    _check_names(class_names, probabilities.shape[-1], "classes")
    groups = extremes(values.numpy(), count)

    rows = -(-len(groups[0][1]) // _COLUMNS)
    figure = style.new_figure(height=len(groups) * (0.4 + 2.0 * rows))
    parts = figure.subfigures(len(groups), 1, squeeze=False)[:, 0]
    for part, (title, chosen) in zip(parts, groups):
        part.set_facecolor("white")
        part.suptitle(title, x=0.01, ha="left", fontsize=style.SIZE + 1, fontweight="bold", color=style.INK)
        grid = part.subplots(rows, _COLUMNS, squeeze=False).ravel()
        for axes in grid:
            axes.set_axis_off()
        for axes, i in zip(grid, chosen):
            _draw(axes, images[i], probabilities[i].numpy(), int(truth[i]), class_names)
    return figure


def are_images(features: np.ndarray) -> bool:
    """Return whether features [N, ...] can be shown: [N, H, W, 1] or [N, H, W, 3], uint8."""
    return features.dtype == np.uint8 and features.ndim == 4 and features.shape[-1] in (1, 3)


def extremes(uncertainty: np.ndarray, count: int) -> list[tuple[str, np.ndarray]]:
    """Return the numbers of the `count` examples of least and of most uncertainty, under a heading each.

    With fewer than 2 `count` examples, each is in one group only.
    """
    order = np.argsort(uncertainty, kind="stable")
    count = min(count, max(len(order) // 2, 1))
    return [("Lowest uncertainty", order[:count]), ("Highest uncertainty", order[::-1][:count])][: min(len(order), 2)]


def _draw(axes: Axes, image: np.ndarray, probabilities: np.ndarray, truth: int, names: Sequence[str]) -> None:
    guess = int(probabilities.argmax())
    axes.imshow(image, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    text = f"{style.plain(names[guess], 11)} {100 * probabilities[guess]:.0f}%"
    text += "\ncorrect" if guess == truth else f"\nlabel {style.plain(names[truth], 11)}"
    color = style.INK if guess == truth else style.ORANGE
    axes.set_title(text, fontsize=style.SIZE - 1, color=color)


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
    _check_names(class_names, num_classes, "classes")
    _check_names(client_names or range(num_clients), num_clients, "clients")
    rows = min(max(num_classes, 3), _MAX_CLASS_NAMES)
    figure = style.new_figure(height=2.2 + 0.28 * rows)
    top, main = figure.subplots(2, 1, sharex=True, height_ratios=[1.0, 0.28 * rows])
    _draw_sizes(top, counts.sum(axis=1))
    style.tidy(top, f"Labels of {counted(num_clients, 'client')}", y="examples")
    top.tick_params(bottom=False)
    top.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))

    picture = main.imshow(
        counts.T, aspect="auto", cmap=_SHADES, vmin=0, vmax=max(counts.max(), 1), interpolation="none"
    )
    if num_clients <= _MAX_CLIENTS_WITH_NUMBERS and num_classes <= _MAX_CLASS_NAMES:
        for (client, label), count in np.ndenumerate(counts):
            if count:  # Up to a shade of .8 dark numbers stand out more.
                color = style.ON_BLUE if count > 0.8 * counts.max() else style.INK
                look = {"ha": "center", "va": "center", "fontsize": style.SIZE - 3, "color": color}
                main.text(client, label, f"{count:g}", **look)
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
    """Draw how many examples [K] each client holds, such as `Clients.sizes`, as bars in the order of the clients.

    Example:
      >>> bfl.plots.client_sizes([120, 80, 40]).savefig("sizes.png")
    """
    sizes = _checked(sizes, "[K]")
    figure, axes = style.one_panel(2.8)
    _draw_sizes(axes, sizes, with_numbers=sizes.size <= _MAX_CLIENTS_WITH_NUMBERS)
    style.tidy(axes, f"Sizes of {counted(sizes.size, 'client')}", x="client", y="examples")
    axes.set_xlim(-0.5, sizes.size - 0.5)
    axes.set_ylim(0, 1.1 * max(sizes.max(), 1))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.xaxis.set_major_locator(_locator())
    return figure


def _check_names(names: Sized, number: int, what: str) -> None:
    if len(names) != number:
        raise InvalidArgument(f"There must be a name for each of the {number} {what}, not {len(names)}.")


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
