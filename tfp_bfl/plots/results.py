"""The results of a run, and its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from tfp_bfl.plots.client_figures import client_labels
from tfp_bfl.plots.examples import uncertain_examples
from tfp_bfl.plots.learning import learning_curve
from tfp_bfl.plots.page import Section
from tfp_bfl.plots.regression_figures import regression_figures
from tfp_bfl.plots.reliability import reliability_diagram
from tfp_bfl.plots.retention_figures import retention_curves


class RunResults(NamedTuple):
    """A run as a report shows it.

    Fields:
      name: name of the run.
      config: its settings; nested mappings become dotted names.
      summary: its results: "accuracy" and "epistemic_share" (shares), "test_nll" (nats per example), "ece" and whatever
        else it measured; "seconds", "train_seconds", "ms_per_step", "worker_mb" and "process_mb" are what it cost.
      rounds: a mapping per round, as for `learning_curve`; none for a run without them.
      probabilities: [N, C], the predictions for the test set; None where numbers are predicted.
      labels: [N], class numbers in [0, C); or numbers.
      uncertainties: name -> [N]; "entropy" chooses the images that are shown.
      class_names: C names.
      features: [N, ...] of the test set; None, or others than uint8 images, have no picture.
      label_counts: [K, C], how many examples of each class each client holds, or None.
      client_names: K names of the clients in the data; () where the data name none.
      warnings: whole sentences.
      out_of_distribution: name -> [M], the uncertainties for examples from elsewhere, or None.
      numbers: "mean", "stddev", "epistemic", "low" and "high" -> [N], of predictions of numbers; None of classes.
      unusual: [N], the scores of unusual examples for the test set, None for a model without this output.
      statement: the weights, the method and the posterior temperature in a sentence, shown below the heading.
      sections: of an edge, in place of those on probabilities, labels and uncertainties, which a run with them lacks.
    """

    name: str
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]]
    probabilities: Any
    labels: np.ndarray
    uncertainties: Mapping[str, np.ndarray]
    class_names: Sequence[str]
    features: np.ndarray | None = None
    label_counts: np.ndarray | None = None
    warnings: Sequence[str] = ()
    out_of_distribution: Mapping[str, np.ndarray] | None = None
    numbers: Mapping[str, np.ndarray] | None = None
    sections: Sequence[Section] | None = None
    statement: str = ""
    unusual: np.ndarray | None = None
    client_names: Sequence[str] = ()


def _in_units_of_labels(rounds: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rounds without the training NLL, which is of standardised labels: the test set's differs by log(sd)."""
    return [{name: x for name, x in row.items() if name != "nll"} for row in rounds]


def run_figures(run: RunResults) -> dict[str, Figure]:
    """Return the figures of one run by name; those that its results don't suffice for are left out."""
    if run.numbers is not None:
        learning = {"learning_curve": learning_curve(_in_units_of_labels(run.rounds))} if run.rounds else {}
        return {**learning, **regression_figures(run.numbers, run.labels)}
    if run.sections is not None:
        # Without classes the labels are numbers.
        rounds = run.rounds if run.class_names else _in_units_of_labels(run.rounds)
        return {"learning_curve": learning_curve(rounds)} if rounds else {}
    figures = {
        "learning_curve": learning_curve(run.rounds) if run.rounds else None,
        "reliability_diagram": reliability_diagram(run.probabilities, run.labels),
        "retention_curves": retention_curves(run.probabilities, run.labels, run.uncertainties),
        "client_labels": None
        if run.label_counts is None
        else client_labels(run.label_counts, run.class_names, run.client_names),
        "uncertain_examples": None
        if run.features is None
        else uncertain_examples(
            run.features, run.labels, run.probabilities, run.uncertainties["entropy"], run.class_names
        ),
    }
    return {name: figure for name, figure in figures.items() if figure is not None}
