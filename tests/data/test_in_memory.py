"""Data in memory: the same examples as from files, and one sentence for what cannot be used."""

import numpy as np
import pyarrow
import pyarrow.csv
import pytest

from tests.data.test_tables import write
from tests.kit import refuses
from tfp_bfl import data

RNG = np.random.default_rng(0)
FEATURES = np.round(RNG.normal([40, 3, 1e4], [9, 1, 3e3], (60, 3)), 3)
LABELS = np.where(FEATURES[:, 0] > 40, "yes", "no")
SITES = np.array([f"site {k % 4}" for k in range(60)])
COLUMNS = ["age", "dose", "income"]
OPTIONS = {"label": "sick", "client": "site"}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "patients.csv"
    return write(path, [*COLUMNS, "sick", "site"], *FEATURES.T.tolist(), LABELS, SITES)


def frame(path):
    return pytest.importorskip("pandas").read_csv(path)


class Stream:
    """A DataFrame of another library, such as polars: it has Arrow's stream, and names that pandas has too."""

    dtypes, to_numpy = [], None

    def __init__(self, table):
        self.columns, self._table = table.column_names, table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


def views(path):
    """The table with text in the types that polars has: views of strings, also as the values of categories."""
    table = pyarrow.csv.read_csv(path)
    for i, name in enumerate(table.column_names):
        column = table[name]
        if pyarrow.types.is_string(column.type):
            codes = column.combine_chunks().dictionary_encode()
            values = codes.dictionary.cast(pyarrow.string_view())
            kinds = {"site": pyarrow.DictionaryArray.from_arrays(codes.indices, values)}
            table = table.set_column(i, name, kinds.get(name, column.cast(pyarrow.string_view())))
    return table


FORMS = {
    "Table": (pyarrow.csv.read_csv, OPTIONS),
    "views": (views, OPTIONS),
    "Stream": (lambda path: Stream(pyarrow.csv.read_csv(path)), OPTIONS),
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
    found = data.read_own((RNG.integers(0, 256, (40, 5, 5), dtype=np.uint8), np.arange(40) % 2))  # Images stay bytes.
    assert found.train.features.dtype == np.uint8 and found.train.element_shape == (5, 5, 1)


def test_a_source_stays_as_it_is_but_for_a_fifth():
    source = data.load("breast_cancer")
    found = data.read_own(source)
    assert found.clients is None and found.train.num_examples + found.test.num_examples == source.num_examples
    rows = lambda *sources: {x.tobytes() for own in sources for x in own.features}
    assert rows(found.train, found.test) == rows(source)
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
        ((FEATURES, LABELS, SITES[1:]), {}, r"clients of dataset has the shape \[59\]"),
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
    refuses(message, data.read_own, given, **options)


AGES = RNG.integers(20, 90, 60)


def columns_of_pandas(pandas):
    bins = pandas.cut(AGES, [0, 45, 65, 100])
    first = pandas.Timestamp("2020-01-01").to_period("M")
    return {
        "cut": (bins, ["x[>=(45, 65]]", "x[>=(65, 100]]"]),
        "intervals": (pandas.arrays.IntervalArray(bins), ["x[(0, 45]]", "x[(45, 65]]", "x[(65, 100]]"]),
        "objects": (bins.astype(object), ["x[(0, 45]]", "x[(45, 65]]", "x[(65, 100]]"]),
        "periods": (pandas.array([first + int(k) for k in AGES]), ["x"]),
        "sparse": (pandas.arrays.SparseArray(AGES), ["x"]),
        "with gaps": (pandas.cut(AGES, [0, 45, 65]), ["x[>=(45, 65]]", "x[missing]"]),
    }


@pytest.mark.parametrize("name", ["cut", "intervals", "objects", "periods", "sparse", "with gaps"])
def test_columns_that_only_pandas_has(name):
    pandas = pytest.importorskip("pandas")
    column, wanted = columns_of_pandas(pandas)[name]
    given = pandas.DataFrame({"x": column, "sick": LABELS})
    before = given.dtypes.iloc[0]
    train = data.read_own(given, label="sick", date_unit="months").train
    assert [x.name for x in train.columns] == wanted
    if name == "cut":
        assert sorted(set(map(tuple, (train.features > 0).tolist()))) == [(False, False), (True, False), (True, True)]
    if name in ("periods", "sparse"):
        plain = data.read_own(pandas.DataFrame({"x": AGES, "sick": LABELS}), label="sick").train
        np.testing.assert_allclose(train.features, plain.features, atol=0.05)
    assert given.dtypes.iloc[0] == before  # It is not changed in place.


def test_other_types_of_arrow():
    column = pyarrow.array(np.sort(AGES).astype(float))
    table = pyarrow.table({"x": column, "sick": LABELS})
    changed = table.set_column(0, "x", pyarrow.compute.run_end_encode(column))
    found, wanted = (data.read_own(x, label="sick").train.features for x in (changed, table))
    np.testing.assert_array_equal(found, wanted)
    empty = pyarrow.table({"x": pyarrow.array(["a"]).dictionary_encode().slice(0, 0), "sick": LABELS[:0]})
    refuses("has no rows", data.read_own, pyarrow.Table.from_batches([], empty.schema), label="sick")


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([2**70, 5], "The table dataset can't be read: Python int too large"),
        ([[1, 2], [3]], "'x' holds lists or records: leave columns out with --drop"),
        ([{"a": 1}, {"a": 2}], "'x' holds lists or records: leave columns out with --drop"),
        ([None], "In dataset the column 'x' has no value: leave columns out with --drop"),
        (["a", 1, 2], r"'x' of dataset holds 1 \(int\) in row 2 and 'a' \(str\) above it: write all cells in one"),
        ([None, 1.5, 2, "x"], r"'x' of dataset holds 'x' \(str\) in row 4 and 1.5 \(float\) above it"),
    ],
)
def test_cells_that_a_table_can_not_have(column, message):
    pandas = pytest.importorskip("pandas")
    cells = [column[i % len(column)] for i in range(60)]
    for nothing in (None, pandas.NA):
        own = [nothing if x is None else x for x in cells]
        frame = pandas.DataFrame({"x": pandas.Series(own, dtype=object)})
        for options in ({}, {"categorical": "x"}):
            refuses(message, data.read_own, frame.assign(label=LABELS), **options)
        train = data.read_own(frame.assign(age=AGES, label=LABELS), drop="x").train
        assert [column.name for column in train.columns] == ["age"]
