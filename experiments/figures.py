"""Accuracy against confidence of several models."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.evaluation import confidence_curve
from tfp_bfl.plots import style


def accuracy_confidence(probabilities: Mapping[str, Any], labels: object, title: str = "") -> Figure:
    """Draw the accuracy of the predictions above a confidence against that confidence, a line for each model.

    Beneath it, the share of examples that are predicted with that confidence. Below the dotted diagonal a model is
    surer than it is right.

    Args:
      probabilities: name -> [B, C], each row a distribution.
      labels: [B], class numbers in [0, C).
      title: instead of the usual one.
    """
    if not probabilities:
        raise InvalidArgument("accuracy_confidence needs at least one model, as a mapping of name to predictions.")
    figure = style.new_figure(height=5.6)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[2.2, 1.0])
    for i, (name, p) in enumerate(probabilities.items()):
        curve = confidence_curve(p, labels)
        top.plot(curve.threshold, curve.accuracy, label=style.plain(name, 40), linewidth=1.8, **style.line(i))
        bottom.plot(curve.threshold, 100 * curve.kept, linewidth=1.8, **style.line(i))
    low, high = top.get_ylim()
    top.plot([0, 1], [0, 1], color=style.MUTED, linewidth=1.2, linestyle=(0, (1, 1.5)))
    top.set_ylim(low, min(high, 1.005))
    top.set_xlim(0, 1)
    bottom.set_ylim(0, 102)
    style.tidy(top, title or "Accuracy of the confident predictions", y="accuracy")
    style.tidy(bottom, x="confidence of at least", y="examples, in %")
    style.figure_legend(figure, top)
    return figure
