"""Arguments of scores and limits that would give NaN, infinity or a reversed order are refused."""

import numpy as np
import pytest

from tfp_bfl import evaluation
from tfp_bfl.errors import InvalidArgument

NAN, INF = float("nan"), float("inf")
PROBABILITIES = np.array([[0.9, 0.1], [0.6, 0.4]])
MEANS, VARIANCES, LABELS = np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32), np.zeros(3, np.float32)


@pytest.mark.parametrize("temperature", [-1.0, 0.0, NAN, INF, "1", None, True])
def test_temperatures(temperature):
    """-1 reversed the order of the classes, and 0 gave NaN."""
    with pytest.raises(InvalidArgument, match="temperature is"):
        evaluation.at_temperature(PROBABILITIES, temperature)


@pytest.mark.parametrize("coverage", [0.0, 1.0, 1.5, -0.1, NAN, "0.9", None])
def test_coverages_of_intervals(coverage):
    with pytest.raises(InvalidArgument, match="coverage is"):
        evaluation.central_interval(MEANS, VARIANCES, coverage)


@pytest.mark.parametrize("limit", [NAN, INF, -0.1, None, "0.3"])
def test_limits_of_prediction_sets(limit):
    with pytest.raises(InvalidArgument, match="limit is"):
        evaluation.prediction_sets(PROBABILITIES, limit)


def test_limits_at_the_ends_of_probabilities():
    np.testing.assert_array_equal(evaluation.prediction_sets(PROBABILITIES, 0), True)
    np.testing.assert_array_equal(evaluation.prediction_sets(PROBABILITIES, np.float32(1)).sum(1), 1)


def changed(array, value):
    array = array.copy()
    array[(0,) * array.ndim] = value
    return array


@pytest.mark.parametrize("score", [evaluation.mixture_nll, evaluation.mixture_crps])
@pytest.mark.parametrize(
    ("mixture", "message"),
    [
        ((MEANS, changed(VARIANCES, -1), LABELS), "variances must be"),
        ((changed(MEANS, NAN), VARIANCES, LABELS), "must be finite"),
        ((MEANS, changed(VARIANCES, INF), LABELS), "must be finite"),
        ((MEANS, VARIANCES, changed(LABELS, NAN)), "must be finite"),
        ((MEANS, VARIANCES[:1], LABELS), r"must be of shape \[S, B\]"),
        ((MEANS, VARIANCES, LABELS[:2]), r"must be of shape \[S, B\]"),
        ((MEANS[0], VARIANCES[0], LABELS), r"must be of shape \[S, B\]"),
    ],
)
def test_mixtures(score, mixture, message):
    with pytest.raises(InvalidArgument, match=message):
        score(*mixture)


def test_variances_of_zero_are_a_sample_but_have_no_density():
    nothing = np.zeros_like(VARIANCES)
    np.testing.assert_array_equal(evaluation.mixture_crps(MEANS, nothing, LABELS + 1), 1)
    with pytest.raises(InvalidArgument, match="variances must be above 0"):
        evaluation.mixture_nll(MEANS, nothing, LABELS)


def test_histograms_with_other_bins():
    with pytest.raises(InvalidArgument, match="have 3, 2 bins, but all must have the same"):
        evaluation.calibrate_clients([[0, 0, 1], [0, 1]])
