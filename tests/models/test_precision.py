"""A model's twin in bfloat16: the same function to three digits, of variables that stay float32."""

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import refuses
from tfp_bfl import models
from tfp_bfl.layers import sampling
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights import assign_weights, get_weights, predictive_model

IMAGE = (16, 16, 1)
IMAGES = np.random.default_rng(0).uniform(size=[6, *IMAGE]).astype(np.float32)
CASES = {
    **{f"lenet {kind}": (models.lenet, kind, {}) for kind in models.KINDS},
    "lenet variational bias": (models.lenet, "flipout", {"variational_bias": True, "normalization": "group"}),
    **{f"resnet20 {kind}": (models.resnet20, kind, {}) for kind in models.KINDS},
    "mlp flipout": (models.mlp, "flipout", {}),
}


def build(case):
    builder, kind, options = CASES[case]
    return builder(kind, input_shape=IMAGE, num_classes=3, **{"initial_stddev": 0.05, **options})


def logits(model, seed=(1, 2)):
    with sampling("shared", tf.constant(seed)):
        return model(IMAGES, training=False)


@pytest.mark.deep(after="tests/models/test_precision.py")
@pytest.mark.parametrize("case", CASES)
def test_it_is_the_model_to_three_digits(case):
    model = build(case)
    twin = models.in_bfloat16(model)
    wanted, found = logits(model), logits(twin)
    assert found.dtype == tf.float32 and {v.dtype for v in twin.variables} == {tf.float32}
    assert "bfloat16" in {layer.compute_dtype for layer in twin._flatten_layers()}
    difference = np.abs(found - wanted).max()
    assert 0 < difference < 0.05 * np.abs(wanted).max()
    if "deterministic" not in case:  # the same draw, not another one
        assert np.abs(logits(model, seed=(3, 4)) - wanted).max() > 3 * difference


def test_it_follows_the_models_weights_and_is_made_once():
    model, other = build("lenet flipout"), models.lenet("flipout", input_shape=IMAGE, num_classes=3, seed=5)
    twin = models.in_bfloat16(model)
    assign_weights(model, get_weights(other))
    assert models.in_bfloat16(model) is twin
    np.testing.assert_allclose(logits(twin), logits(other), atol=0.05 * np.abs(logits(other)).max())


@pytest.mark.deep(after="tests/weights/test_posterior_model.py")
@pytest.mark.parametrize("examples", [None, IMAGES])
def test_a_posterior_beside_the_model_is_drawn_from(examples):
    base = build("resnet20 deterministic")
    weights = get_weights(base)
    posterior = MeanField(weights.point, tuple(tf.fill(w.shape, 1e-4) for w in weights.point))
    model = predictive_model(base, weights._replace(posterior=posterior, point=()), examples)
    wanted, found = logits(model), logits(models.in_bfloat16(model))
    difference = np.abs(found - wanted).max()
    assert 0 < difference < 0.1 * np.abs(wanted).max()
    assert np.abs(logits(model, seed=(3, 4)) - wanted).max() > 2 * difference


def test_a_model_that_computes_in_bfloat16_stays_as_it_is():
    model = models.lenet("flipout", input_shape=IMAGE, precision="bfloat16")
    np.testing.assert_array_equal(logits(models.in_bfloat16(model)), logits(model))


def test_other_models_are_refused_in_one_sentence():
    class Own(tf.keras.Model):
        def call(self, inputs):
            return inputs

    refuses("must be functional or sequential", models.in_bfloat16, Own())
