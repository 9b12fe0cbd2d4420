"""Warnings of a run about its posterior."""

import logging

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


@pytest.mark.parametrize(
    ("row", "warned"), [({}, False), ({"stddev_log_ratio": 0.049}, True), ({"stddev_log_ratio": 0.05}, False)]
)
def test_the_limit(row, warned):
    assert (spread_warning([row]) is not None) is warned


@pytest.mark.parametrize(
    ("accuracy", "share", "rate", "said"),
    [
        (0.101, 0.1, 0.3, "try a learning rate of 0.03, or more rounds"),
        (0.1, 0.1, None, "try a lower learning rate, or more rounds"),
        (0.05, 0.6, 0.3, "always predicting the most frequent class has 0.600"),
        (0.11, 0.1, 0.3, None),
        (0.95, 0.9, 0.3, None),
    ],
)
def test_a_model_that_predicts_a_constant(accuracy, share, rate, said):
    warning = chance_warning(accuracy, share, rate)
    assert (said in warning) if said else warning is None


@pytest.mark.parametrize("name", ["fed_opt", "fed_prox", "fed_kp"])
def test_adaptive_clients_of_point_weights_are_warned_of(name):
    recipe = getattr(algorithms, name)
    assert any(
        "'adam' divides each gradient" in text for text in recipe(mlp("deterministic"), optimizer="adam").notices
    )
    assert not recipe(mlp("deterministic")).notices


@pytest.mark.parametrize(
    ("ratios", "advice"),
    [
        ([0.001, 0.002, 0.004, 0.005, 0.006], "about 44 more rounds"),
        ([0.03, 0.02, 0.01], "more rounds may help"),
        ([0.01], "more rounds may help"),
    ],
)
def test_the_advice_on_equal_standard_deviations_is_a_number_of_rounds(ratios, advice):
    warning = spread_warning([{"stddev_log_ratio": ratio} for ratio in ratios])
    assert advice in warning and "curvature" not in warning


def test_equal_noise_of_personal_models_is_reported_with_its_rate_and_a_remedy():
    row = {"stddev_log_ratio": 0.02, "dropout_rate_median": 0.0099}
    warning = spread_warning([row, row])
    assert "dropout rates have a median of 0.0099; a larger logit_rate" in warning and "rounds" not in warning


@pytest.mark.parametrize(("share", "warned"), [(None, False), (0.5, False), (0.51, True)])
def test_noise_at_the_top_of_its_range_is_warned_of(share, warned):
    warning = saturated_noise_warning({"saturated_share": share})
    assert (warning is not None) is warned
    assert not warned or (
        "51% of the clients' variances" in warning and "lower initial_rate, logit_rate or kl_weight" in warning
    )


@pytest.mark.parametrize(("nll", "warned"), [(2.6e11, True), (36.0, False), (None, False)])
def test_a_loss_beyond_all_training_is_reported_even_if_all_clients_have_it(nll, warned):
    assert (absurd_loss_warning({"nll": nll}) is not None) is warned


def test_saturated_secure_sums_are_reported():
    rows = [{"clipped_numbers": 1353.0}, {"clipped_numbers": 0.0}, {}]
    assert "in 1 of 3 rounds, up to 1,353 numbers" in saturation_warning(rows)
    assert saturation_warning(rows[1:]) is None


@pytest.mark.parametrize(
    ("rmse", "said"),
    [
        (30.0, None),
        (57.5, "try more rounds, or another learning rate"),
        (736.6, "RMSE is 736.6, and always predicting the mean of the training labels has 58: training failed"),
    ],
)
def test_a_model_of_numbers_that_is_no_better_than_the_mean_is_reported(rmse, said):
    warning = constant_warning(rmse, 58.0)
    assert warning is None if said is None else said in warning


def test_a_run_reports_regression_that_is_no_better_than_the_mean():
    """`diabetes` has test labels of about the training's standard deviation, in its units."""
    test = bfl.data.load("diabetes", split="test")
    constant = test.target.stddev * float(np.sqrt(np.mean(np.square(test.labels, dtype=np.float64))))
    warn = lambda rmse: pipeline.no_better_than_chance({"rmse": rmse}, test, RunConfig())
    assert warn(0.9 * constant) is None and f"{constant:.4g}" in warn(constant)


def test_rounds_without_half_of_the_clients_are_warned_of():
    round = lambda faulty, of: {"num_faulty": faulty, "num_clients": of, "faulty_clients": {"1": "it was late"}}
    assert faulty_warning([round(1, 4), round(0, 4)]) is None
    found = faulty_warning([round(1, 4), round(2, 4), round(3, 4)])
    assert "in 2 of 3 rounds, most often because it was late" in found
