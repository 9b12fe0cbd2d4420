"""Recipes that are federated averaging in a limit: of point weights, and of wide kernels."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.method import CLIENTS
from tfp_bfl import algorithms, federated, models, rules
from tfp_bfl.weights import get_weights

MODEL = functools.partial(models.mlp, "deterministic", hidden=())
OPTIONS = {"local_epochs": 2, "batch_size": 8, "learning_rate": 0.05}


@pytest.mark.deep(after="tests/algorithms/test_contract.py")
def test_federated_averaging_is_the_variational_recipe_on_point_weights():
    options = {**OPTIONS, "seed": 5, "optimizer_fn": tf.keras.optimizers.SGD}
    processes = (
        algorithms.fed_opt(MODEL, **options),
        algorithms.variational(MODEL, rules.naive_weighted_average(), "train_size", **options),
    )
    states = [p.next(p.initialize(), [CLIENTS.dataset(k) for k in range(3)]).state for p in processes]
    for a, b in zip(*map(tf.nest.flatten, states), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.deep(after="tests/algorithms/kernel/test_kernel.py")
@pytest.mark.parametrize(
    ("start", "weighting", "kernel"),
    [("mean", "equal", "epanechnikov"), ("clients", "train_size", "epanechnikov"), ("clients", "equal", "gaussian")],
)
def test_a_wide_kernel_is_federated_averaging_round_by_round(runtime, start, weighting, kernel):
    """Also with momentum on the server; in float32, to 1e-5."""
    optimizer = lambda: federated.server_optimizer("sgd", 0.5, momentum=0.9)
    run = lambda process: federated.simulate(process, CLIENTS, 3, cohort_size=2, runtime=runtime).state
    shared = {"weighting": weighting, **OPTIONS}
    kernel_options = {"scale": 1e6, "kernel": kernel, "weighting": "kernels" if weighting == "train_size" else None}
    averaged = run(algorithms.fed_opt(MODEL, server_optimizer=optimizer(), **shared))
    shifted = run(
        algorithms.fed_kp(MODEL, start=start, kernel_options=kernel_options, server_optimizer=optimizer(), **shared)
    )
    start_weights = get_weights(MODEL()).point
    for a, b, first in zip(averaged.weights.point, shifted.weights.point, start_weights, strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=1e-5)
        assert np.abs(a - first).max() > 0.01
