"""The figures of the study: retention curves and learning curves, a line for each setting."""

from __future__ import annotations

import pathlib

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.aggregation.tables import KEYS, UNCERTAINTIES, Run, grouped, spread_of
from tfp_bfl.plots import style

NAMES = ("kind", "rule", "weighting", "pretrain_share", "update_prior", "output_dropout", "learning_rate")
MOST_LINES = 10
COLORS = (*style.PALETTE, style.INK)
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1, 1, 1)))


def _lines(runs: list[Run]) -> dict[str, list[Run]]:
    """Return the runs of each line of a figure, by its label: what differs between the lines."""
    groups = grouped(runs)
    differing = [name for name in NAMES if len({values[KEYS.index(name)] for values in groups}) > 1]
    label = lambda values: ", ".join(_word(name, values[KEYS.index(name)]) for name in differing or ["rule"])
    return {label(values): same for values, same in groups.items()}


def _word(name: str, value: object) -> str:
    if name == "pretrain_share":
        return "pre-trained" if value else "not pre-trained"
    if name == "update_prior":
        return "prior updated" if value else "prior fixed"
    if name == "output_dropout":
        return "logits dropped" if value else "logits kept"
    if name == "learning_rate":
        return f"rate {value}"
    return str(value).replace("_", " ")


def retention_figure(runs: list[Run]) -> Figure:
    """Draw accuracy on the surest examples, by each uncertainty, averaged over seeds."""
    figure = style.new_figure(height=4.4, width=11)
    panels = figure.subplots(1, len(UNCERTAINTIES), sharey=True)
    lines = _lines(runs)
    for axes, uncertainty in zip(panels, UNCERTAINTIES):
        for i, (label, same) in enumerate(lines.items()):
            accuracy = np.mean([run["curves"][uncertainty] for run in same], 0)
            retained = 100 * np.arange(1, len(accuracy) + 1) / len(accuracy)
            axes.plot(retained, accuracy, **_look(i), label=label)
        style.tidy(axes, uncertainty, x="surest examples kept, in %", y="accuracy" if axes is panels[0] else "")
    # A rule that fails would flatten the others.
    lowest = min((run["accuracy"] for run in runs if run["accuracy"] > 0.3), default=0.0)
    panels[0].set_ylim(bottom=max(panels[0].get_ylim()[0], lowest - 0.05))
    _legend(figure, panels[0])
    return figure


def learning_figure(runs: list[Run]) -> Figure:
    """Draw test accuracy, test NLL and, where there are posteriors, their median sd after each round."""
    figure = style.new_figure(height=4.4, width=11)
    titles = ("Accuracy", "Negative log-likelihood", "Median standard deviation")
    panels = figure.subplots(1, 3 if any(spread_of([run]) for run in runs) else 2)
    accuracy, loss = panels[:2]
    for i, (label, same) in enumerate(_lines(runs).items()):
        for axes, key in ((accuracy, "accuracy"), (loss, "test_nll")):
            rounds = [row["round"] for row in same[0]["per_round"] if key in row]
            values = np.mean([[row[key] for row in run["per_round"] if key in row] for run in same], 0)
            axes.plot(rounds, values, **_look(i), label=label)
        sds = spread_of(same)
        if sds:
            panels[2].plot([row["round"] for row in same[0]["per_round"]], sds, **_look(i))
            panels[2].set_yscale("log")
    loss.set_ylim(bottom=0, top=min(loss.get_ylim()[1], 3.0))  # A rule that fails would hide the others.
    for axes, title in zip(panels, titles):
        style.tidy(axes, title, x="round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(figure, accuracy)
    return figure


def _look(i: int) -> dict[str, object]:
    return {"color": COLORS[i % len(COLORS)], "linestyle": DASHES[i % len(DASHES)], "linewidth": 1.8}


def _legend(figure: Figure, axes: object) -> None:
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=style.SIZE - 1
    )


def write_figures(table: str, runs: list[Run], folder: pathlib.Path) -> None:
    """Write both figures of a table for each of its partitions; a single round has no learning curve.

    Tables with too many lines for one figure have a figure for each rule.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for partition in dict.fromkeys(run["partition"] for run in runs):
        same = [run for run in runs if run["partition"] == partition]
        parts = {"": same}
        if len(_lines(same)) > MOST_LINES:
            rules = dict.fromkeys(run["rule"] for run in same)
            parts = {f"-{rule}": [run for run in same if run["rule"] == rule] for rule in rules}
        for which, part in parts.items():
            if which and len(_lines(part)) == 1:
                continue
            name = f"{table}-{partition}{which}".replace(":", "_")
            retention_figure(part).savefig(folder / f"{name}-retention.png", dpi=120)
            if max(run["rounds"] for run in part) > 1:
                learning_figure(part).savefig(folder / f"{name}-learning.png", dpi=120)
