"""Whether an uncertainty finds the mistakes, as a picture."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.evaluation.metrics import accuracy
from tfp_bfl.evaluation.retention import area_under_retention_curve, retention_curve
from tfp_bfl.plots import style

_DASHES = ("-", "--", "-.", ":")


def retention_curves(probabilities: Any, labels: Any, uncertainties: Mapping[str, Any]) -> Figure:
    """Draws the accuracy on the surest examples against the share that is kept, a line for each uncertainty.

    The level line is what a random order would give. The legend gives each curve's area.

    Args:
      probabilities: [B, C], each row a distribution.
      labels: [B], class numbers in [0, C).
      uncertainties: name -> [B], larger is less sure.

    Raises:
      InvalidArgument: there is no uncertainty, or as `tfp_bfl.evaluation.retention.retention_curve`.
    """
    if not uncertainties:
        raise InvalidArgument("Retention curves need at least one uncertainty, as a mapping of name to values [B].")
    figure = style.new_figure(height=4.2)
    axes = figure.subplots()
    for i, (name, uncertainty) in enumerate(uncertainties.items()):
        curve = retention_curve(probabilities, labels, uncertainty)
        color = style.PALETTE[i % len(style.PALETTE)]
        label = f"{style.plain(name, 40)} (area {float(area_under_retention_curve(curve)):.3f})"
        dashes = _DASHES[i % len(_DASHES)]
        axes.plot(100 * curve.retained, curve.accuracy, dashes, color=color, label=label, linewidth=2)
    level = float(accuracy(probabilities, labels))
    axes.axhline(level, color=style.MUTED, linewidth=1.5, linestyle=(0, (1, 1.5)), label=f"random ({level:.3f})")
    axes.set_xlim(0, 100)
    axes.margins(y=0.08)
    style.tidy(axes, "Accuracy on the examples kept", x="surest examples kept, in %", y="accuracy")
    style.legend(axes, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    return figure
