"""What a client's data leave open: the curvature against its closed form, and what it changes of SWAG's posterior."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl import models
from tfp_bfl.algorithms.swag.work import sampled_curvature, swag, with_curvature
from tfp_bfl.data import ClientExamples
from tfp_bfl.posterior import LowRank
from tfp_bfl.training.likelihoods import parse_likelihood
from tfp_bfl.weights import FlatWeights, ServerMessage, get_weights

NUMBER, COLUMNS, CLASSES = 4000, 3, 3
RNG = np.random.default_rng(0)
FEATURES = (RNG.normal(size=[NUMBER, COLUMNS]) * [1.0, 3.0, 0.0]).astype(np.float32)  # The last says nothing.
EXAMPLES = ClientExamples(
    *map(tf.constant, (np.zeros(NUMBER, np.int32), FEATURES, RNG.integers(CLASSES, size=NUMBER).astype(np.int32)))
)


def model_fn():
    return models.mlp("deterministic", input_shape=(COLUMNS,), num_classes=CLASSES, hidden=(), seed=1)


def exact(weights):
    """sum_n x_nd^2 p_nc (1 - p_nc), the bias last: [D + 1, C]."""
    inputs = np.concatenate([np.float64(FEATURES), np.ones([NUMBER, 1])], 1)
    logits = inputs @ np.concatenate([np.float64(weights[0]), np.float64(weights[1])[None]])
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return np.einsum("nd,nc->dc", inputs**2, p * (1 - p))


@pytest.mark.statistical
@pytest.mark.parametrize("batch_size", [1, 8])
def test_it_is_the_gauss_newton_matrix_of_a_logistic_regression(batch_size):
    """The squares of 500 batches have a relative sd of at most .1 in a weight (less for batches of one): 5 of them."""
    model = model_fn()
    weights = FlatWeights(model)
    weights.load(get_weights(model))
    found = sampled_curvature(
        model, weights, parse_likelihood("categorical"), EXAMPLES, tf.constant([0, 1]), batch_size
    )
    kernel, bias = weights.unflatten(found)
    wanted = exact(get_weights(model).point)
    np.testing.assert_allclose(np.concatenate([kernel, bias[None]]), wanted, rtol=0.5, atol=1e-6)
    assert wanted[1].min() > 2 * wanted[0].max() > 0 == wanted[2].max()
    np.testing.assert_allclose(np.sum(kernel), wanted[:-1].sum(), rtol=5 * 0.1 / np.sqrt(CLASSES))


def test_a_posterior_is_wider_by_what_is_left_open_and_at_most_by_its_weights_mean_square():
    q = LowRank((tf.constant([1.0, 3.0]), tf.zeros([1])), (tf.constant([0.5, 0.5]), tf.ones([1])),
                (tf.ones([2, 2]), tf.ones([2, 1])))  # fmt: skip
    wider = with_curvature(q, (tf.constant([0.0, 0.8]), tf.constant([2.0])))
    np.testing.assert_allclose(wider.diagonal[0], [0.5 + 5.0, 0.5 + 1 / (0.8 + 1 / 5)], rtol=1e-6)
    np.testing.assert_allclose(wider.diagonal[1], [1.0])
    assert wider.mean is q.mean and wider.deviations is q.deviations


def test_swag_with_curvature_is_swag_and_what_the_data_leave_open():
    message = ServerMessage(get_weights(model_fn()), tf.constant(0))
    options = {"local_epochs": 4, "batch_size": 8, "learning_rate": 0.1}
    alone, wider = (
        swag(model_fn, curvature=on, **options)()(message, EXAMPLES, tf.constant([1, 2])).weights.posterior
        for on in (False, True)
    )
    for mine, own in zip(tf.nest.flatten(alone._replace(diagonal=())), tf.nest.flatten(wider._replace(diagonal=()))):
        np.testing.assert_array_equal(mine, own)
    known = exact(alone.mean)
    for before, after, mean, h in zip(alone.diagonal, wider.diagonal, alone.mean, (known[:-1], known[-1])):
        prior = np.mean(np.square(mean))
        np.testing.assert_allclose(after - before, prior / (1 + h * prior), rtol=0.5)
    np.testing.assert_allclose((wider.diagonal[0] - alone.diagonal[0])[2], np.mean(np.square(alone.mean[0])), rtol=1e-4)
