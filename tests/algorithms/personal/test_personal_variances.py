"""Sources of personal variances: where they start, their ranges, and what a client gets."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl import layers
from tfp_bfl.algorithms.personal.variances import PERSONAL_VARIANCES
from tfp_bfl.algorithms.personal.work import personal
from tfp_bfl.contracts import ClientWork
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights import ModelWeights, ServerMessage

SOURCES = PERSONAL_VARIANCES
THETA = np.array([0.5, -0.5], np.float32)
NOTHING = MeanField((), ())


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("parametrization", ["log_variance", "log_alpha"])
def test_every_source_begins_near_its_middle_and_goes_round(source, parametrization):
    variances = PERSONAL_VARIANCES[source](3, middle=-6.0, parametrization=parametrization)
    parameters = variances.initialize(2, 0)
    logits = variances.logits(parameters.shared, variances.row(parameters, 1))
    np.testing.assert_allclose(logits, [-6.0, -6.0], atol=2.5 if source == "hypernetwork" else 1e-6)
    variance = variances.variance(logits, THETA)
    np.testing.assert_allclose(variances.inverse(variance, THETA), logits, rtol=1e-5)
    alpha = 1.0 if parametrization == "log_variance" else THETA**2
    np.testing.assert_allclose(variance, np.exp(logits) * alpha, rtol=1e-5)


def test_weights_near_zero_that_did_not_train_have_no_change_of_logits():
    """By log alpha their variance is the floor, from which no logit follows."""
    source = SOURCES["free_variances"](1, parametrization="log_alpha")
    theta = tf.constant([1e-6, 1e-5, 1e-4, 2e-4, 3e-4, 0.1])
    variance = source.variance(tf.fill([6], -2.0), theta)
    np.testing.assert_allclose(source.change((variance, theta), (variance, theta)), np.zeros(6), atol=1e-6)
    moved = source.variance(tf.fill([6], -1.5), 2 * theta)
    at_floor = moved.numpy() < 1.001e-8
    change = source.change((variance, theta), (moved, 2 * theta)).numpy()
    assert at_floor.tolist() == [True] * 3 + [False] * 3
    np.testing.assert_allclose(change[at_floor], 0)
    np.testing.assert_allclose(change[-2:], -0.5, rtol=1e-4)


def test_the_smooth_range_by_hand_and_the_clamped_one_as_published():
    rows = np.array([[-8.5], [-3.0], [0.0], [3.0], [8.5], [-40.0]], np.float32)
    smooth = SOURCES["free_variances"](6)
    found = [float(smooth.logits((), row)[0]) for row in rows]
    np.testing.assert_allclose(found[:5], [-14.97355, -11.381341, -8.5, -5.618659, -2.02645], rtol=1e-6)
    clamped = SOURCES["free_variances"](6, ranged="clamped")
    assert [float(clamped.logits((), row)[0]) for row in rows] == [-17.0, -11.5, -8.5, -5.5, 0.0, -17.0]


@pytest.mark.parametrize("middle", [-8.5, -2.0, -16.0])
def test_the_smooth_range_reaches_both_ends_with_slope_one_in_the_middle(middle):
    source = SOURCES["free_variances"](1, middle=middle)
    raw = tf.constant([-1e3, -1e-3, 0.0, 1e-3, 1e3])
    with tf.GradientTape() as tape:
        tape.watch(raw)
        logits = source.logits((), raw)
    np.testing.assert_allclose(tf.gather(logits, [0, 2, 4]), [-17.0, middle, 0.0], atol=1e-5)
    np.testing.assert_allclose(tape.gradient(logits, raw)[1:4], 1.0, rtol=1e-4)


def test_a_symmetric_range_has_the_bits_of_its_formula_in_graphs():
    """Runs of the default continue from checkpoints bit for bit: graphs divide by numbers as by no tensor."""
    source, raw = SOURCES["free_variances"](1), tf.random.stateless_normal([1000], [3, 4], stddev=8.0)
    found = tf.function(lambda raw: source.logits((), raw))(raw)
    np.testing.assert_array_equal(found, tf.function(lambda raw: -8.5 + 8.5 * tf.tanh(raw / 8.5))(raw))


@pytest.mark.parametrize(
    ("options", "low", "middle", "high"),
    [
        ({}, -17.0, -8.5, 0.0),
        ({"parametrization": "log_alpha"}, -8.0, -2.0, 4.0),
        ({"parametrization": "log_alpha", "logit_range": (-3.0, 1.0), "middle": 0.5}, -3.0, 0.5, 1.0),
    ],
)
def test_ranges_by_parametrization_are_those_of_the_layers(options, low, middle, high):
    source = SOURCES["free_variances"](1, **options)
    np.testing.assert_allclose(source.logits((), np.float32([-1e3, 0.0, 1e3])), [low, middle, high], atol=1e-6)
    of_layer = {name: options[name] for name in ("parametrization", "logit_range") if name in options}
    layer = layers.DenseVariationalDropout(1, **of_layer)
    assert source.logit_range == layer.logit_range and (layer.initial_logit == middle or "middle" in options)
    assert source.variance(source.inverse(tf.constant([1e9]), THETA[:1]), THETA[:1]) <= 1.01 * np.exp(high)


ALPHA = 0.35 / 0.65


@pytest.mark.parametrize("source", SOURCES)
def test_a_start_by_rate_is_relative_to_each_layers_weights(source):
    """sigma^2 = alpha mean theta^2, of .01 and .04 for two layers of two and one weights, for whatever client."""
    means = (tf.constant([[0.1, -0.1]]), tf.constant([0.2]))
    given = {"hidden": (), "embedding_size": 1} if source == "hypernetwork" else {}
    given |= {} if source == "constant_variances" else {"ranged": "clamped"}
    variances = SOURCES[source](2, initial_rate=0.35, **given)
    anchor = ModelWeights(MeanField(means, tuple(map(tf.zeros_like, means))), (), NOTHING)
    parameters = variances.start(means, 0)
    if source == "hypernetwork":
        parameters = parameters._replace(rows=np.zeros((2, 1), np.float32))
    of_client = personal(ClientWork(lambda: None), variances).personal
    for client in (0, 1, 7):
        first, second = of_client(ServerMessage(anchor, 0, parameters), client).posterior.variance
        np.testing.assert_allclose(first, [[ALPHA * 0.01] * 2], rtol=1e-2)
        np.testing.assert_allclose(second, [ALPHA * 0.04], rtol=1e-2)
    theta = tf.constant([0.1, -0.1, 0.2])
    by_alpha = SOURCES[source](2, initial_rate=0.35, parametrization="log_alpha", **given)
    parameters = by_alpha.start(means, 0)
    if source == "hypernetwork":
        parameters = parameters._replace(rows=np.zeros((2, 1), np.float32))
    np.testing.assert_allclose(by_alpha.of_client(parameters, 0, theta), ALPHA * theta**2, rtol=1e-2)
