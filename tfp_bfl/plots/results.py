"""The results of a run, and its figures."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from tfp_bfl.plots.data_figures import client_labels, uncertain_examples
from tfp_bfl.plots.figures import regression_figures, reliability_diagram, retention_curves
from tfp_bfl.plots.learning import learning_curve
from tfp_bfl.plots.page import About, Section


class RunResults(NamedTuple):
    """A run as a report shows it, with N test examples and K clients; what is None or empty is not shown.

    Fields:
      config: its settings; nested mappings become dotted names.
      summary: its results: "accuracy" and "epistemic_share" (shares), "test_nll" (nats per example), "ece" and whatever
        else it measured; "seconds", "train_seconds", "ms_per_step", "worker_mb" and "process_mb" are what it cost.
      rounds: a mapping per round, as for `learning_curve`.
      probabilities: [N, C]; None where numbers are predicted, which are `numbers`, name -> [N].
      labels: [N], class numbers in [0, C); or numbers.
      uncertainties: name -> [N]; "entropy" chooses the images that are shown, of uint8 `features` [N, ...].
      label_counts: [K, C], how many examples of each class each client holds.
      warnings: whole sentences.
      out_of_distribution: name -> [M], the uncertainties for examples from elsewhere.
      unusual: [N], the scores of unusual examples for the test set.
      statement: the weights, the method and the posterior temperature in a sentence, shown below the heading.
      about: data, outcome, version and command, as the title block states them.
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
    about: About = About()


def run_figures(run: RunResults) -> dict[str, Figure]:
    """Return the figures of one run by name; those that its results don't suffice for are left out."""
    if run.numbers is not None or run.sections is not None:
        of_classes = run.numbers is None and run.class_names
        # The training NLL of numbers is of standardised labels: the test set's differs by log(sd).
        rounds = [{name: x for name, x in row.items() if of_classes or name != "nll"} for row in run.rounds]
        learning = {"learning_curve": learning_curve(rounds)} if rounds else {}
        return learning if run.numbers is None else {**learning, **regression_figures(run.numbers, run.labels)}
    figures: dict[str, Figure | None] = {"learning_curve": learning_curve(run.rounds) if run.rounds else None}
    figures["reliability_diagram"] = reliability_diagram(run.probabilities, run.labels)
    figures["retention_curves"] = retention_curves(run.probabilities, run.labels, run.uncertainties)
    if run.label_counts is not None:
        figures["client_labels"] = client_labels(run.label_counts, run.class_names, run.client_names)
    if run.features is not None:
        predicted = run.labels, run.probabilities, run.uncertainties["entropy"], run.class_names
        figures["uncertain_examples"] = uncertain_examples(run.features, *predicted)
    return {name: figure for name, figure in figures.items() if figure is not None}
