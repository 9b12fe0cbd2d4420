"""Summaries of the metrics of many rounds: `rows` as `tfp_bfl.simulate` gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfp_bfl.errors import InvalidArgument, check_count


def rounds_to(rows: Sequence[Mapping[str, Any]], threshold: float, metric: str = "accuracy") -> int | None:
    """Return the first round in which a metric is at least `threshold`; None if it never is.

    Rounds without the metric do not count.

    Raises:
      InvalidArgument: no round has the metric.

    Example:
      >>> rows = [{"round": 1, "accuracy": 0.5}, {"round": 2, "accuracy": 0.7}, {"round": 3, "accuracy": 0.9}]
      >>> bfl.evaluation.rounds_to(rows, threshold=0.7)
      2
    """
    return next((row["round"] for row in _with(rows, metric) if row[metric] >= threshold), None)


def running_mean(rows: Sequence[Mapping[str, Any]], metric: str = "accuracy", window: int = 10) -> np.ndarray:
    """Return the mean of a metric over the last `window` rounds that have it, for each of them: [n].

    mean_t = (1 / min(t, window)) sum_(s > t - window) metric_s

    Raises:
      InvalidArgument: no round has the metric, or a window below 1.

    Example:
      >>> rows = [{"round": 1, "accuracy": 0.5}, {"round": 2, "accuracy": 0.7}, {"round": 3, "accuracy": 0.9}]
      >>> print(np.round(bfl.evaluation.running_mean(rows, window=2), 2))
      [0.5 0.6 0.8]
    """
    values = np.array([row[metric] for row in _with(rows, metric)], np.float64)
    window = check_count(window, "window")
    sums = np.cumsum(values)
    before = np.concatenate([np.zeros(min(window, len(sums))), sums[:-window]])
    return (sums - before) / np.minimum(np.arange(1, len(sums) + 1), window)


def _with(rows: Sequence[Mapping[str, Any]], metric: str) -> list[Mapping[str, Any]]:
    scored = [row for row in rows if row.get(metric) is not None]
    if not scored:
        raise InvalidArgument(f"No round has the metric {metric!r}: evaluate it in `simulate`.")
    return scored
