"""Predictions depend on the numbers of features, not on their type."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tests.kit import refuses

TYPES = [np.int64, np.int32, np.uint16, np.float32, np.float64]
RNG = np.random.default_rng(5)
TABLE = RNG.integers(0, 9, (6, 3))
SHAPES = {"table": (6, 3), "sequence": (6, 4, 3)}
IMAGES = RNG.integers(0, 256, (6, 4, 4, 1))
LABELS = np.arange(6) % 2


def model(shape):
    inputs = tf.keras.Input(shape)
    outputs = tf.keras.layers.Dense(2, kernel_initializer=tf.keras.initializers.GlorotUniform(7))
    return tf.keras.Model(inputs, outputs(tf.keras.layers.Flatten()(inputs)))


@pytest.mark.parametrize("name", SHAPES)
def test_tables_and_sequences(name):
    numbers = RNG.integers(0, 9, SHAPES[name])
    net = model(numbers.shape[1:])
    wanted = tf.nn.softmax(net(numbers.astype(np.float32))).numpy()
    for dtype in TYPES:
        features = numbers.astype(dtype)
        np.testing.assert_allclose(bfl.evaluation.predict(net, features)[0], wanted, atol=1e-7)
        source = bfl.data.Source("t", "train", features, LABELS)
        assert source.features.dtype == np.float32 and not source.is_image
        np.testing.assert_allclose(bfl.evaluation.predict(net, source.features)[0], wanted, atol=1e-7)


def test_whole_numbers_of_a_table_are_not_scaled():
    """p(class 0 | x = 5) of the logits x and -x."""
    net = tf.keras.Sequential([tf.keras.layers.Dense(2, use_bias=False, input_shape=(1,))])
    net.set_weights([np.array([[1.0, -1.0]])])
    for dtype in [*TYPES, np.uint8]:
        found = bfl.evaluation.predict(net, np.full((1, 1), 5, dtype))[0, 0, 0]
        assert abs(found - 1 / (1 + np.exp(-10))) < 1e-7, dtype


def test_images():
    net = model(IMAGES.shape[1:])
    wanted = tf.nn.softmax(net((IMAGES / 255).astype(np.float32))).numpy()
    for dtype in [np.uint8, *TYPES]:
        features = IMAGES.astype(dtype)
        np.testing.assert_allclose(bfl.evaluation.predict(net, features)[0], wanted, atol=1e-7)
        source = bfl.data.Source("t", "train", features, LABELS)
        assert source.features.dtype == np.uint8 and source.is_image
        assert bfl.evaluation.evaluate(net, features, LABELS).probabilities == pytest.approx(wanted, abs=1e-7)
    np.testing.assert_allclose(bfl.evaluation.predict(net, IMAGES / 255)[0], wanted, atol=1e-7)


@pytest.mark.parametrize("dtype", TYPES)
def test_images_of_other_numbers_are_refused(dtype):
    images = np.where(IMAGES.max() == IMAGES, 4095, IMAGES).astype(dtype)
    message = "images of numbers from .* to 4095, but must be bytes"
    refuses(message, bfl.evaluation.predict, model(images.shape[1:]), images)


def test_masks_of_0_and_1_are_the_same_in_every_type():
    net, masks = model(IMAGES.shape[1:]), IMAGES % 2
    wanted = bfl.evaluation.predict(net, masks.astype(np.float32))
    for dtype in TYPES:
        np.testing.assert_allclose(bfl.evaluation.predict(net, masks.astype(dtype)), wanted, atol=1e-7)


def test_what_is_read_on_demand(tmp_path):
    np.save(tmp_path / "rows.npy", TABLE)
    rows = np.load(tmp_path / "rows.npy", mmap_mode="r")
    clients = bfl.data.Clients(bfl.data.Source("t", "train", rows, LABELS), [np.arange(3), np.arange(3, 6)])
    assert clients.examples(0).features.dtype == np.float32
    np.testing.assert_array_equal(clients.examples(1).features, TABLE[3:])
    net = model((3,))
    assert np.array_equal(*(bfl.evaluation.predict(net, x) for x in (rows, TABLE.astype(np.float32))))
    np.save(tmp_path / "images.npy", IMAGES)
    images = np.load(tmp_path / "images.npy", mmap_mode="r")
    refuses("images of type int64, read on demand, but must be uint8", bfl.data.Source, "t", "train", images, LABELS)


def test_training_on_whole_numbers():
    source = bfl.data.Source("t", "train", np.repeat(TABLE, 4, 0), np.repeat(LABELS, 4))
    clients = source.partition(bfl.data.iid(2), seed=0)
    process = bfl.algorithms.fed_opt(lambda: model((3,)), local_epochs=1)
    assert np.isfinite(bfl.simulate(process, clients, rounds=1, engine="local").rounds[-1]["nll"])


def test_numbers_that_are_not_finite_are_refused():
    rows = np.where(np.arange(18).reshape(6, 3) == 7, np.nan, TABLE)
    refuses("hold 1 numbers that are not finite, the first in example 2", bfl.evaluation.predict, model((3,)), rows)


@pytest.mark.parametrize("score", [bfl.evaluation.evaluate, bfl.evaluation.predict], ids=lambda x: x.__name__)
def test_the_model_comes_first(score):
    arguments = TABLE, *([LABELS] if score is bfl.evaluation.evaluate else []), model((3,))
    refuses("model comes before the features: .* here is a ndarray", score, *arguments)
