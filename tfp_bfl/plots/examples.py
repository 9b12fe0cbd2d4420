"""Images with the lowest and the highest uncertainty of a model."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfp_bfl.errors import InvalidArgument, check_count
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
    """Draw the `count` images of least and the `count` of most uncertainty, with the predictions.

    Args:
      features: uint8 images [N, H, W, 1] or [N, H, W, 3]; None is returned for other data.
      labels: [N], class numbers in [0, C).
      mean_probabilities: [N, C], each row a distribution.
      uncertainty: [N], larger is less sure.
      class_names: C names.
      count: images of either kind; with fewer than 2 `count` examples, each is shown once.

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
    if len(class_names) != probabilities.shape[-1]:
        raise InvalidArgument(
            f"There must be a name for each of the {probabilities.shape[-1]} classes, not {len(class_names)}."
        )
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
