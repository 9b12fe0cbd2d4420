"""Tests of whether the clients' values of each weight look like samples of a Gaussian.

Letters: S clients, D coordinates (weights), M draws of a null distribution.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from tfp_bfl.errors import InvalidArgument, check_count, shown

# Below four values the kurtosis has no unbiased estimate.
LEAST_CLIENTS = 4
NODES = 1001
BLOCK = 2**22


class Normality(NamedTuple):
    """Normality statistics per coordinate: NaN where all clients agree.

    Fields:
      statistic: [D], the Kolmogorov-Smirnov distance to the Gaussian of the coordinate's own mean and sd.
      p_value: [D], of that distance as if mean and sd had been known: far too large, see `normality`.
      lilliefors_p_value: [D], of that distance with mean and sd estimated: uniform for Gaussian values.
      skewness: [D], 0 for a Gaussian.
      excess_kurtosis: [D], 0 for a Gaussian, 3 for a Laplace distribution, -2 for two points of equal weight.
      num_zero_spread: coordinates on which all clients agree.
    """

    statistic: np.ndarray
    p_value: np.ndarray
    lilliefors_p_value: np.ndarray
    skewness: np.ndarray
    excess_kurtosis: np.ndarray
    num_zero_spread: int


def normality(values: object, num_draws: int = 10_000, seed: int = 0) -> Normality:
    """Test S clients' values of every coordinate for normality.

    z_i = (w_i - mean) / sd, in ascending order, sd with ddof 1
    statistic = max_i max(i / S - Phi(z_i), Phi(z_i) - (i - 1) / S)

    Its plain p-value, of `scipy.stats.kstest`, is that for a mean and sd known beforehand. Here they are the
    coordinate's own, which brings the distance down: the test is conservative, and of Gaussian values fewer than one in
    a thousand have a plain p-value below 0.05. Lilliefors' p-value counts how many of M Gaussian stacks, standardised
    in the same way, are as far off:

    lilliefors_p_value = (1 + #{statistic of a draw >= statistic}) / (M + 1)

    All coordinates share these draws, so the share of rejections at 0.05 has a standard error of 0.05 sqrt(19 / M)
    whatever D (0.002 for M = 10,000). Skewness and excess kurtosis are the estimates G1 and G2 of `scipy.stats` with
    bias=False. The order of the clients does not matter to the last bit.

    Coordinates of one model are dependent: the share of rejections over D of them spreads more than D independent tests
    would.

    Args:
      values: [S, D], real numbers, S at least 4.
      num_draws: M; no Lilliefors p-value is below 1 / (M + 1).
      seed: of the draws.

    Returns:
      A `Normality`, float64. Plain p-values are interpolated between exact ones: off by 1e-4 at most.

    Raises:
      InvalidArgument: values not [S, D], not real numbers or not finite, S below 4 or D below 1; num_draws below 1 or a
        seed below 0.

    Source: Lilliefors 1967 (JASA 62); the study of clients' weights: Johansson & Gullbrandson 2022.
    """
    from scipy import stats  # Late: it takes half a second, and most who import this module don't test for normality.

    values = _checked(values)
    num_draws, seed = check_count(num_draws, "num_draws"), check_count(seed, "seed", least=0)
    ordered = np.sort(values.astype(np.float64), axis=0)
    width = ordered[-1] - ordered[0]
    spread = width > 0
    # From the least client, so that values which differ in their last digits only are told apart.
    z = _standardised((ordered[:, spread] - ordered[0, spread]) / width[spread])
    statistic = _distance(z)
    null = _null(len(z), num_draws, seed)
    beyond = num_draws - np.searchsorted(null, statistic, side="left")

    def everywhere(x: np.ndarray) -> np.ndarray:
        whole = np.full(len(spread), np.nan)
        whole[spread] = x
        return whole

    return Normality(
        everywhere(statistic),
        everywhere(_plain_p_value(len(z))(statistic)),
        everywhere((1 + beyond) / (num_draws + 1)),
        everywhere(stats.skew(z, axis=0, bias=False)),
        everywhere(stats.kurtosis(z, axis=0, bias=False)),
        int(np.sum(~spread)),
    )


def normality_summary(result: Normality, level: float = 0.05) -> dict[str, float]:
    """Summarise `normality` over all coordinates, without those on which all clients agree.

    Returns:
      ks_rejected, lilliefors_rejected: shares of the coordinates with that p-value below the level; for Gaussian values
      about 0 and the level. median_abs_skewness; skewness_q05, _median and _q95, excess_kurtosis_q05, _median and _q95,
      quantiles over the coordinates; num_coordinates that this is of, and num_zero_spread. NaN if there are none.

    Raises:
      InvalidArgument: the level is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise InvalidArgument(f"level is {shown(level)}, but must be a probability above 0 and below 1.")
    finite = {name: x[~np.isnan(x)] for name, x in result._asdict().items() if name != "num_zero_spread"}
    share = lambda p: float(np.mean(p < level)) if len(p) else np.nan
    quantile = lambda x, q: float(np.quantile(x, q)) if len(x) else np.nan
    return {
        "ks_rejected": share(finite["p_value"]),
        "lilliefors_rejected": share(finite["lilliefors_p_value"]),
        "median_abs_skewness": quantile(np.abs(finite["skewness"]), 0.5),
        **{
            f"{name}_{label}": quantile(finite[name], q)
            for name in ("skewness", "excess_kurtosis")
            for label, q in (("q05", 0.05), ("median", 0.5), ("q95", 0.95))
        },
        "num_coordinates": len(finite["statistic"]),
        "num_zero_spread": result.num_zero_spread,
    }


def _checked(values: object) -> np.ndarray:
    values = np.asarray(values)
    if values.ndim != 2 or not values.shape[1]:
        raise InvalidArgument(f"The values must have the shape [S, D] with D at least 1, not {values.shape}.")
    if values.dtype.kind not in "iuf":
        raise InvalidArgument(f"The values must be real numbers, not {values.dtype}.")
    if len(values) < LEAST_CLIENTS:
        raise InvalidArgument(f"There are {len(values)} clients, but a test for normality needs {LEAST_CLIENTS}.")
    if not np.all(np.isfinite(values)):
        raise InvalidArgument("The values must be finite, but they hold NaN or infinity.")
    return values


def _standardised(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(0)) / x.std(0, ddof=1)


def _distance(z: np.ndarray) -> np.ndarray:
    """Return the Kolmogorov-Smirnov distance of columns in ascending order [S, D] to the standard Gaussian: [D]."""
    from scipy import special

    probability = special.ndtr(z)
    above = np.arange(1, len(z) + 1)[:, np.newaxis] / len(z)
    return np.maximum(np.max(above - probability, 0), np.max(probability - above, 0) + 1 / len(z))


@functools.lru_cache(maxsize=32)
def _null(num_clients: int, num_draws: int, seed: int) -> np.ndarray:
    """Return the distances of Gaussian stacks, in ascending order: [M]."""
    rng, width = np.random.default_rng([seed, num_clients]), max(1, BLOCK // num_clients)
    sizes = [min(width, num_draws - i) for i in range(0, num_draws, width)]
    draws = (np.sort(rng.standard_normal((num_clients, size)), axis=0) for size in sizes)
    return np.sort(np.concatenate([_distance(_standardised(z)) for z in draws]))


@functools.lru_cache(maxsize=32)
def _plain_p_value(num_clients: int) -> Any:
    """Return the p-value as a function of the distance: SciPy's takes a third of a millisecond each, so of
    some thousand.
    """
    from scipy import interpolate, stats

    nodes = 0.5 / num_clients + (1 - 0.5 / num_clients) * np.linspace(0, 1, NODES) ** 2
    logs = np.log(np.maximum(stats.kstwo.sf(nodes, num_clients), np.finfo(np.float64).tiny))
    curve = interpolate.PchipInterpolator(nodes, logs)
    return lambda statistic: np.exp(curve(statistic))
