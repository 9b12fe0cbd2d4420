"""BatchNorm's moving statistics: updated by the clients inside the round, pooled as moments."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl import algorithms, clients, federated, models, rules
from tfp_bfl.data import Clients, load

SOURCE = load("digits")
CLIENTS = Clients(SOURCE, [np.arange(0, 24), np.arange(24, 64)])
OPTIONS = {"batch_size": 8, "learning_rate": 0.01}


def model_fn(kind):
    return models.lenet(kind, input_shape=(8, 8, 1), normalization="batch")


def local(kind, client):
    seed = tf.constant([0, 0])
    for number in (0, client):
        seed = tf.random.experimental.stateless_fold_in(seed, number)
    message = models.ServerMessage(models.get_weights(model_fn(kind)), tf.constant(0))
    examples = tf.nest.map_structure(tf.constant, CLIENTS.examples(client))
    return clients.variational(functools.partial(model_fn, kind), **OPTIONS)()(message, examples, seed)


@pytest.mark.parametrize("kind", ["deterministic", "flipout"])
def test_round_pools_the_clients_statistics_by_total_variance(kind):
    rule = rules.naive_weighted_average()
    process = algorithms.variational(functools.partial(model_fn, kind), rule, **OPTIONS)
    with federated.local_workers(max_concurrent_calls=1):
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
