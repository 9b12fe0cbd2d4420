"""BatchNorm's statistics of posteriors over point weights: from examples of the server."""

import functools

import numpy as np
import pytest

from tests.kit import assert_same
from tfp_bfl import algorithms, evaluation, export, federated
from tfp_bfl.data import Clients, load
from tfp_bfl.weights import predictive_model

from .methods import normalized

RECIPES = {
    "fed_ag": algorithms.fed_ag,
    "fed_sgld": functools.partial(algorithms.fed_sgld, step_size=1e-6),
}


@pytest.mark.deep(after="tests/weights/test_posterior_model.py")
@pytest.mark.parametrize("name", RECIPES)
def test_posteriors_over_point_weights_take_the_servers_examples_for_statistics(name, tmp_path):
    """Rounds pool the clients' statistics as those of federated averaging; draws get theirs from the server's data."""
    options = {"local_epochs": 1, "batch_size": 8, "learning_rate": 0.01}
    process = RECIPES[name](normalized, **options)
    table = load("breast_cancer")
    data = Clients(table, [np.arange(0, 24), np.arange(24, 64)])
    shown, scored = table.features[130:160], []
    predict = lambda model: evaluation.predict(model, shown, num_samples=4, seed=1)
    evaluate = lambda model: scored.append(predict(model)) or {}
    given = federated.simulate(process, data, 1, batch_norm_examples=table.features[64:128], evaluate=evaluate)
    np.testing.assert_allclose(scored[-1], predict(given.model), atol=1e-6)  # one model, in the run and after it
    averaged = federated.simulate(algorithms.fed_opt(normalized, **options), data, 1)
    assert_same(*(r.state.weights.moments for r in (given, averaged)), rtol=1e-4, atol=1e-5)
    scores = evaluation.evaluate(given.model, shown, table.labels[130:160], num_samples=4).metrics
    assert all(np.isfinite(x) for x in scores.values())
    pooled = predictive_model(normalized(), process.predictive_weights(given.state))
    assert np.abs(predict(given.model) - predict(pooled)).max() > 1e-3
    export.save(given.model, tmp_path / "model")
    loaded = export.load(tmp_path / "model")
    means = loaded.predict(shown, num_samples=4, seed=1)["mean"]
    np.testing.assert_allclose(means, predict(given.model).mean(0), atol=1e-5)
