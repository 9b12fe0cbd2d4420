"""Inputs of an exported model: pixels in their range, unscaled rows of a table, and required information."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl import evaluation, export, models
from tfp_bfl.errors import InvalidArgument

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(256, size=[4, 8, 8, 1]).astype(np.uint8)
COLUMNS = [["age", 50.0, 9.0], ["dose", 2.0, 0.5], ["weight", -3.0, 1e3]]
ROWS = np.stack([RNG.normal(mean, stddev, 6) for _, mean, stddev in COLUMNS], -1).astype(np.float32)
WRONG = "images are floats outside 0 to 1, but must be uint8, or floats in"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "images"
    export.save(models.mlp("flipout", (8, 8, 1), num_classes=10, hidden=(), initial_stddev=0.1), folder)
    return export.load(folder)


@pytest.fixture(scope="module")
def table():
    return models.mlp("flipout", (3,), num_classes=2, hidden=(4,), initial_stddev=0.3)


@pytest.fixture(scope="module")
def of_rows(tmp_path_factory, table):
    folder = tmp_path_factory.mktemp("models") / "table"
    export.save(table, folder, export.Info(data={"columns": COLUMNS}))
    return folder


@pytest.mark.parametrize("name", ["mean", "sample", "predict"])
def test_pixels_that_nobody_scaled_are_refused(images, name):
    refuses(WRONG, getattr(images, name), PIXELS.astype(np.float32))
    refuses(WRONG, getattr(images, name), PIXELS / np.float32(127.5) - 1)
    refuses(WRONG, images.signatures[name], images=tf.constant(PIXELS.astype(np.float32)), **numbers(name))


def refuses(message, function, *arguments, **options):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        function(*arguments, **options)


def numbers(name):
    return {} if name == "mean" else {"num_samples": tf.constant(2), "seed": tf.constant(0)}


def test_right_pixels_are_taken_whatever_their_type(images):
    answer = images.predict(PIXELS)
    wanted = answer["probabilities"]
    np.testing.assert_array_equal(answer["mean"], wanted)  # Its name in `evaluation.decompose`.
    whole = [PIXELS.astype(dtype) for dtype in (np.int32, np.int64)]
    for same in (PIXELS / np.float32(255), PIXELS / 255.0, tf.constant(PIXELS), *whole):
        np.testing.assert_allclose(images.predict(same)["probabilities"], wanted, rtol=1e-5)
    images.predict(PIXELS / np.float32(255) + np.float32(0.009))  # As a resized image may be.
    for outside in (PIXELS.astype(np.int64) - 1, PIXELS.astype(np.int32) * 16):
        refuses("images are whole numbers outside 0 to 255", images.predict, outside)
    broken = PIXELS / np.float32(255)
    broken[0, 0, 0, 0] = np.nan
    refuses("examples hold numbers that are not finite", images.predict, broken)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["mean", "sample", "predict", "abstain"])
def test_rows_that_are_not_finite_are_refused(of_rows, name, number):
    """A relu would make a number of one that is none, and the model would be sure of it."""
    rows, limit = ROWS.copy(), {"max_uncertainty": tf.constant(0.5)} if name == "abstain" else {}
    rows[3, 1] = number
    signature = export.load(of_rows).signatures[name]
    refuses("numbers that are not finite: fill them in", signature, images=tf.constant(rows), **numbers(name), **limit)


def test_twenty_samples_and_seed_zero_need_not_be_said(images):
    said = images.predict(PIXELS, num_samples=20, seed=0)
    for name, value in images.predict(PIXELS).items():
        np.testing.assert_array_equal(value, said[name])
    assert np.array_equal(*(x["probabilities"] for x in (images.sample(PIXELS, seed=3), images.sample(PIXELS, 20, 3))))
    with pytest.raises(TypeError):
        images.abstain(PIXELS)  # Nobody but its user knows the limit.


def test_rows_are_standardised_inside(table, of_rows):
    means, stddevs = (np.array([column[i] for column in COLUMNS], np.float32) for i in (1, 2))
    wanted = evaluation.predict(table, (ROWS - means) / stddevs, num_samples=20, seed=0).mean(0)
    loaded = export.load(of_rows)
    np.testing.assert_allclose(loaded.predict(ROWS)["probabilities"], wanted, rtol=1e-4)
    whole = np.rint(ROWS)
    for dtype in (np.float64, np.int32, np.int64):
        for name in ("mean", "sample", "predict"):
            found, same = (getattr(loaded, name)(x)["probabilities"] for x in (whole.astype(dtype), whole))
            np.testing.assert_allclose(found, same, atol=1e-7)
    info = export.read_info(of_rows)
    assert [name for name, _, _ in export.columns_of(info)] == ["age", "dose", "weight"]
    card = (of_rows / "model_card.md").read_text()
    assert "Columns: age, dose, weight." in card and "standardised inside" in card


BAD = [["age", 1.0, -1.0]], [["age", float("nan"), 1.0]], [[3, 1.0, 1.0]], [["age", 1.0]]


@pytest.mark.parametrize("columns", ["age", *(3 * column for column in BAD), COLUMNS[:2]])
def test_columns_that_are_none(table, tmp_path, columns):
    with pytest.raises(InvalidArgument, match="columns of info's data is"):
        export.save(table, tmp_path / "model", export.Info(data={"columns": columns}))
    assert not (tmp_path / "model").exists()
