"""Learning curves by method, and bars of accuracy by setting."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.kernel_posterior.config import ALGORITHMS
from experiments.kernel_posterior.tables import RATE, Run, grouped, last_rounds
from tfp_bfl.plots import style

# With the server's step and without, for the first algorithms of the palette's colours and for the rest.
LINES = (("-", ":"), ("--", "-."))
HATCHES = {"-": None, ":": "..", "--": "//", "-.": "xx"}


def _look(how: str) -> dict[str, Any]:
    """Return the line of a method: a colour for its algorithm, another dash without the server's step."""
    how = how.partition(RATE)[0]
    names = sorted((name for name in ALGORITHMS if how.startswith(f"{name}, server")), key=len)
    i = list(ALGORITHMS).index(names[-1])
    with_step, without = LINES[i // len(style.PALETTE)]
    line = without if how.endswith("none") else with_step
    return {"color": style.PALETTE[i % len(style.PALETTE)], "linestyle": line}


def _varying(settings: list[str]) -> list[str]:
    """Return settings without the parts that all of them share; clients without a popularity are drawn uniformly."""
    parts = [where.split(", ") for where in settings]
    shared = set.intersection(*map(set, parts))
    if len(settings) == 1:
        return settings
    return [", ".join(part for part in own if part not in shared) or "drawn uniformly" for own in parts]


def _legend(figure: Figure, handles: dict[str, Any]) -> None:
    """Draw the legend below the panels; it names the server's step if methods differ in it."""
    columns = 2 if figure.get_figwidth() < 12 else 4
    servers = {how.partition(", server ")[2] for how in handles}
    names = handles if len(servers) > 1 else [how.partition(", server ")[0] for how in handles]
    figure.legend(
        handles.values(), names, loc="outside lower center", ncols=columns, frameon=False, fontsize=style.SIZE - 2
    )


def write_figures(table: str, runs: list[Run], folder: pathlib.Path) -> None:
    """Write TABLE_curves.png and TABLE_bars.png."""
    if not runs:
        return
    folder.mkdir(parents=True, exist_ok=True)
    groups = grouped(runs)
    settings = list(dict.fromkeys(key[0] for key in groups))
    methods = list(dict.fromkeys(key[1] for key in groups))
    _curves(groups, settings, methods).savefig(folder / f"{table}_curves.png", dpi=100)
    _bars(groups, settings, methods).savefig(folder / f"{table}_bars.png", dpi=100)


def _curves(groups: dict[tuple[str, str], list[Run]], settings: list[str], methods: list[str]) -> Figure:
    figure = style.new_figure(width=max(6.4, 3.5 * len(settings)), height=4.8)
    handles: dict[str, Any] = {}
    panels = np.atleast_1d(figure.subplots(1, len(settings), sharey=True))
    for axes, where, title in zip(panels, settings, _varying(settings)):
        for how in methods:
            seeds = groups.get((where, how), [])
            if seeds:
                rounds = [row["round"] for row in seeds[0]["rounds"] if "accuracy" in row]
                curves = [[row["accuracy"] for row in run["rounds"] if "accuracy" in row] for run in seeds]
                (handles[how],) = axes.plot(rounds, np.mean(curves, 0), linewidth=1.5, **_look(how))
        style.tidy(axes, title, x="round", y="accuracy" if where == settings[0] else "")
    _legend(figure, handles)
    return figure


def _bars(groups: dict[tuple[str, str], list[Run]], settings: list[str], methods: list[str]) -> Figure:
    figure = style.new_figure(width=min(14.0, max(6.4, 0.28 * len(groups) + 2)), height=4.8)
    axes = figure.subplots()
    width, handles = 0.84 / len(methods), {}
    for i, how in enumerate(methods):
        values = [[last_rounds(run) for run in groups.get((where, how), [])] for where in settings]
        places = np.arange(len(settings)) + (i - (len(methods) - 1) / 2) * width
        means = [np.mean(v) if v else np.nan for v in values]
        spread = [np.std(v, ddof=1) if len(v) > 1 else 0.0 for v in values]
        look = _look(how)
        fill = {"color": look["color"], "hatch": HATCHES[look["linestyle"]], "edgecolor": "white", "linewidth": 0.4}
        handles[how] = axes.bar(places, means, width, yerr=spread, **fill)
    axes.set_xticks(range(len(settings)), _varying(settings))
    axes.set_ylim(0, 1)
    style.tidy(axes, "Accuracy, mean of the last ten evaluations", y="accuracy")
    _legend(figure, handles)
    return figure
