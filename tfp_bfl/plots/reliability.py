"""Reliability diagrams: is the model's confidence justified?"""

import numpy as np
from matplotlib.figure import Figure

from tfp_bfl.evaluation.calibration import Reliability, reliability
from tfp_bfl.plots import style


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
    top.plot([0, 1], [0, 1], color=style.INK, linestyle="--", linewidth=1.2, label="calibrated")
    top.set(xlim=(0, 1), ylim=(0, 1))
    style.tidy(top, f"Calibration: ECE {ece:.3f}, MCE {mce:.3f}", y="accuracy in the bin")

    bottom.bar(left, share, width=width, align="edge", color=style.MUTED, linewidth=0.8, edgecolor="white")
    event, of = ("a class", "probabilities") if over == "classes" else ("the predicted class", "examples")
    style.tidy(bottom, x=f"confidence: probability of {event}", y=f"fraction of {of}")
    figure.align_ylabels([top, bottom])
    style.figure_legend(figure, top)
    return figure
