"""Learning curves of runs: of each run a mapping per round, with "round"; a round without evaluation lacks scores.

Chains are drawn over their rounds: where they wander, and whether they agree.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.evaluation.repeats import half_width
from tfp_bfl.plots import style
from tfp_bfl.posterior import effective_sample_size, potential_scale_reduction

Rounds = Sequence[Mapping[str, Any]]
_SPREAD = ("stddev_q05", "stddev_median", "stddev_q95")
_COMPARED = {
    "accuracy": ("Accuracy on the test set", "fraction correct"),
    "rmse": ("RMSE on the test set", "RMSE"),
    "test_nll": ("Negative log-likelihood on the test set", "nats per example"),
    "stddev_median": ("Posterior standard deviations", "median standard deviation"),
}


def learning_curve(rounds: Rounds) -> Figure:
    """Draw accuracy, negative log-likelihood and the posterior standard deviations against the round.

    A panel is drawn if any round holds its keys: "accuracy" (fraction), "rmse" (in units of the labels), "test_nll" and
    "nll" (test and training, nats per example), and "stddev_q05", "stddev_median", "stddev_q95" (quantiles of the
    standard deviation over the weights, in units of the weights, on a logarithmic axis). A model without a posterior
    has no such keys.

    Example:
      >>> rounds = [{"round": 1, "test_nll": 0.9}, {"round": 2, "test_nll": 0.5}]
      >>> bfl.plots.learning_curve(rounds).savefig("curve.svg")
    """

    def score(axes: Axes, rounds: Rounds, key: str) -> None:
        _line(axes, [rounds], key, "test", color=style.BLUE)
        style.tidy(axes, _COMPARED[key][0], y=_COMPARED[key][1])

    scores = {key: functools.partial(score, key=key) for key in ("accuracy", "rmse")}
    ways: dict[str, Callable[..., None]] = {**scores, "test_nll": _loss, "stddev_median": _stddevs}
    has = lambda key: _has(rounds, key) or (key == "test_nll" and _has(rounds, "nll"))
    return _figure([rounds], [functools.partial(draw, rounds=rounds) for key, draw in ways.items() if has(key)])


def learning_comparison(runs: Mapping[str, Rounds | Sequence[Rounds]]) -> Figure:
    """Draw test accuracy, test NLL and the median standard deviation of several runs, a line for each.

    A method with several seeds, name -> the rounds of each, has the line of their mean in the rounds that all
    evaluated, and its 95 % interval as a band, mean -+ t_(n - 1)(0.975) sd / sqrt(n), which ends at the edge of a panel
    that shows all seeds. A panel is drawn if any run holds its key; a run without it has no line there.
    """
    if not runs:
        raise InvalidArgument("A comparison of learning curves needs at least one run, as a mapping of name to rounds.")

    is_one = lambda x: not x or isinstance(x[0], Mapping)
    seeds: list[Sequence[Rounds]] = [cast(Any, [x] if is_one(x) else x) for x in runs.values()]
    every = [rounds for own in seeds for rounds in own]

    def panel(axes: Axes, key: str) -> None:
        bands = []
        for i, (name, own) in enumerate(zip(runs, seeds)):
            # In every panel, so that the first one's legend names the runs that have no line there too.
            x, values = _line(axes, own, key, style.plain(name, 40), **style.line(i))
            if len(own) > 1 and x.size:
                axes.update_datalim(np.column_stack([np.tile(x, len(own)), values.ravel()]))
                bands.append((x, values.mean(0), half_width(values), style.line(i)))
        style.tidy(axes, _COMPARED[key][0], y=_COMPARED[key][1])
        if key == "stddev_median":
            style.logarithmic(axes)
        low, high = axes.get_ylim()
        for x, mean, half, look in bands:
            edge = {"edgecolor": (look["color"], 0.5), "linestyle": look["linestyle"], "linewidth": 0.7}
            axes.fill_between(x, np.maximum(mean - half, low), mean + half, facecolor=(look["color"], 0.1), **edge)
        if bands:
            axes.fill_between(x, mean, mean, facecolor=(style.MUTED, 0.3), label="95 % interval of the mean")
            axes.set_ylim(low, high)

    keys = [key for key in _COMPARED if any(_has(rounds, key) for rounds in every)]
    figure = _figure(every, [functools.partial(panel, key=key) for key in keys], more=0.2 * len(runs))
    style.figure_legend(figure, figure.axes[0])
    return figure


def _figure(runs: Sequence[Rounds], panels: Sequence[Callable[[Axes], None]], more: float = 0.0) -> Figure:
    """Return a figure of panels above each other over a common axis of rounds, `more` inches high for its legend."""
    if not all(runs):
        raise InvalidArgument("A learning curve needs at least one round, but the list of rounds is empty.")
    if not all("round" in row for rounds in runs for row in rounds):
        raise InvalidArgument("Each row of a learning curve must hold its number under the key 'round'.")
    if not panels:
        raise InvalidArgument(f"The rounds hold nothing to draw: give {', '.join(map(repr, _COMPARED))}.")
    figure = style.new_figure(height=0.5 + 2.2 * len(panels) + more)
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for panel, axis in zip(panels, axes):
        panel(axis)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    axes[-1].set_xlabel("round", fontsize=style.SIZE, color=style.INK)
    figure.align_ylabels(axes)
    return figure


def _has(rounds: Rounds, key: str) -> bool:
    return any(row.get(key) is not None for row in rounds)


def _series(seeds: Sequence[Rounds], key: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the rounds [R] that hold `key` in each of several runs, and its values [n, R]."""
    found = [{row["round"]: row[key] for row in rounds if row.get(key) is not None} for rounds in seeds]
    x = sorted(set.intersection(*map(set, found)))
    return np.array(x, np.float64), np.array([[values[i] for i in x] for values in found], np.float64)


def _line(axes: Axes, seeds: Sequence[Rounds], key: str, label: str, **look: Any) -> tuple[np.ndarray, np.ndarray]:
    x, values = _series(seeds, key)
    axes.plot(x, values.mean(0), label=label, linewidth=1.8, marker="o" if x.size <= 30 else "", markersize=4, **look)
    return x, values


def _loss(axes: Axes, rounds: Rounds) -> None:
    _line(axes, [rounds], "test_nll", "test", color=style.BLUE)
    _line(axes, [rounds], "nll", "training", color=style.ORANGE)
    only = "" if _has(rounds, "test_nll") else " in training"
    style.tidy(axes, f"Negative log-likelihood{only}", y="nats per example")
    style.legend(axes, loc="upper right")


def _stddevs(axes: Axes, rounds: Rounds) -> None:
    _line(axes, [rounds], "stddev_median", "median", color=style.GREEN)
    rows = [row for row in rounds if all(row.get(key) is not None for key in _SPREAD)]
    if rows:
        (x, (low,)), (_, (high,)) = (_series([rows], key) for key in ("stddev_q05", "stddev_q95"))
        look: dict[str, Any] = {"color": style.GREEN, "label": "5% to 95%"}
        if x.size == 1:  # A single round has no width to fill.
            axes.plot([*x, *x], [*low, *high], alpha=0.4, linewidth=6, **look)
        else:
            axes.fill_between(x, low, high, alpha=0.2, linewidth=0, **look)
    style.logarithmic(axes)
    style.tidy(axes, "Posterior standard deviations", y="standard deviation")
    style.legend(axes, loc="best")


def chain_traces(values: Mapping[str, Any], rounds: Any | None = None) -> Figure:
    """Draw scalars of M chains against the round, a line for each chain, and how often each chain has which value.

    Chains that have forgotten where they began wander over the same values, and their histograms lie on each other. The
    title of a panel has R-hat (`posterior.potential_scale_reduction`) and the effective sample size. Values are name ->
    one of each kept round [M, R], such as `Chains.metrics`, or one weight of the samples; rounds are 1 to R by default.
    """
    chains = {name: np.asarray(x, np.float64) for name, x in values.items()}
    if not chains:
        raise InvalidArgument("There is nothing to draw: give values of the chains by name, [M, R] each.")
    for name, x in chains.items():
        if x.ndim != 2 or x.shape[1] < 4:
            raise InvalidArgument(f"{name} must be of shape [M, R], R at least 4, but has the shape {x.shape}.")
        if not np.all(np.isfinite(x)):
            raise InvalidArgument(f"{name} must be finite numbers, but has values that are not finite.")
        if rounds is not None and len(rounds) != x.shape[1]:
            raise InvalidArgument(f"{name} is of {x.shape[1]} rounds, but {len(rounds)} numbers of rounds are given.")
    figure = style.new_figure(height=0.4 + 2.1 * len(chains), width=8.0)
    panels = figure.subplots(len(chains), 2, squeeze=False, sharey="row", width_ratios=(3, 1))
    for (name, of_chains), (trace, marginal) in zip(chains.items(), panels):
        bins = np.histogram_bin_edges(of_chains, 30).tolist()
        for number, x in enumerate(of_chains):
            look = {**style.line(number), "linestyle": "-"}
            at, weights = np.arange(1, len(x) + 1) if rounds is None else rounds, np.full(len(x), 1 / len(x))
            trace.plot(at, x, **look, linewidth=0.8, label=f"chain {number}")
            marginal.hist(x, bins, weights=weights, orientation="horizontal", histtype="step", color=look["color"])
        agree, draws = potential_scale_reduction(of_chains), effective_sample_size(of_chains)
        style.tidy(trace, f"{style.plain(name, 30)}: R-hat {agree:.3f}, {draws:.0f} effective samples")
        style.tidy(marginal)
    panels[-1, 0].set_xlabel("round", fontsize=style.SIZE, color=style.INK)
    panels[-1, 1].set_xlabel("fraction", fontsize=style.SIZE, color=style.INK)
    style.figure_legend(figure, panels[0, 0])
    return figure
