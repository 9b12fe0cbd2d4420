"""Crops and mirrors: every one of them comes, none other, and a seed says which."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import refuses
from tfp_bfl import data

IMAGE = np.arange(1, 13, dtype=np.float32).reshape(1, 3, 4, 1)


def possible(padding):
    """Every crop and its mirror image, as bytes."""
    padded = np.pad(IMAGE[0], [(padding, padding), (padding, padding), (0, 0)])
    moves = range(2 * padding + 1)
    crops = [padded[a : a + 3, b : b + 4] for a in moves for b in moves]
    return {x.tobytes() for crop in crops for x in (crop, crop[:, ::-1])}


@pytest.mark.parametrize("padding", [0, 1])
def test_each_crop_comes_as_often_as_any_other(padding):
    """Chi-squared of 2 (2 padding + 1)^2 equally likely images; fails once in 1e6 seeds."""
    images, expected = np.repeat(IMAGE, 1800, 0), possible(padding)
    found = data.crop_and_flip(padding)(tf.constant(images), [3, padding]).numpy()
    counts = collections.Counter(x.tobytes() for x in found)
    assert set(counts) == expected and len(expected) == 2 * (2 * padding + 1) ** 2
    each = 1800 / len(expected)
    chi_squared = sum((counts[x] - each) ** 2 / each for x in expected)
    assert chi_squared < {2: 24, 18: 58}[len(expected)]


def test_a_seed_says_which():
    augment = data.parse_augmentation("crop_and_flip:4")
    images = tf.constant(np.random.default_rng(0).random((8, 32, 32, 3), np.float32))
    first, again, other = augment(images, [1, 2]), augment(images, [1, 2]), augment(images, [1, 3])
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert first.shape == images.shape and first.dtype == tf.float32


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: data.crop_and_flip(-1), "padding is -1, but must be an integer of at least 0"),
        (lambda: data.parse_augmentation("crop_and_flip"), "lacks its padding: write crop_and_flip:PADDING"),
        (lambda: data.parse_augmentation("mixup"), "no augmentation 'mixup'"),
        (lambda: data.crop_and_flip()(tf.zeros([3, 5]), [0, 0]), "features are of shape \\(3, 5\\): leave it out"),
    ],
)
def test_what_is_refused(make, message):
    refuses(message, make)
