"""DG-SGLD and FSGLD against what is known of them on Gaussians."""

import functools

import numpy as np
import pytest

from tests import gaussians
from tests.kit import refuses
from tfp_bfl import algorithms
from tfp_bfl.algorithms.chains.driver import simulate_chains
from tfp_bfl.algorithms.chains.local_langevin import Surrogate, fit_surrogate
from tfp_bfl.errors import Error, InvalidArgument
from tfp_bfl.federated import simulate

more = pytest.mark.deep(after="tests/algorithms/chains/test_local_langevin.py")
SIZES, MEANS, SAME = (2, 3, 5), (1.0, -1.0, 0.2), 256
DATA = gaussians.clients_of([np.full((n, SAME), m) for n, m in zip(SIZES, MEANS)])
SURROGATES = [Surrogate(np.full(SAME, m), np.full(SAME, float(n))) for n, m in zip(SIZES, MEANS)]


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
    process = algorithms.fsgld(
        gaussians.model_fn(SAME),
        SURROGATES,
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
    make = lambda some: algorithms.fsgld(gaussians.model_fn(SAME), some, step_size=0.05, likelihood="density")
    process = make(SURROGATES)
    for run in (simulate_chains, functools.partial(simulate, engine="local")):
        for cohort_size, number in ((None, 3), (2, 2)):
            message = f"A round has {number} clients, but the server step follow is of 1 a round: give cohort_size=1"
            refuses(message, run, process, DATA, 2, cohort_size=cohort_size)
        for some, number in ((SURROGATES[:2], 2), ([*SURROGATES, SURROGATES[0]], 4)):
            with pytest.raises(InvalidArgument, match=f"There are 3 clients, but their settings have {number} entries"):
                run(make(some), DATA, 2, cohort_size=1)


def test_dg_sgld_begins_at_a_given_start():
    """With a weak pull the weights stay there: a start of its own is not only the server's."""
    process = algorithms.dg_sgld(
        gaussians.model_fn(SAME), step_size=1e-6, coupling=0.01, local_steps=2, seed=2, likelihood="density"
    )
    first = process.local.initialize().weights
    start = first._replace(point=tuple(np.full_like(x, 5) for x in first.point))
    result = simulate(process, DATA, 1, start=start, engine="local")
    both = tuple(np.stack([x, 2 * x]) for x in start.point)
    chains = simulate_chains(process, DATA, 1, num_chains=2, start=first._replace(point=both))
    # Of three clients' weights with variance .01 about it the server's has .01 / 3.
    for found, wanted in ((result.state.weights.point[0], 5), (chains.draws.point[0][1], 10)):
        np.testing.assert_allclose(np.mean(found), wanted, atol=0.05)


@pytest.mark.parametrize("run", [simulate_chains, functools.partial(simulate, engine="local")])
def test_clients_drawn_unevenly_are_refused(run):
    given = {"step_size": 0.05, "likelihood": "density"}
    for process in (
        algorithms.fsgld(gaussians.model_fn(SAME), SURROGATES, **given),
        algorithms.qlsd(gaussians.model_fn(SAME), estimator="plain", **given),
    ):
        with pytest.raises(InvalidArgument, match="popularity draws clients unevenly, and a chain by their gradients"):
            run(process, DATA, 2, cohort_size=1, popularity=0.5)


def test_a_chain_without_a_client_that_diverges_is_reported():
    """Client 2 multiplies its distance by 29 in each step; no other one is drawn in its place."""
    sizes, means = (2, 3, 1000), (0.0, 0.0, 1.0)
    data = gaussians.clients_of([np.full((n, 2), m) for n, m in zip(sizes, means)])
    surrogates = [Surrogate(np.zeros(2), np.ones(2))] * 3
    given = {"step_size": 0.01, "likelihood": "density", "prior_stddev": None, "seed": 0}
    process = algorithms.fsgld(gaussians.model_fn(2), surrogates, local_steps=16, **given)
    with pytest.raises(Error, match=r"in 1 attempt: every client was faulty: client 2.*would be of another posterior"):
        simulate(process, data, 20, cohort_size=1, engine="local")
    process = algorithms.qlsd(gaussians.model_fn(2), estimator="plain", compressor="none", **given)
    broken = gaussians.clients_of([np.full((n, 2), m) for n, m in zip((2, 3, 4), (0.0, 0.0, 1e20))])
    (warning,) = simulate(process, broken, 2, engine="local").warnings
    assert warning.startswith("Faulty clients were left out, first client 2 in round 1: the samples of this chain are")


@more
def test_a_surrogate_is_near_a_gaussian_likelihood():
    rows = np.random.default_rng(2).normal([3, -1], size=(400, 2)).astype(np.float32)
    found = fit_surrogate(gaussians.model_fn(2), rows, np.zeros(400, np.int32), prior_stddev=10.0, likelihood="density")
    np.testing.assert_allclose(found.mean, rows.mean(0), atol=1e-3)
    np.testing.assert_allclose(found.precision, 400, rtol=0.2)


def test_bad_input():
    model_fn = gaussians.model_fn(2)
    refuses("step_size is 1, but must be below 2 coupling", algorithms.dg_sgld, model_fn, step_size=1.0, coupling=0.2)
    refuses("local_steps is 0", algorithms.dg_sgld, model_fn, step_size=0.1, coupling=0.2, local_steps=0)
    with pytest.raises(InvalidArgument, match=r"surrogates have leaves \[\(3,\)\], but the model has 2 weights"):
        algorithms.fsgld(model_fn, [Surrogate(np.zeros(3), np.ones(3))], step_size=0.1)
    with pytest.raises(InvalidArgument, match="no option of dg_sgld 'compressor'"):
        algorithms.dg_sgld(model_fn, step_size=0.1, coupling=0.2, compressor="none")
