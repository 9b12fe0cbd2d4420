"""The recipes of the third family: each trains, predicts and exports; federated averaging as the variational recipe."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.method import ALIKE, CLIENTS, SOURCE
from tfp_bfl import algorithms, evaluation, export, federated, models, rules

MODEL = functools.partial(models.mlp, "deterministic", hidden=(3,))
TRAINING = {"local_epochs": 2, "batch_size": 16, "learning_rate": 0.01, "seed": 5}
HALF = {"name": "sgd", "learning_rate": 0.5}
RECIPES = {
    "fed_opt": {},
    "fed_prox": {"proximal": 0.1},
    "fed_ag": {},
    "fed_be": {"features": SOURCE.features[:20], "ensemble": {"num_models": 2, "distribution": "dirichlet"}},
    "fed_pa": {"burn_in_rounds": 1},
    "fed_sgld": {"burn_in_rounds": 1},
    "fed_kp": {},
    "fed_kppa": {"kernel_options": {"kernel": "gaussian", "bandwidth": "scott"}},
}


@pytest.mark.deep(after="tests/servers/test_optimizers.py")
# The others end in the same ways; `test_build` exports all of them.
@pytest.mark.parametrize("name", ["fed_ag", "fed_be", "fed_sgld", "fed_kppa"])
def test_two_rounds_with_a_server_optimizer_predict_and_export(name, runtime, tmp_path):
    optimizer = federated.server_optimizer(**HALF)
    process = getattr(algorithms, name)(MODEL, server_optimizer=optimizer, **RECIPES[name], **TRAINING)
    result = federated.simulate(process, ALIKE, 2, runtime=runtime)
    scores = evaluation.evaluate(result.model, SOURCE.features[:50], SOURCE.labels[:50], num_samples=3).metrics
    assert all(np.isfinite(x) for x in scores.values())
    export.save(result.model, tmp_path / "model")
    assert export.load(tmp_path / "model") is not None


@pytest.mark.deep(after="tests/algorithms/test_contract.py")
def test_federated_averaging_is_the_variational_recipe_on_point_weights():
    options = {**TRAINING, "optimizer_fn": tf.keras.optimizers.SGD}
    processes = [
        algorithms.fed_opt(MODEL, **options),
        algorithms.variational(MODEL, rules.naive_weighted_average(), "train_size", **options),
    ]
    states = [p.next(p.initialize(), [CLIENTS.dataset(k) for k in range(3)]).state for p in processes]
    for a, b in zip(*map(tf.nest.flatten, states), strict=True):
        np.testing.assert_array_equal(a, b)
