"""Tables and figures of the curves: NLL by rounds, at equal bytes and at the plateau."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from experiments.default_posterior.config import BYTES_OF, CURVE_SEEDS, CURVES, ROUNDS
from experiments.default_posterior.curves import Curve, Record, curves_of, is_finished, scores_of
from experiments.tables import less, write
from tfp_bfl.plots import style

Lines = list[list[str]]
# Rows of the table by rounds: each method, and the default's controls.
CONTROLS = {"permuted": "default, permuted", "constant": "default, one number"}
FIGURES = {"nll": "test NLL (nats, logarithmic)", "ood_auroc": "OOD AUROC"}
COSTS = {"upload_mb": "bytes from clients (MB)", "client_steps": "steps of a client"}


def mean_of(method: str, records: dict[int, Record], column: str, row: str = "last") -> float:
    """Return the mean of a score over seeds; NaN of none."""
    return float(np.mean([*scores_of(method, records, column, row).values()] or [np.nan]))


def at_equal_bytes(curves: dict[str, Curve]) -> dict[str, int]:
    """Return the largest number of rounds of each method with at most the bytes of `BYTES_OF` from clients."""
    name, rounds = BYTES_OF
    most = mean_of(name, curves.get(name, {}).get(rounds, {}), "upload_mb")
    sent = {method: {r: mean_of(method, of, "upload_mb") for r, of in curves[method].items()} for method in curves}
    fitting = {method: [r for r, mb in of.items() if mb <= most] for method, of in sent.items()}
    return {method: max(of) for method, of in fitting.items() if of}


def at_plateau(curves: dict[str, Curve]) -> dict[str, int]:
    """Return the number of rounds of each method, of those that were doubled, with the lowest held-out NLL; rounds that
    lack seeds of others are left out, as means over other seeds do not compare.
    """
    numbers = {method: {r: len(curve[r]) for r in ROUNDS if curve.get(r)} for method, curve in curves.items()}
    doubled = {method: [r for r, n in of.items() if n == max(of.values())] for method, of in numbers.items()}
    held_out = lambda method: lambda r: mean_of(method, curves[method][r], "nll", "held_out")
    return {method: min(rounds, key=held_out(method)) for method, rounds in doubled.items() if rounds}


def compared(curves: dict[str, Curve], chosen: dict[str, int], finished: set[str]) -> Lines:
    """Return a line for each method: its rounds, costs, NLL, the default's NLL less it, paired by seed, OOD AUROC and
    seeds. The lowest NLL is bold, of finished methods that have all seeds.
    """
    lines = []
    records = {method: curves[method][chosen[method]] for method in CURVES if method in chosen}
    nll = {method: mean_of(method, of, "nll") for method, of in records.items()}
    most = max(map(len, records.values()), default=0)
    ranked = {method for method, of in records.items() if method in finished and len(of) == most}
    lowest = min((nll[method] for method in ranked), default=np.nan)
    default = scores_of("default", records.get("default", {}))
    for method, of in records.items():
        text = f"{nll[method]:.4f}"
        of_default = "" if method == "default" else less(default, scores_of(method, of))
        if not {method, "default"} <= finished:
            of_default = of_default.replace("**", "")
        lines.append(
            [
                method,
                f"{chosen[method]}{'' if method in finished else ', not finished'}",
                f"{mean_of(method, of, 'upload_mb'):.1f}",
                f"{mean_of(method, of, 'client_steps'):.0f}",
                f"**{text}**" if method in ranked and nll[method] == lowest else text,
                of_default,
                f"{mean_of(method, of, 'ood_auroc'):.3f}",
                str(len(of)),
            ]
        )
    return lines


def setting_table(curves: dict[str, Curve]) -> Lines:
    """Return NLL by method and rounds, and below it the methods at equal bytes and at the plateau."""
    lines = [["method", *(f"{r} rounds" for r in ROUNDS), "plateau", "seeds"]]
    for method in (name for name in CURVES if name in curves):
        curve = curves[method]
        for row, title in ({"last": method, **CONTROLS} if method == "default" else {"last": method}).items():
            values = [mean_of(method, curve.get(r, {}), "nll", row) for r in ROUNDS]
            cells = ["" if np.isnan(x) else f"{x:.4f}" for x in values]
            state = "finished" if is_finished(method, curve) else "not finished"
            lines.append([title, *cells, state, str(max(map(len, curve.values())))])
    names = ["rounds", "MB from clients", "client steps", "NLL", "default minus", "OOD AUROC", "seeds"]
    of = f"at the bytes of {BYTES_OF[1]} rounds of {BYTES_OF[0]}"
    lines += [[of, *names], *compared(curves, at_equal_bytes(curves), set(curves))]
    return [*lines, ["at the plateau", *names], *compared(curves, at_plateau(curves), finished_of(curves))]


def finished_of(curves: dict[str, Curve]) -> set[str]:
    """Return the methods whose held-out NLL has stopped falling."""
    return {method for method, curve in curves.items() if is_finished(method, curve)}


def curves_table(records: dict[str, Record]) -> Lines:
    """Return NLL of each setting and method at equal bytes and at the plateau, for the study's page."""
    where = ("rounds", "NLL", "`default` minus", "OOD AUROC")
    lines = [["data", "method", "seeds", *(f"equal bytes: {x}" for x in where), *(f"plateau: {x}" for x in where)]]
    found = curves_of(records)
    for setting in (f"{data}-{partition}".replace(":", "_") for data, partition in CURVE_SEEDS):
        curves = found[setting]
        equal = {line[0]: line for line in compared(curves, at_equal_bytes(curves), set(curves))}
        for line in compared(curves, at_plateau(curves), finished_of(curves)):
            cells = lambda x: [x[1], *x[4:7]]
            lines.append([setting, f"`{line[0]}`", line[7], *cells(equal.get(line[0], [""] * 8)), *cells(line)])
    return lines


def curve_figure(curves: dict[str, Curve], title: str) -> Figure:
    """Draw NLL and OOD AUROC against bytes and client steps, a line for each method."""
    figure = style.new_figure(height=9, width=10)
    panels = figure.subplots(len(FIGURES), len(COSTS), sharey="row", sharex="col")
    for (i, (column, y)), (j, (cost, x)) in (
        (a, b) for a in enumerate(FIGURES.items()) for b in enumerate(COSTS.items())
    ):
        axes: Any = panels[i][j]
        for number, method in enumerate(CURVES):
            points = [
                (mean_of(method, of, cost), mean_of(method, of, column))
                for _, of in sorted(curves.get(method, {}).items())
            ]
            if points:
                axes.plot(*zip(*points), marker="o", label=method.replace("_", " "), **style.line(number))
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        style.tidy(axes, title if i + j == 0 else "", x if i == 1 else "", y if j == 0 else "")
        if column == "nll":
            style.logarithmic(axes)
    style.figure_legend(figure, panels[0][0])
    return figure


def write_curves(records: dict[str, Record], folder: pathlib.Path) -> None:
    """Write a table and a figure for each setting."""
    for setting, curves in curves_of(records).items():
        name = f"curves-{setting.replace('.', '_')}"
        write(setting_table(curves), folder / name)
        curve_figure(curves, setting).savefig(folder / f"{name}.png", dpi=130)
