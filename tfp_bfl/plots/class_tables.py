"""The tables of a report on single classes and on baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tfp_bfl.evaluation.classification import ClassScores, Proportion, class_scores
from tfp_bfl.labels import label_of
from tfp_bfl.plots.results import RunResults
from tfp_bfl.plots.tables import DASH, Cell, Table

# Classes in a table of scores, and in a confusion matrix.
MOST_CLASSES, MOST_CONFUSED = 50, 12
# Scores of a baseline -> digits.
_SCORES = {"accuracy": ".3f", "rmse": ".4g", "test_nll": ".3f", "crps": ".4g"}


def of_classes(run: RunResults) -> tuple[str, list[Table]]:
    """Return a sentence on the classes, and tables: scores of each class and, of few classes, the confusion matrix."""
    scores = class_scores(run.probabilities, run.labels)
    names = [str(name) for name in run.class_names] or [str(c) for c in range(len(scores.confusion))]
    rows = [
        (name, [Cell(f"{examples}"), Cell(_number(recall)), Cell(_number(precision))])
        for name, examples, recall, precision in zip(names, scores.confusion.sum(1), scores.recall, scores.precision)
    ]
    tables = [Table("Scores of each class", ["class", "examples", "recall", "precision"], rows[:MOST_CLASSES])]
    if len(names) <= MOST_CONFUSED:
        confusion = [(name, [Cell(str(n)) for n in row]) for name, row in zip(names, scores.confusion.tolist())]
        tables.append(Table("Confusion matrix", ["label, predicted as", *names], confusion))
    return _in_words(scores, names), tables


def _in_words(scores: ClassScores, names: Sequence[str]) -> str:
    words = [f"Balanced accuracy {scores.balanced_accuracy:.3f}"]
    words += [] if scores.auroc is None else [f"AUROC {scores.auroc:.3f}"]
    for what, name, recall in (
        ("sensitivity", names[-1], scores.sensitivity),
        ("specificity", names[0], scores.specificity),
    ):
        words += [] if recall is None else [f"{what} (recall of {name}) {_with_interval(recall)}"]
    more = f" The first {MOST_CLASSES} classes." if len(names) > MOST_CLASSES else ""
    interval = " Brackets: 95 % intervals (Wilson)." if scores.sensitivity or scores.specificity else ""
    return f"{'; '.join(words)}.{interval}{more}"


def _with_interval(recall: Proportion) -> str:
    return f"{recall.value:.3f} [{recall.low:.3f}, {recall.high:.3f}]"


def _number(value: float) -> str:
    return DASH if np.isnan(value) else f"{value:.3f}"


def baselines(runs: Sequence[RunResults]) -> Table:
    """Return the scores of the runs and of their baselines; without rows if no run recorded a baseline."""
    recorded = [run for run in runs if run.summary.get("baselines")]
    together: dict[str, Mapping[str, float]] = {}
    for run in recorded:
        together[run.name if len(runs) > 1 else "model"] = run.summary
    for run in recorded:
        for name, metrics in run.summary["baselines"].items():
            # Runs on the same data share their baselines.
            alike = together.get(name, metrics) == metrics
            together[name if alike else f"{name} ({run.name})"] = metrics
    used = [key for key in _SCORES if any(key in metrics for metrics in together.values())]
    cell = lambda metrics, key: Cell(format(metrics[key], _SCORES[key]) if key in metrics else DASH)
    rows = [(name, [cell(metrics, key) for key in used]) for name, metrics in together.items()]
    return Table("Baselines", ["prediction", *map(label_of, used)], rows)
