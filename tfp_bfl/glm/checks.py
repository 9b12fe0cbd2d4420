"""Checks for coefficients that are undetermined or unreliable, by the sums of all clients."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import scipy.linalg
from scipy import stats

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.glm.families import Family
from tfp_bfl.glm.rows import INTERCEPT
from tfp_bfl.glm.sums import RESOLUTION, Sums

# Below this share of the largest, a diagonal of the pivoted factor is rounding.
_RANK_TOLERANCE = 1e-11
_MIN_EVENTS_PER_COEFFICIENT = 10
# Of Pearson's statistic above its mean.
_DEVIATIONS = 3.0
# Of sums in fixed point, relative to them.
_MOST_ROUNDING = 1e-6
# Of theta to the mean count, or to 1: counts are then Poisson up to 1e-4 of their variance.
_MOST_THETA = 1e4
# Probability that a client of a federation of the same coefficients is named, and relative eigenvalues that are 0.
_FALSE_ALARM, _NOTHING = 1e-3, 1e-8
ADVICE = "or give a prior: prior_stddev=2.5, or --prior-stddev 2.5"


def check_determined(information: np.ndarray, names: Sequence[str], num_rows: float = math.inf) -> None:
    """Refuse coefficients that the rows and the prior, with this information together, do not determine.

    There are fewer rows than coefficients; or a column is 0 in all rows, or a combination of others.
    """
    if not np.all(np.isfinite(information)):
        raise InvalidArgument(
            "The sums of the columns are too large for numbers: rescale columns of very large values."
        )
    scale = np.sqrt(np.maximum(np.diag(information), 0.0))
    if np.any(scale == 0):
        raise InvalidArgument(f"Column {names[int(np.argmin(scale))]!r} does not vary: drop it, {ADVICE}.")
    correlation = information / np.outer(scale, scale)
    _, factor, _ = scipy.linalg.qr(correlation, pivoting=True)
    if abs(factor[-1, -1]) > _RANK_TOLERANCE * abs(factor[0, 0]):
        return
    if num_rows < len(names):
        rows = "is 1 row" if num_rows == 1 else f"are {num_rows:g} rows"
        raise InvalidArgument(f"There {rows} for {len(names)} coefficients: drop columns, {ADVICE}.")
    _, vectors = np.linalg.eigh(correlation)
    share = np.abs(vectors[:, 0]) / np.max(np.abs(vectors[:, 0]))
    alike = [repr(names[j]) for j in np.argsort(-share, kind="stable") if share[j] > 0.05]
    if len(alike) == 1:
        raise InvalidArgument(f"The rows do not determine the coefficient of {alike[0]}: drop it, {ADVICE}.")
    raise InvalidArgument(
        f"Columns {', '.join(alike[:-1])} and {alike[-1]} are collinear: one is a combination of the others, or a mean "
        f"is far larger than its spread. Drop one, subtract a constant, {ADVICE}."
    )


def check_resolution(sums: np.ndarray, columns: Sequence[str], num_clients: int) -> None:
    """Refuse sums of squares that secure sums round by more than 1e-6 of them; each client rounds by at most 2^-61.

    `sums` are those of the squares of each column [n], weighted as in the information; `columns` names them in words.
    """
    least = num_clients * RESOLUTION / 2 / _MOST_ROUNDING
    for column, value in zip(columns, sums):
        if abs(value) < least:
            raise InvalidArgument(
                f"{column} does not vary, or is too small for secure sums (its sum of squares is {value:.2g} and must "
                f"be at least {least:.2g}): drop it, or change units by a power of ten."
            )


def check_theta(sums: Sums, log_theta: float) -> None:
    """Refuse a negative binomial model of counts that vary no more than those of a Poisson distribution."""
    if log_theta > math.log(_MOST_THETA * max(1.0, sums.num_events / sums.num_rows)):
        raise InvalidArgument(
            "The counts vary no more than a Poisson distribution with these means, so that theta grows without bound: "
            "use the family poisson."
        )


def separating(
    coefficients: np.ndarray, first: Sums, names: Sequence[str], is_constant: bool = False
) -> InvalidArgument:
    """Return the error for a likelihood that has no maximum; it names the column with the fastest growing coefficient.

    `coefficients` are those where the steps were given up [p], and `first` has the sums of the first step.
    """
    if is_constant:
        return InvalidArgument(
            "The outcome is the same in all rows, with or without an event: there is nothing to estimate. Check the "
            "values that count as an event."
        )
    # Parameters of random effects follow the coefficients.
    squares = np.maximum(np.diag(first.information)[: len(names)], 0.0)
    size = np.abs(coefficients[: len(names)]) * np.sqrt(squares / first.num_rows)
    size[[name == INTERCEPT for name in names]] = 0.0
    worst = names[int(np.argmax(size))] if np.any(size) else names[0]
    return InvalidArgument(
        f"The likelihood has no maximum: column {worst!r} predicts the outcome of some rows without error "
        f"(separation), so that its coefficient grows without bound. Drop it, pool its rare values, or bound it by a "
        "prior: prior_stddev=2.5, or --prior-stddev 2.5."
    )


def few_events(sums: Sums, family: Family, num_coefficients: int) -> list[str]:
    """Warn of fewer than ten events for each coefficient, by the usual rule of thumb."""
    limit = family.limit(sums.num_rows, sums.num_events)
    if limit >= _MIN_EVENTS_PER_COEFFICIENT * num_coefficients:
        return []
    what = "rows" if family.has_dispersion else "events"
    return [
        f"There are {limit:g} {what} for {num_coefficients} coefficients, fewer than "
        f"{_MIN_EVENTS_PER_COEFFICIENT} for each: the normal approximation may be poor."
    ]


def misfit(sums: Sums, num_coefficients: int) -> list[str]:
    """Warn of counts that vary more than a Poisson distribution with the fitted means.

    With Pearson's statistic X = sum_i (y_i - mu_i)^2 / mu_i and df = N - p, the warning is issued for

        X / df > 1 + 3 sqrt(2 N + sum_i 1 / mu_i) / df

    that is, 3 standard deviations of X above its mean: 1 + 3 sqrt(2 / df) for large means.

    Only the sums of counts have Pearson's statistic.

    Source: McCullagh & Nelder 1989, section 4.5.
    """
    degrees = sums.num_rows - num_coefficients
    statistic, inverse_means = sums.pearson
    if degrees <= 0 or statistic <= degrees + _DEVIATIONS * math.sqrt(max(2 * sums.num_rows + inverse_means, 0.0)):
        return []
    ratio = statistic / degrees
    return [
        f"The counts vary more than a Poisson distribution with these means: Pearson's statistic is {ratio:.3g} per "
        f"degree of freedom (1 if the model fits; {degrees:g} degrees of freedom). The standard deviations are too "
        f"small, by a factor of {math.sqrt(ratio):.2g} if the excess is the same in all rows (quasi-Poisson); if "
        'clients differ, give random effects (--random "(intercept)").'
    ]


def apart(parts: Mapping[str, Sums], dispersion: float) -> dict[str, float]:
    """Find the client whose coefficients differ from those of all others by more than chance, with its p-value.

        g_k' (I_k - I_k I^-1 I_k)^+ g_k / dispersion ~ chi2,   g_k, I_k: sums of client k at the maximum of all clients

    is the score test of own coefficients of client k. The p-values are times the number of clients. A client is named
    only if the others then agree with each other: where all differ, nobody stands apart.
    """
    if len(parts) < 3:
        return {}
    found = _score_tests(parts, dispersion)
    name, p = min(found.items(), key=lambda item: item[1])
    others = _score_tests({other: x for other, x in parts.items() if other != name}, dispersion)
    return {name: p} if p < _FALSE_ALARM <= min(others.values()) else {}


def _score_tests(parts: Mapping[str, Sums], dispersion: float) -> dict[str, float]:
    information = sum(x.information for x in parts.values())
    inverse, found = np.linalg.pinv(information, hermitian=True), {}
    step = inverse @ sum(x.gradient for x in parts.values())
    for name, own in parts.items():
        variance = own.information - own.information @ inverse @ own.information
        scale = np.sqrt(np.maximum(np.diag(own.information), np.finfo(np.float64).tiny))
        values, vectors = np.linalg.eigh(variance / np.outer(scale, scale))
        along = vectors.T @ ((own.gradient - own.information @ step) / scale)
        is_there = values > _NOTHING
        statistic = np.sum(along[is_there] ** 2 / values[is_there]) / dispersion
        found[name] = min(1.0, len(parts) * float(stats.chi2.sf(statistic, np.count_nonzero(is_there))))
    return found
