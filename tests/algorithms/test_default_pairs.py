"""Which rule an inference has by default, and the warnings of pairs that do not converge to the posterior."""

import functools
import logging
import re

import numpy as np
import pytest
import tensorflow as tf

from tests.processes import weights_after
from tfp_bfl import algorithms, clients, federated, models, rules
from tfp_bfl.data import Clients
from tfp_bfl.training.inference import settings_for
from tfp_bfl.weights import ClientResult, TrainingMetrics

from .method import CLIENTS
from .methods import BATCHES
from .test_pairs import middle

KINDS = ("flipout", "deterministic")
MODELS = {kind: functools.partial(models.mlp, kind, hidden=(), initial_stddev=0.05) for kind in KINDS}
ALONE = Clients(CLIENTS.source, CLIENTS.indices[:1])


@pytest.fixture
def without_training(monkeypatch):
    """Clients send the server's weights, whatever their options."""

    @functools.wraps(clients.variational)
    def still(model_fn, **options):
        zeros = TrainingMetrics(*[tf.constant(0.0)] * 3)
        return lambda: lambda message, examples, seed: ClientResult(message.weights, tf.size(examples.labels), zeros)

    monkeypatch.setattr(clients, "variational", still)


def warnings_of(data=CLIENTS, rounds=2, kind="flipout", **options):
    result = federated.simulate(algorithms.variational(MODELS[kind], **options), data, rounds, engine="local")
    return [text for text in result.warnings if "not converge" in text]


POOLED = {"rule": "log_linear_pool", "inference": "curvature"}
WARNED = {
    "adam": ({"optimizer": "adam"}, r"The optimizer 'adam' divides each gradient by its size .* 'momentum' or 'sgd'\."),
    "Keras's Adam": (
        {"optimizer_fn": tf.keras.optimizers.Adam},
        "The optimizer Adam divides each gradient by its size",
    ),
    "adam of point weights": ({"optimizer": "adam", "kind": "deterministic"}, "The optimizer 'adam' divides each grad"),
    "adam with a wrong rule": (
        {**POOLED, "optimizer": "adam"},
        "The optimizer 'adam' divides each gradient by its siz",
    ),
    "log_linear_pool": (
        POOLED,
        "The rule 'log_linear_pool' weights means by precision, and inference 'curvature' moves them by plain "
        r"gradients, so .* posterior: use rule 'mean_precision_average', or inference 'natural'\.",
    ),
    "distributed_weight_consolidation": (
        {"rule": rules.distributed_weight_consolidation(), "inference": "backprop"},
        "The rule 'distributed_weight_consolidation' weights means by precision, and inference 'backprop' moves",
    ),
    "natural": (
        {"rule": "naive_weighted_average", "inference": "natural"},
        "Inference 'natural' divides gradients by the client's own precision, and the rule 'naive_weighted_average' "
        r"averages .* posterior: use rule 'log_linear_pool', or inference 'curvature'\.",
    ),
    "ivon": (
        {"rule": "mean_precision_average", "inference": "ivon"},
        "Inference 'ivon' divides gradients by the client's own precision, and the rule 'mean_precision_average'",
    ),
}
RIGHT = {
    "default": {},
    "sgd": {"rule": "naive_weighted_average", "optimizer": "sgd"},
    "nesterov, backprop": {"rule": "linear_pool", "optimizer": "nesterov", "inference": "backprop"},
    "natural": {"inference": "natural"},
    "ivon, whose optimizer steps point weights alone": {"inference": "ivon", "optimizer": "adam"},
    "a custom rule": {"rule": rules.GatherRule(middle, "middle")},
    "point weights, which every rule averages": {"rule": "log_linear_pool", "kind": "deterministic"},
    "a rule of one round, which has another warning": {"rule": "conflation", "optimizer": "adam"},
}


@pytest.mark.usefixtures("without_training")
@pytest.mark.parametrize("name", WARNED)
def test_a_pair_that_does_not_converge_to_the_posterior_is_warned_of(name, caplog):
    options, message = WARNED[name]
    with caplog.at_level(logging.WARNING):
        (text,) = warnings_of(**options)
    assert re.match(message, text) and text in caplog.text


@pytest.mark.usefixtures("without_training")
@pytest.mark.parametrize("name", RIGHT)
def test_a_pair_that_converges_or_of_which_nothing_is_known_is_not(name):
    assert not warnings_of(**RIGHT[name])


@pytest.mark.usefixtures("without_training")
@pytest.mark.parametrize("given", [{"data": ALONE}, {"rounds": 1}], ids=["one client", "one round"])
def test_one_client_or_one_round_has_nothing_to_disagree_about(given):
    assert not warnings_of(**given, **POOLED)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({}, "mean_precision_average"),
        ({"inference": "backprop"}, "mean_precision_average"),
        ({"update_prior": True}, "mean_precision_average"),
        ({"inference": "natural"}, "log_linear_pool"),
        ({"inference": "ivon"}, "log_linear_pool"),
    ],
)
def test_the_default_rule_is_that_of_the_inference(options, rule):
    described = [algorithms.variational(MODELS["flipout"], x, **options).description for x in (None, rule)]
    assert described[0] == described[1]
    assert described[0]["rule"] == rule


@pytest.mark.parametrize(
    ("options", "rule", "other"),
    [
        ({}, "mean_precision_average", "log_linear_pool"),
        ({"inference": "natural"}, "log_linear_pool", "mean_precision_average"),
    ],
    ids=["default", "natural"],
)
def test_the_default_rule_is_the_named_one_to_the_bit(options, rule, other):
    pooled = [
        weights_after(1, algorithms.variational(MODELS["flipout"], name, **BATCHES, **options), CLIENTS).posterior
        for name in (None, rule, other)
    ]
    for given, named in zip(*map(tf.nest.flatten, pooled[:2]), strict=True):
        np.testing.assert_array_equal(given, named)
    assert np.abs(pooled[0].mean[0] - pooled[2].mean[0]).max() > 1e-4


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, ("curvature", 0.01, "total")),
        ({"inference": "natural", "temperature": 0.5, "kl": "client"}, ("natural", 0.5, "client")),
        ({"likelihood": "gaussian:0.1"}, ("curvature", 1.0, "total")),
        ({"likelihood": "heteroscedastic"}, ("curvature", 1.0, "total")),
        ({"update_prior": True}, ("backprop", 1.0, "client")),
        ({"update_prior": True, "inference": "natural", "temperature": 0.1}, ("natural", 0.1, "client")),
        ({"example_privacy": True}, ("backprop", 0.01, "total")),
        ({"one_shot": True}, ("curvature", 0.01, "product")),
    ],
)
def test_defaults_of_client_work_that_fits_a_posterior(given, wanted):
    assert tuple(settings_for(**given)) == wanted
