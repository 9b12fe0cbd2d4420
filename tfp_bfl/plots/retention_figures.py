"""Error detection by an uncertainty: retention and risk-coverage curves."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.evaluation.limits import RiskCoverage, area_under_risk_coverage
from tfp_bfl.evaluation.metrics import accuracy
from tfp_bfl.evaluation.retention import area_under_retention_curve, retention_curve
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
    axes.axhline(level, color=style.MUTED, linewidth=1.5, linestyle=(0, (1, 1.5)), label=f"random ({level:.3f})")
    _finish(figure, axes)
    return figure


def retention_comparison(models: Mapping[str, tuple[Any, Any, Any]], uncertainty: str = "entropy") -> Figure:
    """Draw the accuracy on the most certain examples against coverage, a line for each model.

    Args:
      models: name -> (probabilities [B, C], labels [B], uncertainty [B]), as for `retention_curves`.
      uncertainty: what orders the examples, for the axis.
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

    Args:
      curve: what `tfp_bfl.evaluation.risk_coverage` gave.
      uncertainty: what orders the examples, for the axis.
      limit: one that was chosen, such as `abstention_limit` gives; it is marked.
    """
    figure = style.new_figure(height=5.6)
    risk, limits = figure.subplots(2, sharex=True, height_ratios=(2, 1))
    name, area = style.plain(uncertainty, 20), area_under_risk_coverage(curve)
    risk.plot(
        100 * curve.coverage, 100 * curve.risk, label=f"error rate (AURC {area:.4f})", linewidth=2, **style.line(0)
    )
    limits.plot(100 * curve.coverage, curve.limit, linewidth=2, **style.line(0))
    if limit is not None:
        at = 100 * float(max(curve.coverage[curve.limit <= limit], default=0.0))
        for axes in (risk, limits):
            axes.axvline(at, color=style.MUTED, linewidth=1.5, linestyle=(0, (1, 1.5)), label=f"threshold {limit:.3g}")
    risk.set_xlim(0, 100)
    style.tidy(risk, "Error rate against coverage", x="", y="error rate, in %")
    style.tidy(limits, "", x=f"coverage by {name}, in %", y="threshold")
    style.figure_legend(figure, risk)
    return figure
