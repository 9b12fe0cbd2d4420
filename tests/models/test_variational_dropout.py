"""Models with variational dropout in what the rest of the library does with weights: priors, vectors, training."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests import kit
from tfp_bfl import algorithms, clients, evaluation, models, posterior
from tfp_bfl.data import ClientExamples
from tfp_bfl.layers import DenseFlipout, DenseVariationalDropout
from tfp_bfl.posterior import MeanField
from tfp_bfl.training import INFERENCES
from tfp_bfl.training.updates import target_of
from tfp_bfl.weights import FlatWeights, Population, ServerMessage, assign_weights, get_weights, prior

assert_same = functools.partial(kit.assert_same, rtol=1e-05, atol=1e-07)

RNG = np.random.default_rng(0)
FEATURES = np.float32(RNG.normal(size=[24, 3]))
EXAMPLES = ClientExamples(*map(tf.constant, (np.zeros(24, np.int32), FEATURES, np.int32(FEATURES[:, 0] > 0))))
every_parametrization = pytest.mark.parametrize("parametrization", ["log_variance", "log_alpha"])


def mixed(parametrization="log_variance", detached=True, logit_range=(-17, 0)):
    """A layer with variational dropout between a point layer and one with Flipout."""
    options = {"parametrization": parametrization, "detached": detached, "logit_range": logit_range}
    inputs = tf.keras.Input((3,))
    x = tf.keras.layers.Dense(4)(inputs)
    x = DenseVariationalDropout(5, **options)(x)
    return tf.keras.Model(inputs, DenseFlipout(2, prior_stddev=3.0, initial_stddev=0.2)(x))


def moved(weights, low=-6.0, high=-3.0):
    """Other means, away from zero, and log variances between two numbers."""
    rng = np.random.default_rng(1)
    mean = tuple(
        tf.constant(np.float32(rng.choice([-1, 1], m.shape) * rng.uniform(1, 2, m.shape))) for m in weights[0].mean
    )
    variance = tuple(tf.constant(np.float32(np.exp(rng.uniform(low, high, m.shape)))) for m in mean)
    return weights._replace(posterior=MeanField(mean, variance))


@every_parametrization
def test_posterior_there_and_back(parametrization):
    model = mixed(parametrization)
    flat, weights = FlatWeights(model), moved(get_weights(model))
    assign_weights(model, weights)
    assert_same(get_weights(model), weights)
    flat.load(weights)
    assert_same(flat.store(), weights)


@every_parametrization
def test_what_the_range_leaves_of_a_spread_is_the_same_everywhere(parametrization):
    model = mixed(parametrization, logit_range=(-5, -4))
    flat, weights = FlatWeights(model), moved(get_weights(model), -9.0, 1.0)
    flat.load(weights)
    assign_weights(model, weights)
    variance, given = get_weights(model).posterior.variance, weights.posterior.variance
    assert_same(flat.store().posterior.variance, variance)
    scale = 1 if parametrization == "log_variance" else np.square(weights.posterior.mean[0])
    np.testing.assert_allclose(variance[0], np.clip(given[0], np.exp(-5) * scale, np.exp(-4) * scale), rtol=1e-5)
    np.testing.assert_allclose(variance[1], given[1], rtol=1e-5)
    optimizer = tf.keras.optimizers.SGD(1.0)
    optimizer.build(flat.variables)
    optimizer.apply_gradients([(tf.fill(flat.log_stddev.shape, -9.0), flat.log_stddev)])
    np.testing.assert_allclose(flat.store().posterior.variance[0], np.exp(-4) * scale + 0 * given[0], rtol=1e-5)


@every_parametrization
@pytest.mark.parametrize("detached", [True, False])
def test_kl_of_vectors_is_that_of_the_layers(parametrization, detached):
    """Its gradients in mean and log s are those of 0.5 log(1 + mean^2 / s^2), whatever the layer holds."""
    model = mixed(parametrization, detached)
    weights = moved(get_weights(model))
    assign_weights(model, weights)
    flat = FlatWeights(model)
    flat.load(weights)
    kl, in_values, in_log_stddev = flat.kl_divergence(tf.exp(flat.log_stddev), flat.prior)
    np.testing.assert_allclose(kl, sum(model.losses), rtol=1e-5)
    np.testing.assert_allclose(kl, posterior.kl_divergence(weights.posterior, prior(model)), rtol=1e-5)
    mean, variance = (np.float64(part[0]).ravel() for part in weights.posterior)
    number = len(mean)
    np.testing.assert_allclose(in_values[:number], 0 if detached else mean / (mean**2 + variance), rtol=1e-5)
    np.testing.assert_allclose(in_log_stddev[:number], -(mean**2) / (mean**2 + variance), rtol=1e-5)
    mean, variance = (np.float64(part[1]).ravel() for part in weights.posterior)  # of Flipout's
    np.testing.assert_allclose(in_values[number : number + len(mean)], mean / 9, rtol=1e-5)
    np.testing.assert_allclose(in_log_stddev[number:], variance / 9 - 1, rtol=1e-5)


def test_a_share_of_a_hierarchical_prior_is_that_of_its_gaussian():
    """KL to N(0, K t^2), t^2 = mean^2 + s^2, where clients share the prior."""
    model = mixed()
    flat, weights = FlatWeights(model), moved(get_weights(model))
    flat.load(weights)
    target = target_of("product", "equal", 1.0, flat.prior, Population(4, 100), tf.constant(25.0))
    kl, _, _ = flat.kl_divergence(tf.exp(flat.log_stddev), target.prior)
    assign_weights(model, weights)
    own = prior(model)
    wider = own._replace(variance=tuple(4 * v for v in own.variance))
    np.testing.assert_allclose(kl, posterior.kl_divergence(weights.posterior, wider), rtol=1e-5)


def test_a_posterior_as_the_prior_is_no_longer_hierarchical():
    model = mixed()
    flat, weights = FlatWeights(model), moved(get_weights(model))
    flat.load(weights)
    kl, in_values, in_log_stddev = flat.kl_divergence(tf.exp(flat.log_stddev), flat.as_prior(weights.posterior))
    for zero in (kl, in_values, in_log_stddev):
        np.testing.assert_allclose(zero, tf.zeros_like(zero), atol=1e-3)


def mlp(**options):
    return lambda: models.mlp("variational_dropout", (3,), 2, hidden=(4,), **options)


def train(model_fn, examples=EXAMPLES, **options):
    work = clients.variational(model_fn, **{"local_epochs": 1, "batch_size": 8, **options})()
    return work(ServerMessage(get_weights(model_fn()), tf.constant(0)), examples, tf.constant([1, 2]))


@pytest.mark.parametrize("inference", INFERENCES)
def test_every_inference_trains_it_and_reports_its_kl(inference):
    model_fn = mlp()
    options = {"temperature": 1.0, "optimizer_fn": "adam", "local_epochs": 2, "learning_rate": 0.01}
    result = train(model_fn, inference=inference, **options)
    mean, variance = (np.concatenate([np.float64(x).ravel() for x in part]) for part in result.weights.posterior)
    np.testing.assert_allclose(result.metrics.kl, np.sum(0.5 * np.log1p(mean**2 / variance)), rtol=1e-4)
    before = get_weights(model_fn()).posterior
    for a, b in zip(tf.nest.flatten(result.weights.posterior), tf.nest.flatten(before)):
        assert np.isfinite(a).all() and np.abs(a - b).max() > 1e-6


@pytest.mark.parametrize("detached", [True, False])
def test_without_data_the_kl_widens_and_moves_means_only_if_it_may(detached):
    """Inputs of zero have no likelihood in the kernel: log s goes up by rate mean^2 / (mean^2 + s^2) / n a step."""

    def model_fn():
        inputs = tf.keras.Input((3,))
        outputs = DenseVariationalDropout(2, detached=detached, kernel_initializer="ones")(inputs)
        return tf.keras.Model(inputs, outputs)

    nothing = EXAMPLES._replace(features=tf.zeros_like(EXAMPLES.features))
    options = {"inference": "backprop", "optimizer_fn": tf.keras.optimizers.SGD, "temperature": 1.0, "kl": "client"}
    result = train(model_fn, nothing, learning_rate=0.5, **options)
    (mean,), (variance,) = result.weights.posterior
    log_stddev, wanted = -4.25, 1.0
    for _ in range(3):
        total = wanted**2 + np.exp(2 * log_stddev)
        log_stddev += 0.5 / 24 * wanted**2 / total
        wanted -= 0 if detached else 0.5 / 24 * wanted / total
    np.testing.assert_allclose(mean, np.full([3, 2], wanted), rtol=1e-5)
    np.testing.assert_allclose(0.5 * np.log(variance), np.full([3, 2], log_stddev), rtol=1e-5)


def test_the_pooled_posterior_may_become_the_prior():
    process = algorithms.variational(mlp(), "log_linear_pool", update_prior=True, local_epochs=1, batch_size=8)
    state = process.local.initialize()
    for _ in range(2):
        work = clients.variational(mlp(), update_prior=True, local_epochs=1, batch_size=8)()
        result = work(ServerMessage(state.weights, state.round), EXAMPLES, tf.constant([1, 2]))
        assert np.isfinite(result.metrics.kl)
        state = state._replace(weights=result.weights, round=state.round + 1)


def test_sites_need_a_prior_that_stays():
    for recipe in (algorithms.partitioned_vi, functools.partial(algorithms.bayesian_admm, empty_sites=True)):
        kit.refuses(r"beside a prior that stays, and that of 'mlp_.*' follows its", recipe, mlp())


@every_parametrization
def test_standard_deviations_are_permuted_and_return(parametrization):
    model = models.mlp("variational_dropout", (3,), 2, hidden=(), parametrization=parametrization, logit_range=(-17, 5))
    assign_weights(model, moved(get_weights(model)))
    before = get_weights(model).posterior
    with evaluation.permuted_stddevs(model, seed=3):
        inside = get_weights(model).posterior
    assert_same(inside.mean, before.mean)
    np.testing.assert_allclose(np.sort(inside.variance[0], None), np.sort(before.variance[0], None), rtol=1e-4)
    assert not np.allclose(inside.variance[0], before.variance[0])
    assert_same(get_weights(model).posterior, before, rtol=0)
    metrics = evaluation.evaluate_permuted(model, FEATURES, EXAMPLES.labels, num_samples=3)
    assert np.isfinite(metrics["test_nll"])
