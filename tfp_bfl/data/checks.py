"""Checks of the arrays of a `Source`: casts that lose nothing, and one sentence where a cast would lose something."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfp_bfl.data.names import as_text, ordered
from tfp_bfl.errors import InvalidArgument, shown

_IMAGE_DIMENSIONS = 4
# float32 rounds numbers of a column that are so many times as large as its range by 0.6 % of the range.
MOST_OFFSET = 1e5


def checked_features(features: Any, rounds: bool = True) -> np.ndarray:
    """Return features as a `Source` holds them, [N, ...]; their values decide, not their type.

    Tables and sequences become float32, of whichever type. Images [N, height, width, channels] become bytes if they
    hold whole numbers from 0 to 255, and float32 if all are from 0 to 1. Arrays of bytes [N, height, width] get a
    channel axis. Features that are read on demand, such as a `np.memmap`, stay as they are.

    Raises:
      InvalidArgument: they are no numbers, not finite, of one dimension, or images of other values; or, with `rounds`,
        a column is so far from zero that float32 would round its differences away (`MOST_OFFSET`).
    """
    on_demand = not hasattr(features, "numpy") and all(hasattr(features, x) for x in ("shape", "dtype", "__getitem__"))
    if isinstance(features, np.memmap) or (on_demand and not isinstance(features, np.ndarray)):
        if len(features.shape) == _IMAGE_DIMENSIONS and features.dtype.kind in "biu" and features.dtype != np.uint8:
            what = f"features are images of type {features.dtype}, read on demand"
            raise InvalidArgument(f"{what}, but must be uint8, or floats from 0 to 1: save them as uint8.")
        return features
    given = array = np.asarray(features)
    if array.dtype.kind not in "biuf":
        raise InvalidArgument(f"features have the type {array.dtype}, but must be numbers: encode text and categories.")
    if array.ndim < 2:
        forms = "[examples, columns] or [examples, height, width, channels]"
        raise InvalidArgument(f"features have the shape {list(array.shape)}, but must be {forms}.")
    if array.dtype == np.uint8 and array.ndim > 2:
        return array[..., np.newaxis] if array.ndim == _IMAGE_DIMENSIONS - 1 else array
    if array.dtype != np.float32:
        with np.errstate(over="ignore"):
            array = array.astype(np.float32)
    bad = ~np.isfinite(array)
    if bad.any():
        first, *place = (int(i) for i in np.argwhere(bad)[0])
        what = f"features hold {int(bad.sum())} numbers that are not finite, the first in example {first} at {place}"
        raise InvalidArgument(f"{what}: fill them in, or leave those examples out.")
    if array.ndim >= _IMAGE_DIMENSIONS or not array.size:
        return _pixels(array) if array.ndim == _IMAGE_DIMENSIONS and array.size else array
    if rounds and given.dtype != np.float32:
        rows = given.reshape(-1, given.shape[-1])
        low, high = rows.min(0).astype(np.float64), rows.max(0).astype(np.float64)
        far = (high > low) & (np.maximum(np.abs(low), np.abs(high)) > MOST_OFFSET * (high - low))
        if far.any():
            j = int(np.argmax(far))
            raise InvalidArgument(
                f"features in column {j} are from {low[j]:.10g} to {high[j]:.10g}, and float32 would round their "
                "differences away: subtract the mean of the column first, in float64."
            )
    return array


def exact_features(features: Any, is_table: bool) -> np.ndarray:
    """Check features, and leave those of a table as they are: they are standardised in float64, and rounded once."""
    array = checked_features(features, rounds=not is_table)
    return np.asarray(features) if is_table else array


def of_one_form(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the features of a training set and of its test set, both bytes or both floats.

    Images of 0 and 1 alone are bytes if the images of the other set are.
    """
    if train.shape[1:] != test.shape[1:]:
        shapes = f"{list(test.shape[1:])}, but those of the training data have {list(train.shape[1:])}"
        raise InvalidArgument(f"The examples of the test data have the shape {shapes}: both must agree.")
    if len(train.shape) != _IMAGE_DIMENSIONS or (train.dtype == np.uint8) == (test.dtype == np.uint8):
        return train, test
    both = [images if images.dtype == np.uint8 else np.asarray(images) for images in (train, test)]
    if not all(np.array_equal(images, np.rint(images)) for images in both):
        one, other = ("training", "test") if train.dtype == np.uint8 else ("test", "training")
        raise InvalidArgument(f"The images of the {one} data are bytes, but those of the {other} data are floats.")
    first, second = (images.astype(np.uint8, copy=False) for images in both)
    return first, second


def checked_labels(labels: object, num_examples: int, class_names: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return labels int32 [N] from 0 to C - 1, and the C class names.

    Text and numbers that stand for classes are mapped, in their order, and named by themselves where `class_names` is
    empty. Text labels are looked up in `class_names` where it is not.
    """
    array = np.asarray(labels)
    names = tuple(as_text([str(name) for name in class_names]))
    if array.shape == (num_examples, 1):
        array = array[:, 0]
    if array.shape != (num_examples,):
        must = f"must be one number for each of the {num_examples} examples"
        raise InvalidArgument(f"labels have the shape {list(array.shape)}, but {must}: of one-hot labels np.argmax.")
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidArgument(f"class_names hold {shown(twice)} more than once, but each class needs its own name.")
    if "" in names:
        raise InvalidArgument(f"class_names hold an empty name, number {names.index('') + 1}: name each class.")
    if array.dtype.kind == "f":
        if not (np.isfinite(array).all() and np.array_equal(array, np.rint(array))):
            raise InvalidArgument(
                "labels are numbers with fractions, or not finite, but must be classes: a class number or name each; "
                "to regress on them give --task regression, or Source a target."
            )
        array = array.astype(np.int64)
    if array.dtype.kind in "OUS":
        texts = as_text(array.tolist())
        names = names or ordered(texts)
        numbers = {name: number for number, name in enumerate(names)}
        unknown = sorted({x for x in texts if x not in numbers})
        if unknown:
            what = f"labels hold {shown(unknown[0])}, which is none of the {len(names)} class names"
            raise InvalidArgument(f"{what}: name it among them, or leave class_names out.")
        return np.array([numbers[x] for x in texts], np.int32), names
    if array.dtype.kind not in "biu":
        raise InvalidArgument(f"labels have the type {array.dtype}, but must be class numbers or names.")
    if not names and not num_examples:
        raise InvalidArgument("There are no examples: give at least one, with its label.")
    if not names:
        found, array = np.unique(array, return_inverse=True)
        names = tuple(map(str, found))
    lowest, highest = (int(array.min()), int(array.max())) if num_examples else (0, 0)
    if lowest < 0 or highest >= len(names):
        must = f"must be from 0 to {len(names) - 1}: subtract the first, or leave class_names out"
        raise InvalidArgument(f"labels are from {lowest} to {highest}, but {must}.")
    return array.astype(np.int32), names


def checked_targets(targets: object, num_examples: int) -> np.ndarray:
    """Return numbers to regress on: float64 [N], each of which has a finite float32."""
    array = np.asarray(targets)
    if array.shape == (num_examples, 1):
        array = array[:, 0]
    if array.dtype.kind == "O" and all(isinstance(x, (int, float)) for x in array.ravel().tolist()):
        array = array.astype(np.float64)
    if array.shape != (num_examples,) or array.dtype.kind not in "biuf":
        what = f"labels have the type {array.dtype} and the shape {list(array.shape)}"
        raise InvalidArgument(f"{what}, but to regress on they must be one number for each of {num_examples} examples.")
    with np.errstate(over="ignore"):
        finite = np.isfinite(array.astype(np.float32))
    if not finite.all():
        what = f"labels hold a number that is not finite, or too large, in example {int(np.argmin(finite))}"
        raise InvalidArgument(f"{what}: fill it in, or leave that example out.")
    return array.astype(np.float64)


def _pixels(images: np.ndarray) -> np.ndarray:
    lowest, highest = float(images.min()), float(images.max())
    if lowest >= 0 and highest <= 1:
        return images
    if lowest >= 0 and highest <= 255 and np.array_equal(images, np.rint(images)):
        return images.astype(np.uint8)
    what = f"features are images of numbers from {lowest:g} to {highest:g}"
    raise InvalidArgument(f"{what}, but must be bytes, or floats from 0 to 1: rescale them.")


def labels_to_test(labels: Any, class_names: Sequence[str]) -> np.ndarray:
    """Return the labels of test data as text; there must be one at least, and each a class of the training data."""
    texts = as_text(np.asarray(labels).tolist())
    if not len(texts):
        raise InvalidArgument("The test data have no examples: give at least one, or no test data.")
    if unknown := sorted({*texts} - {*class_names}) if np.ndim(labels) == 1 else []:
        raise InvalidArgument(
            f"The test data have the class {shown(unknown[0])}, which no training example has: leave its examples out, "
            "or add some to the training data."
        )
    return texts
