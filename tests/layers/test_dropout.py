import numpy as np
import pytest
import tensorflow as tf

from tests.kit import refuses
from tfp_bfl.evaluation import is_stochastic
from tfp_bfl.layers import MCDropout, sampling


def drop(inputs, rate=0.3, seed=(1, 2), mode="flipout", **options):
    with sampling(mode, seed):
        return MCDropout(rate)(inputs, **options).numpy()


@pytest.mark.statistical
@pytest.mark.parametrize("mode", ["flipout", "shared"])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_rate_and_expectation(rate, mode):
    """The share of zeros of 100,000 draws within 4.5 standard deviations of a binomial: an error rate below 1e-4."""
    # In mode "shared" one mask serves all examples: 100,000 units instead.
    shape = [1, 100_000] if mode == "shared" else [1000, 100]
    outputs = drop(tf.fill(shape, 2.0), rate, mode=mode)
    assert abs((outputs == 0).mean() - rate) < 4.5 * np.sqrt(rate * (1 - rate) / 1e5)
    np.testing.assert_allclose(outputs[outputs != 0], 2 / (1 - rate), rtol=1e-6)
    np.testing.assert_allclose(outputs.mean(), 2, atol=2 * 4.5 * np.sqrt(rate / (1 - rate) / 1e5))


@pytest.mark.statistical
def test_units_and_examples_are_dropped_independently():
    """Correlations of 20 units over 5,000 examples, and of neighbouring examples: 5 sd, below 2e-4."""
    kept = drop(tf.ones([5000, 20]), 0.5) > 0
    units = np.corrcoef(kept.T) - np.eye(20)
    assert np.abs(units).max() < 5 / np.sqrt(5000)
    examples = np.corrcoef(kept[:-1].ravel(), kept[1:].ravel())[0, 1]
    assert abs(examples) < 5 / np.sqrt(100_000)


@pytest.mark.parametrize("training", [True, False, None])
def test_on_in_training_and_at_prediction(training):
    assert (drop(tf.ones([8, 50]), 0.5, training=training) == 0).any()
    model = tf.keras.Sequential([tf.keras.Input((50,)), MCDropout(0.5)])
    tf.random.set_seed(0)
    assert (model.predict(np.ones((8, 50)), verbose=0) == 0).any()


def test_off_in_mean_mode_and_at_rate_zero():
    inputs = np.random.default_rng(0).normal(size=(8, 50)).astype(np.float32)
    np.testing.assert_array_equal(drop(inputs, 0.5, mode="mean"), inputs)
    np.testing.assert_array_equal(drop(inputs, 0.0), inputs)


def test_seeds():
    inputs = tf.ones([8, 50])
    np.testing.assert_array_equal(drop(inputs), drop(inputs))
    assert (drop(inputs) != drop(inputs, seed=(1, 3))).any()
    layer = MCDropout(0.5)
    with sampling(seed=[1, 2]):
        assert (layer(inputs).numpy() != layer(inputs).numpy()).any()
    tf.random.set_seed(4)
    first, second = layer(inputs).numpy(), layer(inputs).numpy()
    tf.random.set_seed(4)
    np.testing.assert_array_equal(layer(inputs), first)
    assert (first != second).any()


def test_gradient_passes_what_is_kept():
    inputs = tf.Variable(tf.ones([4, 10]))
    with tf.GradientTape() as tape, sampling(seed=[1, 2]):
        outputs = MCDropout(0.5)(inputs)
    np.testing.assert_array_equal(tape.gradient(outputs, inputs), outputs)  # inputs are 1: slope and output agree


def test_configuration_round_trip(tmp_path):
    assert MCDropout.from_config(MCDropout(0.37).get_config()).rate == 0.37
    model = tf.keras.Sequential([tf.keras.Input((50,)), MCDropout(0.37)])
    model.save(tmp_path / "m.keras")
    assert tf.keras.models.load_model(tmp_path / "m.keras").layers[-1].rate == 0.37


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, float("nan")])
def test_bad_rate(rate):
    refuses("rate must be at least 0 and below 1", MCDropout, rate)


def test_shared_mode_has_one_mask_for_the_batch():
    with sampling("shared", [3, 4]):
        shared = MCDropout(0.5)(tf.ones([6, 40])).numpy()
    with sampling("flipout", [3, 4]):
        own = MCDropout(0.5)(tf.ones([6, 40])).numpy()
    assert (shared == shared[0]).all() and not (own == own[0]).all()


def test_ordinary_dropout_is_of_training_alone():
    layer, inputs = MCDropout(0.5, at_prediction=False), tf.ones([4, 100])
    assert np.array_equal(layer(inputs, training=False), inputs) and np.array_equal(layer(inputs), inputs)
    assert 0.3 < np.mean(layer(inputs, training=True) == 0) < 0.7
    model = tf.keras.Sequential([tf.keras.Input([100]), layer])
    assert not is_stochastic(model)
