"""Comparison of the sites' descriptions of their data: which statistics stand out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfp_bfl.errors import shown

# A site's mean lies so many of the others' standard deviations outside their means before it is doubted.
_FAR = 10.0
# A standard deviation is doubted above so many times the others' largest, or below that part of their least.
_MANY_TIMES = 100.0
_MOST_NAMES = 3


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


def _between(low: float, high: float) -> str:
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


def _some(items: Sequence[str]) -> str:
    more = len(items) - _MOST_NAMES
    return ", ".join(items[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
