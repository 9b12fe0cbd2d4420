"""Chains whose law is the posterior itself, and Langevin chains beside them."""

import numpy as np
import pytest
import tensorflow as tf

from experiments.samplers import exact_chains, langevin_chain
from tests.gaussians import model_fn
from tfp_bfl import models, posterior
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.training import Potential

ROWS = np.random.default_rng(3).normal([3, -1], size=(20, 2)).astype(np.float32)
LABELS = np.zeros(20, np.int32)


@pytest.mark.statistical
@pytest.mark.parametrize(
    "kernel", ["hmc", pytest.param("mala", marks=pytest.mark.deep(after="experiments/samplers/tests/test_exact.py"))]
)
def test_the_posterior_of_a_gaussian(kernel):
    """Means within 5 Monte Carlo errors, variances within 15 %, of 2,000 draws of four chains."""
    potential = Potential(model_fn(2)(), "density")
    options = {"prior_stddev": 0.5, "num_leapfrog_steps": 3, "thin": 3}
    options["step_size"] = None if kernel == "hmc" else 0.02
    chains = exact_chains(
        potential, ROWS, LABELS, np.zeros((4, 2)), kernel=kernel, num_draws=500, burn_in=200, **options
    )
    draws = np.swapaxes(chains.draws.numpy(), 0, 1)
    size = posterior.effective_sample_size(draws)
    assert size.min() > 500 and posterior.potential_scale_reduction(draws).max() < 1.03
    assert np.all((chains.acceptance_rate > 0.4) & (chains.acceptance_rate < 0.95))
    error = draws.mean((0, 1)) - ROWS.sum(0) / 24
    assert np.all(np.abs(error) < 5 * np.sqrt(1 / 24 / size))
    np.testing.assert_allclose(draws.reshape(-1, 2).var(0), 1 / 24, rtol=0.15)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kernel": "nuts"}, "no kernel 'nuts'"),
        ({"kernel": "mala"}, "The kernel 'mala' needs a step_size"),
        ({"num_draws": 0}, "num_draws is 0"),
        ({"burn_in": 5}, "burn_in is 5"),
        ({"step_size": -1.0}, "step_size is -1.0"),
        ({"starts": np.zeros((2, 3))}, r"starts has the shape \(2, 3\), but must be \(chains, 2\)"),
    ],
)
def test_arguments_out_of_range(given, message):
    potential = Potential(model_fn(2)(), "density")
    with pytest.raises(InvalidArgument, match=message):
        exact_chains(potential, ROWS, LABELS, **{"starts": np.zeros((1, 2)), "num_draws": 5, "burn_in": 10, **given})


def test_a_langevin_chain_is_of_the_same_potential():
    """Of one seed a step on other rows differs by half the step size times the difference of the gradients."""
    potential, step = Potential(model_fn(2, 1.5)(), "density"), 0.01
    options = {"step_size": step, "num_steps": 1, "prior_stddev": None, "likelihood": "density", "seed": 3}
    rows = ROWS, np.float32(ROWS[::-1] * [2, -1])
    ends = [langevin_chain(model_fn(2, 1.5), x, LABELS, **options).values[0][0] for x in rows]
    gradients = [potential.gradient(potential.start(), tf.constant(x), tf.constant(LABELS))[1] for x in rows]
    np.testing.assert_allclose(gradients[0], 20 * 1.5 - ROWS.sum(0), rtol=1e-5)
    np.testing.assert_allclose(ends[0] - ends[1], -step / 2 * (gradients[0] - gradients[1]), rtol=1e-5)
    with_prior = langevin_chain(model_fn(2, 1.5), ROWS, LABELS, **{**options, "prior_stddev": 0.5}).values[0]
    np.testing.assert_allclose(with_prior[0] - ends[0], np.full(2, -step / 2 * 1.5 * 4), rtol=1e-4)


def test_a_chain_that_never_accepts_is_none():
    potential = Potential(model_fn(2)(), "density")
    options = {"kernel": "mala", "step_size": 10.0, "prior_stddev": None, "num_draws": 20, "burn_in": 10}
    with pytest.raises(
        InvalidArgument, match=r"accepted 0 of its proposals, of which at least 0\.01 must be, at the step"
    ):
        exact_chains(potential, ROWS, LABELS, np.full((2, 2), 50.0), **options)


@pytest.mark.parametrize(("kind", "normalization"), [("mc_dropout", "none"), ("deterministic", "batch")])
def test_a_random_potential_is_refused(kind, normalization):
    """Masks that change from one leapfrog step to the next are no density to accept by."""
    model = models.lenet(kind, (8, 8, 1), 3, normalization=normalization)
    potential = Potential(model)
    features, labels = np.zeros((4, 8, 8, 1), np.float32), np.zeros(4, np.int32)
    with pytest.raises(InvalidArgument, match="draws masks" if kind == "mc_dropout" else "normalises by the batch"):
        exact_chains(potential, features, labels, np.zeros((1, potential.size)), num_draws=5, burn_in=10)
