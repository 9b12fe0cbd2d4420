"""Tables as they are: what clients send about their columns gives the encoding of all rows in one place."""

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest

from tests.kit import refuses
from tfp_bfl.data import Feature, read_encoded, read_own
from tfp_bfl.data.agreement import RARE_ROWS, fit_column, fit_encoding
from tfp_bfl.data.cells import Cells
from tfp_bfl.data.encoding import Raw, encode
from tfp_bfl.data.messages import describe_column

RNG = np.random.default_rng(3)
ROWS = 400
SITE = np.resize(["north", "south", "east"], ROWS)
AGE = np.where(RNG.random(ROWS) < 0.2, np.nan, RNG.normal(1e6, 3, ROWS))
AGE[SITE == "east"] = np.nan  # A column that one client lacks.
GRADE = RNG.choice(["I", "II", "III", ""], ROWS, p=[0.5, 0.3, 0.1, 0.1]).astype(object)
DRUG = np.where(np.arange(ROWS) < 5, "placebo", RNG.choice(["a", "b"], ROWS)).astype(object)
SMOKES = RNG.choice(np.array([True, False, None], object), ROWS)
LABEL = RNG.choice(["ill", "well"], ROWS)
TABLE = {"age": AGE, "grade": GRADE, "drug": DRUG, "smokes": SMOKES, "site": SITE, "label": LABEL}
NAMES = [
    *("age", "age[missing]", "grade[I]", "grade[II]", "grade[III]", "grade[missing]"),
    *("drug[a]", "drug[b]", "drug[rare]", "smokes", "smokes[missing]"),
]


def ordinal(values=GRADE, levels=("III", "II", "I")):
    codes = pyarrow.array([None if x == "" else levels.index(x) for x in values], pyarrow.int8())
    return pyarrow.DictionaryArray.from_arrays(codes, pyarrow.array(levels), ordered=True)


def table(**changes):
    return pyarrow.table({name: pyarrow.array(x, from_pandas=True) for name, x in {**TABLE, **changes}.items()})


def by_hand(rows):
    """The columns of the model from all rows in one place, and their means and standard deviations."""
    age, grade, drug = AGE[rows], GRADE[rows], DRUG[rows]
    smokes = np.array([np.nan if x is None else float(x) for x in SMOKES[rows]])
    filled = np.where(grade == "", np.nan, 0.0)
    blocks = [age, np.isnan(age), *(filled + (grade == x) for x in ("I", "II", "III")), grade == ""]
    blocks += [*(drug == x for x in ("a", "b", "placebo")), smokes, np.isnan(smokes)]
    exact = np.stack([np.asarray(x, np.float64) for x in blocks], -1)
    exact = np.where(np.isnan(exact), np.nanmean(exact, 0), exact)
    return exact, exact.mean(0), exact.std(0)


def test_messages_of_clients_give_the_encoding_of_all_rows(tmp_path):
    pyarrow.parquet.write_table(table(row=np.arange(ROWS)), tmp_path / "t.parquet")
    data = read_own(tmp_path / "t.parquet", client="site", drop=["row"])
    assert [c.name for c in data.train.columns] == NAMES
    # The features back in their units say which rows are in training.
    means, stddevs = (np.array([c[i] for c in data.train.columns]) for i in (1, 2))
    whole = read_own(tmp_path / "t.parquet", client="site", only=["row", "age"])
    (row, age, *_), scaled = whole.train.columns, whole.train.features
    rows = np.rint(scaled[:, 0] * row.stddev + row.mean).astype(int)
    exact, mean, stddev = by_hand(rows)
    np.testing.assert_allclose(means, mean, rtol=1e-9)
    np.testing.assert_allclose(stddevs, stddev, rtol=1e-6)
    np.testing.assert_allclose(data.train.features, (exact - mean) / stddev, atol=2e-6)
    assert age == data.train.columns[0] and data.train.labels.tolist() == [int(x == "well") for x in LABEL[rows]]


def test_a_column_is_learnt_alike_from_any_division():
    raw = Raw([Cells("age", "number", AGE), Cells("grade", "category", GRADE), Cells("drug", "category", DRUG)])
    whole = fit_encoding(raw)
    for owners in (SITE, np.arange(ROWS), np.zeros(ROWS)):
        features, columns = fit_encoding(raw, owners)
        assert features == whole[0]
        np.testing.assert_allclose([c[1:] for c in columns], [c[1:] for c in whole[1]], rtol=1e-6, atol=1e-12)


def test_what_a_client_sends():
    message = describe_column(Cells("x", "number", np.array([1.0, 3.0, np.nan])))
    assert (message.rows, message.filled, message.mean, message.stddev) == (3, 2, 2.0, 1.0)
    message = describe_column(Cells("x", "category", np.array(["a", "", "a"], object)))
    assert (message.rows, message.filled, message.levels) == (3, 2, {"a": 2})


@pytest.mark.parametrize(("rows", "is_rare"), [(9, True), (10, False), (2, False)])
def test_rare_levels_share_a_column(rows, is_rare):
    size = 100 if rows == 2 else 5000
    cells = Cells("x", "category", np.array(["a"] * (size - rows) + ["b"] * rows, object))
    feature, columns = fit_column(cells, [describe_column(cells)])
    assert feature == Feature("x", "category", ("a",) if is_rare else ("a", "b"), is_rare)
    assert [c.name for c in columns] == (["x[a]", "x[rare]"] if is_rare else ["x[b]"]) and RARE_ROWS == 10
    assert columns[-1].mean == pytest.approx(rows / size)


def test_ordered_categories_say_how_far_a_cell_is(tmp_path):
    pyarrow.parquet.write_table(table(grade=ordinal()), tmp_path / "t.parquet")
    for given in (table(grade=ordinal()), tmp_path / "t.parquet"):
        data = read_own(given, client="site", only=["grade"])
        assert [c.name for c in data.train.columns] == ["grade[>=II]", "grade[>=I]", "grade[missing]"]
    (feature,) = data.train.encoding
    cells = Cells("grade", "ordinal", np.array(["III", "II", "I", "", "IV"], object))
    exact = encode(Raw([cells]), [feature], data.train.columns)
    means = [c.mean for c in data.train.columns[:2]]
    np.testing.assert_allclose(exact, [[0, 0, 0], [1, 0, 0], [1, 1, 0], [*means, 1], [*means, 1]])


@pytest.mark.parametrize("form", ["csv", "parquet", "Table", "DataFrame", "categories"])
def test_every_form_is_encoded_alike(tmp_path, form):
    plain = table()
    if form == "csv":
        pyarrow.csv.write_csv(plain, tmp_path / "t.csv")
    elif form == "parquet":
        encoded = plain.set_column(1, "grade", plain["grade"].dictionary_encode())
        pyarrow.parquet.write_table(encoded, tmp_path / "t.parquet")
    given = plain if form == "Table" else tmp_path / f"t.{form}"
    if form in ("DataFrame", "categories"):
        given = pytest.importorskip("pandas").DataFrame(TABLE)
        given = given.astype({"drug": "category"}) if form == "categories" else given
    found, wanted = read_own(given, client="site"), read_own(plain, client="site")
    assert found.train.encoding == wanted.train.encoding and found.train.columns == wanted.train.columns
    np.testing.assert_array_equal(found.train.features, wanted.train.features)
    np.testing.assert_array_equal(found.test.features, wanted.test.features)


def test_a_test_table_is_encoded_as_the_training_table(tmp_path):
    pyarrow.csv.write_csv(table(), tmp_path / "t.csv")
    first = table().slice(0, 40).select(["label", "smokes", "drug", "grade", "age"])
    pyarrow.csv.write_csv(first, tmp_path / "u.csv")
    data = read_own(tmp_path / "t.csv", client="site", test=tmp_path / "u.csv")
    np.testing.assert_array_equal(data.test.features, data.train.features[:40])


def test_numbers_that_are_categories_and_dates_in_a_unit():
    days = np.datetime64("2020-01-01") + np.arange(ROWS)
    given = table(drug=np.resize([2, 1, 10], ROWS), age=days)
    data = read_own(given, only=["drug", "age"], categorical=["drug"], date_unit="years")
    assert [c.name for c in data.train.columns] == ["drug[1]", "drug[2]", "drug[10]", "age"]
    assert data.train.columns[-1].mean == pytest.approx(50.5, abs=0.1)
    assert data.train.encoding[-1] == Feature("age", "date", unit="years")


def test_rows_for_a_model(tmp_path):
    data = read_own(table(), client="site")
    later = {"age": [40.0, None], "grade": ["IV", "I"], "drug": ["new", None], "smokes": [True, None], "more": [1, 2]}
    pyarrow.csv.write_csv(pyarrow.table(later), tmp_path / "later.csv")
    rows, notes, _ = read_encoded(tmp_path / "later.csv", data.train.encoding, data.train.columns)
    mean = {c.name: c.mean for c in data.train.columns}
    grades, drugs = [mean[f"grade[{x}]"] for x in ("I", "II", "III")], [mean[x] for x in NAMES[6:9]]
    wanted = [[40, 0, *grades, 1, 0, 0, 1, 1, 0], [mean["age"], 1, 1, 0, 0, 0, *drugs, mean["smokes"], 1]]
    np.testing.assert_allclose(rows, wanted, rtol=1e-6)
    assert notes == (
        "1 row with 'IV' in 'grade', new or rare in training: treated as an empty cell.",
        "1 row with 'new' in 'drug', new or rare in training: treated as a rare category.",
        "1 cell is empty in 'drug', and in training none was: the mean is used.",
    )
    (tmp_path / "bad.csv").write_text("age,grade,drug,smokes\nold,I,a,true\n")
    bad, dose = tmp_path / "bad.csv", [Feature("dose", "number")]
    message = "'age' holds 'old' in row 1, which is no number: give numbers and dates"
    refuses(message, read_encoded, bad, data.train.encoding, data.train.columns)
    refuses("no column 'dose', which the model requires", read_encoded, bad, dose, data.train.columns[:1])


def test_columns_that_count_the_rows_are_left_out():
    data = read_own(table(id=np.arange(1, ROWS + 1)), client="site")
    assert [c.name for c in data.train.columns] == NAMES
    assert data.notes == (
        "The column 'id' numbers the rows and is left out: name it with --only to use it.",
        "4 columns of the table (2 of text, 3 with empty cells) become 11 columns of numbers.",
    )
    alone = read_own(table(id=np.arange(1, ROWS + 1)), only=["id"])
    assert [c.name for c in alone.train.columns] == ["id"] and alone.notes == ()


MIXED = np.array(["1"] * 399 + ["x"], object)


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"drug": MIXED}, {}, r"'drug' holds 'x' in row 400, which is no number: .*correct the cell, or give --cat"),
        ({"drug": ["NA", ""] * 200}, {}, "'drug' has no value"),
        ({"drug": np.resize(np.timedelta64(5, "s"), ROWS)}, {"date_unit": "days"}, "in row 1, which is no date"),
        ({}, {"date_unit": "day"}, "There is no unit of dates 'day': did you mean 'days'"),
        ({}, {"only": ["drgu"]}, "There is no column 'drgu' in dataset for --only: did you mean 'drug'"),
        ({}, {"categorical": ["drgu"]}, "for --categorical: did you mean 'drug'"),
        ({"label": [None] * ROWS}, {}, "No row of dataset has a label and a client"),
    ],
)
def test_bad_input_is_one_sentence(changes, options, message):
    refuses(message, read_own, table(**changes), **{"client": "site", **options})


@pytest.mark.parametrize(
    ("drug", "options"),
    [
        (MIXED, {"categorical": ["drug"]}),
        (np.array(["0", "1", "2", "3+"] * 100, object), {}),
        (np.array([f"{k}" for k in range(300)] + ["NA"] * 100, object), {}),
        ([f"n{k}" for k in range(ROWS)], {"categorical": ["drug"]}),
    ],
)
def test_columns_that_are_read(drug, options):
    assert "drug" in [x.name for x in read_own(table(drug=drug), client="site", **options).train.encoding]


def test_a_client_with_one_row_trains_on_it():
    data = read_own(table(site=np.array(["alone", *SITE[1:]])), client="site")
    assert data.client_names[0] == "alone" and data.clients.sizes[0] == 1
