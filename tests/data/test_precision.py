"""Numbers far from zero: standardised before they are rounded; training and test features have one form."""

import numpy as np
import pyarrow
import pytest

from tests.data.test_tables import write
from tests.kit import refuses
from tfp_bfl import data

RNG = np.random.default_rng(0)
Z = RNG.normal(size=(80, 2))
FAR = 1e9 + 10 * Z
CLASSES = np.where(Z[:, 0] > 0, "late", "soon")
NUMBERS = 1e9 + 10 * RNG.normal(size=80)


def read(form, folder, task):
    """Read the same rows in one of the forms; the last sixteen are the test set."""
    labels = CLASSES if task == "classification" else NUMBERS
    if form == "arrays":
        return data.read_own((FAR[:64], labels[:64]), test=(FAR[64:], labels[64:]), task=task)
    parts = []
    for name, rows in (("train", slice(0, 64)), ("test", slice(64, 80))):
        columns = [FAR[rows, 0], FAR[rows, 1], labels[rows]]
        if form == "table":
            parts.append(pyarrow.table(dict(zip(("a", "b", "label"), columns))))
        elif form == "archive":
            parts.append(folder / f"{name}.npz")
            np.savez(parts[-1], features=FAR[rows], labels=labels[rows])
        else:
            parts.append(write(folder / f"{name}.csv", ["a", "b", "label"], *(x.tolist() for x in columns)))
    return data.read_own(parts[0], test=parts[1], task=task)


@pytest.mark.parametrize("form", ["arrays", "table", "archive", "csv"])
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_features_and_labels_keep_their_digits(tmp_path, form, task):
    found = read(form, tmp_path, task)
    mean, stddev = FAR[:64].mean(0), FAR[:64].std(0)
    for source, rows in ((found.train, slice(0, 64)), (found.test, slice(64, 80))):
        np.testing.assert_allclose(source.features, (FAR[rows] - mean) / stddev, atol=1e-6)
        if task == "regression":
            wanted = (NUMBERS[rows] - NUMBERS[:64].mean()) / NUMBERS[:64].std()
            np.testing.assert_allclose(source.labels, wanted, atol=1e-6)


def test_both_parts_of_a_split_keep_their_digits():
    found = data.read_own((FAR, CLASSES))
    rows = np.concatenate([found.train.features, found.test.features])
    assert [len(np.unique(column)) for column in rows.T] == [80, 80]


def test_whole_numbers_beyond_float32_keep_their_digits():
    """Microseconds since 1970 have 51 bits, of which float32 keeps 24."""
    rows = np.int64(1_700_000_000_000_000) + np.arange(160, dtype=np.int64).reshape(80, 2)[::-1]
    found = data.read_own((rows, CLASSES)).train
    assert len(np.unique(found.features[:, 0])) == found.num_examples


def test_numbers_that_float32_lacks_are_still_refused():
    rows = np.where(np.arange(160).reshape(80, 2) == 7, 1e300, Z)
    for task, labels in (("classification", CLASSES), ("regression", NUMBERS)):
        refuses(r"not finite, the first in example 3 at \[1\]", data.read_own, (rows, labels), task=task)


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.uint32])
def test_a_source_refuses_a_column_that_float32_would_round_away(dtype):
    rows = np.stack([np.arange(80), 1e9 + np.arange(80)], 1).astype(dtype)
    refuses(r"column 1 .* from 1000000000 to .* subtract", data.Source, "d", "train", rows, CLASSES)
    np.testing.assert_array_equal(data.Source("d", "train", rows - rows[0], CLASSES).features, (rows - rows[0]))
    refuses("column 1", data.read_own, (rows[:, np.newaxis], CLASSES))


@pytest.mark.parametrize("offset", [0.0, 1e4, -1e4])
def test_a_source_accepts_ordinary_columns_and_constants(offset):
    rows = np.concatenate([Z + offset, np.full((80, 1), 1e9)], 1)
    assert data.Source("d", "train", rows, CLASSES).features.dtype == np.float32
    assert data.Source("d", "train", rows[:, np.newaxis], CLASSES).element_shape == (1, 3)


SHAPES = [((80, 2), (20, 1)), ((80, 1), (20, 2)), ((80, 2), (20, 3)), ((80, 5, 2), (20, 5, 1)), ((80, 5, 2), (20, 2))]


@pytest.mark.parametrize(("train", "test"), [*SHAPES, ((80, 4, 4, 1), (20, 4, 4, 3))])
@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("form", ["arrays", "archive"])
def test_a_test_set_of_another_shape_is_refused(tmp_path, train, test, task, form):
    """One column was broadcast to all of them."""
    labels = CLASSES if task == "classification" else NUMBERS
    first, second = RNG.uniform(size=train), RNG.uniform(size=test)
    path = tmp_path / "d.npz"
    np.savez(path, features=first, labels=labels, test_features=second, test_labels=labels[:20])
    wanted = rf"test data have the shape \[{', '.join(map(str, test[1:]))}\].*\[{', '.join(map(str, train[1:]))}\]"
    given = path if form == "archive" else (first, labels)
    refuses(wanted, data.read_own, given, test=None if form == "archive" else (second, labels[:20]), task=task)


BYTES, MASKS = RNG.integers(0, 256, (80, 4, 4, 1)), RNG.integers(0, 2, (80, 4, 4, 1))


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.uint8])
def test_bytes_in_one_split_are_bytes_in_the_other(task, dtype):
    """Images of 0 and 1 alone are floats or bytes: the other split decides."""
    labels = CLASSES if task == "classification" else NUMBERS
    for train, test in ((BYTES, MASKS.astype(dtype)), (MASKS.astype(dtype), BYTES)):
        found = data.read_own((train, labels), test=(test, labels), task=task)
        assert (found.train.features.dtype, found.test.features.dtype) == (np.uint8, np.uint8)
        np.testing.assert_array_equal(found.train.features, train)
        np.testing.assert_array_equal(found.test.features, test)


def test_images_of_two_scales_are_refused():
    floats = BYTES / 255
    for train, test in ((BYTES, floats), (floats, BYTES)):
        message = "images of the (training|test) data are bytes, but"
        refuses(message, data.read_own, (train, CLASSES), test=(test, CLASSES))
    found = data.read_own((floats, CLASSES), test=(MASKS, CLASSES))
    assert (found.train.features.dtype, found.test.features.dtype) == (np.float32, np.float32)


def test_a_table_beside_arrays_is_refused(tmp_path):
    """A table with categories has no second form."""
    table, archive = tmp_path / "train.csv", tmp_path / "test.npz"
    table.write_text("a,b,label\n" + "".join(f"{i},{'xy'[i % 2]},{i % 3}\n" for i in range(60)))
    np.savez(archive, features=Z, labels=np.arange(80) % 3)
    for train, test in ((table, archive), (archive, table)):
        refuses(".", data.read_own, train, test=test)


def test_sources_of_two_scales_are_refused():
    train, test = data.Source("d", "train", BYTES, CLASSES), data.Source("d", "test", MASKS, CLASSES)
    refuses("is_image of test_data is False", data.read_own, train, test=test)
