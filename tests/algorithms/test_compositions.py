"""Parts of posterior averaging in any combination, and FedKP's limit of wide kernels over whole rounds."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl import algorithms, federated, models, rules, servers
from tfp_bfl.algorithms.averaging.step import distil
from tfp_bfl.algorithms.averaging.work import posterior_averaging
from tfp_bfl.weights import get_weights

from .method import CLIENTS, SOURCE

MODEL = functools.partial(models.mlp, "deterministic", hidden=())
OPTIONS = {"local_epochs": 2, "batch_size": 8, "learning_rate": 0.05}
OWN_RULES = {
    "gaussian": (rules.client_gaussian, servers.keep_gaussian),
    "ensemble": (rules.stacked, lambda: distil(MODEL, SOURCE.features[:20], num_models=2)),
}


@pytest.mark.deep(after="tests/algorithms/test_pairs.py")
@pytest.mark.parametrize("name", OWN_RULES)
def test_fedpas_clients_with_the_servers_that_have_a_rule_of_their_own(name):
    rule, step = OWN_RULES[name]
    process = algorithms.compose(MODEL, posterior_averaging(MODEL, **OPTIONS), rule(), step())
    state = process.initialize()
    output = process.next(state, [CLIENTS.dataset(k) for k in range(3)])
    assert output.metrics["num_faulty"] == 0
    for new in tf.nest.flatten((output.state, process.predictive_weights(output.state))):
        assert np.all(np.isfinite(new))
    moved = [np.abs(a - b).max() for a, b in zip(output.state.weights.point, state.weights.point)]
    assert max(moved) > 1e-3


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
