"""Data in memory: the same examples as from files, and one sentence for what cannot be used."""

import csv

import numpy as np
import pyarrow
import pyarrow.csv
import pytest

from tfp_bfl import data
from tfp_bfl.errors import InvalidArgument

RNG = np.random.default_rng(0)
FEATURES = np.round(RNG.normal([40, 3, 1e4], [9, 1, 3e3], (60, 3)), 3)
LABELS = np.where(FEATURES[:, 0] > 40, "yes", "no")
SITES = np.array([f"site {k % 4}" for k in range(60)])
COLUMNS = ["age", "dose", "income"]
OPTIONS = {"label": "sick", "client": "site"}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "patients.csv"
    with open(path, "w", newline="") as file:
        rows = [[*row, label, site] for row, label, site in zip(FEATURES.tolist(), LABELS, SITES)]
        csv.writer(file).writerows([[*COLUMNS, "sick", "site"], *rows])
    return path


def frame(path):
    return pytest.importorskip("pandas").read_csv(path)


FORMS = {
    "Table": (pyarrow.csv.read_csv, OPTIONS),
    "DataFrame": (frame, OPTIONS),
    "arrays": (lambda path: (FEATURES, LABELS, SITES), {}),
    "mapping": (lambda path: {"features": FEATURES, "labels": LABELS, "clients": SITES}, {}),
}


def assert_same(found, wanted):
    for ours, theirs in zip(found[:2], wanted[:2]):
        for name in ("features", "labels"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
            assert getattr(ours, name).dtype == getattr(theirs, name).dtype
        assert (ours.split, ours.class_names) == (theirs.split, theirs.class_names)
    assert [part.tolist() for part in found.clients.indices] == [part.tolist() for part in wanted.clients.indices]
    assert found.client_names == wanted.client_names and data.digest(found) == data.digest(wanted)


@pytest.mark.parametrize("form", FORMS)
def test_one_table_in_every_form_is_the_same_to_the_bit(path, form):
    make, options = FORMS[form]
    assert_same(data.read_own(make(path), **options), data.read_own(path, **OPTIONS))


@pytest.mark.parametrize("form", ["Table", "arrays"])
def test_numbers_to_regress_on_are_the_same_to_the_bit(path, form):
    """The label is a column of numbers, whose scale the test set has too."""
    table = pyarrow.csv.read_csv(path).drop_columns(["sick"])
    pyarrow.csv.write_csv(table, path.with_name("numbers.csv"))
    given = table if form == "Table" else (FEATURES[:, :2], FEATURES[:, 2], SITES)
    options = {"label": "income", "client": "site"} if form == "Table" else {"label": "income"}
    found = data.read_own(given, **options, task="regression")
    wanted = data.read_own(path.with_name("numbers.csv"), "income", "site", task="regression")
    assert_same(found, wanted)
    assert found.train.target == wanted.train.target


def test_a_test_set_is_on_the_scale_of_the_training_set(path):
    given = data.read_own((FEATURES, LABELS), test=(FEATURES[:7] + 1, LABELS[:7]))
    assert (given.train.num_examples, given.test.num_examples, given.clients) == (60, 7, None)
    wanted = (FEATURES[:7] + 1 - FEATURES.mean(0)) / FEATURES.std(0)
    np.testing.assert_allclose(given.test.features, wanted, rtol=1e-3, atol=1e-5)


def test_images_stay_bytes():
    images = RNG.integers(0, 256, (40, 5, 5), dtype=np.uint8)
    found = data.read_own((images, np.arange(40) % 2))
    assert found.train.features.dtype == np.uint8 and found.train.element_shape == (5, 5, 1)


def test_a_source_stays_as_it_is_but_for_a_fifth():
    source = data.load("breast_cancer")
    found = data.read_own(source)
    assert found.clients is None and found.train.num_examples + found.test.num_examples == source.num_examples
    assert {x.tobytes() for x in (*found.train.features, *found.test.features)} == {
        x.tobytes() for x in source.features
    }
    share = found.test.num_examples / source.num_examples
    assert 0.18 < share < 0.22 and found.train.class_names == source.class_names
    test = data.load("breast_cancer", "test")
    assert data.read_own(source, test=test)[:2] == (source, test)


def test_clients_keep_their_examples_and_give_a_fifth_each():
    source = data.load("breast_cancer")
    clients = data.Clients(source, [np.arange(0, 90), np.arange(100, 400)[::-1], np.arange(90, 100)])
    found = data.read_own(clients)
    assert found.client_names == ("0", "1", "2") and found.train.num_examples + found.test.num_examples == 400
    for k, number in enumerate((90, 300, 10)):
        rows = {x.tobytes() for x in source.features[clients.indices[k]]}
        own = found.clients.examples(k).features
        assert {x.tobytes() for x in own} <= rows and 0.7 * number <= len(own) < number
    test = data.load("breast_cancer", "test")
    assert data.read_own(clients, test=test) == data.OwnData(source, test, clients, ("0", "1", "2"))


def test_a_digest_is_of_numbers_classes_scales_and_clients():
    other = FEATURES.copy()
    other[3, 1] += 0.001
    names = np.where(LABELS == "yes", "ill", "well")
    every = [(FEATURES, LABELS, SITES), (other, LABELS, SITES), (2 * FEATURES, LABELS, SITES), (FEATURES, names, SITES),
             (FEATURES, LABELS, SITES[::-1]), (FEATURES, LABELS)]  # fmt: skip
    digests = [data.digest(data.read_own(given)) for given in (*every, every[0])]
    assert len(set(digests)) == len(every) and digests[0] == digests[-1]


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ((FEATURES, LABELS), "arrays"),
        ({"features": FEATURES, "labels": LABELS}, "arrays"),
        (pyarrow.table({"a": [1]}), "Table"),
        (data.Source("a", "train", FEATURES, LABELS), "Source"),
        ("patients.csv", None),
        (FEATURES, None),
    ],
)
def test_kinds(given, kind):
    assert data.kind_of(given) == kind


TABLE = {"a": [1.0, 2.0, 3.0, 4.0], "label": [0, 1, 0, 1]}
SOURCE = data.Source("a", "train", FEATURES, LABELS)
NUMBERS = data.Source("a", "train", FEATURES, FEATURES[:, 0], target=data.Column("age", 0.0, 1.0))


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ((FEATURES,), {}, "dataset has 1 parts, but must be a Source, Clients, arrays \\(features, labels\\)"),
        ((FEATURES, LABELS, SITES, SITES), {}, "dataset has 4 parts, but must be"),
        (FEATURES, {}, "dataset has the type ndarray, but must be a Source"),
        (7, {}, "dataset has the type int, but must be a Source"),
        ({"features": FEATURES}, {}, "dataset has 1 parts"),
        ({"features": FEATURES, "label": LABELS}, {}, "no array 'label' in dataset: did you mean 'labels'"),
        (
            (FEATURES, LABELS, SITES[1:]),
            {},
            r"clients of dataset have the shape \[59\], but must name the client of each",
        ),
        ((FEATURES, LABELS[1:]), {}, r"labels have the shape \[59\], but must be one number for each"),
        ((FEATURES.astype(str), LABELS), {}, "features have the type <U.*, but must be numbers"),
        (pyarrow.table(TABLE), {"label": "labl"}, "no column 'labl' in dataset for --label: did you mean 'label'"),
        (SOURCE, {"client": "site"}, "client_column is of tables, and dataset is a Source"),
        (SOURCE, {"task": "regression"}, "task is regression, but the labels of dataset are classes"),
        (NUMBERS, {}, "task is classification, but the labels of dataset are numbers"),
        (SOURCE, {"test": (FEATURES, LABELS)}, "test_data has the type tuple, but must be a Source"),
        (SOURCE, {"test": NUMBERS}, "The class_names of test_data is"),
        ((FEATURES, LABELS), {"test": "patients.csv"}, "One of dataset and test_data is in memory, the other a path"),
        (data.Clients(SOURCE, [range(9), range(8, 20)]), {}, "The clients of dataset share examples"),
    ],
)
def test_what_is_no_data(given, options, message):
    with pytest.raises(InvalidArgument, match=message):
        data.read_own(given, **options)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (["a", 1, 2, 3], r"'b' of dataset holds 1 \(int\) in row 2 and 'a' \(str\) above it: write all cells in one"),
        ([None, 1.5, 2, "x"], r"'b' of dataset holds 'x' \(str\) in row 4 and 1.5 \(float\) above it"),
        ([None] * 4, "In dataset the column 'b' has no value: leave columns out with --drop"),
        ([[1], [2], [3], [4]], r"In dataset the column 'b' holds '\[1\]' in row 1, which is no number"),
    ],
)
def test_columns_of_objects_in_a_data_frame(column, message):
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InvalidArgument, match=message):
        data.read_own(pandas.DataFrame({**TABLE, "b": column}))
