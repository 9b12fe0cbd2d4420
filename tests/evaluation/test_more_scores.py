"""Calibration errors of equal mass and of each class, and the continuous ranked probability score."""

import itertools

import numpy as np
import pytest
from scipy import integrate, stats

from tfp_bfl import evaluation

RNG = np.random.default_rng(0)
PROBABILITIES = RNG.dirichlet(np.ones(3), 101).astype(np.float32)
LABELS = RNG.integers(0, 3, 101)


def test_the_adaptive_error_is_of_bins_of_equal_counts():
    confidence, right = PROBABILITIES.max(1), PROBABILITIES.argmax(1) == LABELS
    order = np.argsort(confidence)
    # 101 examples in ten bins: one of 11, nine of 10.
    bins = np.split(order, np.cumsum([11] + [10] * 8))
    error = sum(len(m) / 101 * abs(right[m].mean() - confidence[m].mean()) for m in bins)
    assert evaluation.adaptive_calibration_error(PROBABILITIES, LABELS, 10) == pytest.approx(error, abs=1e-6)
    alone = evaluation.adaptive_calibration_error(PROBABILITIES, LABELS, 1000)
    assert alone == pytest.approx(np.abs(right - confidence).mean(), abs=1e-6)


def test_the_classwise_error_is_the_mean_over_classes():
    errors, masses = [], []
    for c in range(3):
        is_c = np.equal(LABELS, c)
        # As the top-label error of a classifier that says of each example with which probability it is of the class.
        edges = np.linspace(0, 1, 6)
        inside = [
            (low < PROBABILITIES[:, c]) & (PROBABILITIES[:, c] <= high) for low, high in itertools.pairwise(edges)
        ]
        gaps = [abs(np.sum(is_c[m] - PROBABILITIES[m, c])) / 101 for m in inside]
        errors.append(sum(gaps))
        order = np.argsort(PROBABILITIES[:, c])
        masses.append(sum(abs(np.sum(is_c[m] - PROBABILITIES[m, c])) / 101 for m in np.array_split(order, 5)))
    assert evaluation.classwise_calibration_error(PROBABILITIES, LABELS, 5) == pytest.approx(np.mean(errors), abs=1e-6)
    found = evaluation.classwise_calibration_error(PROBABILITIES, LABELS, 5, equal_mass=True)
    assert found == pytest.approx(np.mean(masses), abs=1e-6)


def test_calibrated_probabilities_have_small_errors():
    """Controls: labels drawn from the probabilities, and the same probabilities made overconfident."""
    rng = np.random.default_rng(1)
    p = rng.dirichlet(np.ones(3), 20_000)
    labels = (rng.uniform(size=(20_000, 1)) > p.cumsum(1)).sum(1).clip(0, 2)
    for error in (evaluation.adaptive_calibration_error, evaluation.classwise_calibration_error):
        assert error(p, labels) < 0.02 < 0.05 < error(evaluation.at_temperature(p, 0.5), labels)


@pytest.mark.parametrize(
    ("means", "variances"), [([0.3], [2.0]), ([-1.0, 0.5, 4.0], [0.2, 1.0, 3.0])], ids=["Gaussian", "mixture"]
)
def test_crps_is_the_integral(means, variances):
    cdf = lambda t: np.mean([stats.norm.cdf(t, m, v**0.5) for m, v in zip(means, variances)])
    for y in (-2.0, 0.7):
        below, _ = integrate.quad(lambda t: cdf(t) ** 2, -30, y)
        above, _ = integrate.quad(lambda t: (1 - cdf(t)) ** 2, y, 30)
        found = evaluation.mixture_crps(np.array(means)[:, None], np.array(variances)[:, None], [y])
        assert found[0] == pytest.approx(below + above, abs=1e-7)


def test_crps_of_a_sample_and_of_a_point():
    x, y = RNG.normal(size=(7, 4)), RNG.normal(size=4)
    energy = np.abs(x - y).mean(0) - np.abs(x[:, None] - x[None]).mean((0, 1)) / 2
    np.testing.assert_allclose(evaluation.mixture_crps(x, np.zeros_like(x), y), energy)
    np.testing.assert_allclose(evaluation.mixture_crps(x[:1], np.zeros((1, 4)), y), np.abs(x[0] - y))
