"""Predictions of numbers: closed forms, sampled truths, and what a mixture's interval promises."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_bfl as bfl
from tests.kit import refuses
from tfp_bfl import evaluation

tfd = tfp.distributions
RNG = np.random.default_rng(0)
MEANS = RNG.normal(size=(7, 5)).astype(np.float32)
VARIANCES = RNG.uniform(0.1, 2.0, (7, 5)).astype(np.float32)


def mixture():
    components = tfd.Normal(MEANS.T, np.sqrt(VARIANCES.T))
    return tfd.MixtureSameFamily(tfd.Categorical(logits=np.zeros((5, 7), np.float32)), components)


def test_the_parts_add_up_to_the_mixtures_variance():
    found = evaluation.summarise_gaussians(MEANS, VARIANCES)
    np.testing.assert_allclose(found.mean, mixture().mean(), rtol=1e-5)
    np.testing.assert_allclose(found.aleatoric + found.epistemic, mixture().variance(), rtol=1e-4)
    assert not np.any(evaluation.summarise_gaussians(MEANS[:1], VARIANCES[:1]).epistemic)


def test_nll_is_the_mixtures():
    labels = RNG.normal(size=5).astype(np.float32)
    found = evaluation.mixture_nll(MEANS, VARIANCES, labels)
    np.testing.assert_allclose(found, -mixture().log_prob(labels), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("coverage", [0.5, 0.9, 0.99])
def test_an_interval_leaves_the_same_out_on_either_side(coverage):
    low, high = evaluation.central_interval(MEANS, VARIANCES, coverage)
    np.testing.assert_allclose(mixture().cdf(low), (1 - coverage) / 2, atol=1e-5)
    np.testing.assert_allclose(mixture().cdf(high), (1 + coverage) / 2, atol=1e-5)
    low, high = evaluation.central_interval(tf.constant([[3.0]]), tf.constant([[4.0]]))
    np.testing.assert_allclose([low[0], high[0]], [3 - 2 * 1.644854, 3 + 2 * 1.644854], rtol=1e-4)


def knowing(noise):
    """A model of one weight that knows y = 2 x, with a log variance that says so much noise."""
    x = tf.keras.Input([1])
    layer = tf.keras.layers.Dense(2)
    model = tf.keras.Model(x, layer(x))
    layer.set_weights([np.array([[2.0, 0.0]], np.float32), np.array([0.0, np.log(noise**2)], np.float32)])
    return model


@pytest.mark.statistical
def test_a_model_that_knows_the_truth_is_scored_as_that():
    """4,000 labels y = 100 + 10 (2 x + .5 e): RMSE 5, coverage .9; 4 sd of each: fails by chance once in 10^4."""
    features = RNG.normal(size=(4000, 1)).astype(np.float32)
    labels = 2 * features[:, 0] + 0.5 * RNG.normal(size=4000).astype(np.float32)
    found = evaluation.evaluate_regression(knowing(0.5), features, labels, scale=10.0, shift=100.0)
    assert found.metrics["rmse"] == pytest.approx(5.0, abs=4 * 5.0 / np.sqrt(8000))
    assert found.metrics["coverage"] == pytest.approx(0.9, abs=4 * np.sqrt(0.09 / 4000))
    assert found.metrics["test_nll"] == pytest.approx(np.log(5.0) + 0.5 * np.log(2 * np.pi * np.e), abs=0.05)
    np.testing.assert_allclose(found.stddev, 5.0, rtol=1e-4)
    np.testing.assert_allclose(found.mean, 100 + 20 * features[:, 0], rtol=1e-3, atol=1e-3)
    assert found.metrics["epistemic"] == 0
    surer = evaluation.evaluate_regression(knowing(0.1), features, labels, scale=10.0, shift=100.0).metrics
    assert surer["coverage"] < 0.3 and surer["test_nll"] > found.metrics["test_nll"] + 1


def test_batches_change_nothing():
    model = bfl.models.mlp("flipout", (3,), 2, seed=1)
    features, labels = RNG.normal(size=(30, 3)).astype(np.float32), RNG.normal(size=30)
    whole, parts = (evaluation.evaluate_regression(model, features, labels, 5, batch_size=b) for b in (30, 7))
    assert whole.metrics["epistemic"] > 0
    for name in ("mean", "epistemic", "low"):
        np.testing.assert_allclose(getattr(whole, name), getattr(parts, name), rtol=1e-4, atol=1e-5)


def test_bad_models_and_labels_are_refused():
    model = lambda outputs: bfl.models.mlp("deterministic", (3,), outputs)
    refuses("gives 3 outputs", evaluation.evaluate_regression, model(3), np.zeros((2, 3)), np.zeros(2))
    refuses("one for each of the 2", evaluation.evaluate_regression, model(2), np.zeros((2, 3)), np.zeros(3))


@pytest.mark.parametrize("shift", [0.0, 1e9, -1e12])
def test_scores_in_units_are_those_of_standardised_labels(shift):
    """RMSE was 0, and all intervals covered, where float32 has no digits left for y = shift + 10 label."""
    features = RNG.normal(size=(300, 1)).astype(np.float32)
    labels = (2 * features[:, 0] + 0.5 * RNG.normal(size=300)).astype(np.float32)
    model = knowing(0.5)
    plain = evaluation.evaluate_regression(model, features, labels)
    found = evaluation.evaluate_regression(model, features, labels, scale=10.0, shift=shift)
    ratios = {"rmse": 10, "mae": 10, "crps": 10, "coverage": 1, "interval_width": 10, "aleatoric": 100, "epistemic": 1}
    for name, ratio in ratios.items():
        assert found.metrics[name] == pytest.approx(ratio * plain.metrics[name], rel=1e-6)
    assert found.metrics["test_nll"] == pytest.approx(plain.metrics["test_nll"] + np.log(10))
    assert 0 < found.metrics["coverage"] < 1
    for name in ("mean", "low", "high"):
        assert getattr(found, name).dtype == np.float64
        np.testing.assert_allclose((getattr(found, name) - shift) / 10, getattr(plain, name), atol=1e-4)


@pytest.mark.parametrize("units", [{"scale": 0.0}, {"scale": -1.0}, {"scale": float("nan")}, {"shift": float("inf")}])
def test_units_that_are_none_are_refused(units):
    rows = np.zeros((2, 1), np.float32)
    refuses(next(iter(units)), evaluation.evaluate_regression, knowing(0.5), rows, np.zeros(2), **units)
