"""Normality of clients' weights: SciPy one coordinate at a time, Gaussian values, and values that are not."""

import numpy as np
import pytest
from scipy import stats

from experiments.kernel_posterior.normality_statistics import Normality, normality, normality_summary
from tfp_bfl.errors import InvalidArgument


def gaussian(num_clients, num_coordinates, seed=0):
    return np.random.default_rng(seed).normal(size=[num_clients, num_coordinates])


def two_clusters(num_clients, num_coordinates, seed=0):
    """0.5 sd wide, 4 sd apart."""
    rng = np.random.default_rng([seed, 1])
    return gaussian(num_clients, num_coordinates, seed) + 4 * rng.integers(2, size=[num_clients, num_coordinates])


@pytest.mark.parametrize("num_clients", [4, 5, 20, 100])
def test_against_scipy(num_clients):
    values = np.concatenate(
        [gaussian(num_clients, 15), two_clusters(num_clients, 15), np.exp(gaussian(num_clients, 15))], 1
    )
    result = normality(values)
    for d, column in enumerate(values.T):
        wanted = stats.kstest((column - column.mean()) / column.std(ddof=1), "norm")
        assert result.statistic[d] == pytest.approx(wanted.statistic, rel=1e-9)
        assert result.p_value[d] == pytest.approx(wanted.pvalue, rel=1e-4)
        assert result.skewness[d] == pytest.approx(stats.skew(column, bias=False), rel=1e-8, abs=1e-10)
        assert result.excess_kurtosis[d] == pytest.approx(stats.kurtosis(column, bias=False), rel=1e-8, abs=1e-10)
    assert all(x.shape == (45,) and x.dtype == np.float64 for x in result[:5]) and result.num_zero_spread == 0


@pytest.mark.parametrize("num_clients", [10, 20, 100])
def test_against_the_published_approximation(num_clients):
    """Dallal & Wilkinson 1986, of p-values below 0.1, right to some 0.002."""
    result = normality(gaussian(num_clients, 4000))
    d, n = result.statistic, num_clients + 2.78019
    wanted = np.exp(
        -7.01256 * d**2 * n
        + 2.99587 * d * np.sqrt(n)
        - 0.122119
        + 0.974598 / np.sqrt(num_clients)
        + 1.67997 / num_clients
    )
    low = wanted < 0.1
    assert low.sum() > 200
    np.testing.assert_allclose(result.lilliefors_p_value[low], wanted[low], atol=0.008)


@pytest.mark.statistical
@pytest.mark.parametrize("num_clients", [5, 20, 100])
def test_lilliefors_p_values_of_gaussian_values_are_uniform(num_clients):
    """Their distance to uniform, of 4,000 coordinates and 10,000 shared draws, is above 1.95 sqrt(1/4000 + 1/10000)
    with probability 0.001 (two-sample Kolmogorov-Smirnov); the share below 0.05 has a standard error of 0.0041 and is
    off by four of them with probability 1e-4. Plain p-values are above 0.05 but for one in a thousand."""
    result = normality(5 + 3 * gaussian(num_clients, 4000, seed=2))
    uniform = stats.kstest(result.lilliefors_p_value, "uniform").statistic
    assert uniform < 1.95 * np.sqrt(1 / 4000 + 1 / 10_000)
    summary = normality_summary(result)
    assert abs(summary["lilliefors_rejected"] - 0.05) < 4 * np.sqrt(0.05 * 0.95 * (1 / 4000 + 1 / 10_000))
    assert summary["ks_rejected"] < 0.002


@pytest.mark.statistical
def test_power():
    """Of 2,000 coordinates with 100 clients each. Two clusters four sd apart are always found, lognormal values too;
    Laplace values in 0.69 of the cases, with a standard error of 0.011: 4.5 of them are exceeded once in 1e5."""
    rng = np.random.default_rng(3)
    clusters = normality_summary(normality(two_clusters(100, 2000)))
    laplace = normality_summary(normality(rng.laplace(size=[100, 2000])))
    skewed = normality_summary(normality(np.exp(gaussian(100, 2000))))
    assert clusters["lilliefors_rejected"] > 0.99 and skewed["lilliefors_rejected"] > 0.99
    assert 0.64 < laplace["lilliefors_rejected"] < 0.74
    # A mixture of two: excess kurtosis -2 m^4 / (1 + m^2)^2 = -1.28 with m = 2. Laplace: 3, less of a finite sample.
    assert clusters["excess_kurtosis_median"] == pytest.approx(-1.28, abs=0.05)
    assert 1.5 < laplace["excess_kurtosis_median"] < 3 and abs(laplace["skewness_median"]) < 0.1
    assert skewed["skewness_q05"] > 1
    assert laplace["ks_rejected"] < laplace["lilliefors_rejected"]


def test_without_spread():
    values = gaussian(10, 6)
    values[:, [1, 4]] = 0.1, -3e8
    result = normality(values)
    assert result.num_zero_spread == 2
    for x in result[:5]:
        np.testing.assert_array_equal(np.isnan(x), [False, True, False, False, True, False])
    without = normality(values[:, [0, 2, 3, 5]])
    np.testing.assert_array_equal(result.lilliefors_p_value[[0, 2, 3, 5]], without.lilliefors_p_value)
    summary = normality_summary(result)
    assert summary == {**normality_summary(without), "num_zero_spread": 2} and summary["num_coordinates"] == 4


def test_no_coordinate_with_spread():
    result = normality(np.ones([5, 3]))
    summary = normality_summary(result)
    assert result.num_zero_spread == summary["num_zero_spread"] == 3 and summary["num_coordinates"] == 0
    assert np.isnan(summary["lilliefors_rejected"]) and np.isnan(summary["skewness_median"])


def test_the_order_of_clients_does_not_matter_to_the_last_bit():
    values = two_clusters(30, 50).astype(np.float32)
    for a, b in zip(normality(values), normality(values[np.random.default_rng(1).permutation(30)])):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1e-30), (0.0, 1e30), (1e6, 1e-3), (-7.0, 5.0)])
def test_shift_and_scale_do_not_matter(shift, scale):
    values = two_clusters(20, 40)
    a, b = normality(values), normality(shift + scale * values)
    for x, y in zip(a[:5], b[:5]):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_draws_are_seeded():
    values = gaussian(12, 200)
    by_seed = [normality(values, num_draws=500, seed=seed).lilliefors_p_value for seed in (0, 0, 1)]
    np.testing.assert_array_equal(by_seed[0], by_seed[1])
    assert np.any(by_seed[0] != by_seed[2]) and by_seed[0].min() >= 1 / 501
    np.testing.assert_allclose(by_seed[0], by_seed[2], atol=0.15)


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (np.ones(5), {}, r"shape \[S, D\]"),
        (np.ones([5, 0]), {}, "D at least 1"),
        (np.ones([3, 2]), {}, "3 clients, but a test for normality needs 4"),
        (np.array([["a"]] * 5), {}, "real numbers"),
        (np.ones([5, 2], complex), {}, "real numbers"),
        (np.array([[0.0], [1.0], [np.nan], [2.0]]), {}, "finite"),
        (np.ones([5, 2]), {"num_draws": 0}, "num_draws is 0"),
        (np.ones([5, 2]), {"seed": -1}, "seed is -1"),
    ],
)
def test_bad_input(values, options, message):
    with pytest.raises(InvalidArgument, match=message):
        normality(values, **options)


@pytest.mark.parametrize("level", [0, 1, -0.1, np.nan])
def test_bad_level(level):
    with pytest.raises(InvalidArgument, match="level is"):
        normality_summary(Normality(*np.ones([5, 3]), 0), level)
