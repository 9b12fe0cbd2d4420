import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tests.kit import refuses
from tfp_bfl.evaluation import confidence_curve, over_seeds, paired_difference, rounds_to, running_mean
from tfp_bfl.evaluation.limits import area_under_retention_curve, retention_curve


def case(hits):
    hits = np.asarray(hits, bool)
    return np.tile([0.8, 0.2], (hits.size, 1)), np.where(hits, 0, 1)


def test_perfect_and_worst_order():
    p, y = case([1, 0, 1, 1, 0])
    curve = retention_curve(p, y, [0.1, 0.9, 0.3, 0.2, 0.8], num_points=5)
    np.testing.assert_allclose(curve.retained, [0.2, 0.4, 0.6, 0.8, 1.0])
    np.testing.assert_allclose(curve.accuracy, [1, 1, 1, 3 / 4, 3 / 5])
    assert float(area_under_retention_curve(curve)) == pytest.approx((3 + 0.75 + 0.6) / 5)
    p, y = case([1, 0])
    np.testing.assert_allclose(retention_curve(p, y, [2.0, 1.0], num_points=2).accuracy, [0.0, 0.5])
    # Of more points than examples half an example counts in proportion.
    np.testing.assert_allclose(retention_curve(p, y, [0, 1], num_points=4).accuracy, [1, 1, 1 / 1.5, 1 / 2])


def test_ties_give_the_expectation_over_their_orders():
    hits = np.array([1, 1, 0, 1, 0, 0])
    p, y = case(hits)
    uncertainty = np.array([0.1, 0.5, 0.5, 0.5, 0.9, 0.5])
    curve = retention_curve(p, y, uncertainty, num_points=6)
    # One certain hit, then two hits among the four that tie, then a miss.
    np.testing.assert_allclose(curve.accuracy, [1, 1.5 / 2, 2 / 3, 2.5 / 4, 3 / 5, 3 / 6])
    # A constant uncertainty gives a level line.
    p, y = case([1, 0, 1, 1, 0, 1, 1])
    curve = retention_curve(p, y, np.zeros(7))
    np.testing.assert_allclose(curve.accuracy, np.full(20, 5 / 7))
    assert float(area_under_retention_curve(curve)) == pytest.approx(5 / 7)
    signed = retention_curve(p, y, [0.0, -0.0, 0.0, 0.0, -0.0, 0.0, 0.0])
    np.testing.assert_array_equal(signed.accuracy, curve.accuracy)


@hypothesis.settings(max_examples=20, deadline=None)
@hypothesis.given(st.integers(0, 2**31), st.integers(1, 50), st.integers(1, 25))
def test_properties(seed, size, num_points):
    rng = np.random.default_rng(seed)
    hits = rng.integers(0, 2, size)
    p, y = case(hits)
    uncertainty = rng.integers(0, 6, size) / 8
    curve = retention_curve(p, y, uncertainty, num_points)
    assert np.all((curve.accuracy >= 0) & (curve.accuracy <= 1))
    assert float(curve.accuracy[-1]) == pytest.approx(hits.mean())
    best = retention_curve(p, y, 1 - hits, num_points)
    assert np.all(best.accuracy >= curve.accuracy - 1e-12)
    # Only the order counts.
    again = retention_curve(p, y, np.exp(3 * uncertainty), num_points)
    np.testing.assert_array_equal(again.accuracy, curve.accuracy)


def test_by_hand():
    p = np.array([[0.5, 0.5], [0.7, 0.3], [0.2, 0.8], [0.9, 0.1]])
    curve = confidence_curve(p, [0, 1, 1, 0], num_points=10)
    np.testing.assert_allclose(curve.threshold, np.arange(10) / 10)
    # Right are the first (0.5), the third (0.8) and the last (0.9).
    np.testing.assert_allclose(curve.accuracy, [3 / 4] * 6 + [2 / 3] * 2 + [1, 1])
    np.testing.assert_allclose(curve.kept, [1] * 6 + [3 / 4] * 2 + [1 / 2, 1 / 4])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_against_a_loop(dtype):
    rng = np.random.default_rng(0)
    p, y = rng.dirichlet([0.5] * 4, 200).astype(dtype), rng.integers(0, 4, 200)
    curve = confidence_curve(p, y)
    assert curve.accuracy.dtype == tf.as_dtype(dtype) and len(curve.threshold) == 20
    for threshold, accuracy, kept in zip(*curve):
        sure = p.max(1) >= threshold.numpy()
        assert kept.numpy() == pytest.approx(sure.mean())
        assert accuracy.numpy() == pytest.approx((p.argmax(1) == y)[sure].mean())


def test_a_confidence_at_the_threshold_counts_and_nobody_above_is_nan():
    curve = confidence_curve(np.array([[0.3, 0.3, 0.4]] * 2, np.float32), [2, 0], num_points=10)
    np.testing.assert_array_equal(curve.kept, [1] * 5 + [0] * 5)
    assert np.isnan(curve.accuracy[5:]).all() and not np.isnan(curve.accuracy[:5]).any()


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
    assert found.is_conclusive and found.stddev == pytest.approx(0.01)
    assert not paired_difference([0.1, 0.9, 0.5], [0.5, 0.1, 0.8]).is_conclusive


@pytest.mark.statistical
def test_equal_methods_differ_in_one_of_twenty():
    """2,000 pairs of five equal methods' scores: 100 significant on average, sd 9.7; fails once in 10^4 (4 sd)."""
    rng = np.random.default_rng(1)
    conclusive = sum(paired_difference(*rng.normal(size=(2, 5))).is_conclusive for _ in range(2000))
    assert abs(conclusive - 100) < 4 * 9.75


@pytest.mark.parametrize(
    ("first", "second"),
    [([1.0], [2.0]), ([1.0, 2.0], [1.0]), ([1.0, np.nan], [1.0, 2.0]), ([[1.0, 2.0]], [[1.0, 2.0]])],
)
def test_what_is_no_pair_is_refused(first, second):
    refuses("seed", paired_difference, first, second)
    refuses("confidence is 95", paired_difference, [1.0, 2.0], [1.0, 2.0], 95)


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
    for function, *arguments in ((rounds_to, ROWS, 0.5, "ece"), (running_mean, ROWS, "ece"), (running_mean, [])):
        refuses("No round has the metric", function, *arguments)
    refuses("window is 0", running_mean, ROWS, window=0)
