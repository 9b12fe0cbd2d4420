"""Drift of features: sums of clients' histograms, the rate of false alarms, and shifts that are found."""

import numpy as np
import pytest
from scipy import stats

from tests.kit import assert_same, refuses
from tfp_bfl import evaluation


def rows(number, seed, shift=0.0):
    """Standardised columns: normal, skewed, and two values."""
    rng = np.random.default_rng(seed)
    normal, skewed = rng.normal(size=number) + shift, rng.exponential(size=number) - 1
    return np.stack([normal, skewed, np.where(rng.random(number) < 0.2, 2.0, -0.5)], 1)


def compare(reference, new, level=0.01):
    a, b = evaluation.feature_histograms(reference), evaluation.feature_histograms(new)
    tests = [(name, *evaluation.homogeneity(x, y)) for name, x, y in zip(a.names, a.counts, b.counts)]
    return evaluation.drifts(tests, level)


def test_histograms_of_clients_add_up():
    whole = rows(100, 0)
    parts = [evaluation.feature_histograms(part, ["a", "b", "c"]) for part in np.split(whole, [3, 50])]
    total = evaluation.add_histograms(evaluation.add_histograms(*parts[:2]), parts[2])
    wanted = evaluation.feature_histograms(whole, ["a", "b", "c"])
    assert total.names == ("a", "b", "c")
    assert_same(total.counts, wanted.counts)
    assert all(found.counts.sum() == 100 for found in total.counts)
    coarse = evaluation.drift.coarsen(total)
    again = [evaluation.feature_histograms(part, total.names, coarse) for part in np.split(whole, [3, 50])]
    assert_same(evaluation.add_histograms(*again).counts, coarse.counts)
    refuses("of different features", evaluation.add_histograms, total, evaluation.feature_histograms(whole))


@pytest.mark.parametrize(
    ("reference", "number", "level", "pairs"),
    [(600, 150, 0.05, 400), (600, 150, 0.2, 400), (200, 5, 0.2, 300), (200, 30, 0.2, 300)],
)
def test_same_data_are_found_at_most_at_the_level(reference, number, level, pairs):
    """Pairs of samples from one distribution with three columns.

    Error rate: the number of pairs with drift is at most binomial; the bound lies 4 standard deviations above, which a
    binomial number exceeds with probability below 1e-3 (0.05) and 1e-4 (0.2). The seeds are fixed.
    """
    samples = ((rows(reference, 2 * k), rows(number, 2 * k + 1)) for k in range(pairs))
    found = sum(any(row.found for row in compare(*pair, level)) for pair in samples)
    # The lower bound: the test is not empty.
    assert pairs * level / 5 <= found <= pairs * level + 4 * np.sqrt(pairs * level * (1 - level))


@pytest.mark.parametrize(("number", "shift", "level"), [(150, 1.0, 1e-4), (5, 3.0, 1e-3)])
def test_a_shift_is_found_in_its_column_alone(number, shift, level):
    found = compare(rows(600, 0), rows(number, 1, shift))
    assert [row.found for row in found] == [True, False, False]
    assert found[0].distance > 0.2 and found[0].p_value < level


def test_homogeneity_is_the_chi_square_test():
    a, b = np.array([50, 30, 20]), np.array([20, 30, 50])
    distance, p_value = evaluation.homogeneity(a, b)
    assert distance == pytest.approx(0.3)
    assert p_value == pytest.approx(stats.chi2_contingency([a, b], correction=False).pvalue)
    # Bins with few examples are merged with their neighbours, first and last ones too.
    merged = evaluation.homogeneity(np.array([1, 49, 0, 30, 19, 1]), np.array([0, 20, 1, 29, 49, 1]))[1]
    assert merged == pytest.approx(stats.chi2_contingency([[50, 30, 20], [20, 30, 50]], correction=False).pvalue)
    # Two bins of one value each are left as they are by the other test, which counts them all.
    assert evaluation.homogeneity(np.array([300, 0]), np.array([200, 0]))[1] == 1.0


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("new", [(1, 9), (6, 4), (0, 10)])
def test_few_examples_have_the_exact_distribution(ordered, new):
    """Compare with the hypergeometric distribution of the first of two bins. Error rate: the estimate of p-values is
    beyond 5 standard errors with probability below 1e-5."""
    reference, new = np.array([40, 20]), np.array(new)
    law, mean = stats.hypergeom(70, 40 + new[0], 10), (40 + new[0]) / 7
    counts = np.arange(11)
    exact = law.pmf(counts)[np.abs(counts - mean) >= abs(new[0] - mean) - 1e-9].sum()
    found = evaluation.homogeneity(reference, new, ordered=ordered, resolution=1e-4)[1]
    assert abs(found - exact) < 5 * np.sqrt(exact / 50_000) + 5 * exact / np.sqrt(50)


def test_the_least_p_value_is_that_of_the_rarest_bin():
    assert evaluation.least_p_value(np.array([0, 10, 5]), 1) == pytest.approx(1 / 16)
    assert evaluation.least_p_value(np.array([3, 10, 5]), 2) == pytest.approx(10 / 190)
    reference, new = np.array([2, 30, 30, 8]), np.array([4, 0, 0, 0])
    least = evaluation.least_p_value(reference, 4)
    assert 0.5 * least < evaluation.homogeneity(reference, new, resolution=least)[1] < 2 * least


def test_rows_of_which_no_result_could_reach_the_level_are_marked():
    tests = [("a", 0.1, 0.5), ("b", 0.9, 1e-6), ("c", 0.1, 0.5)]
    found = evaluation.drifts(tests, 0.01, [0.005, 0.005, 0.001])
    assert [row.too_few for row in found] == [True, False, False]
    assert [row.found for row in found] == [False, True, False]


@pytest.mark.parametrize("factor", [1.0, 1e3, 1e6])
@pytest.mark.parametrize("number", [400, 2000])
def test_one_typed_value_hides_no_drift(factor, number):
    """Values standardised by moments that a typed value determines, at training; 500 new rows, and 20.

    Error rate: over 50 other seeds the largest p-value of 3 standard deviations and 500 rows was 1e-134; that of no
    drift is below 0.001 for one seed of a thousand each.
    """
    rng = np.random.default_rng(number)
    old = rng.normal(50, 10, number)
    old[7] *= factor
    for new, least, most in (
        (rng.normal(80, 10, 500), 0, 1e-8),
        (rng.normal(80, 10, 20), 0, 1e-3),
        (rng.normal(50, 10, 500), 1e-3, 1),
        (rng.normal(50, 10, 20), 1e-3, 1),
    ):
        assert least <= p_value(old, new) <= most


def p_value(old, new):
    both = (evaluation.feature_histograms(((x - old.mean()) / old.std())[:, None]).counts[0] for x in (old, new))
    return evaluation.homogeneity(*both)[1]


def test_drift_of_a_column_with_a_long_tail_is_found():
    """A log-normal column, doubled. Error rate: of 50 other seeds the largest p-value was 1.8e-4."""
    rng = np.random.default_rng(0)
    assert p_value(rng.lognormal(0, 2.5, 4000), rng.lognormal(np.log(2), 2.5, 1000)) < 1e-4


@pytest.mark.parametrize("coarse", [False, True])
def test_p_values_without_drift_are_uniform(coarse):
    """1,000 pairs of 600 and 150 values, normal or log-normal, in bins of one value or of the training's quantiles.

    Error rate: a Kolmogorov-Smirnov test of uniform p-values at 1e-4.
    """
    rng, found = np.random.default_rng(0), []
    for k in range(1000):
        one, two = (rng.normal(size=(n, 1)) if k % 2 else rng.lognormal(0, 2.5, (n, 1)) for n in (600, 150))
        a = evaluation.feature_histograms(one)
        a = evaluation.drift.coarsen(a) if coarse else a
        b = evaluation.feature_histograms(two, bins=a if coarse else None)
        found.append(evaluation.homogeneity(a.counts[0], b.counts[0])[1])
    assert stats.kstest(found, "uniform").pvalue > 1e-4


def test_coarse_bins_have_equal_counts_and_fine_ends():
    values = np.random.default_rng(0).lognormal(0, 2.5, (10_000, 1))
    (counts,) = evaluation.drift.coarsen(evaluation.feature_histograms(values)).counts
    assert counts.counts.sum() == 10_000 and 64 <= len(counts.lower) <= 64 + 2 * 8
    assert counts.counts[:4].tolist() == [1, 1, 2, 4] and counts.counts[-1] <= 2
    assert np.all(np.abs(counts.counts[10:-10] - 10_000 / 64) <= 2)
    few = np.array([[0.0], [0.0], [1.0], [1e6]])
    (counts,) = evaluation.drift.coarsen(evaluation.feature_histograms(few)).counts
    assert counts.counts.tolist() == [2, 1, 1]
    # 1 + 1e-6 is no other value than 1: ends lie halfway between values.
    coarse = evaluation.drift.coarsen(evaluation.feature_histograms(few))
    assert evaluation.feature_histograms(few + 1e-6, bins=coarse).counts[0].counts.tolist() == [2, 1, 1]


def test_p_values_are_those_of_holm():
    found = evaluation.drifts([("a", 0.0, 0.01), ("b", 0.0, 0.04), ("c", 0.0, 0.03), ("d", 0.0, 0.005)], 0.05)
    assert [row.p_value for row in found] == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert [row.found for row in found] == [True, False, False, True]
    refuses("level", evaluation.drifts, [], 1.0)


def test_images_have_brightness_and_contrast():
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (300, 4, 4, 3), np.uint8)
    found = compare(pictures[:200], np.concatenate([pictures[200:, :, :, :2], pictures[200:, :, :, 2:] // 2], 3))
    assert [row.name for row in found if row.found] == ["brightness, channel 2", "contrast, channel 2"]
    floats = evaluation.feature_histograms(np.float32(pictures / 255))
    assert_same(floats.counts, evaluation.feature_histograms(pictures).counts)
    refuses("must be rows", evaluation.feature_histograms, np.zeros((3, 4, 4, 1, 1)))


def test_scores_are_counted_between_common_quantiles():
    one, two = evaluation.count_between(np.arange(100.0), np.arange(50.0, 150.0))
    assert one.sum() == two.sum() == 100 and one[0] > two[0] and one[-1] < two[-1]
    assert evaluation.count_between([0.0, 0.0], [0.0])[0].sum() == 2
