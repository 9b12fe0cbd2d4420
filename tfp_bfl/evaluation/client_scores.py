"""Scores of each client on its own test rows, from predictions or from the sums of sites, and a test of each client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.evaluation.baselines import nll_of_classes
from tfp_bfl.evaluation.classification import proportion_interval
from tfp_bfl.evaluation.metrics import check_labels, check_probabilities

# Of the test of each client, over all clients.
LEVEL = 0.05
_CONFIDENCE = 0.95
# In a warning.
_MOST_NAMES = 5
Row = dict[str, Any]


def client_scores(
    predictions: object,
    labels: object,
    clients: object,
    *,
    covered: Any | None = None,
    losses: Any | None = None,
    names: Sequence[str] = (),
) -> list[Row]:
    """Score each client on its own rows, the client with the lowest accuracy or the largest RMSE first.

    Intervals have a confidence of 95 %: Wilson's for proportions; for the RMSE the square roots of the ends of
    Student's t interval of the mean squared error.

    Each client is tested against all others together, one-sided: classes by Fisher's exact test of the numbers of right
    predictions, numbers by the rank-sum test of the absolute errors (Wilcoxon; normal approximation). `p_value` is
    adjusted for the number of clients (Holm): where clients do not differ, one of them is at most 0.05 with a
    probability of at most 0.05, also with few rows.

    Args:
      predictions: probabilities [N, C], or predicted numbers [N].
      labels: class numbers or numbers [N].
      clients: name of each row's client [N].
      covered: whether each row's prediction set or interval holds its label [N]; None without sets.
      losses: negative log likelihood of each label [N]; None for that of the probabilities.
      names: clients that have a row in the result without a row in the data too.

    Returns:
      A mapping for each client: "client", "n" and, for n > 0, "accuracy" or "rmse", "test_nll", "coverage",
      "sensitivity" and "specificity" (two classes), each but the NLL with "..._low" and "..._high"; and "p_value" where
      another client has rows.

    Raises:
      InvalidArgument: arguments that do not fit each other.

    Example:
      >>> probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]], np.float32)
      >>> rows = bfl.evaluation.client_scores(probabilities, [0, 1, 1, 0], ["north", "north", "south", "south"])
      >>> [(row["client"], row["n"], row["accuracy"], row["sensitivity"]) for row in rows]
      [('north', 2, 0.5, 0.0), ('south', 2, 1.0, 1.0)]
    """
    owners = np.asarray(clients, object).astype(str)
    every = {name: k for k, name in enumerate(dict.fromkeys([*map(str, names), *owners.tolist()]))}
    place = np.array([every[name] for name in owners.tolist()], np.int64)
    columns, errors = _columns(predictions, labels, losses)
    columns |= {} if covered is None else {"covered": np.asarray(covered, np.float64)}
    if any(x.shape != place.shape for x in columns.values()):
        raise InvalidArgument(
            f"There are {len(place)} clients for {len(columns['nll'])} rows: name the client of each row."
        )
    totals = {name: np.bincount(place, x, len(every)) for name, x in {**columns, "count": np.ones(len(place))}.items()}
    sums = {name: {key: float(x[k]) for key, x in totals.items()} for name, k in every.items()}
    of_errors = None if errors is None else dict(zip(every, _rank_sum(errors, place, len(every))))
    return scores_of_sums(sums, of_errors)


def _columns(predictions: Any, labels: Any, losses: Any | None) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """Return the summands of each row, and the absolute errors of numbers."""
    if np.ndim(predictions) == 1:
        errors = np.abs(np.asarray(predictions, np.float64) - np.asarray(labels, np.float64))
        nll = np.full(len(errors), np.nan) if losses is None else np.asarray(losses, np.float64)
        return {"square": errors**2, "fourth": errors**4, "nll": nll}, errors
    tensor = check_probabilities(predictions)
    true = check_labels(labels, tensor).numpy()
    right = (tensor.numpy().argmax(-1) == true).astype(np.float64)
    nll = nll_of_classes(tensor.numpy(), true) if losses is None else np.asarray(losses, np.float64)
    found = {"correct": right, "nll": nll}
    if tensor.shape[1] == 2:
        for c in range(2):
            found |= {f"label_{c}": (true == c).astype(np.float64), f"correct_{c}": right * (true == c)}
    return found, None


def scores_of_sums(sums: Mapping[str, Mapping[str, Any]], p_values: Mapping[str, float] | None = None) -> list[Row]:
    """Return the rows of `client_scores` from sums over each client's rows.

    Args:
      sums: client -> "count", "nll" and "correct" or "square"; where known "fourth" (sum of e^4), "covered", and of two
        classes "label_0", "label_1", "correct_0" and "correct_1", numbers of rows and of right predictions by label.
      p_values: of each client before the adjustment; None for Fisher's test of "correct", without it for numbers.
    """
    filled = {name: x for name, x in sums.items() if x["count"]}
    if p_values is None and all("correct" in x for x in filled.values()):
        p_values = _fisher(filled)
    rows = [
        {"client": name, "n": int(x["count"]), **(_scores(x) if name in filled else {})} for name, x in sums.items()
    ]
    if p_values and len(filled) > 1:
        adjusted = _holm({name: p_values[name] for name in filled})
        for row in rows:
            row |= {"p_value": adjusted[row["client"]]} if row["client"] in adjusted else {}
    return sorted(rows, key=lambda row: (not row["n"], row.get("accuracy", -row.get("rmse", 0.0))))


def _scores(sums: Mapping[str, Any]) -> Row:
    count, found = float(sums["count"]), Row()
    if "correct" in sums:
        found |= _proportion("accuracy", sums["correct"], count)
    else:
        found |= _rmse(float(sums["square"]), sums.get("fourth"), count)
    for name, c in (("sensitivity", 1), ("specificity", 0)):
        if sums.get(f"label_{c}"):
            found |= _proportion(name, sums[f"correct_{c}"], sums[f"label_{c}"])
    nll = float(sums["nll"]) / count
    found |= {} if np.isnan(nll) else {"test_nll": nll}
    return found | (_proportion("coverage", sums["covered"], count) if "covered" in sums else {})


def _proportion(name: str, count: Any, number: Any) -> Row:
    low, high = proportion_interval(round(float(count)), round(float(number)), _CONFIDENCE)
    return {name: float(count) / float(number), f"{name}_low": low, f"{name}_high": high}


def _rmse(square: float, fourth: Any | None, count: float) -> Row:
    mean = square / count
    if fourth is None or count < 2:
        return {"rmse": mean**0.5}
    half = (
        stats.t.ppf((1 + _CONFIDENCE) / 2, count - 1) * (max(float(fourth) / count - mean**2, 0) / (count - 1)) ** 0.5
    )
    return {"rmse": mean**0.5, "rmse_low": max(mean - half, 0.0) ** 0.5, "rmse_high": float((mean + half) ** 0.5)}


def _fisher(sums: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the probability of at most as many right predictions at each client, given all clients together."""
    right, number = (np.rint([float(x[key]) for x in sums.values()]) for key in ("correct", "count"))
    return dict(zip(sums, map(float, stats.hypergeom.cdf(right, number.sum(), right.sum(), number))))


def _rank_sum(errors: np.ndarray, place: np.ndarray, clients: int) -> list[float]:
    """Return the probability of at least so large a sum of ranks at each client; NaN without rows.

    The normal approximation has heavier tails than the sum of few ranks: with few rows the test is conservative.
    """
    total, ranks = len(errors), stats.rankdata(errors)
    number, rank_sum = np.bincount(place, minlength=clients), np.bincount(place, ranks, clients)
    spread = number * (total - number) / (total - 1) * np.var(ranks) if total > 1 else np.zeros(clients)
    excess = rank_sum - number * (total + 1) / 2 - 0.5
    z = np.divide(excess, np.sqrt(spread), out=np.full(clients, -np.inf), where=spread > 0)
    return [float(p) for p in stats.norm.sf(z)]


def _holm(p_values: Mapping[str, float]) -> dict[str, float]:
    adjusted, largest = dict[str, float](), 0.0
    for k, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        largest = max(largest, min(1.0, (len(p_values) - k) * p_values[name]))
        adjusted[name] = largest
    return adjusted


def client_warnings(rows: Sequence[Row]) -> list[str]:
    """Return a warning in a list if the model is significantly worse for a client than for all others together.

    Args:
      rows: of `client_scores`.
    """
    below = [row for row in rows if row.get("p_value", 1.0) <= LEVEL]
    if not below:
        return []
    tested = sum("p_value" in row for row in rows)
    is_number = "rmse" in below[0]
    test = "rank-sum test of the absolute errors" if is_number else "Fisher's exact test of the right predictions"
    some = "; ".join(_against_others(row, rows) for row in below[:_MOST_NAMES])
    more = f"; and {len(below) - _MOST_NAMES} more" if len(below) > _MOST_NAMES else ""
    return [
        f"On its own test rows a client is significantly {'above' if is_number else 'below'} all others: {some}{more} "
        f"(one-sided {test}, Holm's correction for {tested} clients)."
    ]


def _against_others(row: Row, rows: Sequence[Row]) -> str:
    score = "rmse" if "rmse" in row else "accuracy"
    others = [other for other in rows if other is not row and other["n"]]
    power = 2 if score == "rmse" else 1
    mean = (sum(x["n"] * x[score] ** power for x in others) / sum(x["n"] for x in others)) ** (1 / power)
    label, form = ("RMSE", ".4g") if score == "rmse" else ("accuracy", ".3f")
    ends = f" [{row[f'{score}_low']:{form}}, {row[f'{score}_high']:{form}}]" if f"{score}_low" in row else ""
    return (
        f"{row['client']}, {label} {row[score]:{form}}{ends} of {row['n']:,} rows, others {mean:{form}}, "
        f"p = {row['p_value']:.1g}"
    )
