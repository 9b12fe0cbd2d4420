"""Kernel densities of a single weight."""

import numpy as np
import pytest
import scipy.integrate
from scipy import stats

from tests.kit import refuses
from tfp_bfl import plots

VALUES = np.random.default_rng(0).normal(0.1, 0.01, size=30)
CURVES = {"Epanechnikov": ("epanechnikov", 0.004), "Gaussian in $": ("gaussian", 0.003)}


def draw(figure):
    figure.draw_without_rendering()
    return figure


def curve(figure, label):
    return next(line for line in figure.axes[0].lines if line.get_label() == label).get_xydata().T


def test_kernel_density_is_a_density_and_scipy_s():
    figure = draw(plots.kernel_density(VALUES, CURVES, {"mean": VALUES.mean()}, title="$w"))
    x, y = curve(figure, "Epanechnikov")
    assert scipy.integrate.trapezoid(y, x) == pytest.approx(1, abs=1e-4)
    x, y = curve(figure, r"Gaussian in \$")
    wanted = stats.gaussian_kde(VALUES, 0.003 / VALUES.std(ddof=1))(x)
    np.testing.assert_allclose(y, wanted, rtol=1e-8, atol=1e-8 * wanted.max())
    assert figure.axes[0].get_title(loc="left") == r"\$w"
    np.testing.assert_array_equal(curve(figure, "mean")[0], 2 * [VALUES.mean()])
    # The rug has every client below zero.
    (rug,) = (c for c in figure.axes[0].collections if c.get_label() == "clients")
    lines = np.array(rug.get_segments())
    np.testing.assert_allclose(lines[:, 0, 0], VALUES)
    assert (lines[..., 1] < 0).all()


def test_kernel_density_of_extremes():
    many = {str(i): ("epanechnikov", 0.001 * i) for i in range(1, 9)}
    for values, curves, marks in (
        ([1, 2], {"narrow": ("gaussian", 1e-6)}, {}),
        (1e-12 * VALUES, {"wide": ("epanechnikov", 10.0)}, {}),
        (VALUES, many, dict.fromkeys("abcde", 0)),
    ):
        figure = draw(plots.kernel_density(values, curves, marks))
        for name in (*curves, *marks):
            assert np.isfinite(curve(figure, name)).all()


@pytest.mark.parametrize(
    ("values", "curves", "marks", "message"),
    [
        (np.ones([2, 2]), CURVES, {}, r"shape \[S\]"),
        ([1.0, np.nan], CURVES, {}, "finite numbers"),
        (["a", "b"], CURVES, {}, "finite numbers"),
        ([2.0, 2.0], CURVES, {}, "clients who differ"),
        ([], CURVES, {}, "clients who differ"),
        (VALUES, {}, {}, "at least one curve"),
        (VALUES, {"a": ("epanechnikof", 1.0)}, {}, "did you mean 'epanechnikov'"),
        (VALUES, {"a": ("gaussian", 0.0)}, {}, "bandwidth is 0.0, but must be"),
        (VALUES, CURVES, {"mode": np.nan}, "'mode': nan"),
    ],
)
def test_kernel_density_of_bad_input(values, curves, marks, message):
    refuses(message, plots.kernel_density, values, curves, marks)
