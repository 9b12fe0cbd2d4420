"""Comparison of the sites' descriptions of their data: which statistics stand out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tfp_bfl.data.sources import Source
from tfp_bfl.errors import shown

# A site's mean lies so many of the others' standard deviations outside their means before it is doubted.
_FAR = 10.0
# A standard deviation is doubted above so many times the others' largest, or below that part of their least.
_MANY_TIMES = 100.0
_MOST_NAMES = 3
# The probability that a site is named by its scores though its examples are like the others'.
_FALSE_ALARM = 1e-6
# Training examples of a class below which its site is warned.
_FEW = 10


def doubts(described: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each site and kind of statistics that lies far from all other sites'.

    The others of a site are compared by their range and their largest standard deviation, so that one site cannot hide
    behind statistics that it has moved itself.

    Args:
      described: site -> what `describe` gave, all of one form (`agree`).
    """
    sentences = []
    for site, summary in described.items():
        others = [other for name, other in described.items() if name != site]
        if not others:
            continue
        columns = [*summary["columns"], *([summary["target"]] if summary["target"] else [])]
        rest = [[*other["columns"], *([other["target"]] if other["target"] else [])] for other in others]
        means, stddevs = [], []
        for column, same in zip(columns, zip(*rest)):
            (name, mean, stddev), low, high = column, min(x[1] for x in same), max(x[1] for x in same)
            least, spread = min(x[2] for x in same), max(x[2] for x in same)
            if max(low - mean, mean - high) > _FAR * (spread or stddev):
                means.append(f"{shown(name)} ({mean:.4g}, the others' {_between(low, high)})")
            elif stddev > _MANY_TIMES * spread > 0 or 0 < stddev * _MANY_TIMES < least:
                stddevs.append(f"{shown(name)} ({stddev:.4g}, the others' {_between(least, spread)})")
        if means:
            sentences.append(
                f"{site} reports means far outside the other sites': {_some(means)}. Are these columns in other units? "
                "Their means decide how every site standardises; --without leaves a site out."
            )
        if stddevs:
            sentences.append(
                f"{site} reports standard deviations far from the other sites': {_some(stddevs)}. Are these columns in "
                "other units?"
            )
        known = {label for other in others for label in other["class_names"]}
        if alone := [shown(label) for label in summary["class_names"] if label not in known]:
            what = "classes" if len(alone) > 1 else "the class"
            sentences.append(f"Only {site} has {what} {_some(alone)}: do the sites spell their classes alike?")
    return sentences


def score_doubts(sums: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each site whose labels agree with a model far less often than the other sites' do.

    With q of its n test labels predicted, a share p of the others' n_o, and p' = p - sqrt(ln(2 / a) / (2 n_o)), a site
    is named if q < p / 2 and n KL(q || p') > ln(2 / a) for a = `_FALSE_ALARM`. By Hoeffding's and Chernoff's bounds a
    site with examples like the others' is named with probability a at most.

    Args:
      sums: site -> what `evaluation.score_sums` gave; of models that predict numbers nothing is found.
    """
    found, bound = [], math.log(2 / _FALSE_ALARM)
    counts = {site: (float(x["correct"]), float(x["count"])) for site, x in sums.items() if "correct" in x}
    for site, (right, number) in counts.items():
        others = [other for name, other in counts.items() if name != site]
        of_others = sum(n for _, n in others)
        if not of_others or not number:
            continue
        share, of_all = right / number, sum(k for k, _ in others) / of_others
        least = of_all - math.sqrt(bound / (2 * of_others))
        if share < min(of_all / 2, least) and number * _divergence(share, least) > bound:
            found.append(
                f"{site}'s labels agree with the model's predictions in {right:.0f} of {number:.0f} test examples, the "
                f"other sites' in {of_all:.0%}: are its labels swapped, or its columns in other units?"
            )
    return found


def rare_classes(source: Source) -> str:
    """Return a line about classes of fewer than `_FEW` examples of one site, who alone reads it; "" for none."""
    counts = {name: int((source.labels == k).sum()) for k, name in enumerate(source.class_names)}
    rare = [f"{shown(name)} ({number})" for name, number in counts.items() if number < _FEW]
    return f"Classes with fewer than {_FEW} examples, of which little is learnt: {', '.join(rare)}.\n" if rare else ""


def _divergence(q: float, p: float) -> float:
    """Return the Kullback-Leibler divergence of two coins."""
    return sum(a * math.log(a / b) for a, b in ((q, p), (1 - q, 1 - p)) if a > 0)


def _between(low: float, high: float) -> str:
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


def _some(items: Sequence[str]) -> str:
    more = len(items) - _MOST_NAMES
    return ", ".join(items[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
