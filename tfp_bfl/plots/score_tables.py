"""Tables of runs that were repeated with other seeds: bold is what other seeds would not undo."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tfp_bfl.evaluation.repeats import Difference, half_width, over_seeds, paired_difference
from tfp_bfl.labels import label_of, with_unit
from tfp_bfl.plots import tables
from tfp_bfl.plots.page import Cell, Table, by_row
from tfp_bfl.plots.tables import DASH


class Repeated(NamedTuple):
    """Runs that differ in their seeds alone: seed -> key of the summary -> number; only runs on one `data` compare.

    `is_finished` is False where training ended before a plateau: such scores are never bold.
    """

    name: str
    scores: Mapping[int, Mapping[str, float]]
    data: str = ""
    is_finished: bool = True

    def values(self, key: str, seeds: Sequence[int] | None = None) -> list[float]:
        """Return a score of these seeds, or of all that have it."""
        return [self.scores[seed][key] for seed in (self.seeds(key) if seeds is None else seeds)]

    def seeds(self, key: str) -> list[int]:
        """Return the seeds of the runs that have a score, in order."""
        return sorted(seed for seed, scores in self.scores.items() if key in scores)


class ScoreForm(NamedTuple):
    """Hold decimals of scores, None for 4, of percentages 2, and what is beside a mean: the sd or half its interval."""

    digits: int | None = None
    percent: bool = False
    interval: bool = False

    def scale(self, key: str) -> float:
        """Return the factor of a score, 100 for a percentage."""
        return 100.0 if self.percent and tables.is_share(key) else 1.0

    def decimals(self, key: str) -> int:
        """Return the decimals of a score."""
        return self.digits if self.digits is not None else 4 if self.scale(key) == 1 else 2

    def name_of(self, key: str) -> str:
        """Return the heading of a score."""
        return f"{label_of(key)} (%)" if self.scale(key) > 1 else with_unit(key)

    def sign(self, key: str) -> int:
        """Return 1 if higher is better, -1 if lower is better, 0 if neither."""
        return tables.BETTER.get(key, 0)

    def mean(self, values: Sequence[float], key: str) -> str:
        """Format the mean over the seeds, one at least, and its standard deviation or interval."""
        found, scale, digits = over_seeds(values), self.scale(key), self.decimals(key)
        if found.number == 1:
            return f"{scale * found.mean:.{digits}f}"
        width = float(half_width(np.asarray(values))) if self.interval else found.stddev
        return f"{scale * found.mean:.{digits}f} ± {scale * width:.{digits}f}"

    def difference(self, found: Difference, key: str) -> str:
        """Format a difference and its interval, none as -0.00."""
        form = lambda x: f"{round(self.scale(key) * x, self.decimals(key)) + 0.0:+.{self.decimals(key)}f}"
        return f"{form(found.mean)} [{form(found.low)}, {form(found.high)}]"


AS_THEY_ARE = ScoreForm()


def score_cells(groups: Sequence[Repeated], key: str, form: ScoreForm = AS_THEY_ARE) -> list[Cell]:
    """Return mean and standard deviation, or interval, of each group; bold what is in `best_of`."""
    best = best_of(groups, key, form.sign(key))
    return [Cell(form.mean(g.values(key), key) if g.seeds(key) else DASH, g in best and g.is_finished) for g in groups]


def difference_cells(
    groups: Sequence[Repeated], reference: Repeated, key: str, form: ScoreForm = AS_THEY_ARE
) -> list[Cell]:
    """Return the groups' differences to a reference with their intervals; bold where an interval leaves out 0."""
    pairs = zip(groups, compare_all(groups, reference, key))
    return [Cell(form.difference(x, key), x.is_conclusive and g.is_finished) if x else Cell(DASH) for g, x in pairs]


def compare_all(groups: Sequence[Repeated], reference: Repeated, key: str) -> list[Difference | None]:
    """Return `compare` of each group with a reference; None for that itself."""
    return [None if group.name == reference.name else compare(group, reference, key) for group in groups]


def scores(
    groups: Sequence[Repeated], keys: Sequence[str], form: ScoreForm = AS_THEY_ARE, counts: bool = True
) -> Table:
    """Return the scores of the groups, `score_cells`, a row each, beside their numbers of seeds if `counts`."""
    numbers = [("Seeds", [str(len(group.scores)) for group in groups])] if counts else []
    columns = [(form.name_of(key), score_cells(groups, key, form)) for key in keys]
    return by_row("Results", [group.name for group in groups], [*numbers, *columns])


def differences(groups: Sequence[Repeated], keys: Sequence[str], form: ScoreForm = AS_THEY_ARE) -> Table:
    """Return the differences of the groups to the first, by the same seeds, with 95 % intervals, a row each."""
    first, *others = groups
    columns = [(form.name_of(key), difference_cells(others, first, key, form)) for key in keys]
    return by_row(f"Difference to {first.name}", [group.name for group in others], columns)


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


def best_of(groups: Sequence[Repeated], key: str, sign: int) -> list[Repeated]:
    """Return the fewest groups that are each better than each other group, with 95 % intervals that exclude 0.

    They are the one with the best mean, and with each group all that are not worse than it by such an interval; none if
    these are all groups. `sign` is 1 if higher is better, -1 if lower is better, 0 if neither. Groups without the score
    are left out.
    """
    scored = [group for group in groups if group.seeds(key)]
    if not sign or len(scored) < 2:
        return []
    is_better = lambda one, other: (d := compare(one, other, key)) and d.is_conclusive and sign * d.mean > 0
    best = [max(scored, key=lambda group: sign * over_seeds(group.values(key)).mean)]
    while more := [g for g in scored if g not in best and not all(is_better(one, g) for one in best)]:
        best += more
    return best if len(best) < len(scored) else []
