"""FedAG: the clients' Gaussian by hand, and a server that continues from its mean."""

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.cases import SHAPES, assert_identical, client, prior_of, weights
from tfp_bfl import rules, servers
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.federated import server_optimizer
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights import ModelWeights

SIZES = (17.0, 27.0, 6.0)
ANCHOR = tf.nest.map_structure(tf.constant, weights(0))
CLIENTS = [tf.nest.map_structure(tf.constant, weights(k)._replace(moments=client(k).moments)) for k in (1, 2, 3)]


def pooled(sizes=SIZES, clients=CLIENTS):
    rule = rules.client_gaussian()
    parts = [rule.summarise(local, ANCHOR, tf.constant(n)) for local, n in zip(clients, sizes)]
    total = parts[0]
    for part in parts[1:]:
        total = rule.merge(total, part)
    return rule.pool(total, ANCHOR).weights


@pytest.mark.parametrize("sizes", [SIZES, (1.0, 1.0, 1.0)])
def test_mean_and_variance_over_the_clients(sizes):
    """Shares b_k: sum b_k w_k and sum b_k (w_k - mean)^2, with ddof 0."""
    q = pooled(sizes).posterior
    assert len(q.mean) == len(SHAPES)
    for i, (mean, variance) in enumerate(zip(*q)):
        values = np.stack([np.float64(c.point[i]) for c in CLIENTS])
        wanted = np.average(values, 0, sizes)
        np.testing.assert_allclose(mean, wanted, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(variance, np.average((values - wanted) ** 2, 0, sizes), rtol=1e-5, atol=1e-6)
        if sizes[0] == sizes[1]:
            np.testing.assert_allclose(variance, values.var(0), rtol=1e-5, atol=1e-6)


def test_batch_normalization_is_of_the_mixture_of_the_clients_data():
    moments = pooled().moments
    means, variances = (np.stack([np.float64(c.moments[i][0]) for c in CLIENTS]) for i in (0, 1))
    mean = np.average(means, 0, SIZES)
    np.testing.assert_allclose(moments.mean[0], mean, rtol=1e-5)
    np.testing.assert_allclose(moments.variance[0], np.average(variances + (means - mean) ** 2, 0, SIZES), rtol=1e-5)


def test_a_client_alone_has_no_spread():
    q = pooled((5.0,), CLIENTS[:1]).posterior
    for mean, variance, leaf in zip(*q, CLIENTS[0].point):
        np.testing.assert_allclose(mean, leaf, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(variance, 0, atol=1e-6)


def advance(inner=None):
    step = servers.keep_gaussian(inner)
    state, own = step.next(step.initialize(ANCHOR), ANCHOR, pooled(), tf.constant([0, 1]))
    return step, state, own


def test_training_goes_on_from_the_mean_and_predictions_draw_from_the_gaussian():
    step, state, own = advance()
    assert_identical(own, ModelWeights(ANCHOR.posterior, pooled().posterior.mean, pooled().moments))
    assert_identical(step.predictive(state, own), pooled())


def test_an_optimizer_moves_the_mean_alone():
    step, state, own = advance(servers.optimize(server_optimizer("sgd", 0.5)))
    for new, old, mean in zip(own.point, ANCHOR.point, pooled().posterior.mean):
        np.testing.assert_allclose(new, (old + mean) / 2, rtol=1e-5, atol=1e-6)
    predictive = step.predictive(state, own)
    assert_identical(predictive.posterior, MeanField(own.point, pooled().posterior.variance))
    assert_identical(predictive.moments, pooled().moments)


def test_before_the_first_round_there_is_no_spread():
    step = servers.keep_gaussian()
    predictive = step.predictive(step.initialize(ANCHOR), ANCHOR)
    assert_identical(predictive.posterior.mean, ANCHOR.point)
    assert all(np.all(v == 0) for v in predictive.posterior.variance)


def test_models_with_variational_layers_are_refused():
    with pytest.raises(InvalidArgument, match="FedAG finds a posterior over point weights"):
        servers.keep_gaussian().initialize(ANCHOR._replace(posterior=prior_of()))
