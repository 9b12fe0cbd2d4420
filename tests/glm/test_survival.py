"""Kaplan-Meier curves and the log-rank test: published numbers, SciPy, Cox's score test, partitions of the rows."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.kit import refuses
from tfp_bfl import glm
from tfp_bfl.glm import cox
from tfp_bfl.glm.rows import Rows

# Weeks of remission, + for a censored row: Freireich et al. 1963, as in Kalbfleisch & Prentice 2002, table 1.1.
TREATED = "6 6 6 6+ 7 9+ 10 10+ 11+ 13 16 17+ 19+ 20+ 22 23 25+ 32+ 32+ 34+ 35+"
PLACEBO = "1 1 2 2 3 4 4 5 5 8 8 8 8 11 11 12 12 15 17 22 23"
WEEKS = (TREATED + " " + PLACEBO).split()
LEUKAEMIA = np.array([[float(x.rstrip("+")), "+" not in x] for x in WEEKS])
DRUG = np.repeat(["6-MP", "placebo"], 21)


def split(values, clients=3, seed=1):
    order = np.random.default_rng(seed).permutation(len(values))
    return [values[part] for part in np.array_split(order, clients)]


def simulated(count=150, groups=3, ties=True, seed=0):
    rng = np.random.default_rng(seed)
    group, stratum = rng.integers(groups, size=count), rng.integers(2, size=count)
    time, censored = rng.exponential(1 + 0.3 * group + stratum), rng.exponential(2.0, count)
    observed = np.minimum(time, censored)
    return np.stack([np.ceil(observed * 8) if ties else observed, time < censored], 1), group, stratum


def as_lists(result):
    """Return all numbers of a result, to compare digit by digit; NaN is equal to NaN."""
    if hasattr(result, "curves"):
        return repr([[x.tolist() if np.ndim(x) else x for x in curve] for curve in result.curves.values()])
    return repr([x.tolist() if isinstance(x, np.ndarray) else x for x in result])


def test_the_leukaemia_data_have_their_published_results():
    clients, groups = split(LEUKAEMIA), split(DRUG)
    result = glm.kaplan_meier(clients, groups=groups, times=[10], horizon=23)
    treated, placebo = result.curves["6-MP"], result.curves["placebo"]
    at = treated.times.tolist().index(10)
    assert (round(treated.survival[at], 3), round(treated.stddev[at], 4)) == (0.753, 0.0963)
    assert (round(treated.low[at], 3), round(treated.high[at], 3)) == (0.503, 0.889)
    assert treated.quantile() == (23, 13, math.inf) and placebo.quantile() == (8, 4, 11)
    assert (treated.at_risk[at], np.sum(treated.events), placebo.num_rows) == (15, 9, 21)
    test = glm.log_rank(clients, groups)
    assert str(test) == "Log-rank test: chi-squared 16.79 with 1 degree of freedom, p = 4.17e-05."
    np.testing.assert_allclose(test.expected, [19.2505, 10.7495], atol=1e-4)
    assert (result.messages, test.messages, test.notes) == (2, 2, [])


@pytest.mark.filterwarnings("ignore:The confidence interval is undefined")
@pytest.mark.parametrize("level", [0.5, 0.95])
def test_curves_are_those_of_scipy(level):
    outcome, group, _ = simulated()
    result = glm.kaplan_meier(split(outcome), groups=split(group), level=level)
    for name, curve in result.curves.items():
        time, event = outcome[group == int(name)].T
        expected = stats.ecdf(stats.CensoredData.right_censored(time, event == 0)).sf
        bounds = expected.confidence_interval(level, method="log-log")
        inside = (curve.survival > 0) & (curve.survival < 1)
        for found, other in ((curve.survival, expected), (curve.low, bounds.low), (curve.high, bounds.high)):
            np.testing.assert_allclose(found[inside], other.evaluate(curve.times[inside]), rtol=1e-12)


def test_two_groups_have_the_statistic_of_scipy():
    outcome, group, _ = simulated(groups=2)
    samples = [
        stats.CensoredData.right_censored(x[:, 0], x[:, 1] == 0) for x in (outcome[group == 0], outcome[group == 1])
    ]
    expected, found = stats.logrank(*samples), glm.log_rank(split(outcome), split(group))
    assert found.statistic == pytest.approx(expected.statistic**2, rel=1e-10)
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-8)


def score_test(outcome, group):
    """Return gradient and information of Cox's partial likelihood at 0: without ties, u and V of all groups but one."""
    rows = Rows(np.stack([group == g for g in range(1, 4)], 1).astype(float), outcome, np.zeros(len(group)))
    sums = cox.partial_sums(cox.risk_sums(rows, np.zeros(3), cox.event_times(rows)))
    return sums.gradient, sums.information


def test_several_groups_have_the_score_test_of_cox():
    outcome, group, stratum = simulated(groups=4, ties=False)
    clients, labels, strata = split(outcome), split(group), split(stratum)
    for chosen, parts in ((None, [group >= 0]), (strata, [stratum == 0, stratum == 1])):
        scores = [score_test(outcome[part], group[part]) for part in parts]
        gradient, information = (np.sum(x, 0) for x in zip(*scores))
        found = glm.log_rank(clients, labels, strata=chosen)
        assert found.statistic == pytest.approx(gradient @ np.linalg.solve(information, gradient), rel=1e-10)
        np.testing.assert_allclose(found.variance[1:, 1:], information, rtol=1e-10, atol=1e-12)
        assert found.degrees_of_freedom == 3
        assert found.p_value == pytest.approx(stats.chi2.sf(found.statistic, 3))


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.integers(1, 8), st.booleans())
def test_any_partition_gives_the_result_of_all_rows(seed, num_clients, ties):
    """Digit by digit, with masks too; the order of the clients is another partition."""
    outcome, group, stratum = simulated(40, ties=ties, seed=seed)
    rng = np.random.default_rng(seed)
    owner, order = rng.permutation(np.arange(40) % num_clients), rng.permutation(num_clients)
    of = lambda values: [values[owner == k] for k in order]
    grid = np.arange(1.0, 60.0) if ties else np.linspace(0.1, 9, 60)
    for options in ({}, {"grid": grid}, {"grid": grid, "secure_sums": True}):
        pooled = {**options, "secure_sums": False}
        found = glm.kaplan_meier(of(outcome), groups=of(group), **options)
        assert as_lists(found) == as_lists(glm.kaplan_meier([outcome], groups=[group], **pooled))
        found = glm.log_rank(of(outcome), of(group), strata=of(stratum), **options)
        assert as_lists(found) == as_lists(glm.log_rank([outcome], [group], strata=[stratum], **pooled))
    found = glm.log_rank(of(outcome), of(group), stratified=True, secure_sums=True)
    as_strata = glm.log_rank([outcome], [group], strata=[owner])
    assert found.statistic == pytest.approx(as_strata.statistic, rel=1e-9) and found.messages == 1
    np.testing.assert_allclose(found.variance, as_strata.variance, atol=1e-12)


def test_times_on_a_grid_are_rounded_up_and_censored_beyond_its_end():
    outcome = np.array([[0.5, 1], [1.0, 0], [1.2, 1], [2.0, 1], [2.1, 1]])
    curve = glm.kaplan_meier([outcome], grid=[1, 2], times=[1, 2]).curves["all"]
    assert (curve.at_risk.tolist(), curve.events.tolist()) == ([5, 3], [1, 2])
    np.testing.assert_allclose(curve.survival, [4 / 5, 4 / 5 / 3])
    whole, group, _ = simulated()  # Whole numbers, all on the grid.
    plain, on_grid = (glm.log_rank([whole], [group], grid=x) for x in (None, np.arange(1, 200)))
    assert plain.statistic == on_grid.statistic and (plain.messages, on_grid.messages) == (2, 1)


def test_without_censoring_the_restricted_mean_is_that_of_the_times():
    times = np.array([1.0, 2, 2, 5, 7, 11])
    outcome = np.stack([times, np.ones(6)], 1)
    curve = glm.kaplan_meier([outcome], horizon=20).curves["all"]
    np.testing.assert_allclose(curve.restricted_mean(20), [np.mean(times), np.std(times) / np.sqrt(6)])
    cut = np.minimum(times, 6)
    np.testing.assert_allclose(curve.restricted_mean(6), [np.mean(cut), np.std(cut) / np.sqrt(6)])
    assert curve.restricted_mean(0.5) == (0.5, 0.0)
    np.testing.assert_allclose(curve.survival, [np.mean(times > t) for t in curve.times], atol=1e-15)


def test_the_restricted_mean_of_censored_rows_is_that_of_a_calculation_by_hand():
    """S is 3/4 from 1 on, and 3/8 from 3 on; its areas from 1 and 3 to 4 are 1.875 and .375."""
    curve = glm.kaplan_meier([np.array([[1.0, 1], [2, 0], [3, 1], [5, 0]])], horizon=4).curves["all"]
    variance = 1.875**2 * 1 / (4 * 3) + 0.375**2 * 1 / (2 * 1)
    np.testing.assert_allclose(curve.restricted_mean(4), [2.875, np.sqrt(variance)])


@pytest.mark.parametrize(
    ("outcome", "quantile", "survival"),
    [
        ([[3, 1]] * 4, (3, 3, math.inf), [0.0]),
        ([[3, 1], [3, 0], [4, 0], [5, 0]], (math.inf, 3, math.inf), [0.75]),
        ([[1, 1], [2, 1], [3, 0], [4, 0]], (2, 1, math.inf), [0.75, 0.5]),
        ([[1, 0], [2, 0]], (math.inf,) * 3, []),
    ],
)
def test_medians_and_curves_at_their_ends(outcome, quantile, survival):
    result = glm.kaplan_meier([np.array(outcome, float)])
    curve = result.curves["all"]
    assert curve.survival[curve.events > 0].tolist() == survival
    if 0.0 in survival:
        assert np.isnan(curve.low[-1]) and np.isnan(curve.stddev[-1]) and curve.quantile()[0] == 3
    else:
        assert curve.quantile() == quantile and np.all(curve.low <= curve.survival) and np.all(curve.high <= 1)
    assert str(result.table()) and str(result.at_times())


def test_groups_and_strata_without_an_event_have_a_curve_and_a_note():
    outcome = np.array([[1.0, 1], [2, 1], [3, 1], [4, 0], [5, 0], [6, 0]])
    groups, strata = ["a", "a", "b", "b", "c", "c"], ["x", "x", "x", "x", "x", "y"]
    assert glm.kaplan_meier([outcome], groups=[groups]).curves["c"].survival.tolist() == [1.0] * 7
    test = glm.log_rank([outcome], [groups], strata=[strata])
    assert test.notes == ["The group 'c' has no event.", "Strata without an event, which add nothing to the test: 1."]
    # A group that is at no event at risk adds no degree of freedom.
    late = np.array([[1.0, 1], [2, 1], [3, 1], [0.5, 0], [5, 0], [6, 0]])
    assert glm.log_rank([late], [["a", "a", "b", "c", "a", "b"]]).degrees_of_freedom == 1
    lines = str(test.table()).splitlines()
    assert lines[0].split() == ["group", "rows", "observed", "expected"] and len(lines) == 4


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (
            [[-1, 1], [2, 0]],
            "^Each survival outcome must be a time above 0 and an event of 0 or 1, but row 0 of client 0",
        ),
        ([[1, 2], [2, 0]], "an event of 0 or 1, but row 0 of client 0 has 1, 2"),
        ([[math.nan, 1], [2, 0]], "must be finite and below 1e.50 in size, but row 0, column 0 is nan"),
        ([1, 2], "has shape .2,., but must have .2, 2."),
        ([], "^Client 0 has no rows"),
    ],
)
def test_outcomes_that_are_refused(outcome, message):
    refuses(message, glm.kaplan_meier, [np.array(outcome, float)])


OUTCOME = np.array([[1.0, 1], [2, 0], [3, 1]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": [["a", "b"]]}, "^groups must have a label for each row of each of the 1 clients"),
        ({"groups": [["a", "b", math.nan]]}, "and none empty"),
        ({"grid": [2, 1]}, "^grid must be times of at least 0 in ascending order"),
        ({"times": []}, "^times must be times"),
        ({"secure_sums": True}, "^Times of events are no sum: give secure sums a grid"),
        ({"horizon": 0}, "^horizon is 0"),
        (
            {"horizon": 4, "groups": [["a", "a", "b"]]},
            "^No row of 'a' is at risk at the horizon: .* at most 2",
        ),
        ({"level": 1}, "^level is 1, but must be above 0 and below 1"),
    ],
)
def test_options_that_are_refused(options, message):
    refuses(message, glm.kaplan_meier, [OUTCOME], **options)


def test_tests_that_are_refused():
    refuses("^clients is empty", glm.log_rank, [], [])
    refuses("^All rows are of the group 'a': the log-rank test compares two", glm.log_rank, [OUTCOME], [["a"] * 3])
    refuses("^No row has an event", glm.log_rank, [OUTCOME * [1, 0]], [["a", "a", "b"]])
    tied = np.array([[2.0, 1]] * 4)
    refuses("^At no event are two groups at risk, or all", glm.log_rank, [tied], [["a", "a", "b", "b"]])
    assert glm.log_rank([np.append(tied, [[2, 0]], 0)], [["a", "a", "b", "b", "b"]]).p_value == pytest.approx(
        0.414, abs=1e-3
    )
