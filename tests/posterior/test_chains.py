"""Diagnostics of chains against what is known of autoregressions and Gaussians."""

import numpy as np
import pytest

from tfp_bfl import posterior
from tfp_bfl.errors import InvalidArgument


def autoregression(chains, draws, correlation, seed=0):
    noise = np.random.default_rng(seed).normal(size=(chains, draws))
    values = noise.copy()
    for i in range(1, draws):
        values[:, i] = correlation * values[:, i - 1] + np.sqrt(1 - correlation**2) * noise[:, i]
    return values


@pytest.mark.parametrize("chains", [1, 4])
@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_effective_sample_size_of_an_autoregression(chains, correlation):
    """R M (1 - a) / (1 + a)."""
    values = autoregression(chains, 8000, correlation)
    wanted = 8000 * chains * (1 - correlation) / (1 + correlation)
    assert posterior.effective_sample_size(values) == pytest.approx(wanted, rel=0.25)
    both = posterior.effective_sample_size(np.stack([values, values + 3], -1))
    np.testing.assert_allclose(both, posterior.effective_sample_size(values), rtol=1e-6)


def test_potential_scale_reduction():
    values = autoregression(4, 1000, 0.2)
    assert posterior.potential_scale_reduction(values) == pytest.approx(1, abs=0.01)
    apart = values + 3 * np.arange(4)[:, np.newaxis]
    assert posterior.potential_scale_reduction(apart) > 2
    drifting = values[:1] + np.linspace(0, 5, 1000)
    assert posterior.potential_scale_reduction(drifting) > 1.5


@pytest.mark.parametrize(("size", "wanted"), [(2, 4.605170), (50, 38.076946)])
def test_highest_density_of_a_gaussian(size, wanted):
    """Of 2e5 draws the quantile has a standard error of about 0.5 %."""
    draws = np.random.default_rng(1).normal(size=(200_000, size))
    assert posterior.hpd_level(np.square(draws).sum(-1) / 2) == pytest.approx(wanted, rel=0.02)


def test_bad_input():
    with pytest.raises(InvalidArgument, match=r"values has the shape \(8,\), but must be \(chains, draws"):
        posterior.effective_sample_size(np.zeros(8))
    with pytest.raises(InvalidArgument, match="of four draws at least"):
        posterior.potential_scale_reduction(np.zeros((2, 3)))
    with pytest.raises(InvalidArgument, match="alpha is 1, but must be below 1"):
        posterior.hpd_level([1.0, 2.0], 1.0)
