"""Tables of runs that were repeated with other seeds: bold is what other seeds would not undo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tfp_bfl.evaluation.repeats import Difference, over_seeds, paired_difference
from tfp_bfl.labels import label_of, with_unit
from tfp_bfl.plots import tables
from tfp_bfl.plots.page import Cell, Table, table
from tfp_bfl.plots.tables import DASH


class Repeated(NamedTuple):
    """Runs that differ in their seeds alone.

    Fields:
      name: what distinguishes them from others.
      scores: seed -> key of the summary -> number.
      data: on which examples; those on others are not compared.
    """

    name: str
    scores: Mapping[int, Mapping[str, float]]
    data: str = ""

    def values(self, key: str, seeds: Sequence[int] | None = None) -> list[float]:
        """Return a score of these seeds, or of all that have it."""
        return [self.scores[seed][key] for seed in (self.seeds(key) if seeds is None else seeds)]

    def seeds(self, key: str) -> list[int]:
        """Return the seeds of the runs that have a score, in order."""
        return sorted(seed for seed, scores in self.scores.items() if key in scores)


class ScoreForm(NamedTuple):
    """Hold how scores are written.

    Fields:
      digits: decimals; None for 4, of a percentage 2.
      percent: scores that are a share of 1 are written as percentages.
    """

    digits: int | None = None
    percent: bool = False

    def scale(self, key: str) -> float:
        """Return the factor of a score, 100 for a percentage."""
        return 100.0 if self.percent and tables.is_share(key) else 1.0

    def decimals(self, key: str) -> int:
        """Return the decimals of a score."""
        return self.digits if self.digits is not None else 4 if self.scale(key) == 1 else 2

    def name_of(self, key: str) -> str:
        """Return the heading of a score."""
        return f"{label_of(key)} (%)" if self.scale(key) > 1 else with_unit(key)


AS_THEY_ARE = ScoreForm()


def scores(groups: Sequence[Repeated], keys: Sequence[str], form: ScoreForm = AS_THEY_ARE) -> Table:
    """Return mean and standard deviation over the seeds; bold what is better than each other group by `best_of`."""
    rows = []
    for key in keys:
        best = best_of(groups, key, tables.BETTER.get(key, 0))
        rows.append((form.name_of(key), [Cell(_repeated(g, key, form), g is best) for g in groups]))
    numbers = [str(len(group.scores)) for group in groups]
    return table("Results", ["", *(group.name for group in groups)], [("Seeds", numbers), *rows])


def differences(groups: Sequence[Repeated], keys: Sequence[str]) -> Table:
    """Return each group less the first, by the same seeds, with 95 % intervals; bold where they leave out 0."""
    first, *others = groups
    rows = []
    for key in keys:
        found = [compare(other, first, key) for other in others]
        rows.append((label_of(key), [Cell(_difference(d), d is not None and d.is_told) for d in found]))
    return Table(f"Less {first.name}", ["", *(group.name for group in others)], rows)


def compare(group: Repeated, other: Repeated, key: str) -> Difference | None:
    """Return the paired difference of a score over the seeds of both; None for fewer than two, or on other data."""
    if group.data != other.data:
        return None
    seeds = [seed for seed in group.seeds(key) if seed in other.seeds(key)]
    return paired_difference(group.values(key, seeds), other.values(key, seeds)) if len(seeds) > 1 else None


def digits(group: Repeated, reference: Repeated | None, key: str) -> list[str]:
    """Return mean, standard deviation, difference to a reference and its interval with all digits; "" for none."""
    values = group.values(key)
    found = over_seeds(values) if values else None
    pair = None if reference is None or group is reference else compare(group, reference, key)
    mean = ["", ""] if found is None else [repr(found.mean), "" if found.number < 2 else repr(found.stddev)]
    return [*mean, *(["", "", ""] if pair is None else map(repr, (pair.mean, pair.low, pair.high)))]


def keys_of(groups: Sequence[Repeated]) -> list[str]:
    """Return the scores that say how good a model is, as far as there are any."""
    return [key for key in tables.BETTER if any(group.seeds(key) for group in groups)]


def best_of(groups: Sequence[Repeated], key: str, sign: int) -> Repeated | None:
    """Return the group that is better than each other group, with 95 % intervals that exclude 0; None without any.

    `sign` is 1 if higher is better, -1 if lower is better, 0 if neither. Groups without the score are left out.
    """
    scored = [group for group in groups if group.seeds(key)]
    if not sign or len(scored) < 2:
        return None
    best = max(scored, key=lambda group: sign * over_seeds(group.values(key)).mean)
    found = [compare(best, other, key) for other in scored if other is not best]
    return best if all(d is not None and d.is_told and sign * d.mean > 0 for d in found) else None


def _repeated(group: Repeated, key: str, form: ScoreForm) -> str:
    if not group.seeds(key):
        return DASH
    found, scale, digits = over_seeds(group.values(key)), form.scale(key), form.decimals(key)
    return f"{scale * found.mean:.{digits}f}" + (f" ± {scale * found.stddev:.{digits}f}" if found.number > 1 else "")


def _difference(found: Difference | None) -> str:
    return DASH if found is None else f"{found.mean:+.4f} [{found.low:+.4f}, {found.high:+.4f}]"
