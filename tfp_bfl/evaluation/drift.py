"""Comparison of new examples with those of the training, from histograms that clients' counts add up to."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special, stats

from tfp_bfl.errors import InvalidArgument, check_share

# The chi-square distribution is close enough where each bin has this many expected examples (Cochran 1954: 5).
LEAST_EXPECTED = 10
# With fewer examples than this in a sample the p-value is that of a permutation test.
FEW = 100
_TABLE, _SERIES, _IMAGES = 2, 3, 4
_AT_ONCE = 1000
# Of a permutation test: permutations at once, and the number that must be as extreme as the data to end it early.
_PERMUTATIONS, _ENOUGH = 2000, 50
# Bins of about equal counts in the middle of two samples: of the chi-square test, and of few examples and in files.
_COARSE, _FINE = 16, 64
# Bits of the significand that distinguish two numbers: 16,384 bins an octave.
_BITS = 15
# More take longer than a command should: no p-value is smaller than one in a million.
_MOST_PERMUTATIONS = 10**6


class Counts(NamedTuple):
    """Counts of one feature in bins that need no range: only bins with examples are held."""

    lower: np.ndarray  # The smallest value of each bin, ascending [B]; the first bin has no lower end.
    counts: np.ndarray  # Of the examples [B].


class Histograms(NamedTuple):
    """Counts of examples for each of J features by name; those of clients are added."""

    names: tuple[str, ...]
    counts: tuple[Counts, ...]


class Drift(NamedTuple):
    """The comparison of one feature: total variation distance of the two histograms, in [0, 1], and the p-value of the
    test that both samples have one distribution, adjusted for the number of features.

    Drift is found if that is below the level; `too_few` examples are those of which no result could have been below.
    """

    name: str
    distance: float
    p_value: float
    found: bool
    too_few: bool = False


def feature_histograms(features: object, names: Sequence[str] = (), bins: Histograms | None = None) -> Histograms:
    """Count examples of a client: columns of a table [n, D]; mean and standard deviation over time of each column of
    series [n, T, D], of which the steps are dependent; or brightness (mean) and contrast (twice the standard deviation)
    of each channel of images [n, height, width, channels], bytes or in [0, 1].

    Columns without names have numbers. The bins are given, or of one value each, rounded to 15 binary digits.
    """
    given = np.asarray(features)
    if given.ndim in (_TABLE, _SERIES):
        values = given if given.ndim == _TABLE else np.concatenate([given.mean(1), given.std(1)], 1)
        names = tuple(names) or tuple(f"column {j}" for j in range(given.shape[-1]))
        names = names if given.ndim == _TABLE else tuple(f"{of} of {x}" for of in ("mean", "sd") for x in names)
    elif given.ndim == _IMAGES:
        parts = []
        for i in range(0, max(len(given), 1), _AT_ONCE):
            part = given[i : i + _AT_ONCE]
            scaled = part / np.float32(255) if part.dtype == np.uint8 else part
            parts.append(np.concatenate([scaled.mean((1, 2)), 2 * scaled.std((1, 2))], 1))
        values = np.concatenate(parts)
        channels = range(given.shape[3])
        form = "{}, channel {}" if len(channels) > 1 else "{}"
        names = tuple(form.format(kind, c) for kind in ("brightness", "contrast") for c in channels)
    else:
        raise InvalidArgument(
            f"features have shape {given.shape}, but must be rows [n, D], series [n, T, D] or images [n, H, W, C]."
        )
    if bins is None:
        significands, exponents = np.frexp(values.astype(np.float64))
        rounded = np.ldexp(np.rint(np.ldexp(significands, _BITS)), exponents - _BITS) + 0.0  # 0 stays 0.
        return Histograms(names, tuple(Counts(*np.unique(x, return_counts=True)) for x in rounded.T))
    if bins.names != names:
        raise InvalidArgument("The histograms are of different features: compare examples of one form.")
    places = (np.searchsorted(own.lower[1:], x, side="right") for own, x in zip(bins.counts, values.T))
    counts = (np.bincount(x, minlength=len(own.lower)) for own, x in zip(bins.counts, places))
    return Histograms(names, tuple(own._replace(counts=x) for own, x in zip(bins.counts, counts)))


def add_histograms(*histograms: Histograms) -> Histograms:
    """Add the counts of clients: equal to the histograms of all their examples together."""
    names = histograms[0].names
    if any(x.names != names for x in histograms):
        raise InvalidArgument("The histograms are of different features: compare examples of one form.")
    added = []
    for parts in zip(*(x.counts for x in histograms)):
        lower, places = np.unique(np.concatenate([x.lower for x in parts]), return_inverse=True)
        counts = np.bincount(places, np.concatenate([x.counts for x in parts]), len(lower))
        added.append(Counts(lower, counts.astype(np.int64)))
    return Histograms(names, tuple(added))


def coarsen(histograms: Histograms) -> Histograms:
    """Merge neighbouring bins into about 64 with equal counts, and finer ones at both ends.

    The ends of the bins lie halfway between the values of neighbouring bins, so that rounding decides about no value.
    """
    merged = []
    for lower, counts in histograms.counts:
        first = _starts(counts, _FINE)
        between = (lower[first[1:] - 1] + lower[first[1:]]) / 2
        merged.append(Counts(np.append(lower[:1], between), np.add.reduceat(counts, first)))
    return histograms._replace(counts=tuple(merged))


def _starts(counts: np.ndarray, most: float, least: float = 1.0) -> np.ndarray:
    """Return the first of the neighbouring bins that are merged into each bin of about total / `most` counts.

    A bin with c of M examples below it is complete with max(least, min(M / most, c, (M - c) / 2)): bins have equal
    counts in the middle, and halve their counts step by step towards both ends.
    """
    up_to = np.cumsum(counts)
    total, starts, below = up_to[-1], [0], 0
    while True:
        size = max(least, min(total / most, below, (total - below) / 2))
        last = int(np.searchsorted(up_to, below + size))
        if last >= len(counts) or up_to[last] == total:
            break
        starts.append(last + 1)
        below = up_to[last]
    if len(starts) > 1 and total - below < least:
        starts.pop()
    return np.array(starts)


def count_between(reference: object, new: object, bins: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Return counts of two samples of numbers [N], [M] between the quantiles of both together: [bins] each."""
    samples = np.asarray(reference, np.float64), np.asarray(new, np.float64)
    edges = np.unique(np.quantile(np.concatenate(samples), np.linspace(0, 1, bins + 1)[1:-1]))
    one, two = (np.bincount(np.searchsorted(edges, x, side="right"), minlength=len(edges) + 1) for x in samples)
    return one, two


def homogeneity(
    reference: np.ndarray | Counts, new: np.ndarray | Counts, *, ordered: bool = True, resolution: float = 1e-4
) -> tuple[float, float]:
    """Compare two samples by their counts: total variation distance, and p-value.

    With `FEW` examples or more in both samples the p-value is that of the chi-square test. Neighbouring bins are merged
    until each has `LEAST_EXPECTED` expected examples in both samples; the p-value is 1 where one bin is left. Bins of a
    number are merged further, by the counts of both samples together, to about 16 of equal counts with finer ones at
    both ends: bins are where the examples are, on whatever scale.

    With fewer examples in a sample it is that of a permutation test, which holds for any number of examples. Of n of
    the M examples of both samples, l_j in bin j, with shares H_j of all and G_j of the n up to the middle of bin j,

        ordered:      A = sum_j l_j (G_j - H_j)^2 / (H_j (1 - H_j) - l_j / (4 M))       (Anderson and Darling)
        not ordered:  A = sum_j (n_j - n l_j / M)^2 / l_j                               (Pearson)
        p_value = P(A of n drawn out of the M without replacement >= A)

    estimated from random draws, until 50 are as extreme as the data: p = 50 / (their number), else (1 + k) / (1 + B).

    Args:
      reference, new: counts of the same bins [B], or of one feature (`feature_histograms`).
      ordered: the bins are those of a number; False for classes.
      resolution: the p-value that matters; five times its inverse are the most draws, B, but at most a million.

    Sources: Pearson 1900; Cochran 1954 for the merging; Scholz and Stephens 1987, eq. 7, for the first A; Besag and
    Clifford 1991 for the number of draws.

    Example:
      >>> distance, p_value = bfl.evaluation.homogeneity(np.array([50, 50]), np.array([90, 10]))
      >>> round(distance, 3), bool(p_value < 1e-3)
      (0.4, True)
    """
    counts = _aligned(reference, new).astype(np.int64)
    totals = counts.sum(1)
    coarse = _merged(counts, _COARSE) if ordered else counts
    distance = 0.5 * float(np.abs(coarse[0] / totals[0] - coarse[1] / totals[1]).sum())
    if totals.min() < FEW:
        return distance, _permuted(_merged(counts, _FINE) if ordered else counts, ordered, resolution)
    least = LEAST_EXPECTED * totals.sum() / totals.min()
    counts = _merged(counts, _COARSE if ordered else np.inf, least)
    return distance, float(stats.chi2_contingency(counts, correction=False).pvalue) if counts.shape[1] > 1 else 1.0


def _aligned(reference: np.ndarray | Counts, new: np.ndarray | Counts) -> np.ndarray:
    """Return counts of two samples in the same bins [2, B]."""
    if not isinstance(reference, Counts) or not isinstance(new, Counts):
        return np.stack([np.asarray(reference), np.asarray(new)])
    lower = np.union1d(reference.lower, new.lower)
    counts = np.zeros((2, len(lower)))
    for row, own in zip(counts, (reference, new)):
        row[np.searchsorted(lower, own.lower)] = own.counts
    return counts


def _merged(counts: np.ndarray, most: float, least: float = 1.0) -> np.ndarray:
    """Return the counts of merged bins (`_starts`) of two samples [2, B]."""
    return np.add.reduceat(counts, _starts(counts.sum(0), most, least), 1)


def _permuted(counts: np.ndarray, ordered: bool, resolution: float) -> float:
    """Return the p-value of the permutation test of bins [2, B], of which the smaller sample is drawn."""
    both = counts.sum(0)
    counts, both = counts[:, both > 0], both[both > 0]
    if len(both) < 2:
        return 1.0
    smaller, total = counts[counts.sum(1).argmin()], both.sum()
    number, middle = smaller.sum(), (np.cumsum(both) - both / 2) / total
    weights = both / (middle * (1 - middle) - both / (4 * total))

    def statistic(drawn: np.ndarray) -> np.ndarray:
        shares = (np.cumsum(drawn, -1) - drawn / 2) / number
        pearson = np.square(drawn - number * both / total) @ (1 / both)
        return np.square(shares - middle) @ weights if ordered else pearson

    limit, rng = float(statistic(smaller)) * (1 - 1e-9), np.random.default_rng(0)
    most, drawn, extreme = int(min(np.ceil(5 / resolution), _MOST_PERMUTATIONS)), 0, 0
    while drawn < most:
        size = min(_PERMUTATIONS, most - drawn)
        above = statistic(rng.multivariate_hypergeometric(both, number, size, method="marginals")) >= limit
        so_far = extreme + np.cumsum(above)
        if so_far[-1] >= _ENOUGH:
            return float(_ENOUGH / (drawn + 1 + np.argmax(so_far >= _ENOUGH)))
        drawn, extreme = drawn + size, int(so_far[-1])
    return (1 + extreme) / (1 + drawn)


def least_p_value(reference: np.ndarray, number: int) -> float:
    """Return a bound below which no p-value of the permutation test lies, wherever `number` new examples are.

        least = min_j C(r_j + n, n) / C(N + n, n),

    the probability that all n of N + n examples come from the rarest bin, where all new ones lie; r are the counts of
    the reference [B]. With fewer than `FEW` examples in a sample it is one in a million at least, from the number of
    permutations.
    """
    log = lambda count: special.gammaln(count + number + 1) - special.gammaln(count + 1)
    least = float(np.exp(log(np.min(reference)) - log(np.sum(reference))))
    return max(least, 1 / (1 + _MOST_PERMUTATIONS)) if min(number, np.sum(reference)) < FEW else least


def drifts(tests: Sequence[tuple[str, float, float]], level: float = 0.01, least: Sequence[float] = ()) -> list[Drift]:
    """Adjust p-values for the number of tests, so that with probability `level` at most any drift is found by chance.

    Tests are (name, distance, p-value); `least` are the smallest p-values that they could have had. Source: Holm 1979.
    """
    check_share(level, "level")
    order = np.argsort([p for _, _, p in tests], kind="stable")
    adjusted = np.ones(len(tests))
    largest = 0.0
    for rank, j in enumerate(order):
        largest = max(largest, min(1.0, (len(tests) - rank) * tests[j][2]))
        adjusted[j] = largest
    too_few = np.zeros(len(tests), bool) if not len(least) else np.asarray(least) * len(tests) >= level
    return [
        Drift(name, d, float(p), bool(p < level), bool(few and p >= level))
        for (name, d, _), p, few in zip(tests, adjusted, too_few)
    ]
