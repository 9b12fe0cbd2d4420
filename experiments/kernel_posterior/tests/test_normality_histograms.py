"""Histograms of how far the clients' values of all weights are from Gaussian."""

import numpy as np
import pytest

from experiments.kernel_posterior.normality_histograms import normality_histograms
from experiments.kernel_posterior.normality_statistics import normality
from tfp_bfl.errors import InvalidArgument


def draw(figure):
    figure.draw_without_rendering()
    return figure


def stack(seed=0, width=300):
    return np.random.default_rng(seed).normal(size=[20, width])


def test_normality_histograms():
    results = {"Gaussian": normality(stack()), "skewed in $": normality(np.exp(stack(1)))}
    figure = draw(normality_histograms(results, normality(stack(2)), title="by setting"))
    p_values, skewness, kurtosis = figure.axes
    heights = [patch.get_data().values for patch in p_values.patches]
    # In percent of all weights, so that every line's bins add up to 100.
    assert [sum(h) for h in heights] == pytest.approx([100, 100])
    assert heights[1][0] > 50 > 20 > heights[0][0]
    assert [len(panel.patches) for panel in (p_values, skewness, kurtosis)] == [2, 3, 3]
    for panel in (skewness, kurtosis):
        for patch in panel.patches:
            values, edges, _ = patch.get_data()
            assert 0.6 < np.sum(values * np.diff(edges)) <= 1 + 1e-9
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["Gaussian", r"skewed in \$", "if Gaussian: level", "if Gaussian"]


def test_normality_histograms_leave_out_weights_without_spread():
    values = stack()
    with_ties = np.concatenate([values, np.ones([20, 100])], 1)
    figures = [draw(normality_histograms({"a": normality(v)})) for v in (values, with_ties)]
    one, other = ([patch.get_data().values for axes in f.axes for patch in axes.patches] for f in figures)
    for a, b in zip(one, other):
        np.testing.assert_array_equal(a, b)


def test_normality_histograms_of_bad_input():
    with pytest.raises(InvalidArgument, match="at least one setting"):
        normality_histograms({})
    with pytest.raises(InvalidArgument, match="In 'same' all clients agree"):
        normality_histograms({"same": normality(np.ones([5, 2]))})
