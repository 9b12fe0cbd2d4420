"""Accuracy of one round by the bandwidth's scale, beside that of the clients' mean."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from tfp_bfl.plots import style

Rows = list[dict[str, Any]]
LOOKS = {("mean", "epanechnikov"): "-", ("mean", "gaussian"): ":", ("clients", "epanechnikov"): "--"}
LOOKS["clients", "gaussian"] = "-."


def write_figures(rows: Rows, folder: pathlib.Path) -> None:
    """Write bandwidth_scales.png: a panel an alpha."""
    folder.mkdir(parents=True, exist_ok=True)
    alphas = list(dict.fromkeys(row["alpha"] for row in rows))
    figure = style.new_figure(width=4.4 * len(alphas), height=4.4)
    for axes, alpha in zip(np.atleast_1d(figure.subplots(1, len(alphas), sharey=True)), alphas):
        own = [row for row in rows if row["alpha"] == alpha]
        mean = np.mean([row["accuracy"] for row in own if row["start"] is None])
        axes.axhline(mean, color=style.PALETTE[3], linewidth=1.2, label="clients' mean (FedAvg)")
        for i, ((start, kernel), line) in enumerate(LOOKS.items()):
            same = [
                row for row in own if (row["start"], row["kernel"], row["bandwidth"]) == (start, kernel, "silverman")
            ]
            scales = sorted({row["scale"] for row in same})
            values = [[row["accuracy"] for row in same if row["scale"] == scale] for scale in scales]
            label = f"from the {start}, {kernel.capitalize()}"
            axes.plot(scales, [np.mean(v) for v in values], line, color=style.PALETTE[i // 2], label=label)
        axes.set_xscale("log")
        style.tidy(axes, f"alpha {alpha:g}", x="times Silverman's h", y="accuracy" if alpha == alphas[0] else "")
    axes.legend(fontsize=style.SIZE - 3, frameon=False)
    figure.savefig(folder / "bandwidth_scales.png", dpi=110)
