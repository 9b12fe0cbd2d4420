"""Figures of a model's predictions: calibration, error detection, out-of-distribution scores, and of numbers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from scipy import special

from tfp_bfl.errors import InvalidArgument, check_count
from tfp_bfl.evaluation.classification import Reliability, reliability
from tfp_bfl.evaluation.limits import (
    RiskCoverage,
    area_under_retention_curve,
    area_under_risk_coverage,
    retention_curve,
)
from tfp_bfl.evaluation.metrics import accuracy
from tfp_bfl.evaluation.unusual import check_scores, out_of_distribution
from tfp_bfl.plots import style


def retention_curves(probabilities: object, labels: object, uncertainties: Mapping[str, Any]) -> Figure:
    """Draw the accuracy on the most certain examples against coverage, a line for each uncertainty, name -> [B].

    The level line is what a random order would give. The legend gives each curve's area.
    """
    if not uncertainties:
        raise InvalidArgument("Retention curves need at least one uncertainty, as a mapping of name to values [B].")
    figure, axes = style.one_panel(4.2)
    for i, (name, uncertainty) in enumerate(uncertainties.items()):
        _draw(axes, i, name.replace("_", " "), probabilities, labels, uncertainty)
    level = float(accuracy(probabilities, labels))
    axes.axhline(level, label=f"random ({level:.3f})", **style.DOTTED)
    _finish(figure, axes)
    return figure


def retention_comparison(models: Mapping[str, tuple[Any, Any, Any]], uncertainty: str = "entropy") -> Figure:
    """Draw the accuracy on the most certain examples against coverage, a line for each model: name -> (probabilities
    [B, C], labels [B], uncertainty [B]). `uncertainty` names what orders the examples.
    """
    if not models:
        raise InvalidArgument("A comparison of retention curves needs at least one model, as a mapping of name to it.")
    figure, axes = style.one_panel(4.0 + 0.2 * len(models))
    for i, (name, arguments) in enumerate(models.items()):
        _draw(axes, i, name, *arguments)
    _finish(figure, axes, f" by {style.plain(uncertainty, 20)}")
    return figure


def _draw(axes: Axes, number: int, name: str, probabilities: object, labels: object, uncertainty: object) -> None:
    curve = retention_curve(probabilities, labels, uncertainty)
    label = f"{style.plain(name, 40)} (area {float(area_under_retention_curve(curve)):.3f})"
    axes.plot(100 * curve.retained, curve.accuracy, label=label, linewidth=2, **style.line(number))


def _finish(figure: Figure, axes: Axes, by: str = "") -> None:
    axes.set_xlim(0, 100)
    axes.margins(y=0.08)
    of = by or ": examples of lowest uncertainty"
    style.tidy(axes, "Accuracy against coverage", x=f"coverage{of}, in %", y="accuracy")
    style.figure_legend(figure, axes)


def risk_coverage(curve: RiskCoverage, uncertainty: str = "entropy", limit: float | None = None) -> Figure:
    """Draw the error rate of the answered examples against coverage, and the abstention threshold below.

    The curve is of `tfp_bfl.evaluation.risk_coverage`, by a named uncertainty; a limit that was chosen is marked.
    """
    figure = style.new_figure(height=5.6)
    risk, limits = figure.subplots(2, sharex=True, height_ratios=(2, 1))
    name, area = style.plain(uncertainty, 20), area_under_risk_coverage(curve)
    look = {"linewidth": 2, **style.line(0)}
    risk.plot(100 * curve.coverage, 100 * curve.risk, label=f"error rate (AURC {area:.4f})", **look)
    limits.plot(100 * curve.coverage, curve.limit, **look)
    if limit is not None:
        at = 100 * float(max(curve.coverage[curve.limit <= limit], default=0.0))
        for axes in (risk, limits):
            axes.axvline(at, label=f"threshold {limit:.3g}", **style.DOTTED)
    risk.set_xlim(0, 100)
    style.tidy(risk, "Error rate against coverage", x="", y="error rate, in %")
    style.tidy(limits, "", x=f"coverage by {name}, in %", y="threshold")
    style.figure_legend(figure, risk)
    return figure


def reliability_diagram(probabilities: object, labels: object, num_bins: int = 15, over: str = "top_label") -> Figure:
    """Draw accuracy against confidence in bins of equal width, above a histogram of the confidences.

    A calibrated model's bars end on the diagonal, most of them within the range that chance leaves open, two binomial
    standard deviations about the confidence: wide in bins of few examples. The title gives the expected and the
    maximum calibration error. Arguments are those of `evaluation.reliability`.

    Example:
      >>> probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]], np.float32)
      >>> figure = bfl.plots.reliability_diagram(probabilities, np.array([0, 1, 1, 0]))
      >>> figure.savefig("reliability.png")
    """
    return reliability_bars(reliability(probabilities, labels, num_bins, over), over)


def reliability_bars(reliability: Reliability, over: str = "top_label") -> Figure:
    """Return `reliability_diagram` of the result of `evaluation.reliability` or `evaluation.reliability_of`."""
    confidence, accuracy, count, edges = (part.numpy() for part in reliability)
    used = count > 0
    gaps = np.abs(accuracy - confidence)[used]
    share = count / count.sum()
    ece, mce = np.sum(share[used] * gaps), gaps.max()

    figure = style.new_figure(height=6.4)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    left, width = edges[:-1], np.diff(edges)
    place = {"width": width[used], "align": "edge"}
    top.bar(left[used], accuracy[used], color=style.BLUE, edgecolor="white", label="accuracy", **place)
    # Hatched, since the gap may lie on the bar (too unsure) or above it (too sure).
    lower = np.minimum(accuracy, confidence)[used]
    gap = {"facecolor": "none", "edgecolor": style.ORANGE, "hatch": "////", "linewidth": 0.8}
    top.bar(left[used], gaps, bottom=lower, label="gap to the confidence", **gap, **place)
    # What chance leaves open: of three examples nearly everything.
    error = 2 * np.sqrt(np.maximum(confidence * (1 - confidence), 0.25 / np.maximum(count, 1))[used] / count[used])
    middle = (left + width / 2)[used]
    bars = {"fmt": "none", "ecolor": style.INK, "elinewidth": 1, "capsize": 2, "label": "chance, ±2 sd"}
    top.errorbar(middle, confidence[used], np.minimum(error, 1), **bars)
    top.plot([0, 1], [0, 1], label="calibrated", **style.DASHED)
    top.set(xlim=(0, 1), ylim=(0, 1))
    style.tidy(top, f"Calibration: ECE {ece:.3f}, MCE {mce:.3f}", y="accuracy in the bin")

    bottom.bar(left, share, width=width, align="edge", color=style.MUTED, linewidth=0.8, edgecolor="white")
    event, of = ("a class", "probabilities") if over == "classes" else ("the predicted class", "examples")
    style.tidy(bottom, x=f"confidence: probability of {event}", y=f"fraction of {of}")
    figure.align_ylabels([top, bottom])
    style.figure_legend(figure, top)
    return figure


def uncertainty_density(
    scores_in: object,
    scores_out: object,
    *,
    quantity: str = "entropy",
    name_in: str = "in distribution",
    name_out: str = "out of distribution",
    upper: float | None = None,
    num_bins: int = 30,
) -> Figure:
    """Draw the distributions of an uncertainty in and out of distribution, as two histograms in the same bins.

    The less they overlap, the better the uncertainty detects out-of-distribution data; the title gives AUROC and AUPR.
    A histogram, since uncertainties pile up at their bounds, where a kernel density would leak over them.

    Args:
      scores_in, scores_out: [N] and [M], not negative, of examples like the training data and from elsewhere.
      quantity, name_in, name_out: names of the scores and of the examples.
      upper: where the axis ends, such as 1 for a normalised entropy; the largest score if None.
      num_bins: of equal width from 0 to `upper`.
    """
    num_bins = check_count(num_bins, "num_bins")
    areas = out_of_distribution(scores_in, scores_out)
    scores = [check_scores(scores_in, "scores_in"), check_scores(scores_out, "scores_out")]
    low, high = min(part.min() for part in scores), max(part.max() for part in scores)
    if low < 0 or (upper is not None and not high <= upper):
        most = "infinity" if upper is None else f"{upper:g}"
        raise InvalidArgument(f"The scores must lie in [0, {most}], but they span [{low:.4g}, {high:.4g}].")
    # Of scores that are all zero any width will do.
    edges = np.linspace(0, upper if upper is not None else high or 1.0, num_bins + 1)

    figure, axes = style.one_panel(3.4)
    looks = (("-", style.BLUE, 0.35, name_in), ("--", style.ORANGE, 0.25, name_out))
    for values, (dashes, color, alpha, name) in zip(scores, looks):
        share = np.histogram(values, edges)[0] / values.size
        axes.stairs(share, edges, fill=True, color=color, alpha=alpha, linewidth=0)
        label = f"{style.plain(name, 32)} ({values.size})"
        axes.stairs(share, edges, color=color, linestyle=dashes, linewidth=1.8, label=label)
    axes.set_xlim(0, edges[-1])
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g} %"))
    title = style.plain(quantity[:1].upper() + quantity[1:], 40)
    title = f"{title}: AUROC {areas.auroc:.3f}, AUPR {areas.aupr:.3f}"
    style.tidy(axes, title, x=style.plain(quantity, 40), y="fraction of examples")
    style.legend(axes, loc="best")
    return figure


_MOST_INTERVALS = 80


def regression_figures(numbers: Mapping[str, Any], labels: object) -> dict[str, Figure]:
    """Return all figures of a regression, by name; `numbers` holds arrays [N] by name, and labels are [N]."""
    figures = (predicted_against_true, interval_coverage, error_retention)
    return {draw.__name__: draw(numbers, labels) for draw in figures}


def predicted_against_true(numbers: Mapping[str, Any], labels: object) -> Figure:
    """Draw each "mean" against the truth, some with their interval from "low" to "high" (90 %)."""
    mean, low, high = (_checked(numbers, name, labels) for name in ("mean", "low", "high"))
    truth = np.asarray(labels)
    figure, axes = style.one_panel(4.8)
    few = np.linspace(0, len(truth) - 1, min(len(truth), _MOST_INTERVALS)).astype(int)
    errors = np.maximum(np.stack([mean - low, high - mean])[:, few], 0)
    look: dict[str, Any] = {"fmt": "none", "ecolor": style.SKY, "elinewidth": 1.2, "zorder": 1}
    axes.errorbar(truth[few], mean[few], errors, label="90 % interval", **look)
    axes.scatter(truth, mean, s=12, color=style.BLUE, label="mean", zorder=2)
    ends = [min(truth.min(), mean.min()), max(truth.max(), mean.max())]
    axes.plot(ends, ends, label="predicted = true", **style.DASHED)
    style.tidy(axes, "Predictions of the test set", x="true", y="predicted", grid="both")
    style.figure_legend(figure, axes)
    return figure


def interval_coverage(numbers: Mapping[str, Any], labels: object) -> Figure:
    """Draw how many labels lie within "mean" -+ z "stddev" against how many should, for all z."""
    mean, stddev = (_checked(numbers, name, labels) for name in ("mean", "stddev"))
    wanted = np.linspace(0.02, 0.98, 49)
    z = np.abs(np.asarray(labels) - mean) / np.maximum(stddev, np.finfo(np.float32).tiny)
    coverage = np.mean(z[:, None] <= special.ndtri(0.5 + wanted / 2), 0)
    error = 2 * np.sqrt(wanted * (1 - wanted) / len(z))
    figure, axes = style.one_panel(4.6)
    axes.fill_between(wanted, wanted - error, wanted + error, color=style.GRID, linewidth=0, label="chance, ±2 sd")
    axes.plot([0, 1], [0, 1], label="calibrated", **style.DASHED)
    axes.plot(wanted, coverage, color=style.BLUE, linewidth=1.8, label="observed")
    axes.set(xlim=(0, 1), ylim=(0, 1))
    style.tidy(axes, "Coverage of the intervals", x="nominal coverage", y="observed coverage", grid="both")
    style.figure_legend(figure, axes)
    return figure


def error_retention(numbers: Mapping[str, Any], labels: object) -> Figure:
    """Draw the RMSE of the most certain predictions against coverage, by "stddev", "epistemic" and "aleatoric"."""
    squares = np.square(np.asarray(labels) - _checked(numbers, "mean", labels))
    fraction = np.arange(1, len(squares) + 1) / len(squares)
    figure, axes = style.one_panel(4.2)
    for i, name in enumerate(name for name in ("stddev", "epistemic", "aleatoric") if name in numbers):
        order = np.argsort(_checked(numbers, name, labels), kind="stable")
        errors = np.sqrt(np.cumsum(squares[order]) / np.arange(1, len(squares) + 1))
        first = max(1, len(squares) // 20)  # The mean of a few says little.
        axes.plot(fraction[first - 1 :], errors[first - 1 :], linewidth=1.8, label=f"by {name}", **style.line(i))
    level = float(np.sqrt(squares.mean()))
    axes.axhline(level, label=f"random ({level:.4g})", **style.DOTTED)
    axes.set_xlim(0, 1)
    style.tidy(axes, "RMSE against coverage", x="coverage: fraction of examples answered", y="RMSE")
    style.figure_legend(figure, axes)
    return figure


def _checked(numbers: Mapping[str, Any], name: str, labels: Any) -> np.ndarray:
    values = np.asarray(numbers.get(name), np.float64)
    if values.ndim != 1 or not len(values) or values.shape != np.shape(labels):
        raise InvalidArgument(f"{name} has the shape {list(values.shape)}, but must be [N], as the labels.")
    return values
