"""Dropout rates of clients: their quantiles, how far clients differ, and saturation."""

import numpy as np
import pytest

import tfp_bfl as bfl
from tfp_bfl import models
from tfp_bfl.algorithms.personal.step import dropout_rates
from tfp_bfl.algorithms.personal.variances import PERSONAL_VARIANCES, Parameters

RNG = np.random.default_rng(0)
THETA = RNG.normal(size=41).astype(np.float32)
PRESENT = np.array([0.2, 0, 0.5, 0.3], np.float32)


@pytest.mark.parametrize("parametrization", ["log_variance", "log_alpha"])
def test_rates_of_the_clients_of_a_round_by_numpy(parametrization):
    source = PERSONAL_VARIANCES["free_variances"](4, ranged="clamped", parametrization=parametrization)
    rows = RNG.normal(scale=2, size=(4, 41)).astype(np.float32)
    found = dropout_rates(source, Parameters((), rows), THETA, PRESENT)
    low, high = source.logit_range
    logits = np.clip((low + high) / 2 + rows, low, high)[[0, 2, 3]]
    variance = np.exp(logits) * (1 if parametrization == "log_variance" else THETA**2)
    rates = variance / (variance + THETA**2)
    for q, value in zip((0.05, 0.5, 0.95), found):
        np.testing.assert_allclose(value, np.mean(np.quantile(rates, q, axis=1)), rtol=1e-4)
    np.testing.assert_allclose(found.dropout_rate_stddev, rates.mean(1).std(), rtol=1e-4)
    np.testing.assert_allclose(found.logit_stddev, np.sqrt(np.mean(logits.var(0))), rtol=1e-4)
    np.testing.assert_allclose(found.saturated_share, np.mean(logits > high - 0.01 * (high - low)), atol=1e-7)


def test_logits_at_the_top_are_saturated():
    source = PERSONAL_VARIANCES["free_variances"](2, ranged="clamped")
    rows = np.float32([[8.5, 8.4, 8.3, 0.0], [-8.5, 0.0, 20.0, 0.0]])
    found = dropout_rates(source, Parameters((), rows), THETA[:4], np.float32([1, 1]))
    assert found.saturated_share == 3 / 8


def test_nobody_in_a_round_and_many_clients():
    """A median of clients has no entry above zero, and noise may make all negative: the rates are those of all clients,
    of which 32 are measured."""
    source = PERSONAL_VARIANCES["hypernetwork"](100, hidden=(4,))
    parameters = source.initialize(41, 0)
    found = dropout_rates(source, parameters, THETA, np.ones(100, np.float32))
    for nobody in (np.zeros(100, np.float32), -np.ones(100, np.float32)):
        assert dropout_rates(source, parameters, THETA, nobody) == found
    first = dropout_rates(source, parameters, THETA, np.float32(np.arange(100) < 32))
    assert found == first and found.logit_stddev > 0


def test_a_round_reports_rates_of_what_the_server_learnt():
    everybody = bfl.data.load("breast_cancer").partition(bfl.data.iid(3), seed=0)
    model_fn = lambda: models.mlp("variational_dropout", (30,), 2, hidden=(4,))
    options = {"initial_rate": 0.3, "hidden": (4,)}
    process = bfl.algorithms.meta_vd(model_fn, num_clients=3, variance_options=options, logit_rate=50.0, batch_size=16)
    result = bfl.simulate(process, everybody, rounds=2, seed=0, engine="local")
    rates = []
    for k in range(3):
        q = process.personal_weights(result.state, k).posterior
        mean, variance = (np.concatenate([np.ravel(x) for x in part]) for part in q)
        rates.append(variance / (mean**2 + variance))
    wanted = [np.mean(np.quantile(rates, q, axis=1, method="nearest")) for q in (0.05, 0.5, 0.95)]
    row = result.rounds[-1]
    found = [row[f"dropout_rate_{name}"] for name in ("q05", "median", "q95")]
    np.testing.assert_allclose(found, wanted, rtol=0.02)
    assert 0.1 < row["dropout_rate_median"] < 0.9 and row["logit_stddev"] > 0
