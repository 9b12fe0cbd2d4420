"""Forest plots of coefficients."""

import numpy as np
import pytest

from tfp_bfl.plots.forest import Estimate, forest_plot


def estimate(label, mean, **options):
    mean = np.array(mean, float)
    return Estimate(label, mean, mean - 1, mean + 1, **options)


def test_each_client_has_a_line_in_each_panel():
    estimates = [estimate("a", [1, 2]), estimate("b", [np.nan, 3]), estimate("pooled", [1.5, 2.5], is_pooled=True)]
    figure = forest_plot(["age", "dose"], estimates)
    first, second = figure.axes
    # Two artists for each finite estimate, and the line of the pooled one.
    assert (len(first.lines), len(second.lines)) == (5, 7)
    assert [text.get_text() for text in first.get_yticklabels()] == ["a", "b", "pooled"]
    assert first.get_title(loc="left") == "age"


@pytest.mark.parametrize(("names", "estimates"), [([], []), (["a"], []), (["a"], [estimate("x", [1, 2])])])
def test_nothing_to_draw_is_refused(names, estimates):
    with pytest.raises(ValueError, match="A forest plot needs"):
        forest_plot(names, estimates)
