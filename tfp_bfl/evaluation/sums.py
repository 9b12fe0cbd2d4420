"""Scores from sums, of all sites together and of each client, and a test of each client."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from scipy import stats

from tfp_bfl.data.names import as_text
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.evaluation.baselines import nll_of_classes
from tfp_bfl.evaluation.classification import Reliability, different_proportions, proportion_interval, reliability
from tfp_bfl.evaluation.limits import RiskCoverage, risk_coverage
from tfp_bfl.evaluation.metrics import brier_score, check_labels, check_probabilities, negative_log_likelihood
from tfp_bfl.evaluation.predictive import Evaluation
from tfp_bfl.evaluation.regression import RegressionEvaluation
from tfp_bfl.tensors import Array

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
        **{"count": number, "correct": right.sum()},
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
    count = sums["count"]
    if is_of_numbers(sums):
        square = sums["square"]
        fits = (
            all(np.all(sums[name] >= 0) for name in NUMBER_SUMS if name != "nll")
            and sums["covered"] <= count * (1 + 1e-6)
            and square**2 * (1 - 1e-4) <= count * sums["fourth"] <= count * square**2 * (1 + 1e-4)
            and abs(sums["errors"].sum() - count) < 1e-3
        )
    else:
        totals = [sum(float(sums[f"{name}_{c}"]) for c in range(2)) for name in ("label", "correct")]
        fits = (
            all((sums[name] >= 0).all() for name in SUMS)
            and all(x <= count * (1 + 1e-4) + 1e-6 for x in (sums["correct"], sums["entropy"], sums["brier"] / 2))
            and all(abs(sums[f"{name}_count"].sum() - count) < 1e-3 for name in ("bin", "kept"))
            and all((sums[f"{name}_correct"] <= sums[f"{name}_count"] + 1e-6).all() for name in ("bin", "kept"))
            and all(sums[f"label_{c}"] - sums[f"correct_{c}"] >= -1e-6 for c in range(2))
            and (not totals[0] or (abs(totals[0] - count) < 1e-3 and abs(totals[1] - sums["correct"]) < 1e-3))
        )
    if not (0 < count <= most and fits):
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


# Of a warning in a federation of clients that do not differ.
LEVEL = 0.05
_CONFIDENCE = 0.95
# In a warning.
_MOST_NAMES = 5
# Of all errors, those that are large.
_LARGE = 0.25
# The ratio of a client's score to that of the others from which its data may be at fault.
_FEW_TIMES = 2.0
_PAIR = 2
Row = dict[str, Any]


def client_scores(
    predictions: Any,
    labels: Any,
    clients: object,
    *,
    covered: Array | None = None,
    losses: Array | None = None,
    names: Sequence[str] = (),
) -> list[Row]:
    """Score each client on its own rows, the client with the lowest accuracy or the largest RMSE first.

    Intervals have a confidence of 95 %: Wilson's for proportions; for the RMSE the square roots of the ends of
    Student's t interval of the mean squared error.

    Each client is compared with all others together (`different_proportions`): classes by the right predictions,
    numbers by the errors above the upper quartile of all. If clients do not differ, a "p_value" of at most 0.05 has a
    probability of at most 0.05 over all clients, also with few rows.

    Args:
      predictions, labels, clients: probabilities [N, C] or numbers [N], labels [N], and the name of each row's client.
      covered: whether each row's prediction set or interval holds its label [N]; None without sets.
      losses: negative log likelihood of each label [N]; None for that of the probabilities.
      names: clients that have a row in the result without a row in the data too.

    Returns:
      A mapping for each client: "client", "n" and, for n > 0, "accuracy" or "rmse", "test_nll", "coverage",
      "sensitivity" and "specificity" (two classes), each but the NLL with "..._low" and "..._high"; of numbers
      "large_errors", the share above that quartile; and "p_value" where another client has rows.

    Example:
      >>> probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]], np.float32)
      >>> rows = bfl.evaluation.client_scores(probabilities, [0, 1, 1, 0], ["north", "north", "south", "south"])
      >>> [(row["client"], row["n"], row["accuracy"], row["sensitivity"]) for row in rows]
      [('north', 2, 0.5, 0.0), ('south', 2, 1.0, 1.0)]
    """
    owners = as_text(np.asarray(clients, object).tolist())
    every = {name: k for k, name in enumerate(dict.fromkeys([*as_text(names), *owners.tolist()]))}
    place = np.array([every[name] for name in owners.tolist()], np.int64)
    columns: dict[str, np.ndarray] = {} if losses is None else {"nll": np.asarray(losses, np.float64)}
    if np.ndim(predictions) == 1:
        errors = np.asarray(predictions, np.float64) - np.asarray(labels, np.float64)
        columns |= {"square": errors**2, "fourth": errors**4, "errors": error_bins(errors)}
        columns.setdefault("nll", np.full(len(errors), np.nan))
    else:
        tensor = check_probabilities(predictions)
        true = check_labels(labels, tensor).numpy()
        columns["correct"] = (tensor.numpy().argmax(-1) == true).astype(np.float64)
        columns.setdefault("nll", nll_of_classes(tensor.numpy(), true))
        for c in range(2) if tensor.shape[1] == 2 else ():
            columns |= {f"label_{c}": (true == c).astype(np.float64), f"correct_{c}": columns["correct"] * (true == c)}
    columns |= {} if covered is None else {"covered": np.asarray(covered, np.float64)}
    if any(x.shape != place.shape for x in columns.values()):
        raise InvalidArgument(f"There are {len(place)} clients for {len(columns['nll'])} rows: name one for each row.")
    bins, columns["count"] = columns.pop("errors", None), np.ones(len(place))
    totals: dict[str, np.ndarray] = {name: np.bincount(place, x, len(every)) for name, x in columns.items()}
    if bins is not None:
        used, column = np.unique(bins, return_inverse=True)
        counts = np.bincount(place * len(used) + column, minlength=len(every) * len(used))
        totals["errors"] = counts.reshape(len(every), len(used))
    return scores_of_sums({name: {key: x[k] for key, x in totals.items()} for name, k in every.items()})


def scores_of_sums(sums: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """Compute the rows of `client_scores` from sums over each client's rows, those of `score_sums` or `number_sums`:
    client -> "count", "nll" and "correct" or the sums of errors; where known "covered", and both classes' numbers.
    """
    filled = {name: x for name, x in sums.items() if x["count"]}
    large: dict[str, float] = {}
    if any("errors" in x for x in filled.values()):  # Those above the upper quartile, to the nearest edge of the bins.
        errors = {name: np.asarray(x["errors"], np.float64) for name, x in filled.items()}
        total = np.sum([*errors.values()], 0)
        edge = int(np.argmin(np.abs((total.sum() - np.cumsum(total)) / total.sum() - _LARGE)))
        large = {name: float(x[edge + 1 :].sum()) for name, x in errors.items()}
    p_values = different_proportions(
        {name: (x["count"] - large[name] if large else x["correct"], x["count"]) for name, x in filled.items()}, LEVEL
    )
    rows = [Row({"client": name, "n": int(x["count"])}) for name, x in sums.items()]
    for row in rows:
        row |= _scores(sums[name]) if (name := row["client"]) in filled else {}
        if name in filled and len(filled) > 1:
            row |= {"large_errors": large[name] / row["n"]} if large else {}
            row["p_value"] = p_values[name]
    return sorted(rows, key=lambda row: (not row["n"], row.get("accuracy", -row.get("rmse", 0.0))))


def _scores(sums: Mapping[str, Any]) -> Row:
    count, found = float(sums["count"]), Row()
    if "correct" in sums:
        found |= _proportion("accuracy", sums["correct"], count)
    else:
        mean = float(sums["square"]) / count
        found["rmse"] = mean**0.5
        if sums.get("fourth") is not None and count >= 2:
            variance = max(float(sums["fourth"]) / count - mean**2, 0) / (count - 1)
            half = stats.t.ppf((1 + _CONFIDENCE) / 2, count - 1) * variance**0.5
            found |= {"rmse_low": max(mean - half, 0.0) ** 0.5, "rmse_high": float((mean + half) ** 0.5)}
    for name, c in (("sensitivity", 1), ("specificity", 0)):
        if sums.get(f"label_{c}"):
            found |= _proportion(name, sums[f"correct_{c}"], sums[f"label_{c}"])
    nll = float(sums["nll"]) / count
    found |= {} if np.isnan(nll) else {"test_nll": nll}
    return found | (_proportion("coverage", sums["covered"], count) if "covered" in sums else {})


def _proportion(name: str, count: Any, number: Any) -> Row:
    low, high = proportion_interval(round(float(count)), round(float(number)), _CONFIDENCE)
    return {name: float(count) / float(number), f"{name}_low": low, f"{name}_high": high}


def client_warnings(rows: Sequence[Row]) -> list[str]:
    """Return warnings of clients for which the model is significantly worse than for all others together.

    A further one names each client with an accuracy below half of that of the others, or above twice it, or with an
    RMSE so far off, if the difference is significant: its labels or columns may be at fault. Swapped labels that the
    model has learned give the higher accuracy. If clients do not differ, there is a warning with a probability of at
    most `LEVEL`; measured in 2,000 federations each: .003 to .019 with 3 clients, .010 to .016 with 12 and .007 to .010
    with 40 (10 to 200 rows a client, accuracies .6, .9 and .99).
    """
    tested = [row for row in rows if "p_value" in row]
    others = [row for row in tested if row["p_value"] > LEVEL]
    compared = [(row, _against(row, others)) for row in tested if row["p_value"] <= LEVEL]
    below = [sentence for row, (is_worse, _, sentence) in compared if is_worse]
    warnings = []
    if below:
        is_number = "rmse" in tested[0]
        test = "errors above the upper quartile of all" if is_number else "right predictions"
        more = f"; and {len(below) - _MOST_NAMES} more" if len(below) > _MOST_NAMES else ""
        what = f"a client is significantly {'above' if is_number else 'below'} all others"
        by = f"two-sided Fisher's exact test of the {test}, Bonferroni's correction for {len(tested)} clients"
        warnings.append(f"On its own test rows {what}: {'; '.join(below[:_MOST_NAMES])}{more} ({by}).")
    for _, (_, times, sentence) in compared:
        if times >= _FEW_TIMES:
            asked = "are the labels of one of both" if len(tested) == _PAIR else "are its labels"
            warnings.append(f"{sentence}: {asked} swapped, or columns in other units?")
    return warnings


def _against(row: Row, others: Sequence[Row]) -> tuple[bool, float, str]:
    """Return whether a client's rows are worse than those of others, the ratio of both scores, and both in words."""
    score, form = ("RMSE", ".4g") if "rmse" in row else ("accuracy", ".3f")
    name, power = score.lower(), 2 if score == "RMSE" else 1
    mean = lambda key, power=1: (
        (sum(x["n"] * x[key] ** power for x in others) / sum(x["n"] for x in others)) ** (1 / power)
    )
    is_worse = row["large_errors"] > mean("large_errors") if score == "RMSE" else row[name] < mean(name)
    low, high = sorted((row[name], mean(name, power)))
    ends = f" [{row[f'{name}_low']:{form}}, {row[f'{name}_high']:{form}}]" if f"{name}_low" in row else ""
    own = f"{row['client']}, {score} {row[name]:{form}}{ends} of {row['n']:,} rows"
    sentence = f"{own}, others {mean(name, power):{form}}, p = {row['p_value']:.1g}"
    return is_worse, high / low if low else math.inf, sentence
