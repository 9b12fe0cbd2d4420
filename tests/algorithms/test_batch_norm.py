"""BatchNorm's moving statistics: updated by the clients inside the round, pooled as moments."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl import algorithms, clients, evaluation, export, federated, models, rules
from tfp_bfl.data import Clients, load
from tfp_bfl.weights import ServerMessage, get_weights, predictive_model

from .methods import normalized

SOURCE = load("digits")
CLIENTS = Clients(SOURCE, [np.arange(0, 24), np.arange(24, 64)])
OPTIONS = {"local_epochs": 1, "batch_size": 8, "learning_rate": 0.01, "inference": "curvature", "temperature": 0.1}


def model_fn(kind):
    return models.lenet(kind, input_shape=(8, 8, 1), normalization="batch")


def local(kind, client):
    seed = tf.constant([0, 0])
    for number in (0, client):
        seed = tf.random.experimental.stateless_fold_in(seed, number)
    message = ServerMessage(get_weights(model_fn(kind)), tf.constant(0))
    examples = tf.nest.map_structure(tf.constant, CLIENTS.examples(client))
    return clients.variational(functools.partial(model_fn, kind), **OPTIONS)()(message, examples, seed)


@pytest.mark.deep(after="tests/rules/test_whole_model.py")
@pytest.mark.parametrize("kind", ["deterministic", "flipout"])
def test_round_pools_the_clients_statistics_by_total_variance(kind):
    rule = rules.naive_weighted_average()
    process = algorithms.variational(functools.partial(model_fn, kind), rule, **OPTIONS)
    state = process.initialize()
    new = process.next(state, [CLIENTS.dataset(k) for k in range(2)]).state
    parts = [local(kind, k).weights.moments for k in range(2)]
    share = CLIENTS.sizes / CLIENTS.sizes.sum()
    for layer, (mean, variance) in enumerate(zip(*new.weights.moments)):
        means = np.stack([part.mean[layer] for part in parts])
        variances = np.stack([part.variance[layer] for part in parts])
        pooled = share @ means
        assert np.abs(means[0] - means[1]).max() > 1e-3, "the clients' statistics must differ for the test to tell"
        assert not np.allclose(mean, state.weights.moments.mean[layer])
        np.testing.assert_allclose(mean, pooled, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(variance, share @ (variances + means**2) - pooled**2, rtol=1e-4, atol=1e-5)


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
    for actual, wanted in zip(*(tf.nest.flatten(r.state.weights.moments) for r in (given, averaged)), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)
    scores = evaluation.evaluate(given.model, shown, table.labels[130:160], num_samples=4).metrics
    assert all(np.isfinite(x) for x in scores.values())
    pooled = predictive_model(normalized(), process.predictive_weights(given.state))
    assert np.abs(predict(given.model) - predict(pooled)).max() > 1e-3
    export.save(given.model, tmp_path / "model")
    loaded = export.load(tmp_path / "model")
    means = loaded.predict(shown, num_samples=4, seed=1)["mean"]
    np.testing.assert_allclose(means, predict(given.model).mean(0), atol=1e-5)
