"""What a run tells of its posterior."""

import logging

import pytest

from tests.algorithms.method import CLIENTS, mlp
from tfp_bfl import algorithms, federated
from tfp_bfl.federated.notices import spread_warning


def simulate(rule, rounds, **options):
    process = algorithms.variational(mlp("flipout"), rule, batch_size=64, **options)
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
    assert (spread_warning(row) is not None) is warned
