"""Comparison of the sites' descriptions of their data: detection of outlying statistics."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tfp_bfl.data.cells import TEXT_KINDS
from tfp_bfl.data.parts import Part
from tfp_bfl.data.sources import Source
from tfp_bfl.errors import shown

# A mean is an outlier beyond this number of the other sites' standard deviations outside the range of their means.
_FAR = 10.0
# A number of examples is an outlier above this multiple of the others' median.
_OUTSTANDING = 10
# A standard deviation is an outlier above this multiple of the others' largest, or below this fraction of their least.
_MANY_TIMES = 100.0
_MOST_NAMES = 3
_PAIR = 2
# A site is warned of classes with fewer training examples.
_FEW = 10


def outstanding(sizes: Mapping[str, int]) -> dict[str, str]:
    """Return a warning for each client that states more examples than 10 times the median of the others.

    Example:
      >>> outstanding({"a": 10, "b": 12, "c": 200})
      {'c': 'c reports 200 examples, more than 10 times the median 11 of the others.'}
    """
    found = {}
    for name, size in sizes.items():
        others = [other for key, other in sizes.items() if key != name]
        if others and size > _OUTSTANDING * (median := statistics.median(others)):
            far = f"more than {_OUTSTANDING} times the median {median:,.0f} of the others"
            found[name] = f"{name} reports {size:,} examples, {far}."
    return found


def doubts(described: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a warning for each site with statistics far from those of all other sites.

    Each site is compared with the range and the largest standard deviation of the other sites, which exclude its own
    values: a site cannot shift the reference. The descriptions fit each other (`agree`).
    """
    sentences = []
    for site, summary in described.items():
        others = [other for name, other in described.items() if name != site]
        if not others:
            continue
        rest = [_numbers(other) for other in others]
        means, stddevs = [], []
        for key, (mean, stddev) in _numbers(summary).items():
            same, name = [own[key] for own in rest if key in own], key[0]
            if not same:
                continue
            (low, high), (least, most) = ((min(x), max(x)) for x in zip(*same))
            if max(low - mean, mean - high) > _FAR * (most or stddev):
                means.append(f"{shown(name)} ({mean:.4g}, the others' {_between(low, high)})")
            elif stddev > _MANY_TIMES * most > 0 or 0 < stddev * _MANY_TIMES < least:
                stddevs.append(f"{shown(name)} ({stddev:.4g}, the others' {_between(least, most)})")
        if means:
            sentences.append(
                f"{site} reports means far outside the other sites': {_some(means)}. Are these columns in other units? "
                "Their means affect the standardisation at every site; --without leaves a site out."
            )
        if stddevs:
            sentences.append(
                f"{site} reports standard deviations far from the other sites': {_some(stddevs)}. Are these columns in "
                "other units?"
            )
        if strange := [shown(name) for name, own in _categories(summary).items() if _is_alone(name, own, others)]:
            sentences.append(
                f"{site} has none of the other sites' categories in {_some(strange)}: do all sites spell them in the "
                "same way?"
            )
        columns = {x["name"] for other in others for x in other.get("table", ())}
        if own_columns := [shown(x["name"]) for x in summary.get("table", ()) if x["name"] not in columns]:
            what = "columns" if len(own_columns) > 1 else "the column"
            sentences.append(
                f"Only {site} has {what} {_some(own_columns)}, empty at the other sites: do all sites spell their "
                "columns in the same way? --drop leaves a column out."
            )
        known = {label for other in others for label in other["class_names"]}
        if alone := [shown(label) for label in summary["class_names"] if label not in known]:
            what = f"{'classes' if len(alone) > 1 else 'the class'} {_some(alone)}"
            sentences.append(f"Only {site} has {what}: do all sites spell their classes in the same way?")
    return sentences


def _numbers(summary: Mapping[str, Any]) -> dict[tuple[str, bool], tuple[float, float]]:
    """Return (name, is it the target) -> mean and standard deviation, of a description's columns of numbers."""
    columns = [(x[0], x[1], x[2], False) for x in summary["columns"]]
    columns += [(x[0], x[1], x[2], True) for x in [summary["target"]] if x]
    table = [x for x in summary.get("table", ()) if x["kind"] not in TEXT_KINDS and x["filled"]]
    columns += [(x["name"], x["mean"], x["stddev"], False) for x in table]
    return {(name, is_target): (mean, stddev) for name, mean, stddev, is_target in columns}


def _categories(summary: Mapping[str, Any]) -> dict[str, set[str]]:
    """Return the categories of a description, by column; those without a name are left out."""
    return {x["name"]: {*x["levels"]} - {""} for x in summary.get("table", ()) if x["kind"] in TEXT_KINDS}


def _is_alone(name: str, own: set[str], others: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the other sites have categories in a column, and none of these."""
    theirs = {level for other in others for level in _categories(other).get(name, ())}
    return bool(own and theirs) and own.isdisjoint(theirs)


def unseen(sites: Sequence[str], seen: Collection[str]) -> list[str]:
    """Return a warning in a list if some sites share no scores, by which `evaluation.client_warnings` finds faults."""
    without = _some([site for site in sites if site not in seen])
    if not without or len(sites) < _PAIR:
        return []
    where = "any site" if len(seen) < _PAIR else without
    return [f"Without scores of {without}, swapped labels or columns in other units at {where} cannot be detected."]


def rare_classes(source: Source | Part) -> str:
    """Return a line on a site's classes with fewer than `_FEW` examples, for that site alone; "" for no such class."""
    counts = {name: int((source.labels == k).sum()) for k, name in enumerate(source.class_names)}
    rare = [f"{shown(name)} ({number})" for name, number in counts.items() if number < _FEW]
    return f"Classes with fewer than {_FEW} examples, too few to learn much: {', '.join(rare)}.\n" if rare else ""


def _between(low: float, high: float) -> str:
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


def _some(items: Sequence[str]) -> str:
    more = len(items) - _MOST_NAMES
    return ", ".join(items[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
