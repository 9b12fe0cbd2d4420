"""The figure of the study: reliability of what single clients' models predict."""

from __future__ import annotations

from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from experiments.metavd.config import BINS, SHORT


def reliability_figure(summaries: list[dict[str, Any]]) -> Any | None:
    """Draw accuracy over confidence of the predicted class, of all clients' examples, for the methods of `SHORT`."""
    usual = {"size": "fashion_mnist", "concentration": 0.5, "cohort": 10, "seed": 0}
    chosen = {
        s["options"]["method"]: s["scores"]
        for s in summaries
        if "scores" in s and all(s["options"][key] == x for key, x in usual.items())
    }
    if not all(name in chosen for name in SHORT):
        return None
    figure, axes = plt.subplots(2, len(SHORT), figsize=(3 * len(SHORT), 6), sharex=True, sharey=True)
    for row, who in zip(axes, ("known", "unseen")):
        for axis, name in zip(row, SHORT):
            for when, colour in (("before", "tab:orange"), ("after", "tab:blue")):
                scores = chosen[name][f"{who}, matched"][when]
                confidence, accuracy, count = scores["reliability"][:3]
                points = [(c, a) for c, a, n in zip(confidence, accuracy, count) if n]
                label = f"{when} adaptation, ECE {scores['all_ece']:.3f}"
                axis.plot(*zip(*points), marker="o", markersize=3, color=colour, label=label)
            axis.plot([0, 1], [0, 1], color="grey", linewidth=0.8)
            axis.set_title(f"{name}, {who}", fontsize=9)
            axis.legend(fontsize=7)
    for axis in axes[-1]:
        axis.set_xlabel(f"confidence ({BINS} bins)")
    for row in axes:
        row[0].set_ylabel("accuracy")
    figure.tight_layout()
    return figure
