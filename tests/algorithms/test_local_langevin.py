"""DG-SGLD and FSGLD against what is known of them on Gaussians."""

import functools

import numpy as np
import pytest

from tests import gaussians
from tfp_bfl import algorithms, clients
from tfp_bfl.clients import Surrogate
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.federated import simulate, simulate_chains

more = pytest.mark.deep(after="tests/algorithms/test_local_langevin.py")
SIZES, MEANS, SAME = (2, 3, 5), (1.0, -1.0, 0.2), 256
DATA = gaussians.clients_of([np.full((n, SAME), m) for n, m in zip(SIZES, MEANS)])


def variance_of(draws, mean):
    """Mean squares about the mean over coordinates and rounds [R, D], and their standard error by 20 blocks."""
    blocks = np.square(np.float64(draws) - mean).mean(1).reshape(20, -1).mean(1)
    return blocks.mean(), blocks.std(ddof=1) / np.sqrt(20)


@more
@pytest.mark.statistical
@pytest.mark.parametrize("prior_stddev", [0.5, pytest.param(None, marks=pytest.mark.long)])
@pytest.mark.parametrize("cohort_size", [None, 2])
def test_dg_sgld_smooths_each_factor(prior_stddev, cohort_size):
    """Precision sum_i 1 / (1 / N_i + rho) + 1 / t^2 and the mean of these factors, whoever is in a round. Error rate:
    4.5 standard errors and 3 % for the steps' size, 2.5e-4."""
    rho = 0.2
    process = algorithms.dg_sgld(
        gaussians.model_fn(SAME),
        step_size=0.004,
        coupling=rho,
        local_steps=5,
        seed=2,
        likelihood="density",
        prior_stddev=prior_stddev,
    )
    found = simulate_chains(process, DATA, 1200, cohort_size=cohort_size).draws.point[0][0, 200:]
    factors = 1 / (1 / np.array(SIZES) + rho)
    precision = factors.sum() + (0 if prior_stddev is None else 4)
    mean = (factors * MEANS).sum() / precision
    variance, error = variance_of(found, mean)
    assert abs(variance - 1 / precision) < 4.5 * error + 0.03 / precision
    # Far from the posterior itself, which has the precision sum_i N_i.
    assert variance > 1.3 / (sum(SIZES) + (0 if prior_stddev is None else 4))


@more
@pytest.mark.statistical
def test_fsgld_is_the_posterior_where_its_surrogates_are_the_likelihoods():
    """Then every client's gradient is that of all: one chain of the full gradient, v = 2 / (L (2 - g L))."""
    surrogates = [Surrogate(np.full(SAME, m), np.full(SAME, float(n))) for n, m in zip(SIZES, MEANS)]
    process = algorithms.fsgld(
        gaussians.model_fn(SAME),
        surrogates,
        step_size=0.05,
        prior_stddev=None,
        local_steps=4,
        seed=1,
        likelihood="density",
    )
    found = simulate_chains(process, DATA, 2100, cohort_size=1).draws.point[0][0, 100:]
    variance, error = variance_of(found, 0)
    assert abs(variance - 0.133333) < 4.5 * error and error < 0.01 * variance


def test_fsgld_is_of_one_client_a_round_and_of_the_clients_of_its_surrogates():
    """A mean over clients would have their chains' variance over their number, and no word of it."""
    surrogates = [Surrogate(np.full(SAME, m), np.full(SAME, float(n))) for n, m in zip(SIZES, MEANS)]
    make = lambda some: algorithms.fsgld(gaussians.model_fn(SAME), some, step_size=0.05, likelihood="density")
    process = make(surrogates)
    for run in (simulate_chains, functools.partial(simulate, engine="local")):
        for cohort_size, number in ((None, 3), (2, 2)):
            message = f"A round has {number} clients, but the server step follow is of 1 a round: give cohort_size=1"
            with pytest.raises(InvalidArgument, match=message):
                run(process, DATA, 2, cohort_size=cohort_size)
        with pytest.raises(InvalidArgument, match="There are 3 clients, but the server step follow has a place for 2"):
            run(make(surrogates[:2]), DATA, 2, cohort_size=1)


@more
def test_a_surrogate_is_near_a_gaussian_likelihood():
    rows = np.random.default_rng(2).normal([3, -1], size=(400, 2)).astype(np.float32)
    found = clients.fit_surrogate(
        gaussians.model_fn(2), rows, np.zeros(400, np.int32), prior_stddev=10.0, likelihood="density"
    )
    np.testing.assert_allclose(found.mean, rows.mean(0), atol=1e-3)
    np.testing.assert_allclose(found.precision, 400, rtol=0.2)


def test_bad_input():
    model_fn = gaussians.model_fn(2)
    with pytest.raises(InvalidArgument, match="step_size is 1, but must be below 2 coupling"):
        algorithms.dg_sgld(model_fn, step_size=1.0, coupling=0.2)
    with pytest.raises(InvalidArgument, match="local_steps is 0"):
        algorithms.dg_sgld(model_fn, step_size=0.1, coupling=0.2, local_steps=0)
    with pytest.raises(
        InvalidArgument, match=r"surrogates have leaves \[\(3,\)\], but the model has 2 weights: \(2,\)"
    ):
        algorithms.fsgld(model_fn, [Surrogate(np.zeros(3), np.ones(3))], step_size=0.1)
    with pytest.raises(InvalidArgument, match="no option of dg_sgld 'compressor'"):
        algorithms.dg_sgld(model_fn, step_size=0.1, coupling=0.2, compressor="none")
