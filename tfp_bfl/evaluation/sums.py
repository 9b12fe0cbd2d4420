"""Scores from sums: what sites add up without showing an example, and what follows from the total."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.evaluation.calibration import Reliability, reliability
from tfp_bfl.evaluation.limits import RiskCoverage, risk_coverage
from tfp_bfl.evaluation.metrics import brier_score, negative_log_likelihood
from tfp_bfl.evaluation.predictive import Evaluation
from tfp_bfl.evaluation.regression import RegressionEvaluation

BINS, ENTROPY_BINS = 15, 200
_MEANS = ("correct", "nll", "brier", "entropy", "aleatoric", "epistemic")
# Of two classes, rows and right predictions by label; 0 of more classes.
_OF_LABELS = ("label_0", "label_1", "correct_0", "correct_1")
# What the sums are: name -> type.
_SHAPES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("count", *_MEANS, *_OF_LABELS), ()),
    **dict.fromkeys(("bin_count", "bin_confidence", "bin_correct"), (BINS,)),
    **dict.fromkeys(("kept_count", "kept_correct"), (ENTROPY_BINS,)),
}
SUMS = {name: tf.TensorSpec(shape, tf.float64) for name, shape in _SHAPES.items()}
# Of models that predict numbers: the sum over examples -> its mean's name in `RegressionEvaluation.metrics`.
_OF_NUMBERS = {
    **{"square": "rmse", "absolute": "mae", "nll": "test_nll", "covered": "coverage", "width": "interval_width"},
    **{"aleatoric": "aleatoric", "epistemic": "epistemic"},
}
# Half octaves of the absolute error, from 2^-64 to 2^64 units of the label.
ERROR_BINS = 257
NUMBER_SUMS = {name: tf.TensorSpec([], tf.float64) for name in ("count", "fourth", *_OF_NUMBERS)}
NUMBER_SUMS["errors"] = tf.TensorSpec([ERROR_BINS], tf.float64)
Sums = dict[str, np.ndarray]


def score_sums(evaluation: Evaluation, labels: object) -> Sums:
    """Compute the sums over N examples from which `from_sums` makes the scores of all sites together, float64.

    They are the number of examples and of right predictions; the sums of negative log likelihoods, Brier scores,
    entropies and traces; of each bin of `reliability` count, confidences and right ones; and of `ENTROPY_BINS` equal
    bins of the entropy how many examples and how many right ones; of two classes both numbers by label.
    """
    number, labels = len(evaluation.probabilities), np.asarray(labels)
    right = evaluation.probabilities.argmax(-1) == labels
    bins = reliability(evaluation.probabilities, labels, BINS)
    count = bins.count.numpy().astype(np.float64)
    whole = lambda mean: np.where(count > 0, np.nan_to_num(np.asarray(mean, np.float64)) * count, 0.0)
    place = np.clip(np.ceil(evaluation.entropy * ENTROPY_BINS).astype(int) - 1, 0, ENTROPY_BINS - 1)
    of_labels = [(labels == c) & (evaluation.probabilities.shape[1] == 2) for c in range(2)]
    sums: dict[str, Any] = {
        **{f"label_{c}": own.sum() for c, own in enumerate(of_labels)},
        **{f"correct_{c}": (own & right).sum() for c, own in enumerate(of_labels)},
        "count": number,
        "correct": right.sum(),
        "nll": number * float(negative_log_likelihood(evaluation.probabilities, labels)),
        "brier": number * float(brier_score(evaluation.probabilities, labels)),
        **{name: getattr(evaluation, name).astype(np.float64).sum() for name in ("entropy", "aleatoric", "epistemic")},
        **{"bin_count": count, "bin_confidence": whole(bins.confidence), "bin_correct": whole(bins.accuracy)},
        "kept_count": np.bincount(place, minlength=ENTROPY_BINS),
        "kept_correct": np.bincount(place, right, ENTROPY_BINS),
    }
    return {name: np.asarray(x, np.float64) for name, x in sums.items()}


def error_bins(errors: np.ndarray) -> np.ndarray:
    """Return the bin of each error's absolute value, of `ERROR_BINS` half octaves."""
    with np.errstate(divide="ignore"):
        octaves = np.log2(np.abs(errors))
    return np.clip(np.ceil(2 * octaves) + ERROR_BINS // 2, 0, ERROR_BINS - 1).astype(np.int64)


def number_sums(evaluation: RegressionEvaluation, labels: object) -> Sums:
    """Compute `score_sums` of a model that predicts numbers, in the units of the labels.

    They are the sums of the errors' absolute values, squares and fourth powers, negative log densities, hits and widths
    of the central intervals, and both parts of the variance; and the numbers of errors in half octaves.
    """
    means = {**evaluation.metrics, "rmse": evaluation.metrics["rmse"] ** 2}
    number = len(evaluation.mean)
    sums: dict[str, Any] = {"count": number, **{name: number * means[x] for name, x in _OF_NUMBERS.items()}}
    errors: np.ndarray = evaluation.mean - np.asarray(labels, np.float64)
    sums |= {"fourth": np.sum(errors**4), "errors": np.bincount(error_bins(errors), minlength=ERROR_BINS)}
    return {name: np.asarray(x, np.float64) for name, x in sums.items()}


def is_of_numbers(sums: Mapping[str, np.ndarray]) -> bool:
    """Return whether the sums are `number_sums`."""
    return "square" in sums


def add_sums(parts: Sequence[Mapping[str, np.ndarray]]) -> Sums:
    """Return the sums of all sites together."""
    return {name: np.sum([part[name] for part in parts], 0) for name in (parts[0] if parts else SUMS)}


def check_sums(sums: Mapping[str, np.ndarray], most: float) -> None:
    """Raise InvalidArgument for sums that no site of at most so many examples can have."""
    if is_of_numbers(sums):
        count, square = sums["count"], sums["square"]
        if not (
            0 < count <= most
            and all(np.all(sums[name] >= 0) for name in NUMBER_SUMS if name != "nll")
            and sums["covered"] <= count * (1 + 1e-6)
            and square**2 * (1 - 1e-4) <= count * sums["fourth"] <= count * square**2 * (1 + 1e-4)
            and abs(sums["errors"].sum() - count) < 1e-3
        ):
            raise InvalidArgument(f"Its scores are not sums over 1 to {most:g} examples.")
        return
    count = sums["count"]
    shares = [sums[name] for name in ("correct", "entropy")] + [sums["brier"] / 2]
    counts = [sums["bin_count"].sum(), sums["kept_count"].sum()]
    by_label = [sums[f"label_{c}"] - sums[f"correct_{c}"] for c in range(2)]
    totals = [sum(float(sums[f"{name}_{c}"]) for c in range(2)) for name in ("label", "correct")]
    parts = [sums[f"{name}_correct"] <= sums[f"{name}_count"] + 1e-6 for name in ("bin", "kept")]
    if not (
        0 < count <= most
        and all((sums[name] >= 0).all() for name in SUMS)
        and all(x <= count * (1 + 1e-4) + 1e-6 for x in shares)
        and all(abs(x - count) < 1e-3 for x in counts)
        and all(part.all() for part in parts)
        and all(wrong >= -1e-6 for wrong in by_label)
        and (not totals[0] or (abs(totals[0] - count) < 1e-3 and abs(totals[1] - sums["correct"]) < 1e-3))
    ):
        raise InvalidArgument(f"Its scores are not sums over 1 to {most:g} examples.")


def from_sums(total: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Compute the scores of all examples together, by their names in `Evaluation.metrics`; of no examples none.

    accuracy, test_nll, brier, ece, entropy, aleatoric and epistemic are those of the examples in one place, to
    rounding; of `number_sums` all of `RegressionEvaluation.metrics` but crps.
    """
    count = float(total["count"])
    if not count:
        return {}
    if is_of_numbers(total):
        found = {mean: float(total[name]) / count for name, mean in _OF_NUMBERS.items()}
        return {**found, "rmse": found["rmse"] ** 0.5}
    means = {name: float(total[name]) / count for name in _MEANS}
    gaps = np.abs(total["bin_correct"] - total["bin_confidence"])
    names = {"correct": "accuracy", "nll": "test_nll"}
    return {**{names.get(name, name): x for name, x in means.items()}, "ece": float(gaps.sum() / count)}


def reliability_of(total: Mapping[str, np.ndarray]) -> Reliability:
    """Return `reliability` of the predicted class in `BINS` bins."""
    count = np.asarray(total["bin_count"])
    mean = lambda sums: np.divide(sums, count, out=np.full(BINS, np.nan), where=count > 0)
    parts = mean(total["bin_confidence"]), mean(total["bin_correct"]), np.rint(count), np.linspace(0, 1, BINS + 1)
    return Reliability(*map(tf.constant, parts))


def risk_coverage_of(total: Mapping[str, np.ndarray]) -> RiskCoverage:
    """Return `risk_coverage` by the entropy at the edges of its bins: a limit is at most one bin too large."""
    probabilities, labels, edges = as_examples(total)
    return risk_coverage(probabilities, labels, edges)


def as_examples(total: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return made-up examples with as many mistakes in each bin of the entropy, such as `abstention_limit` takes:
    probabilities [N, 2], labels [N], and uncertainties [N], the upper edges of their bins.
    """
    count, right = (np.rint(total[f"kept_{name}"]).astype(int) for name in ("count", "correct"))
    edges = np.arange(1, ENTROPY_BINS + 1) / ENTROPY_BINS
    labels = np.concatenate([np.repeat([0, 1], [r, n - r]) for n, r in zip(count, right)])
    probabilities = np.tile(np.array([[1.0, 0.0]], np.float32), (len(labels), 1))
    return probabilities, labels, np.repeat(edges, count)
