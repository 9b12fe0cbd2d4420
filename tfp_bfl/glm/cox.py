"""Cox's proportional hazards from sums of clients: the partial likelihood, with Efron's approximation of ties.

    hazard(t | x) = h0(t) exp(x' b)

With one baseline hazard for all clients, each client first sends its times of events; the server returns their union
t_1 < ... < t_m. From then on a client's message holds, for each t, sums over its rows that are still at risk:

    s0 = sum exp(x' b),   s1 = sum exp(x' b) x,   s2 = sum exp(x' b) x x',   and d0, d1, d2, the same over events at t

A row with an entry is at risk at entry < t <= time (left truncation). Several rows of one person with intervals that
follow each other have columns that change with time; their likelihood is that of one row each.

They add up over clients, so the result equals that of all rows in one place. `stratified` gives each client a baseline
hazard; then its log likelihood, gradient and information are sums, and no event time leaves a client.

Source: Efron 1977, section 3; Lu et al. 2015 (WebDISCO) for sums over risk sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from tfp_bfl.glm.rows import Rows
from tfp_bfl.glm.sums import Sums, pack, unpack

# The check of proportional hazards warns in this share of fits with proportional hazards, at most.
_SIGNIFICANT = 0.05
ROUNDING = 1e-12


_Three = tuple[np.ndarray, ...]


class RiskSums(NamedTuple):
    """Sums over a client's rows at coefficients b, for each of m times of events. They add up over clients.

    Fields:
      num_rows, at_risk: the number of rows, and of those with a time of at least t [m].
      num_events, predictor, features: the number of events at t [m], and sums of x' b [m] and x [m, p] over them.
      risk: exp(x' b) over rows at risk: s0 [m], s1 [m, p], s2 [m, p, p].
      tied: the same over events at t: d0 [m], d1 [m, p], d2 [m, p, p].
    """

    num_rows: float
    at_risk: np.ndarray
    num_events: np.ndarray
    predictor: np.ndarray
    features: np.ndarray
    risk: _Three
    tied: _Three

    def pack(self) -> np.ndarray:
        """Return all numbers in one array."""
        return pack(self.num_rows, *self[1:5], *self.risk, *self.tied)

    @classmethod
    def unpack(cls, numbers: np.ndarray, num_times: int, size: int) -> RiskSums:
        """Return the sums at `num_times` times for `size` coefficients of an array of `pack`."""
        scalars, vectors, matrices = ((num_times,) + (size,) * k for k in range(3))
        shapes = [(), scalars, scalars, scalars, vectors, *[scalars, vectors, matrices] * 2]
        rows, at_risk, events, predictor, features, s0, s1, s2, d0, d1, d2 = unpack(numbers, shapes)
        return cls(float(rows), at_risk, events, predictor, features, (s0, s1, s2), (d0, d1, d2))


def event_times(rows: Rows) -> np.ndarray:
    """Return the distinct times at which a client has events, in ascending order [m]."""
    return np.unique(rows.outcome[rows.outcome[:, 1] == 1, 0])


def risk_sums(rows: Rows, coefficients: np.ndarray, times: np.ndarray) -> RiskSums:
    """Compute one client's sums over risk sets at the times of events of all clients, in ascending order [m]."""
    x, time, event = rows.design, rows.outcome[:, 0], rows.outcome[:, 1] == 1
    eta = x @ coefficients + rows.offset
    hazard = np.exp(np.clip(eta, -700.0, 700.0))
    squares = hazard[:, np.newaxis, np.newaxis] * x[:, :, np.newaxis] * x[:, np.newaxis]
    weighted = hazard, hazard[:, np.newaxis] * x, squares
    # A row is at risk at times[first] to times[last - 1].
    last, *first = (np.searchsorted(times, x, side="right") for x in (time, *rows.outcome.T[2:]))
    where = np.searchsorted(times, time[event])

    def before(place: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Add up the values of rows with a place above j, for each time j."""
        by_place = np.zeros((len(times) + 1, *values.shape[1:]))
        np.add.at(by_place, place, values)
        return np.cumsum(by_place[::-1], 0)[::-1][1:]

    def from_last(values: np.ndarray) -> np.ndarray:
        return before(last, values) - sum(before(place, values) for place in first)

    def at_events(values: np.ndarray) -> np.ndarray:
        sums = np.zeros((len(times), *values.shape[1:]))
        np.add.at(sums, where, values[event])
        return sums

    ones = np.ones(len(time))
    events = at_events(ones), at_events(eta), at_events(x)
    risk, tied = (tuple(map(of, weighted)) for of in (from_last, at_events))
    return RiskSums(float(len(time)), from_last(ones), *events, risk, tied)


def moments(sums: RiskSums) -> _Three:
    """Compute the parts of the partial likelihood at each time of events, by Efron's approximation.

    With d events at t, the l-th of them (l = 0 ... d - 1) is at risk with  s - (l / d) d_t. The parts are the log
    likelihood [m], and the weighted mean [m, p] and covariance [m, p, p] of the rows at risk, summed over the events.
    """
    log_likelihood, mean = sums.predictor.copy(), np.zeros_like(sums.features)
    variance = np.zeros_like(sums.risk[2])
    for number in range(int(np.max(sums.num_events, initial=0))):
        live = sums.num_events > number
        share = number / sums.num_events[live]
        s0, s1, s2 = (s[live] - share.reshape(-1, *[1] * (s.ndim - 1)) * d[live] for s, d in zip(sums.risk, sums.tied))
        centre = s1 / s0[:, np.newaxis]
        log_likelihood[live] -= np.log(s0)
        mean[live] += centre
        variance[live] += s2 / s0[:, np.newaxis, np.newaxis] - centre[:, :, np.newaxis] * centre[:, np.newaxis]
    return log_likelihood, mean, variance


def partial_sums(sums: RiskSums) -> Sums:
    """Compute log partial likelihood, gradient and information from sums over risk sets."""
    log_likelihood, mean, variance = moments(sums)
    numbers = sums.num_rows, float(np.sum(sums.num_events)), float(np.sum(log_likelihood))
    return Sums(*numbers, np.sum(sums.features - mean, 0), np.sum(variance, 0))


def row_scores(rows: Rows, coefficients: np.ndarray, times: np.ndarray, of_all: RiskSums) -> np.ndarray:
    """Compute the score of each row, of which the gradient is the sum, by Efron's approximation [n, p].

        g_i = [event] (x_i - mean(t_i)) - exp(x_i' b) sum_(t at risk) (x_i h_i(t) - c_i(t))

    h and c are sums over the events at t of 1 / s0 and s1 / s0^2; a row with an event there counts in the l-th of d
    with the weight 1 - l / d, as in `moments`. `of_all` are the sums of all rows at b.

    Source: Lin & Wei 1989; Therneau & Grambsch 2000, section 4.2, for ties.
    """
    x, event = rows.design, rows.outcome[:, 1] == 1
    hazard = np.exp(np.clip(x @ coefficients + rows.offset, -700.0, 700.0))[:, np.newaxis]
    last, *first = (np.searchsorted(times, at, side="right") for at in (rows.outcome[:, 0], *rows.outcome.T[2:]))
    steps, tied, mean = (np.zeros((len(times) + 1, 1 + width)) for width in (x.shape[1], x.shape[1], x.shape[1]))
    for number in range(int(np.max(of_all.num_events, initial=0))):
        live = np.flatnonzero(of_all.num_events > number)
        share = number / of_all.num_events[live, np.newaxis]
        s0 = of_all.risk[0][live, np.newaxis] - share * of_all.tied[0][live, np.newaxis]
        centre = (of_all.risk[1][live] - share * of_all.tied[1][live]) / s0
        step = np.concatenate([np.ones_like(s0), centre], 1) / s0
        steps[live + 1] += step
        tied[live] += share * step
        mean[live, 1:] += centre / of_all.num_events[live, np.newaxis]
    passed = np.cumsum(steps, 0)
    passed = passed[last] - sum(passed[place] for place in first)
    at = np.searchsorted(times, rows.outcome[event, 0])
    passed[event] -= tied[at]
    scores = -hazard * (x * passed[:, :1] - passed[:, 1:])
    scores[event] += x[event] - mean[at, 1:]
    return scores


class Trend(NamedTuple):
    """Sums over the times of events of a stratum, for the test of proportional hazards. They add up over strata.

    g(t) is the share of the stratum's events before t.

    Fields:
      num_events, num_strata: the number of events, and of strata with an event.
      when: sum of g.
      score, score_g: sum of x - mean, and of g (x - mean) [p].
      variance, variance_g, variance_gg: sum of the variances, and of g and g^2 times them [p, p].
    """

    num_events: float | np.ndarray
    num_strata: float | np.ndarray
    when: float | np.ndarray
    score: np.ndarray
    score_g: np.ndarray
    variance: np.ndarray
    variance_g: np.ndarray
    variance_gg: np.ndarray

    @classmethod
    def unpack(cls, numbers: np.ndarray, size: int) -> Trend:
        """Return the sums for `size` coefficients of an array of `pack`."""
        return cls(*unpack(numbers, [(), (), (), *[(size,)] * 2, *[(size, size)] * 3]))


def trend(sums: RiskSums) -> Trend:
    """Compute the sums of one stratum at the maximum."""
    (_, mean, variance), events = moments(sums), sums.num_events
    g = (np.cumsum(events) - events) / max(float(np.sum(events)), 1.0)
    residual = sums.features - mean
    variances = [np.einsum("t,tij->ij", weight, variance) for weight in (np.ones_like(g), g, g**2)]
    counts = float(np.sum(events)), float(np.any(events)), float(g @ events)
    return Trend(*counts, np.sum(residual, 0), g @ residual, *variances)


def centred(rows: Rows, centre: np.ndarray) -> Rows:
    """Return rows with the means of all clients [p] subtracted; what rounding leaves of a constant column is 0."""
    x = rows.design - centre
    return rows._replace(design=np.where(np.abs(x) > ROUNDING * np.abs(centre), x, 0.0))


def proportionality(sums: Trend) -> np.ndarray:
    """Compute p values of the score test that each coefficient does not change with time [p].

    The alternative is b(t) = b + c (g(t) - mean of g), where g(t) is the share of events before t in its stratum
    (`cox.zph` has Kaplan and Meier's estimate). With U_g = sum g (x - mean), V = sum of the variances, V_g and V_gg the
    same weighted by g and g^2, and the score U = sum (x - mean), which a prior leaves different from 0:

        chi^2_j = (U_g - V_g V^+ U)_j^2 / (V_gg - V_g V^+ V_g)_jj,   one degree of freedom

    V^+ is the pseudo-inverse. A coefficient that the rows do not determine has p = 1.

    Source: Grambsch & Therneau 1994, section 2; the score test of Therneau's `cox.zph` since 2019.
    """
    mean, v = sums.when / sums.num_events, sums.variance
    v_g = sums.variance_g - mean * v
    v_gg = sums.variance_gg - 2 * mean * sums.variance_g + mean**2 * v
    projection = v_g @ np.linalg.pinv(v, rcond=1e-10, hermitian=True)
    score = sums.score_g - mean * sums.score - projection @ sums.score
    left, whole = np.diag(v_gg - projection @ v_g), np.diag(v_gg)
    is_determined = left > 1e-8 * np.maximum(whole, 1e-300)
    return np.where(is_determined, stats.chi2.sf(score**2 / np.where(is_determined, left, 1.0), 1), 1.0)


def not_proportional(sums: Trend, names: Sequence[str]) -> list[str]:
    """Warn of each coefficient that changes with time."""
    return [
        f"The hazard ratio of {name!r} changes with time (score test of proportional hazards: p = {value:.2g}): its "
        "coefficient is an average over time."
        for name, value in zip(names, proportionality(sums))
        if value < _SIGNIFICANT / len(names)
    ]


def poor_strata(sums: Trend, num_strata: int) -> list[str]:
    """Warn of strata without an event, and of events that have one time in each stratum."""
    found = []
    if sums.num_strata < num_strata:
        found.append(
            f"Clients without an event, which add nothing to the hazard ratios: {num_strata - sums.num_strata:g}."
        )
    if sums.when == 0 and sums.num_events > sums.num_strata:
        found.append(
            "All events of a baseline hazard have the same time: the hazard ratios rest on the approximation of ties, "
            "and are 1 if all rows have the event. Give times in a finer unit, or use the family bernoulli."
        )
    return found
