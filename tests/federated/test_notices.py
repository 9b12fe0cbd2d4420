"""Warnings of a run about its posterior."""

import logging
import re

import numpy as np
import pytest

import tfp_bfl as bfl
from tests.algorithms.method import CLIENTS, mlp
from tfp_bfl import algorithms, federated
from tfp_bfl.app.one_run import pipeline
from tfp_bfl.app.options.config import RunConfig
from tfp_bfl.federated.notices import (
    absurd_loss_warning,
    chance_warning,
    constant_warning,
    faulty_warning,
    saturated_noise_warning,
    saturation_warning,
    spread_warning,
)


def simulate(rule, rounds, **options):
    process = algorithms.variational(mlp("flipout"), rule, **{"local_epochs": 1, "batch_size": 64, **options})
    return federated.simulate(process, CLIENTS, rounds, engine="local")


@pytest.mark.deep(after="tests/federated/test_notices.py")
def test_a_rule_for_one_round_that_is_repeated(caplog):
    with caplog.at_level(logging.WARNING):
        once, repeated = simulate("conflation", 1), simulate("conflation", 2)
    said = [text for text in repeated.warnings if text.startswith("The rule conflation is for one round")]
    assert len(said) == 1 and said[0] in caplog.text
    assert not any("is for one round" in text for text in once.warnings)


def test_standard_deviations_that_are_one_number(caplog):
    with caplog.at_level(logging.WARNING):
        result = simulate("log_linear_pool", 1, inference="backprop", kl="client")
    assert result.rounds[-1]["stddev_log_ratio"] < 0.05
    assert [text for text in result.warnings if "all weights are the same number" in text]
    assert "all weights are the same number" in caplog.text


@pytest.mark.deep(after="tests/federated/test_notices.py")
def test_those_that_the_data_have_determined_are_not_warned_of():
    result = simulate("mean_precision_average", 6, local_epochs=4)
    assert result.rounds[-1]["stddev_log_ratio"] > 0.05
    assert not result.warnings


@pytest.mark.parametrize("name", ["fed_opt", "fed_prox", "fed_kp"])
def test_adaptive_clients_of_point_weights_are_warned_of(name):
    recipe = getattr(algorithms, name)
    assert any(
        "'adam' divides each gradient" in text for text in recipe(mlp("deterministic"), optimizer="adam").notices
    )
    assert not recipe(mlp("deterministic")).notices


def test_a_run_reports_regression_that_is_no_better_than_the_mean():
    """`diabetes` has test labels of about the training's standard deviation, in its units."""
    test = bfl.data.load("diabetes", split="test")
    constant = test.target.stddev * float(np.sqrt(np.mean(np.square(test.labels, dtype=np.float64))))
    warn = lambda rmse: pipeline.no_better_than_chance({"rmse": rmse}, test, RunConfig())
    assert warn(0.9 * constant) is None and f"{constant:.4g}" in warn(constant)


def of(name, *values):
    return [{name: value} for value in values]


def faulty(*pairs):
    return [{"num_faulty": a, "num_clients": b, "faulty_clients": {"1": "it was late"}} for a, b in pairs]


RATES = {"stddev_log_ratio": 0.02, "dropout_rate_median": 0.0099}
MEAN = "RMSE is 736.6, and always predicting the mean of the training labels has 58: training failed"
TOP = "51% of the clients' variances .* lower initial_rate, logit_rate or kl_weight"
# Warning, arguments, words of it; None for no warning.
WARNED = [
    (spread_warning, ([{}],), None),
    (spread_warning, (of("stddev_log_ratio", 0.05),), None),
    (spread_warning, (of("stddev_log_ratio", 0.049),), "more rounds may help"),
    (spread_warning, (of("stddev_log_ratio", 0.001, 0.002, 0.004, 0.005, 0.006),), "about 44 more rounds"),
    (spread_warning, (of("stddev_log_ratio", 0.03, 0.02, 0.01),), "more rounds may help"),
    (spread_warning, ([RATES, RATES],), "dropout rates have a median of 0.0099; a larger logit_rate lets"),
    (chance_warning, (0.101, 0.1, 0.3), "try a learning rate of 0.03, or more rounds"),
    (chance_warning, (0.1, 0.1, None), "try a lower learning rate, or more rounds"),
    (chance_warning, (0.05, 0.6, 0.3), "always predicting the most frequent class has 0.600"),
    (chance_warning, (0.11, 0.1, 0.3), None),
    (chance_warning, (0.95, 0.9, 0.3), None),
    (saturated_noise_warning, ({},), None),
    (saturated_noise_warning, ({"saturated_share": 0.5},), None),
    (saturated_noise_warning, ({"saturated_share": 0.51},), TOP),
    (absurd_loss_warning, ({"nll": 2.6e11},), "training has diverged"),
    (absurd_loss_warning, ({"nll": 36.0},), None),
    (absurd_loss_warning, ({"nll": None},), None),
    (saturation_warning, ([*of("clipped_numbers", 1353.0, 0.0), {}],), "in 1 of 3 rounds, up to 1,353 numbers"),
    (saturation_warning, ([*of("clipped_numbers", 0.0), {}],), None),
    (constant_warning, (30.0, 58.0), None),
    (constant_warning, (57.5, 58.0), "try more rounds, or another learning rate"),
    (constant_warning, (736.6, 58.0), MEAN),
    (faulty_warning, (faulty((1, 4), (0, 4)),), None),
    (faulty_warning, (faulty((1, 4), (2, 4), (3, 4)),), "in 2 of 3 rounds, most often because it was late"),
]


@pytest.mark.parametrize(("warning", "arguments", "words"), WARNED)
def test_warnings(warning, arguments, words):
    found = warning(*arguments)
    assert found is None if words is None else re.search(words, found)
