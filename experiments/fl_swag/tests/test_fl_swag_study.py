"""The FL-SWAG study: its Hamiltonian Monte Carlo against quadrature, and what a run returns."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from experiments.fl_swag import hmc
from tfp_bfl import models
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior import Samples
from tfp_bfl.weights import functional_call, get_weights, predictive_model


def test_the_network_is_the_thesis_s_with_one_logit_more():
    assert hmc.model().count_params() == 21_401 + 51


@pytest.mark.statistical
@pytest.mark.deep(after="experiments/fl_swag/tests/test_fl_swag_study.py")
def test_hmc_samples_the_posterior_of_a_logistic_regression():
    """Two logits of one feature: their differences have the posterior by quadrature, their sums the prior N(0, 2 t^2).
    Means within 4.5 standard errors by the effective sample size and standard deviations within 15 %: below 1e-4."""
    rng, number, prior_stddev = np.random.default_rng(0), 30, 0.8
    rows = (2 * rng.normal(size=[number, 1])).astype(np.float32)
    labels = (rng.uniform(size=number) < 1 / (1 + np.exp(0.5 - 1.5 * rows[:, 0]))).astype(np.int32)
    model_fn = functools.partial(models.mlp, "deterministic", (1,), 2, hidden=())
    options = {"num_chains": 2, "num_burnin": 100, "seed": 1, "prior_stddev": prior_stddev, "num_leapfrog_steps": 4}
    chains = hmc.sample(model_fn, rows, labels, num_results=800, **options)
    kernel, bias = chains.draws.numpy().reshape(800, 2, 2, 2).transpose(2, 0, 1, 3)
    draws = np.stack([sign * w[..., 0] + w[..., 1] for sign in (-1, 1) for w in (kernel, bias)], -1)

    axis = np.linspace(-5, 8, 400)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1)
    logits = grid[..., :1] * rows[:, 0] + grid[..., 1:]
    log_prob = -np.logaddexp(0, np.where(labels, -logits, logits)).sum(-1) - (grid**2).sum(-1) / (4 * prior_stddev**2)
    weight = np.exp(log_prob - log_prob.max())[..., None]
    mean = (weight * grid).sum((0, 1)) / weight.sum()
    stddev = np.sqrt((weight * (grid - mean) ** 2).sum((0, 1)) / weight.sum())
    mean, stddev = np.append(mean, [0, 0]), np.append(stddev, 2 * [np.sqrt(2) * prior_stddev])

    effective = tfp.mcmc.effective_sample_size(tf.constant(draws), cross_chain_dims=1).numpy()
    assert (effective > 600).all()
    assert (np.abs(draws.mean((0, 1)) - mean) < 4.5 * stddev / np.sqrt(effective)).all()
    np.testing.assert_allclose(draws.std((0, 1)), stddev, rtol=0.15)
    assert (chains.acceptance_rate > 0.6).all() and (chains.acceptance_rate < 0.95).all()

    fewer = hmc.sample(model_fn, rows, labels, num_results=5, **options)
    np.testing.assert_allclose(fewer.draws, chains.draws[:5], rtol=1e-4, atol=1e-4)


@pytest.mark.deep(after="experiments/fl_swag/tests/test_fl_swag_study.py")
def test_a_run_returns_draws_and_what_they_predict(monkeypatch):
    monkeypatch.setattr(hmc, "MAP_STEPS", 100)
    result = hmc.run(num_chains=2, num_results=8, num_burnin=30, seed=1)
    assert isinstance(result.samples, Samples)
    weights = get_weights(hmc.model())
    assert [w.shape for w in result.samples.values] == [(16, *w.shape) for w in weights.point]
    examples = result.log_odds.shape[-1]
    assert result.log_odds.shape == (8, 2, examples) and result.acceptance_rate.shape == (2,)
    assert result.effective_sample_size.shape == result.potential_scale_reduction.shape == (examples,)
    assert (result.acceptance_rate > 0.3).all() and (result.acceptance_rate <= 1).all()
    assert 0 < result.step_size < 0.1 and result.seconds > 0
    assert result.metrics["accuracy"] > 0.9 and result.metrics["test_nll"] < 0.3
    # The draws are those of the log odds, chain after chain.
    features = hmc.bfl.data.load(hmc.DATASET, split="test").features
    for row, odds in ((0, result.log_odds[0, 0]), (7, result.log_odds[7, 0]), (8, result.log_odds[0, 1])):
        logits = functional_call(hmc.model(), [w[row] for w in result.samples.values], features).numpy()
        np.testing.assert_allclose(logits[:, 1] - logits[:, 0], odds, rtol=1e-3, atol=1e-3)
    model = predictive_model(hmc.model(), weights._replace(posterior=result.samples, point=()))
    assert model(features[:3]).shape == (3, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_chains": 1}, "num_chains is 1, but must be an integer of at least 2"),
        ({"num_results": 3}, "num_results is 3, but must be an integer of at least 4"),
        ({"num_burnin": 0}, "num_burnin is 0, but must be an integer of at least 10"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_runs_that_could_say_nothing_are_refused(options, message):
    with pytest.raises(InvalidArgument, match=message):
        hmc.run(**options)
