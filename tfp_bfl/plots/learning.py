"""Learning curves of a run, by round."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.plots import style

_SPREAD = ("stddev_q05", "stddev_median", "stddev_q95")
_COMPARED = {
    "accuracy": ("Accuracy on the test set", "fraction correct"),
    "rmse": ("RMSE on the test set", "RMSE"),
    "test_nll": ("Negative log-likelihood on the test set", "nats per example"),
    "stddev_median": ("Posterior standard deviations", "median standard deviation"),
}


def learning_curve(rounds: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw accuracy, negative log-likelihood and the posterior's spread against the round.

    A panel is drawn if any round holds its keys: "accuracy" (share), "rmse" (in units of the labels), "test_nll" and
    "nll" (test and training, nats per example), and "stddev_q05", "stddev_median", "stddev_q95" (quantiles of the
    standard deviation over the weights, in units of the weights, on a logarithmic axis). A model without a posterior
    has no such keys.

    Args:
      rounds: one mapping per round, each with "round"; rounds without evaluation lack keys or hold None.

    Returns:
      A figure with one to three panels above each other.
    """
    _check_rounds(rounds)
    panels = []
    if _has(rounds, "accuracy"):
        panels.append(_accuracy)
    if _has(rounds, "rmse"):
        panels.append(_error)
    if _has(rounds, "test_nll") or _has(rounds, "nll"):
        panels.append(_loss)
    if _has(rounds, "stddev_median"):
        panels.append(_spread)
    if not panels:
        raise InvalidArgument("The rounds hold nothing to draw: give 'accuracy', 'test_nll', 'nll' or 'stddev_median'.")
    figure = style.new_figure(height=0.5 + 2.2 * len(panels))
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for panel, axis in zip(panels, axes):
        panel(axis, rounds)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    axes[-1].set_xlabel("round", fontsize=style.SIZE, color=style.INK)
    figure.align_ylabels(axes)
    return figure


def learning_comparison(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Draw test accuracy, test NLL and the median standard deviation of several runs, a line for each.

    A panel is drawn if any run holds its key; a run without it has no line there.

    Args:
      runs: name -> rounds, as for `learning_curve`.

    Returns:
      A figure with one to three panels above each other.
    """
    if not runs:
        raise InvalidArgument("A comparison of learning curves needs at least one run, as a mapping of name to rounds.")
    for rounds in runs.values():
        _check_rounds(rounds)
    panels = [key for key in _COMPARED if any(_has(rounds, key) for rounds in runs.values())]
    if not panels:
        raise InvalidArgument(f"The rounds hold nothing to draw: give {', '.join(map(repr, _COMPARED))}.")
    figure = style.new_figure(height=0.5 + 2.2 * len(panels) + 0.2 * len(runs))
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for key, axis in zip(panels, axes):
        for i, (name, rounds) in enumerate(runs.items()):
            # In every panel, so that the first one's legend names the runs that have no line there too.
            _line(axis, rounds, key, style.plain(name, 40), **style.line(i))
        style.tidy(axis, _COMPARED[key][0], y=_COMPARED[key][1])
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
        if key == "stddev_median":
            style.logarithmic(axis)
    axes[-1].set_xlabel("round", fontsize=style.SIZE, color=style.INK)
    figure.align_ylabels(axes)
    style.figure_legend(figure, axes[0])
    return figure


def _check_rounds(rounds: Sequence[Mapping[str, Any]]) -> None:
    if not rounds:
        raise InvalidArgument("A learning curve needs at least one round, but the list of rounds is empty.")
    if not all("round" in row for row in rounds):
        raise InvalidArgument("Each row of a learning curve must hold its number under the key 'round'.")


def _has(rounds: Sequence[Mapping[str, Any]], key: str) -> bool:
    return any(row.get(key) is not None for row in rounds)


def _series(rounds: Sequence[Mapping[str, Any]], key: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the rounds that hold `key`, and their values."""
    pairs = [(row["round"], row[key]) for row in rounds if row.get(key) is not None]
    values = np.asarray(pairs, np.float64).reshape(-1, 2)
    return values[:, 0], values[:, 1]


def _line(axes: Axes, rounds: Sequence[Mapping[str, Any]], key: str, label: str, **look: Any) -> None:
    x, y = _series(rounds, key)
    marker = "o" if x.size <= 30 else ""
    axes.plot(x, y, label=label, linewidth=1.8, marker=marker, markersize=4, **look)


def _accuracy(axes: Axes, rounds: Sequence[Mapping[str, Any]]) -> None:
    _line(axes, rounds, "accuracy", "test", color=style.BLUE)
    style.tidy(axes, "Accuracy on the test set", y="fraction correct")


def _error(axes: Axes, rounds: Sequence[Mapping[str, Any]]) -> None:
    _line(axes, rounds, "rmse", "test", color=style.BLUE)
    style.tidy(axes, "RMSE on the test set", y="RMSE")


def _loss(axes: Axes, rounds: Sequence[Mapping[str, Any]]) -> None:
    _line(axes, rounds, "test_nll", "test", color=style.BLUE)
    _line(axes, rounds, "nll", "training", color=style.ORANGE)
    only = "" if _has(rounds, "test_nll") else " in training"
    style.tidy(axes, f"Negative log-likelihood{only}", y="nats per example")
    style.legend(axes, loc="upper right")


def _spread(axes: Axes, rounds: Sequence[Mapping[str, Any]]) -> None:
    _line(axes, rounds, "stddev_median", "median", color=style.GREEN)
    rows = [row for row in rounds if all(row.get(key) is not None for key in _SPREAD)]
    if rows:
        x, low = _series(rows, "stddev_q05")
        high = _series(rows, "stddev_q95")[1]
        # A single round has no width to fill.
        if x.size == 1:
            axes.plot(
                [x[0], x[0]],
                [low[0], high[0]],
                color=style.GREEN,
                alpha=0.4,
                linewidth=6,
                label="5% to 95%",
            )
        else:
            axes.fill_between(x, low, high, color=style.GREEN, alpha=0.2, linewidth=0, label="5% to 95%")
    style.logarithmic(axes)
    style.tidy(axes, "Posterior standard deviations", y="standard deviation")
    style.legend(axes, loc="best")
