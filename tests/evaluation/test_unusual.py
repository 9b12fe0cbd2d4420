"""The score of unusual examples: federated sums, false alarms, known shifts, and the output of exports."""

import math

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tests.kit import assert_same, refuses
from tests.lite import lite_interpreter
from tfp_bfl.data import Clients, Source
from tfp_bfl.evaluation import unusual

CLASSES, WIDTH = 3, 4


def rows(number, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, number)
    return (rng.normal(size=(number, WIDTH)) + 4 * np.eye(CLASSES, WIDTH)[labels]).astype(np.float32), labels


def model(kind="deterministic"):
    return bfl.models.mlp(kind, (WIDTH,), CLASSES, hidden=(8,), seed=0)


def clients_of(*sizes, number=300):
    features, labels = rows(number, 1)
    source = Source("mixture", "train", features, labels.astype(np.int32), [str(c) for c in range(CLASSES)])
    return Clients(source, np.split(np.arange(number), np.cumsum(sizes)))


def fit(*arguments, num_classes=CLASSES, **options):
    return bfl.evaluation.fit_unusual(*arguments, num_classes=num_classes, **options)


def score(fitted, network, features):
    with bfl.layers.sampling("mean"):
        below = unusual.penultimate(network)(tf.constant(features))
    return unusual.unusual_score(fitted, below, tf.constant(features)).numpy()


def test_sums_of_clients_are_those_of_all_examples():
    held_out = rows(200, 2)[0]
    one, many = (fit(model(), clients, held_out) for clients in (clients_of(), clients_of(7, 90)))
    assert_same(one[:1] + one[2:], many[:1] + many[2:], rtol=1e-4)
    np.testing.assert_allclose(one.root @ one.root.T, many.root @ many.root.T, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("false_alarms", [0.01, 0.1])
def test_examples_like_the_held_out_ones_are_rarely_unusual(false_alarms):
    """20,000 new examples against a threshold of 2,000.

    Error rate: the share above the threshold has a Beta distribution over held-out sets with mean at most 0.01 (0.1)
    and standard deviation below 0.0023 (0.007); beyond the bound 0.02 (0.13) it lies with probability below 1e-4.
    """
    network = model()
    fitted = fit(network, clients_of(100), rows(2000, 3)[0], false_alarms=false_alarms)
    share = np.mean(score(fitted, network, rows(20_000, 4)[0]) > 1)
    assert false_alarms / 4 < share < {0.01: 0.02, 0.1: 0.13}[false_alarms]
    assert fitted.rate <= false_alarms and fitted.number == 2000


def test_known_shifts_are_found():
    network = model()
    fitted = fit(network, clients_of(100), rows(1000, 3)[0])
    # One column far outside its range, and all columns between the classes and beyond them.
    moved = rows(200, 5)[0]
    moved[:, 3] += 12
    assert np.mean(score(fitted, network, moved) > 1) > 0.99
    assert np.mean(score(fitted, network, 4 * rows(200, 6)[0]) > 1) > 0.5


def test_a_column_that_is_constant_in_training_has_no_range():
    """Else one held-out row with another value there would make every row usual."""
    features, labels = rows(300, 1)
    features[:, 3] = 0.0
    source = Source("mixture", "train", features, labels.astype(np.int32), [str(c) for c in range(CLASSES)])
    held_out = rows(100, 3)[0]
    held_out[:, 3] = 0.0
    held_out[0, 3] = 19.0
    clients, network = Clients(source, [np.arange(300)]), model()
    fitted = fit(network, clients, held_out)
    assert fitted.range_limit < 3
    far = held_out[1:2] + np.float32([60, 0, 0, 0])
    assert score(fitted, network, far)[0] > 5


def test_few_held_out_examples_classes_without_examples_and_regression():
    clients = clients_of()
    assert fit(model(), clients, rows(19, 3)[0]).rate == pytest.approx(2 / 20)
    fitted = fit(model(), clients, rows(50, 3)[0], num_classes=CLASSES + 2)
    assert fitted.means.shape == (CLASSES, 8)
    assert fit(model(), clients, rows(50, 3)[0], num_classes=0).means.shape == (1, 8)


@pytest.mark.parametrize("kind", ["flipout", "mc_dropout"])
def test_models_with_noise_have_features_at_the_mean(kind):
    assert math.isfinite(fit(model(kind), clients_of(), rows(100, 3)[0]).feature_limit)


def images(number, seed, scale=60):
    rng = np.random.default_rng(seed)
    return np.clip(rng.normal(128, scale, (number, 6, 6, 1)), 0, 255).astype(np.uint8)


def test_images_have_no_ranges():
    inputs = tf.keras.Input((6, 6, 1))
    x = tf.keras.layers.Conv2D(4, 3, activation="relu")(inputs)
    network = tf.keras.Model(inputs, tf.keras.layers.Dense(2)(tf.keras.layers.Flatten()(x)))
    source = Source("noise", "train", images(100, 0), np.arange(100, dtype=np.int32) % 2, ["a", "b"])
    fitted = fit(network, Clients(source, [np.arange(100)]), images(99, 1), num_classes=2)
    assert fitted.range_limit == math.inf and fitted.rate == pytest.approx(0.01)
    below = lambda x: unusual.penultimate(network)(tf.image.convert_image_dtype(x, tf.float32))
    assert np.mean(unusual.unusual_score(fitted, below(images(50, 2, 1)), None).numpy() > 1) < 0.1


@pytest.mark.parametrize("kind", ["deterministic", "flipout"])
def test_the_saved_model_scores_the_same(kind, tmp_path):
    network, held_out = model(kind), rows(300, 3)[0]
    fitted = fit(network, clients_of(), held_out)
    bfl.export.save(network, tmp_path / "model", unusual=fitted)
    loaded = bfl.export.load(tmp_path / "model")
    moved = np.concatenate([held_out[:5], held_out[:5] + 20])
    wanted = score(fitted, network, moved)
    for answer in (loaded.predict(moved), loaded.mean(moved), loaded.abstain(moved, 2, 0, 0.5)):
        np.testing.assert_allclose(answer["unusual"], wanted, rtol=1e-4)
    assert np.all(wanted[5:] > 1)
    assert set(loaded.sample(moved)) == {"probabilities"}
    stated = bfl.export.read_info(tmp_path / "model").data["unusual"]
    assert stated["number"] == 300 and stated["rate"] <= 0.01
    assert "exceeds 1 for examples unlike the training data" in (tmp_path / "model" / "model_card.md").read_text()
    bfl.export.save(tmp_path / "model", tmp_path / "copy")
    assert "unusual" in bfl.export.load(tmp_path / "copy").predict(moved)


def test_a_lite_model_scores_the_same(tmp_path):
    network, held_out = model(), rows(300, 3)[0]
    fitted = fit(network, clients_of(), held_out)
    bfl.export.save(network, tmp_path / "model", unusual=fitted)
    bfl.export.save_tflite(tmp_path / "model", tmp_path / "model.tflite")
    runner = lite_interpreter(tmp_path / "model.tflite").get_signature_runner("predict")
    np.testing.assert_allclose(runner(images=held_out[:3])["unusual"], score(fitted, network, held_out[:3]), rtol=1e-4)


def test_a_folder_is_exported_with_its_own_score_and_no_other(tmp_path):
    network = model()
    fitted = fit(network, clients_of(), rows(50, 3)[0])
    bfl.export.save(network, tmp_path / "model")
    save, copy = bfl.export.save, tmp_path / "copy"
    refuses("unusual is for a Keras model, and .*model is a folder", save, tmp_path / "model", copy, unusual=fitted)
    refuses(r"must be the result of evaluation\.fit_unusual", save, network, copy, unusual=0.01)
    assert not copy.exists()


def test_bad_input_is_refused():
    refuses("needs held-out examples", fit, model(), clients_of(), rows(0, 3)[0])
    refuses("above 0 and below 1", fit, model(), clients_of(), rows(9, 3)[0], false_alarms=1.0)
    wide = tf.keras.Sequential([tf.keras.layers.Dense(3000, input_shape=(4,)), tf.keras.layers.Dense(2)])
    refuses("at most 2,048 features", unusual.penultimate, wide)
