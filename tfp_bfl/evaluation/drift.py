"""Comparison of new examples with those of the training, from histograms that clients' counts add up to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tfp_bfl.errors import InvalidArgument

# Of standardised columns, and of the brightness and contrast of images in [0, 1]. Values that are frequent, such as 0
# of a constant column, lie at no edge, where rounding would decide.
_TABLE_EDGES = np.linspace(-4, 4, 33) + 0.01234
_IMAGE_EDGES = np.linspace(0, 1, 33)
# The chi-square distribution is close enough where each bin has this many expected examples (Cochran 1954: 5).
LEAST_EXPECTED = 10
# With fewer examples than this in a sample the p-value is that of a permutation test.
FEW = 100
_TABLE, _IMAGES = 2, 4
_AT_ONCE = 1000
# Of a permutation test: permutations at once, and the number that must be as extreme as the data to end it early.
_PERMUTATIONS, _ENOUGH = 2000, 50
# More take longer than a command should: no p-value is smaller than one in a million.
_MOST_PERMUTATIONS = 10**6


class Histograms(NamedTuple):
    """Counts of examples; those of clients are added.

    Fields:
      names: of the J features.
      edges: of the bins, of which the first and the last are open [E].
      counts: [J, E + 1].
    """

    names: tuple[str, ...]
    edges: np.ndarray
    counts: np.ndarray


class Drift(NamedTuple):
    """The comparison of one feature.

    Fields:
      name: of the feature.
      distance: total variation distance of the two histograms, in [0, 1].
      p_value: of the test that both samples have one distribution, adjusted for the number of features.
      found: p_value is below the level.
      too_few: no result of so few examples could have been below the level.
    """

    name: str
    distance: float
    p_value: float
    found: bool
    too_few: bool = False


def feature_histograms(features: Any, names: Sequence[str] = ()) -> Histograms:
    """Count examples of a client: columns of a table, or brightness and contrast of each channel of images.

    Args:
      features: of a table standardised columns [n, D]; of images [n, height, width, channels], bytes or in [0, 1].
      names: of the columns [D]; () for their numbers.

    Raises:
      InvalidArgument: they are neither rows of a table nor images.
    """
    given = np.asarray(features)
    if given.ndim == _TABLE:
        values, edges = given, _TABLE_EDGES
        names = tuple(names) or tuple(f"column {j}" for j in range(given.shape[1]))
    elif given.ndim == _IMAGES:
        parts = [given[i : i + _AT_ONCE] for i in range(0, max(len(given), 1), _AT_ONCE)]
        values, edges = np.concatenate([_brightness_and_contrast(part) for part in parts]), _IMAGE_EDGES
        channels = range(given.shape[3])
        kinds = ("brightness", "contrast")
        names = tuple(f"{kind}, channel {c}" if len(channels) > 1 else kind for kind in kinds for c in channels)
    else:
        raise InvalidArgument(f"features have shape {given.shape}, but must be rows [n, D] or images [n, H, W, C].")
    bins = np.searchsorted(edges, values, side="right")
    counts = np.stack([np.bincount(bins[:, j], minlength=len(edges) + 1) for j in range(bins.shape[1])])
    return Histograms(names, edges, counts)


def _brightness_and_contrast(images: np.ndarray) -> np.ndarray:
    """Return the mean and twice the standard deviation of each channel's pixels, in [0, 1]: [n, 2 channels]."""
    scaled = images / np.float32(255) if images.dtype == np.uint8 else images
    return np.concatenate([scaled.mean((1, 2)), 2 * scaled.std((1, 2))], 1)


def add_histograms(a: Histograms, b: Histograms) -> Histograms:
    """Add the counts of two clients.

    Raises:
      InvalidArgument: they are of different features.
    """
    if a.names != b.names or not np.array_equal(a.edges, b.edges):
        raise InvalidArgument("The histograms are of different features: compare examples of one form.")
    return a._replace(counts=a.counts + b.counts)


def count_between(reference: Any, new: Any, bins: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Return counts of two samples of numbers [N], [M] between the quantiles of both together: [bins] each."""
    samples = np.asarray(reference, np.float64), np.asarray(new, np.float64)
    edges = np.unique(np.quantile(np.concatenate(samples), np.linspace(0, 1, bins + 1)[1:-1]))
    one, two = (np.bincount(np.searchsorted(edges, x, side="right"), minlength=len(edges) + 1) for x in samples)
    return one, two


def homogeneity(
    reference: np.ndarray, new: np.ndarray, *, ordered: bool = True, resolution: float = 1e-4
) -> tuple[float, float]:
    """Compare two samples by their counts: total variation distance, and p-value.

    With `FEW` examples or more in both samples the p-value is that of the chi-square test. Neighbouring bins are merged
    until each has `LEAST_EXPECTED` expected examples in both samples; the p-value is 1 where one bin is left.

    With fewer examples in a sample it is that of a permutation test, which holds for any number of examples. Of n of
    the M examples of both samples, l_j in bin j, with shares H_j of all and G_j of the n up to the middle of bin j,

        ordered:      A = sum_j l_j (G_j - H_j)^2 / (H_j (1 - H_j) - l_j / (4 M))       (Anderson and Darling)
        not ordered:  A = sum_j (n_j - n l_j / M)^2 / l_j                               (Pearson)
        p_value = P(A of n drawn out of the M without replacement >= A)

    estimated from random draws, until 50 are as extreme as the data: p = 50 / (their number), else (1 + k) / (1 + B).

    Args:
      reference, new: counts of the bins [B].
      ordered: the bins are those of a number; False for classes.
      resolution: the p-value that matters; five times its inverse are the most draws, B, but at most a million.

    Sources: Pearson 1900; Cochran 1954 for the merging; Scholz and Stephens 1987, eq. 7, for the first A; Besag and
    Clifford 1991 for the number of draws.
    """
    counts = np.stack([reference, new]).astype(np.int64)
    totals = counts.sum(1)
    distance = 0.5 * float(np.abs(counts[0] / totals[0] - counts[1] / totals[1]).sum())
    p_value = _permuted(counts, ordered, resolution) if totals.min() < FEW else _chi_square(counts.astype(np.float64))
    return distance, p_value


def _chi_square(counts: np.ndarray) -> float:
    """Return the p-value of the chi-square test of merged bins [2, B]."""
    from scipy import stats

    totals = counts.sum(1)
    least = LEAST_EXPECTED * totals.sum() / totals.min()
    merged: list[np.ndarray] = []
    for column in counts.T:
        if merged and merged[-1].sum() < least:
            merged[-1] = merged[-1] + column
        else:
            merged.append(column)
    if len(merged) > 1 and merged[-1].sum() < least:
        last = merged.pop()
        merged[-1] = merged[-1] + last
    if len(merged) < 2:
        return 1.0
    return float(stats.chi2_contingency(np.stack(merged, 1), correction=False).pvalue)


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
        if not ordered:
            value: np.ndarray = np.square(drawn - number * both / total) @ (1 / both)
            return value
        shares = (np.cumsum(drawn, -1) - drawn / 2) / number
        value = np.square(shares - middle) @ weights
        return value

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
    """Return a bound below which no p-value of the permutation test lies, wherever the new examples are.

        least = min_j C(r_j + n, n) / C(N + n, n),

    the probability that all n of N + n examples come from the rarest bin, where all new ones lie. With fewer than `FEW`
    examples in a sample the bound is one in a million at least, from the number of permutations.

    Args:
      reference: counts r of the bins [B], N together.
      number: n, of new examples.
    """
    from scipy.special import gammaln

    log = lambda count: gammaln(count + number + 1) - gammaln(count + 1)
    least = float(np.exp(log(np.min(reference)) - log(np.sum(reference))))
    return max(least, 1 / (1 + _MOST_PERMUTATIONS)) if min(number, np.sum(reference)) < FEW else least


def drifts(tests: Sequence[tuple[str, float, float]], level: float = 0.01, least: Sequence[float] = ()) -> list[Drift]:
    """Adjust p-values for the number of tests, so that with probability `level` at most any drift is found by chance.

    Args:
      tests: (name, distance, p-value) of each.
      level: between 0 and 1.
      least: the smallest p-value that each could have had; () for 0.

    Raises:
      InvalidArgument: a level out of its range.

    Source: Holm 1979.
    """
    if not 0 < level < 1:
        raise InvalidArgument(f"level is {level}, but must be between 0 and 1.")
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
