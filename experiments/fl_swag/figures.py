"""The figures of the study: accuracy against confidence, the partition, and what burn-in and floor do."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.figures import accuracy_confidence
from experiments.fl_swag.federation import clients_of, source
from experiments.fl_swag.tables import Run, by_dataset, has_predictions, row_name
from tfp_bfl import plots
from tfp_bfl.plots import style

PRODUCTS = ("FL-SWAG", "FL-SWAG, diagonal")
DPI = 120


def confidence_figure(runs: list[Run], title: str) -> Figure:
    """Draw the runs of one seed: products and averages, the client with the most examples, chains.

    Products have the last floor, clients and averages of their predictions the first.
    """
    probabilities: dict[str, Any] = {}
    for run in runs:
        with np.load(run["folder"] / "predictions.npz") as arrays:
            if "sizes" in run:
                first, *_, last = run["options"]["floors"]
                largest = f"client {np.argmax(run['sizes'])}"
                shown = [*((name, last) for name in PRODUCTS), *((name, None) for name in ("FedAvg", "wFedAvg"))]
                shown += [(name, first) for name in ("BayAvg", "wBayAvg", largest)]
                names = {row_name(*one): one[0].replace(largest, "largest client") for one in shown}
            else:
                names = {run["options"]["sampler"]: run["options"]["sampler"]}
            probabilities.update({label: arrays[name] for name, label in names.items()})
    return accuracy_confidence(probabilities, source(runs[0]["options"]["dataset"], "test").labels, title=title)


def floor_figure(runs: list[Run]) -> Figure:
    """Draw the accuracy of both products against the floor of the variances: for each training a panel, its own
    scale.
    """
    figure = style.new_figure(height=3.6, width=3.4 * len(runs) + 0.6)
    panels = np.atleast_1d(figure.subplots(1, len(runs)))
    for axes, run in zip(panels, runs):
        accuracy = {(row["method"], row["floor"]): row["accuracy"] for row in run["rows"]}
        floors = run["options"]["floors"]
        for method, color, dashes in (("FL-SWAG", style.BLUE, "-o"), ("FL-SWAG, diagonal", style.ORANGE, "--s")):
            axes.plot(floors, [accuracy[method, floor] for floor in floors], dashes, color=color, label=method)
        axes.axhline(accuracy["FedAvg", None], color=style.MUTED, linestyle=":", label="FedAvg")
        axes.set_xscale("log")
        options = run["options"]
        title = f"{options['local_epochs']} epochs, {options['burn_in_epochs']} burn-in"
        style.tidy(axes, title, x="floor of the variances", y="accuracy" if axes is panels[0] else "")
    names = panels[0].get_legend_handles_labels()
    figure.legend(*names, loc="outside lower center", ncols=3, frameon=False, fontsize=style.SIZE - 1)
    return figure


def write_figures(table: str, runs: list[Run], output: pathlib.Path) -> None:
    """Write a table's figures, of the first seed where there are several.

    Figures of predictions and data need the folders of the cells.
    """
    figures = {}
    for (setting, dataset), same in by_dataset(runs).items():
        first = [run for run in same if run["options"]["seed"] == same[0]["options"]["seed"]]
        name = f"{dataset}-{setting}"
        if table == "burn_in":
            figures[output / "figures" / f"{name}-floor"] = floor_figure(first)
        elif table in ("logistic_regression", "shared_features") and all(map(has_predictions, first)):
            unrecorded = output / "figures"
            title = f"{dataset.replace('_', ' ')}, {setting.replace('_', ' ')}"
            figures[unrecorded / f"{name}-confidence"] = confidence_figure(first, title)
            if table == "logistic_regression":
                clients = clients_of(first[0]["options"])
                labels = plots.client_labels(clients.label_counts(), clients.source.class_names)
                figures[unrecorded / f"{dataset}-client_labels"] = labels
                figures[unrecorded / f"{dataset}-client_sizes"] = plots.client_sizes(clients.sizes)
    for path, figure in figures.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path.with_name(f"{path.name}.png"), dpi=DPI)
