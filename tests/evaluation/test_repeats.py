"""Scores over seeds: closed forms, and the interval's promise."""

import numpy as np
import pytest
from scipy import stats

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.evaluation import over_seeds, paired_difference, rounds_to, running_mean


def test_mean_and_deviation_over_seeds():
    assert over_seeds([1.0, 2.0, 3.0]) == (3, 2.0, 1.0)
    alone = over_seeds([0.5])
    assert alone[:2] == (1, 0.5) and np.isnan(alone.stddev)


def test_the_interval_is_scipys():
    first, second = np.random.default_rng(0).normal(size=(2, 7))
    found = paired_difference(first, second, 0.9)
    wanted = stats.ttest_rel(first, second).confidence_interval(0.9)
    np.testing.assert_allclose((found.low, found.high), (wanted.low, wanted.high))
    assert found.number == 7 and found.mean == pytest.approx(np.mean(first - second))


def test_what_both_share_does_not_widen_the_interval():
    shared = np.array([0.1, 0.9, 0.5])
    found = paired_difference(shared + np.array([0.10, 0.11, 0.12]), shared)
    assert found.is_told and found.stddev == pytest.approx(0.01)
    assert not paired_difference([0.1, 0.9, 0.5], [0.5, 0.1, 0.8]).is_told


@pytest.mark.statistical
def test_equal_methods_differ_in_one_of_twenty():
    """2,000 pairs of five equal methods' scores: 100 significant on average, sd 9.7; fails once in 10^4 (4 sd)."""
    rng = np.random.default_rng(1)
    told = sum(paired_difference(*rng.normal(size=(2, 5))).is_told for _ in range(2000))
    assert abs(told - 100) < 4 * 9.75


@pytest.mark.parametrize(
    ("first", "second"),
    [([1.0], [2.0]), ([1.0, 2.0], [1.0]), ([1.0, np.nan], [1.0, 2.0]), ([[1.0, 2.0]], [[1.0, 2.0]])],
)
def test_what_is_no_pair_is_refused(first, second):
    with pytest.raises(InvalidArgument, match="seed"):
        paired_difference(first, second)


def test_a_confidence_that_is_none_is_refused():
    with pytest.raises(InvalidArgument, match="confidence is 95"):
        paired_difference([1.0, 2.0], [1.0, 2.0], 95)


VALUES = [0.2, 0.6, 0.5, 0.9, 0.7]
ROWS = [
    {"round": 1},
    *({"round": 2 * i, "accuracy": v} for i, v in enumerate(VALUES, 1)),
    {"round": 11, "accuracy": None},
]


@pytest.mark.parametrize(("threshold", "wanted"), [(0.1, 2), (0.6, 4), (0.61, 8), (0.95, None)])
def test_first_round_at_a_threshold(threshold, wanted):
    assert rounds_to(ROWS, threshold) == wanted


@pytest.mark.parametrize("window", [1, 2, 3, 5, 10])
def test_running_mean(window):
    wanted = [np.mean(VALUES[max(0, i + 1 - window) : i + 1]) for i in range(5)]
    np.testing.assert_allclose(running_mean(ROWS, window=window), wanted, rtol=1e-12)


def test_bad_arguments():
    for call in (lambda: rounds_to(ROWS, 0.5, "ece"), lambda: running_mean(ROWS, "ece"), lambda: running_mean([])):
        with pytest.raises(InvalidArgument, match="No round has the metric"):
            call()
    with pytest.raises(InvalidArgument, match="window is 0"):
        running_mean(ROWS, window=0)
