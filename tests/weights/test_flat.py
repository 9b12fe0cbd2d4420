"""The trainable weights as two vectors: against `get_weights`, TFP's KL and automatic differentiation."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests.kit import assert_same
from tfp_bfl import models, posterior
from tfp_bfl.layers import DenseFlipout, MCDropout, sampling
from tfp_bfl.weights import FlatWeights, get_weights
from tfp_bfl.weights import layout as layout_weights
from tfp_bfl.weights import prior as prior_weights

from .test_model_weights import random_like


def build(name, **options):
    shape = {"lenet": (8, 8, 1), "mlp": (5,)}[name]
    return models.MODELS[name](input_shape=shape, num_classes=4, **options)


CASES = {
    f"{name} {kind} {'batch' if options else ''}".strip(): (name, {"kind": kind, **options})
    for name in ("lenet", "mlp")
    for kind in models.KINDS
    for options in ({}, {"normalization": "batch"})
    if name == "lenet" or not options
}
CASES["lenet variational bias"] = ("lenet", {"variational_bias": True, "normalization": "batch"})
# Without a posterior LeNet's layers are the MLP's to a vector, and with BatchNorm it has all that it has without.
deep = pytest.mark.deep(after="tests/weights/test_flat.py")
FAST = ("lenet flipout batch", "lenet variational bias")
every_case = pytest.mark.parametrize(
    "case", [case if case in FAST or case.startswith("mlp") else pytest.param(case, marks=deep) for case in CASES]
)


def make(case, **options):
    name, fixed = CASES[case]
    return build(name, **{**fixed, **options})


def mixed():
    """Two variational layers of another prior and floor each, with point weights before and between them."""
    inputs = tf.keras.Input((3,))
    x = tf.keras.layers.Dense(4)(inputs)
    x = DenseFlipout(5, prior_stddev=0.5, min_stddev=0.01, initial_stddev=0.05)(x)
    x = tf.keras.layers.BatchNormalization()(x)
    x = MCDropout(0.1)(x)
    return tf.keras.Model(
        inputs, DenseFlipout(2, prior_stddev=3.0, min_stddev=0.2, initial_stddev=0.2, variational_bias=True)(x)
    )


def vector(tensors):
    return np.concatenate([np.reshape(t, -1) for t in tensors] or [np.zeros(0, np.float32)])


def without_variance(weights):
    return weights.posterior.mean, weights.point, weights.moments


@every_case
def test_round_trip(case):
    model = make(case)
    flat, weights = FlatWeights(model), random_like(get_weights(model))
    flat.load(weights)
    stored = flat.store()
    assert_same(stored, weights, rtol=1e-6)
    assert_same(without_variance(stored), without_variance(weights))
    assert_same(without_variance(get_weights(model)), without_variance(weights))  # the model came along
    other = random_like(weights, seed=1)
    flat.load(other)
    assert_same(flat.store(), other, rtol=1e-6)


@pytest.mark.parametrize("case", ["lenet variational bias", "mlp deterministic"])
def test_round_trip_inside_a_function(case):
    flat = FlatWeights(model := make(case))
    weights = random_like(get_weights(model))

    @tf.function
    def there_and_back(weights):
        flat.load(weights)
        return flat.store()

    assert_same(there_and_back(weights), weights, rtol=1e-6)


@every_case
def test_vectors_hold_means_then_points_in_the_order_of_the_layers(case):
    flat = FlatWeights(model := make(case))
    weights = random_like(get_weights(model))
    flat.load(weights)
    np.testing.assert_array_equal(flat.values, vector([*weights.posterior.mean, *weights.point]))
    np.testing.assert_allclose(flat.log_stddev, 0.5 * np.log(vector(weights.posterior.variance)), rtol=1e-6, atol=1e-6)
    assert flat.variables[0] is flat.values and len(flat.variables) == (2 if weights.posterior.mean else 1)
    layout = layout_weights(model)
    wanted = [*(w.mean for w in layout.variational), *layout.point]
    assert list(map(id, flat.leaves)) == list(map(id, wanted))
    np.testing.assert_array_equal(flat.flatten(list(map(tf.convert_to_tensor, flat.leaves))), flat.values)


@every_case
def test_update_model_sets_means_and_points_and_nothing_else(case):
    flat = FlatWeights(model := make(case))
    flat.load(random_like(get_weights(model)))
    before = get_weights(model)
    flat.values.assign(np.arange(flat.values.shape[0], dtype=np.float32))
    assert_same(get_weights(model), before)  # not before the call
    flat.update_model()
    after = get_weights(model)
    np.testing.assert_array_equal(vector([*after.posterior.mean, *after.point]), flat.values)
    assert_same((after.posterior.variance, after.moments), (before.posterior.variance, before.moments))


def test_statistics_that_the_model_has_changed_are_stored():
    flat = FlatWeights(model := mixed())
    (moving,) = layout_weights(model).moving_mean
    moving.assign_add(tf.ones_like(moving))
    (stored,) = flat.store().moments.mean
    np.testing.assert_array_equal(stored, np.ones(5))


def test_each_weight_has_its_floor():
    flat = FlatWeights(model := mixed())
    weights = get_weights(model)
    low = weights.posterior._replace(variance=tuple(tf.fill(v.shape, 1e-8) for v in weights.posterior.variance))
    flat.load(weights._replace(posterior=low))
    floors = (0.01, 0.2, 0.2)
    for variance, floor in zip(flat.store().posterior.variance, floors, strict=True):
        np.testing.assert_allclose(variance, np.full(variance.shape, floor**2), rtol=1e-5)
    wide = weights.posterior._replace(variance=tuple(tf.fill(v.shape, 0.25) for v in weights.posterior.variance))
    flat.load(weights._replace(posterior=wide))
    assert_same(flat.store().posterior.variance, wide.variance, rtol=1e-6)


def test_steps_stop_at_the_floor_and_leave_it_again():
    flat = FlatWeights(model := mixed())
    flat.load(get_weights(model))
    optimizer = tf.keras.optimizers.SGD(1.0)
    optimizer.build(flat.variables)
    values = flat.values.numpy()
    optimizer.apply_gradients([(tf.fill(flat.log_stddev.shape, 9.0), flat.log_stddev)])
    for variance, floor in zip(flat.store().posterior.variance, (0.01, 0.2, 0.2), strict=True):
        np.testing.assert_allclose(variance, np.full(variance.shape, floor**2), rtol=1e-5)
    optimizer.apply_gradients([(tf.fill(flat.log_stddev.shape, -0.1), flat.log_stddev)])
    for variance, floor in zip(flat.store().posterior.variance, (0.01, 0.2, 0.2), strict=True):
        np.testing.assert_allclose(variance, np.full(variance.shape, (floor * np.exp(0.1)) ** 2), rtol=1e-5)
    np.testing.assert_array_equal(flat.values, values)


def kl_of_tfp(model, means, log_stddevs):
    """KL[q || prior] in float64, from variables of each weight."""
    total = 0.0
    for w, mean, log_stddev in zip(layout_weights(model).variational, means, log_stddevs, strict=True):
        q = tfp.distributions.Normal(mean, tf.exp(log_stddev))
        p = tfp.distributions.Normal(np.float64(0), np.float64(w.prior))
        total += tf.reduce_sum(tfp.distributions.kl_divergence(q, p))
    return total


@pytest.mark.parametrize(
    "build_model",
    [mixed, lambda: make("lenet variational bias"), lambda: make("mlp flipout", prior_stddev=0.3)],
    ids=["mixed", "lenet", "mlp"],
)
def test_kl_and_its_gradients_are_those_of_tfp(build_model):
    flat = FlatWeights(model := build_model())
    weights = random_like(get_weights(model))
    flat.load(weights)
    means = [tf.Variable(np.float64(m)) for m in weights.posterior.mean]
    log_stddevs = [tf.Variable(0.5 * np.log(np.float64(v))) for v in weights.posterior.variance]
    with tf.GradientTape() as tape:
        wanted = kl_of_tfp(model, means, log_stddevs)
    in_means, in_log_stddevs = tape.gradient(wanted, (means, log_stddevs))
    kl, in_values, in_log_stddev = flat.kl_divergence(tf.exp(flat.log_stddev), flat.prior)
    np.testing.assert_allclose(kl, wanted, rtol=1e-5)
    number = len(vector(in_means))
    np.testing.assert_allclose(in_values[:number], vector(in_means), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(in_log_stddev, vector(in_log_stddevs), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(in_values[number:], np.zeros(len(vector(weights.point))))  # no prior, no pull
    assert len(in_values) > number


def test_kl_and_its_gradients_by_automatic_differentiation():
    """The value's own derivative: the three that are returned belong together."""
    flat = FlatWeights(model := mixed())
    flat.load(random_like(get_weights(model)))
    with tf.GradientTape() as tape:
        kl, in_values, in_log_stddev = flat.kl_divergence(tf.exp(flat.log_stddev), flat.prior)
    for ours, automatic in zip((in_values, in_log_stddev), tape.gradient(kl, [flat.values, flat.log_stddev])):
        np.testing.assert_allclose(ours, automatic, rtol=1e-5, atol=1e-6)
        assert np.abs(ours).max() > 0.1


def test_a_posterior_as_the_prior():
    flat = FlatWeights(model := mixed())
    weights, other = random_like(get_weights(model)), random_like(get_weights(model), 1)
    flat.load(weights)
    prior = flat.as_prior(other.posterior)
    with tf.GradientTape() as tape:
        kl, in_values, in_log_stddev = flat.kl_divergence(tf.exp(flat.log_stddev), prior)
    q = flat.store().posterior
    np.testing.assert_allclose(kl, posterior.kl_divergence(q, other.posterior), rtol=1e-5)
    assert_same((in_values, in_log_stddev), tape.gradient(kl, [flat.values, flat.log_stddev]), rtol=1e-5, atol=1e-5)
    points = flat.values.shape[0] - flat.log_stddev.shape[0]
    np.testing.assert_array_equal(in_values[-points:], np.zeros(points))


def test_kl_of_the_prior_is_zero_and_has_no_gradient():
    flat = FlatWeights(model := mixed())
    weights = get_weights(model)
    flat.load(weights._replace(posterior=prior_weights(model)))
    kl, in_values, in_log_stddev = flat.kl_divergence(tf.exp(flat.log_stddev), flat.prior)
    np.testing.assert_allclose(kl, 0, atol=1e-4)
    for gradient in (in_values, in_log_stddev):
        np.testing.assert_allclose(gradient, np.zeros(gradient.shape), atol=1e-5)


@pytest.mark.parametrize("case", ["lenet deterministic batch", "mlp mc_dropout"])
def test_without_a_posterior_there_is_no_kl(case):
    flat = FlatWeights(model := make(case))
    flat.load(random_like(get_weights(model)))
    kl, in_values, in_log_stddev = flat.kl_divergence(tf.exp(flat.log_stddev), flat.prior)
    assert kl == 0 and in_log_stddev.shape == (0,)
    np.testing.assert_array_equal(in_values, np.zeros(flat.values.shape))
    stddev, noise = flat.draw(tf.constant([1, 2]))
    assert stddev.shape == noise.shape == (0,) and flat.by_weight(noise) == {}


@pytest.mark.statistical
def test_draws_are_normal_with_the_posteriors_standard_deviations():
    """200 draws of 32 weights over s: variance 1 and mean 0 within 5 standard errors, each 6e-7."""
    flat = FlatWeights(model := mixed())
    flat.load(random_like(get_weights(model)))
    draws = [flat.draw(tf.constant([1, i])) for i in range(200)]
    stddev = np.exp(flat.log_stddev.numpy())
    for draw in draws:
        np.testing.assert_allclose(draw.stddev, stddev, rtol=1e-6)
    scaled = np.stack([draw.noise for draw in draws]) / stddev
    error = 1 / np.sqrt(scaled.size)
    assert abs(scaled.mean()) < 5 * error and abs(np.mean(scaled**2) - 1) < 5 * np.sqrt(2) * error
    np.testing.assert_array_equal(flat.draw(tf.constant([1, 0])).noise, draws[0].noise)


@pytest.mark.parametrize("case", ["lenet variational bias", "mlp flipout"])
def test_layers_take_the_noise_as_their_weights_own(case):
    """In "shared" mode, weights plus noise are the weights of a model without noise."""
    flat = FlatWeights(model := make(case))
    flat.load(random_like(get_weights(model)))
    _, noise = flat.draw(tf.constant([1, 2]))
    inputs = np.random.default_rng(0).normal(size=(3, *model.input_shape[1:])).astype(np.float32)
    with sampling("shared", [1, 2], flat.by_weight(noise)):
        drawn = model(inputs, training=False)
    points = flat.values.shape[0] - noise.shape[0]
    flat.values.assign_add(tf.pad(noise, [[0, points]]))
    flat.update_model()
    with sampling("mean"):
        np.testing.assert_allclose(drawn, model(inputs, training=False), rtol=1e-4, atol=1e-4 * np.abs(drawn).max())
