"""Average ranks of methods over settings, the Friedman test and Nemenyi's critical difference (Demsar 2006).

Ranks are arrays [N, k] of N settings and k methods; rank 1 is best. What cannot be ranked is `InvalidArgument`.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup, escape
from scipy import stats

from tfp_bfl.bench.reading import Bench, score_of, shorten
from tfp_bfl.errors import InvalidArgument, check_count

ALPHA = 0.05
# Of the figure, in units of its view box.
_WIDTH, _ROW, _TOP, _NAMES = 360, 20, 46, 136
# A lane of groups, and all lanes.
_LANE, _MOST_LANES = 9.0, 72.0
_LETTERS = 17
NO_RANKS = "There are no ranks: average ranks need two settings or more, and the benchmark has one."


class Ranking(NamedTuple):
    """Hold the ranks [N, k] of k methods, in order of their average ranks, in N settings.

    `absent` are (setting, method) with the worst rank because a seed has no value; `left_out` are methods that ran but
    have the score in no setting, and methods without cells in one of the settings.
    """

    methods: Sequence[str]
    settings: Sequence[str]
    ranks: np.ndarray
    absent: Sequence[tuple[str, str]]
    left_out: Sequence[str]

    @property
    def average(self) -> np.ndarray:
        """Return [k], the average ranks."""
        return self.ranks.mean(axis=0)


class Comparison(NamedTuple):
    """Hold the tests of a ranking: Friedman's statistic and its p-value, Nemenyi's critical difference, and (first,
    last) of the largest groups within it, by average ranks.
    """

    chi2: float
    p: float
    difference: float
    groups: Sequence[tuple[int, int]]


def rank(values: np.ndarray, sign: int) -> np.ndarray:
    """Rank the methods by values [N, k], NaN without a value; higher ones are better for sign 1, lower ones for -1.

    Methods with equal values share the mean of their ranks. Methods without a value share the worst ranks, so that
    the ranks of a setting always sum to k (k + 1) / 2.

    Example:
      >>> rank(np.array([[0.9, 0.8, np.nan, 0.9]]), sign=1)
      array([[1.5, 3. , 4. , 1.5]])
    """
    worse = np.where(np.isnan(values), np.inf, -sign * np.nan_to_num(values))
    return np.atleast_2d(stats.rankdata(worse, axis=1))


def ranking(bench: Bench, key: str) -> Ranking:
    """Rank the methods by the mean of a score over seeds, in each setting that has the score.

    A method with a failed seed, or without a value for a seed that other methods have, gets the worst rank of
    the setting: a mean over the seeds that succeeded would favour it.
    """
    score = score_of(key)
    if not score.sign:
        raise InvalidArgument(f"{score.label} has no ranks: neither high nor low values are better.")
    settings = [s for s in bench.settings if any(bench.scores(s, method).seeds(key) for method in bench.methods)]
    if len(settings) < 2:
        raise InvalidArgument(
            f"{score.label} has no ranks: average ranks need two settings or more, and {len(settings)} has the score."
        )
    # A method that failed everywhere is ranked. One that ran and does not define the score is not, nor is one without
    # cells in a setting, which it does not serve.
    partly = {m for m in bench.methods if any((s, m) not in bench.cells for s in settings)}
    ran = {record.method for record in bench.records if record.failed is None and record.setting in settings}
    scored = {method for method in bench.methods for s in settings if bench.scores(s, method).seeds(key)}
    left_out = [method for method in bench.methods if method in (ran - scored) | partly]
    methods = [method for method in bench.methods if method not in left_out]
    if len(methods) < 2:
        raise InvalidArgument(f"{score.label} has no ranks: ranks need two methods or more, and 1 has the score.")
    # Over all seeds of a setting, NaN where one has no value. The sum does not depend on the order: equal scores tie.
    found = {(s, m): bench.scores(s, m) for s in settings for m in methods}
    mean = lambda s, x: math.fsum(x.values(key)) / len(x.seeds(key)) if x.seeds(key) == bench.seeds_of[s] else math.nan
    values = np.array([[mean(s, found[s, m]) for m in methods] for s in settings])
    absent = [(settings[i], methods[j]) for i, j in np.argwhere(np.isnan(values))]
    ranks = rank(values, score.sign)
    order = np.argsort(ranks.mean(axis=0), kind="stable")
    return Ranking([methods[j] for j in order], settings, ranks[:, order], absent, left_out)


def friedman(ranks: np.ndarray) -> tuple[float, float]:
    """Test whether all methods have the same average rank, with Friedman's test corrected for ties.

        chi2 = 12 N / (k (k + 1)) (sum_j R_j^2 - k (k + 1)^2 / 4)    without ties,    R_j = mean_i ranks_ij

    The p-value is that of a chi-squared variable with k - 1 degrees of freedom. Source: Demsar 2006, section 3.2.2.
    The result is (chi2, p): (0, 1) where all methods tie in all settings.
    """
    if ranks.ndim != 2 or ranks.shape[1] < 3 or ranks.shape[0] < 2:
        raise InvalidArgument("The Friedman test needs three methods or more, in two settings or more.")
    if np.all(ranks == ranks[:, :1]):
        return 0.0, 1.0
    chi2, p = stats.friedmanchisquare(*ranks.T)
    return float(chi2), float(p)


def critical_difference(methods: int, settings: int, alpha: float = ALPHA) -> float:
    """Compute Nemenyi's critical difference of two average ranks.

        CD = q_alpha sqrt(k (k + 1) / (6 N))

    q_alpha is the quantile of the studentized range of k normal variables, divided by sqrt(2); alpha is the probability
    of at least one significant difference among equal methods. Source: Demsar 2006, section 3.2.2.

    Example:
      >>> print(f"{critical_difference(4, 14):.2f}")
      1.25
    """
    k, n = check_count(methods, "methods", 2), check_count(settings, "settings")
    if not 0 < alpha < 1:
        raise InvalidArgument(f"alpha is {alpha}, but must be between 0 and 1.")
    return quantile(k, alpha) * math.sqrt(k * (k + 1) / (6 * n))


@functools.lru_cache(maxsize=64)
def quantile(methods: int, alpha: float) -> float:
    """Compute q_alpha: the studentized range's quantile for k methods and infinite degrees of freedom, over sqrt(2)."""
    return float(stats.studentized_range.ppf(1 - alpha, methods, np.inf)) / math.sqrt(2)


def groups(average: np.ndarray, difference: float) -> list[tuple[int, int]]:
    """Return (first, last) of the maximal groups of two methods or more, in ascending order of average ranks, that
    differ by less than the critical difference.
    """
    found: list[tuple[int, int]] = []
    for first in range(len(average)):
        last = int(np.flatnonzero(average - average[first] < difference)[-1])
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return found


def compare(ranked: Ranking) -> Comparison:
    """Compute the Friedman test, the critical difference and the groups of a ranking."""
    chi2, p = friedman(ranked.ranks)
    difference = critical_difference(len(ranked.methods), len(ranked.settings))
    return Comparison(chi2, p, difference, groups(ranked.average, difference))


def figure(ranked: Ranking, compared: Comparison | None, title: str) -> Markup:
    """Draw the critical-difference figure as an inline SVG: a row a method, a bar beside each group of the tests."""
    k = len(ranked.methods)
    bars = _lanes(compared.groups) if compared else []
    lanes = max((lane for *_, lane in bars), default=-1) + 1
    wide = min(_LANE, _MOST_LANES / max(lanes, 1))
    right = _WIDTH - 12 - wide * lanes
    place = lambda value: _NAMES + 34 + (right - _NAMES - 40) * (value - 1) / max(k - 1, 1)
    height = _TOP + _ROW * k + 6
    said = ", ".join(f"{shorten(m)} {r:.2f}" for m, r in zip(ranked.methods, ranked.average))
    parts = [
        f'<svg class="ranks" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(f"{title}: {said}")}">',
        f'<line class="axis" x1="{place(1):.1f}" x2="{place(k):.1f}" y1="{_TOP - 8}" y2="{_TOP - 8}"/>',
    ]
    for value in range(1, k + 1, 1 + (k - 1) // 6):
        x = f"{place(value):.1f}"
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{_TOP - 11}" y2="{height - 4}"/>')
        parts.append(f'<text class="muted" text-anchor="middle" x="{x}" y="{_TOP - 14}">{value}</text>')
    if compared and compared.difference <= k - 1:
        low, high = place(1), place(1 + compared.difference)
        parts.append(f'<path class="bar" d="M{low:.1f} 12H{high:.1f}M{low:.1f} 8v8M{high:.1f} 8v8"/>')
        parts.append(f'<text x="{_NAMES - 8}" y="16" text-anchor="end">CD = {compared.difference:.2f}</text>')
    for row, (method, value) in enumerate(zip(ranked.methods, ranked.average)):
        y = _TOP + _ROW * row + _ROW // 2
        parts.append(f"<text x='0' y='{y + 4}'>{escape(shorten(method, _LETTERS))}</text>")
        parts.append(f'<text class="muted" x="{_NAMES + 22}" y="{y + 4}" text-anchor="end">{value:.2f}</text>')
        parts.append(f'<circle class="dot" cx="{place(value):.1f}" cy="{y}" r="4.5"/>')
    for first, last, lane in bars:
        x, top, bottom = f"{right + 10 + wide * lane:.1f}", _TOP + _ROW * first + 4, _TOP + _ROW * (last + 1) - 4
        parts.append(
            f'<line class="group" stroke-width="{0.45 * wide:.1f}" x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"/>'
        )
    return Markup("\n".join([*parts, "</svg>"]))


def _lanes(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Return (first, last, lane) of each group, where groups in one lane do not overlap."""
    ends: list[int] = []
    found = []
    for first, last in spans:
        lane = next((i for i, end in enumerate(ends) if end < first), len(ends))
        ends[lane : lane + 1] = [last]
        found.append((first, last, lane))
    return found
