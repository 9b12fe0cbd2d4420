"""What a `Source` is given: cast where nothing is lost, one sentence where it would be."""

import numpy as np
import pytest

from tests.kit import refuses
from tfp_bfl.data import Source

LABELS = np.array([0, 1, 0], np.int32)
TABLE = np.arange(6.0, dtype=np.float32).reshape(3, 2)
IMAGES = np.arange(3 * 4, dtype=np.uint8).reshape(3, 2, 2, 1)


def made(features=TABLE, labels=LABELS, class_names=()):
    return Source("made", "train", features, labels, class_names)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, bool, np.uint8, np.int16, np.uint16, np.int32, np.int64])
def test_numbers_become_float32(dtype):
    source = made(TABLE.astype(dtype))
    assert source.features.dtype == np.float32
    np.testing.assert_array_equal(source.features, TABLE.astype(dtype).astype(np.float32))


@pytest.mark.parametrize("features", [TABLE, IMAGES, IMAGES.astype(np.float32) / 255])
def test_what_is_right_stays_the_same_array(features, tmp_path):
    assert made(features).features is features
    np.save(tmp_path / "rows.npy", TABLE * np.nan)  # What is read on demand is not read.
    rows = np.load(tmp_path / "rows.npy", mmap_mode="r")
    assert made(rows).features is rows


def test_bytes_get_a_channel_axis_and_whole_numbers_to_255_are_bytes():
    for given in (IMAGES[..., 0], IMAGES.astype(np.float64)):
        source = made(given)
        assert source.features.dtype == np.uint8
        np.testing.assert_array_equal(source.features, IMAGES)


@pytest.mark.parametrize(
    ("labels", "numbers", "names"),
    [
        ([1, 2, 1], [0, 1, 0], ("1", "2")),
        ([7.0, -1.0, 7.0], [1, 0, 1], ("-1", "7")),
        (["no", "yes", "no"], [0, 1, 0], ("no", "yes")),
        (np.array([b"b", b"a", b"b"]), [1, 0, 1], ("a", "b")),
        ([True, False, True], [1, 0, 1], ("False", "True")),
        ([[0], [1], [0]], [0, 1, 0], ("0", "1")),
    ],
)
def test_labels_that_stand_for_classes(labels, numbers, names):
    source = made(labels=labels)
    assert source.labels.dtype == np.int32 and source.class_names == names
    np.testing.assert_array_equal(source.labels, numbers)


def test_names_that_are_given_have_the_last_word():
    source = made(labels=["b", "a", "b"], class_names=["c", "b", "a"])
    np.testing.assert_array_equal(source.labels, [1, 2, 1])
    assert source.class_names == ("c", "b", "a")
    assert made(class_names=("no", "yes", "never")).num_classes == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": np.array([["a", "b"]] * 3)}, "features have the type <U1, but must be numbers"),
        ({"features": np.zeros(3)}, r"features have the shape \[3\]"),
        ({"features": TABLE * np.nan}, r"features hold 6 numbers that are not finite, the first in example 0 at \[0\]"),
        ({"features": np.where(TABLE == 5, np.inf, TABLE)}, r"hold 1 numbers .* in example 2 at \[1\]"),
        ({"features": IMAGES.astype(float) - 0.5}, "images of numbers from -0.5 to 10.5, but must be bytes"),
        ({"features": IMAGES.astype(float) + 0.5}, "images of numbers from 0.5 to 11.5"),
        ({"labels": [0, 1]}, r"labels have the shape \[2\], but must be one number for each of the 3 examples"),
        ({"labels": np.eye(3)}, "np.argmax"),
        ({"labels": [0.5, 1, 2]}, "numbers with fractions"),
        ({"labels": [np.nan, 1, 2]}, "or not finite"),
        ({"labels": [1, 2, 1], "class_names": ("a", "b")}, "labels are from 1 to 2, but must be from 0 to 1"),
        ({"labels": [-1, 0, 1], "class_names": ("a", "b")}, "labels are from -1 to 1"),
        ({"labels": ["a", "z", "a"], "class_names": ("a", "b")}, "labels hold 'z', which is none of the 2 class names"),
        ({"features": TABLE[:0], "labels": np.zeros(0, int)}, "There are no examples: give at least one"),
        ({"labels": np.zeros(3, complex)}, "labels have the type complex128"),
    ],
)
def test_one_sentence_each(options, message):
    refuses(message, made, **options)
