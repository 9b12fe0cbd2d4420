"""Kaplan-Meier's estimate of survival and the log-rank test, from sums of clients.

    n(t) = number of rows with time >= t,   d(t) = number of rows with an event at t,   by stratum and group

These integers add up over clients. The times t are the union of the clients' times of events, or a grid that all agreed
on, with which no time leaves a client: times are rounded up to the grid, and rows beyond its end are censored there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from tfp_bfl.data.names import natural
from tfp_bfl.errors import InvalidArgument, check_number, counted
from tfp_bfl.glm.federation import add_answers
from tfp_bfl.glm.posterior import Coefficients, as_text, quantile
from tfp_bfl.glm.rows import floats, read
from tfp_bfl.glm.sums import pack, unpack

Labels = Sequence[Sequence[object] | np.ndarray]
Times = Sequence[float] | np.ndarray
_ROUNDING = 1e-12
_MOST_INTERVALS = 8


class Curve(NamedTuple):
    """The survival of a group at ascending times [m].

    Fields:
      num_rows: the number of rows.
      times: of events in any group, and of the table.
      at_risk, events: the number of rows at risk just before each time, and of events at it [m].
      survival, stddev, low, high: S(t), Greenwood's standard deviation and the interval [m]; NaN where S(t) = 0.
    """

    num_rows: int
    times: np.ndarray
    at_risk: np.ndarray
    events: np.ndarray
    survival: np.ndarray
    stddev: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def quantile(self, share: float = 0.5) -> tuple[float, float, float]:
        """Return the first time at which S(t) <= 1 - share, and its interval; infinity if it is not reached.

        The bounds are the first times at which those of S(t) are at most 1 - share (Brookmeyer & Crowley 1982).
        """
        reached = (np.append(bound <= 1 - share + _ROUNDING, True) for bound in (self.survival, self.low, self.high))
        time, low, high = (float(np.append(self.times, math.inf)[np.argmax(x)]) for x in reached)
        return time, low, high

    def restricted_mean(self, horizon: float) -> tuple[float, float]:
        """Return the mean of min(time, horizon), which is the area below S, and its standard deviation.

        variance = sum_(t < horizon) A(t)^2 d / (n (n - d)),   A(t): the area from t to the horizon
        """
        inside = self.times < horizon
        ends = np.append(self.times[inside], horizon)
        areas = np.diff(ends) * self.survival[inside]
        left = np.cumsum(areas[::-1])[::-1]
        terms = left[left > 0] ** 2 * _greenwood(self.at_risk, self.events)[inside][left > 0]
        return float(ends[0] + np.sum(areas)), float(np.sqrt(np.sum(terms)))


class KaplanMeier(NamedTuple):
    """The survival of each group (`kaplan_meier`).

    Fields:
      curves: name of the group -> its `Curve`; "all" without groups.
      times, horizon, level: of the tables.
      messages: the number of messages that each client received.
    """

    curves: dict[str, Curve]
    times: np.ndarray
    horizon: float | None
    level: float
    messages: int

    def table(self) -> Coefficients:
        """Tabulate rows, events, the median with its interval, and the restricted mean with its standard deviation."""
        rows = Coefficients()
        for group, curve in self.curves.items():
            counts = {"group": group, "rows": f"{curve.num_rows}", "events": f"{np.sum(curve.events):.0f}"}
            rows.append(counts | _texts(["median", *self._bounds], curve.quantile()))
            if self.horizon is not None:
                rows[-1] |= _texts([f"mean to {self.horizon:g}", "sd"], curve.restricted_mean(self.horizon))
        return rows

    def at_times(self) -> Coefficients:
        """Tabulate rows at risk, events since the last row of the table, and survival at each of `times`."""
        rows = Coefficients()
        for group, curve in self.curves.items():
            places = np.searchsorted(curve.times, self.times)
            for j, events in zip(places, np.diff(np.cumsum(curve.events)[places], prepend=0)):
                counts = {"at risk": f"{curve.at_risk[j]:.0f}", "events": f"{events:.0f}"}
                of_curve = _texts(["survival", "sd", *self._bounds], [x[j] for x in curve[4:]])
                rows.append({"group": group, "time": f"{curve.times[j]:g}"} | counts | of_curve)
        return rows

    @property
    def _bounds(self) -> list[str]:
        return [f"{100 * self.level:g} % from", "to"]


class LogRank(NamedTuple):
    """The result of a log-rank test of g groups.

    Fields:
      groups, rows, observed, expected: names, numbers of rows and of events, and that expected of equal hazards [g].
      variance: of observed - expected [g, g].
      statistic, degrees_of_freedom, p_value: chi-squared, and the probability of one at least as large.
      notes: sentences on groups and strata without an event.
      messages: the number of messages that each client received.
    """

    groups: list[str]
    rows: np.ndarray
    observed: np.ndarray
    expected: np.ndarray
    variance: np.ndarray
    statistic: float
    degrees_of_freedom: int
    p_value: float
    notes: list[str]
    messages: int

    def __str__(self) -> str:
        degrees = f"{counted(self.degrees_of_freedom, 'degree')} of freedom"
        return f"Log-rank test: chi-squared {self.statistic:.4g} with {degrees}, p = {self.p_value:.3g}."

    def table(self) -> Coefficients:
        """Tabulate rows, observed and expected events by group."""
        names, whole = ("group", "rows", "observed", "expected"), ([f"{x:.0f}" for x in y] for y in self[1:3])
        return Coefficients(dict(zip(names, row)) for row in zip(self.groups, *whole, self.expected))


def kaplan_meier(
    clients: Sequence[np.ndarray],
    *,
    groups: Labels | None = None,
    grid: Times | None = None,
    times: Times | None = None,
    horizon: float | None = None,
    level: float = 0.95,
    secure_sums: bool = False,
) -> KaplanMeier:
    """Estimate the survival of each group by Kaplan and Meier's product.

        S(t) = prod_(t_j <= t) (1 - d_j / n_j),   Var S(t) = S(t)^2 sum_(t_j <= t) d_j / (n_j (n_j - d_j))

    Each client sends its times of events; the server returns their union, and each client the number of its rows at
    risk, n_j, and of events, d_j, at each time and by group. These integers add up: the result is that of all rows in
    one place, digit by digit. Intervals are those of log(-log S), as R's conf.type = "log-log" and lifelines'.

    Args:
      clients: (time, event) [n, 2] of each client's rows: a time above 0, and an event of 1, or 0 for a censored row;
        or (time, event, entry) [n, 3], for rows that are at risk at entry < t <= time (left truncation).
      groups: a label for each row, by client [n]; None for one curve.
      grid: ascending times on which all clients agreed; None for the union of the times of events. Times are rounded up
        to the grid, and rows beyond its end are censored there; entries too, but not where an event follows at once. It
        takes one message.
      times: of the table `at_times`; None for round ones.
      horizon: the time up to which the restricted mean is computed; None for no mean.
      level: probability of the intervals.
      secure_sums: add the clients' counts in fixed point, as secure aggregation does (`sums`). It needs a grid.

    Raises:
      InvalidArgument: bad input, or a horizon at which no row of a group is at risk.

    Example:
      >>> import numpy as np
      >>> import tfp_bfl as bfl
      >>> north = np.array([[6.0, 1], [6, 1], [6, 0], [7, 1], [10, 1], [13, 1]])
      >>> south = np.array([[6.0, 1], [9, 0], [10, 0], [11, 0]])
      >>> result = bfl.glm.kaplan_meier([north, south], times=[6, 10], horizon=12)
      >>> print(result.table())
      group  rows  events  median  95 % from  to  mean to 12     sd
      all      10       6      10          6   -       9.325  0.876
      >>> print(result.at_times())
      group  time  at risk  events  survival      sd  95 % from      to
      all       6       10       3       0.7  0.1449     0.3287  0.8919
      all      10        4       2    0.4375  0.1747     0.1187  0.7256

    Source: Kaplan & Meier 1958; Kalbfleisch & Prentice 2002, section 1.4, for log(-log S).
    """
    if not 0 < check_number(level, "level") < 1:
        raise InvalidArgument(f"level is {level:g}, but must be above 0 and below 1, such as 0.95.")
    ends = [] if horizon is None else [check_number(horizon, "horizon")]
    chosen = None if times is None else as_times(times, "times")
    cohort = _read(clients, groups, None, grid, secure_sums)
    of_events = cohort.times()
    chosen = _round_times(max([0.0, *ends, *of_events[-1:]])) if chosen is None else chosen
    steps = np.unique(np.concatenate([of_events, chosen, ends]))
    curves, half = {}, float(quantile(level))
    for name, number, n, d in zip(cohort.groups, *(counts[..., 0, :].T for counts in cohort.total(steps))):
        s = np.cumprod(1 - d / np.maximum(n, 1))
        with np.errstate(divide="ignore", invalid="ignore"):  # Of S = 1 and S = 0, which have no log(-log S).
            relative = np.sqrt(np.cumsum(_greenwood(n, d)))
            bounds = (s ** np.exp(z * relative / np.log(s)) for z in (-half, half))
            low, high = (np.select([s == 1, s == 0], [1.0, np.nan], bound) for bound in bounds)
            curves[name] = Curve(int(number), steps, n, d, s, s * relative, low, high)
        if np.any((n == 0) & (s > 0) & np.isin(steps, ends)):
            last = f"{np.max(steps[n > 0], initial=0.0):g}"
            raise InvalidArgument(f"No row of {name!r} is at risk at the horizon: take a time of at most {last}.")
    return KaplanMeier(curves, chosen, horizon, level, 2 if grid is None else 1)


def log_rank(
    clients: Sequence[np.ndarray],
    groups: Labels,
    *,
    strata: Labels | None = None,
    stratified: bool = False,
    grid: Times | None = None,
    secure_sums: bool = False,
) -> LogRank:
    """Test whether groups have the same hazard at all times, by the log-rank test of Mantel and Haenszel.

        u_g = sum_t (d_g - d n_g / n),   V_gh = sum_t d (n - d) / (n - 1) (n_g / n) ([g = h] - n_h / n)
        chi^2 = u' V^+ u,   degrees of freedom: rank of V

    At time t, n_g rows of group g are at risk and d_g have an event, n and d of all groups. With strata, u and V are
    sums over strata. Messages are those of `kaplan_meier`, and the result is that of all rows in one place.

    Args:
      clients, grid, secure_sums: as of `kaplan_meier`.
      groups: a label for each row, by client [n]; at least two over all clients.
      strata: a label for each row, by client [n]: groups are compared within strata, which may have other hazards.
      stratified: make each client a stratum (with `strata`, each of its strata). Each client then sends u and V in one
        message, which needs no grid: no time of an event leaves a client.

    Raises:
      InvalidArgument: bad input; fewer than two groups; or no event at which rows of two groups are at risk.

    Example:
      >>> import numpy as np
      >>> import tfp_bfl as bfl
      >>> north = np.array([[6.0, 1], [6, 1], [7, 1], [10, 0], [1, 1], [1, 1], [2, 1]])
      >>> south = np.array([[6.0, 1], [9, 0], [13, 1], [2, 1], [3, 1], [4, 1]])
      >>> groups = [["drug"] * 4 + ["placebo"] * 3, ["drug"] * 3 + ["placebo"] * 3]
      >>> print(bfl.glm.log_rank([north, south], groups))
      Log-rank test: chi-squared 13.88 with 1 degree of freedom, p = 0.000195.

    Source: Mantel 1966; Kalbfleisch & Prentice 2002, section 1.4.
    """
    cohort = _read(clients, groups, strata, grid, secure_sums)
    names, size = cohort.groups, (len(cohort.groups),)
    if len(names) < 2:
        raise InvalidArgument(f"All rows are of the group {names[0]!r}: the log-rank test compares two groups or more.")
    if stratified:
        answers = (pack(*_rank_sums(*one.total(one.times()))) for one in cohort.single())
        sums = unpack(add_answers(answers, secure_sums), [size, size, size, size * 2, ()])
    else:
        sums = _rank_sums(*cohort.total(cohort.times()))
    rows, observed, expected, variance, empty = sums
    if not np.sum(observed):
        raise InvalidArgument("No row has an event: there is no log-rank test without one.")
    scale, difference = np.max(np.diag(variance)), observed - expected
    if scale < _ROUNDING:
        raise InvalidArgument(
            "At no event are two groups at risk, or all rows at risk have it: there is no log-rank test."
        )
    inverse = np.linalg.pinv(variance / scale, 1e-10, hermitian=True) / scale
    degrees = int(np.linalg.matrix_rank(variance / scale, 1e-10, hermitian=True))
    statistic = float(difference @ inverse @ difference)
    notes = [f"The group {name!r} has no event." for name, number in zip(names, observed) if not number]
    if empty:
        notes.append(f"Strata without an event, which add nothing to the test: {empty:g}.")
    of_test = statistic, degrees, float(stats.chi2.sf(statistic, degrees)), notes
    return LogRank(names, rows, observed, expected, variance, *of_test, 1 if stratified or grid is not None else 2)


def as_times(values: Times, name: str) -> np.ndarray:
    """Return times as float64 [m]; they must ascend, from 0 at least."""
    times = floats(np.asarray(values), name)
    if times.ndim != 1 or not len(times) or times[0] < 0 or np.any(np.diff(times) <= 0):
        raise InvalidArgument(f"{name} must be times of at least 0 in ascending order, such as 0, 12, 24.")
    return times


class _Cohort(NamedTuple):
    """Time, event, entry, stratum and group of each client's rows [n], all strata [s] and groups [g], and the grid, if
    any. The entry is -inf without one.
    """

    clients: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]]
    strata: list[str]
    groups: list[str]
    grid: np.ndarray | None
    is_secure: bool

    def single(self) -> list[_Cohort]:
        """Return each client alone, which adds up its rows without masks."""
        return [self._replace(clients=[rows], is_secure=False) for rows in self.clients]

    def times(self) -> np.ndarray:
        """Return the times of events of all clients in ascending order, or the grid [m]."""
        if self.grid is not None:
            return self.grid
        if self.is_secure:
            raise InvalidArgument("Times of events are no sum: give secure sums a grid of times, such as 1, 2, 3.")
        return np.unique(np.concatenate([time[event == 1] for time, event, *_ in self.clients]))

    def total(self, times: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Count rows [s, g], and rows at risk and events at each of the times [m, s, g].

        Each client sends how many rows, and how many with an event, were last at risk at each time, or at none; where
        rows have entries also how many were not yet at risk there.
        """
        has_entry = any(np.any(np.isfinite(entry)) for _, _, entry, *_ in self.clients)
        shape = 2 + has_entry, len(times) + 1, len(self.strata), len(self.groups)

        def answer(time: np.ndarray, event: np.ndarray, entry: np.ndarray, *labels: np.ndarray) -> np.ndarray:
            counts, place = np.zeros(shape), (np.searchsorted(times, time, "right"), *labels)
            np.add.at(counts[0], place, 1.0)
            np.add.at(counts[1], place, event)
            if has_entry:
                np.add.at(counts[2], (np.searchsorted(times, entry, "right"), *labels), 1.0)
            return counts.ravel()

        total = add_answers((answer(*rows) for rows in self.clients), self.is_secure).reshape(shape)
        ended, *entered = (np.cumsum(total[kind][::-1], 0)[::-1] for kind in (0, *range(2, len(total))))
        return ended[0], (ended - sum(entered))[1:], total[1][1:]


def _read(
    clients: Sequence[np.ndarray], groups: Labels | None, strata: Labels | None, grid: Times | None, is_secure: bool
) -> _Cohort:
    points = None if grid is None else as_times(grid, "grid")
    outcomes = [x.outcome for x in read([(np.zeros((len(x), 0)), x) for x in clients], None, intercept=False).clients]
    sizes = [len(outcome) for outcome in outcomes]
    (of_strata, all_strata), (of_groups, all_groups) = (
        _levels(strata, "strata", sizes),
        _levels(groups, "groups", sizes),
    )
    rows = []
    for (time, event, *entries), *labels in zip((outcome.T for outcome in outcomes), of_strata, of_groups):
        entry = entries[0] if entries else np.full(len(time), -np.inf)
        if points is not None:
            from_start = np.append(0.0, points)
            later = from_start[np.minimum(np.searchsorted(from_start, entry), len(points))]
            place = np.searchsorted(points, time)
            time, event = np.append(points, points[-1])[place], event * (place < len(points))
            entry = np.where((later < time) | (event == 0), later, entry)
        rows.append((time, event, entry, *labels))
    return _Cohort(rows, all_strata, all_groups, points, is_secure)


def _levels(given: Labels | None, what: str, sizes: Sequence[int]) -> tuple[list[np.ndarray], list[str]]:
    """Return the number of each row's label, by client, and the names of all labels in natural order."""
    labels = (
        [["all"] * size for size in sizes] if given is None else [[*map(str, np.asarray(x).tolist())] for x in given]
    )
    names = sorted({x for own in labels for x in own}, key=natural)
    if [len(own) for own in labels] != [*sizes] or {"", "nan", "None"} & {*names}:
        raise InvalidArgument(
            f"{what} must have a label for each row of each of the {len(sizes)} clients, and none empty."
        )
    numbers = {name: number for number, name in enumerate(names)}
    return [np.array([numbers[x] for x in own], np.int64) for own in labels], names


def _greenwood(at_risk: np.ndarray, events: np.ndarray) -> np.ndarray:
    """Compute the terms d / (n (n - d)) of Greenwood's sum [m]; infinite where all rows at risk have an event."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(events > 0, events / (at_risk * (at_risk - events)), 0.0)


def _rank_sums(rows: np.ndarray, at_risk: np.ndarray, events: np.ndarray) -> list[np.ndarray]:
    """Compute rows, observed and expected events [g], their variance [g, g] and the number of strata without events."""
    n, d = np.sum(at_risk, -1), np.sum(events, -1)
    share, factor = at_risk / np.maximum(n, 1)[..., np.newaxis], d * (n - d) / np.maximum(n - 1, 1)
    variance = np.diag(np.einsum("ts,tsg->g", factor, share)) - np.einsum("ts,tsg,tsh->gh", factor, share, share)
    is_empty = (np.sum(d, 0) == 0) & (np.sum(rows, 1) > 0)
    return [np.sum(rows, 0), np.sum(events, (0, 1)), np.einsum("ts,tsg->g", d, share), variance, np.sum(is_empty)]


def _round_times(last: float) -> np.ndarray:
    """Return at most nine round times from 0 up to the last one."""
    least = max(last, _ROUNDING) / _MOST_INTERVALS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least * (1 - _ROUNDING))
    return step * np.arange(math.floor(last / step * (1 + _ROUNDING)) + 1)


def _texts(names: Sequence[str], values: Sequence[float]) -> dict[str, str]:
    return {name: as_text(x) if math.isfinite(x) else "-" for name, x in zip(names, values)}
