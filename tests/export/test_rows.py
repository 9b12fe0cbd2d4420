"""Rows of a table as they are: the graph of an export encodes them as the training did."""

import json
import unicodedata

import numpy as np
import pyarrow
import pyarrow.csv
import pytest
import tensorflow as tf

from tests.export.tampering import change_file, copy
from tests.kit import refuses
from tests.lite import lite_interpreter
from tfp_bfl import export
from tfp_bfl.data import EMPTY, Feature, read_own
from tfp_bfl.data.names import as_category
from tfp_bfl.data.rows import read_encoded
from tfp_bfl.export import loading, rows
from tfp_bfl.models import mlp

SIZE = 300
RNG = np.random.default_rng(0)
CODES = RNG.integers(0, 3, SIZE).astype(np.int8)
AGE = np.where(RNG.random(SIZE) < 0.2, np.nan, RNG.normal(50, 9, SIZE))
TABLE = pyarrow.table(
    {
        "age in years": pyarrow.array(AGE, from_pandas=True),
        "age.in.years": RNG.normal(size=SIZE),
        "1st": np.where(np.arange(SIZE) < 2, "seldom", RNG.choice(["a", "ö", ""], SIZE)),
        "class": RNG.choice(["yes", "no"], SIZE),
        "grade": pyarrow.DictionaryArray.from_arrays(CODES, ["low", "mid", "high"], ordered=True),
        "label": RNG.choice(["ill", "well"], SIZE),
    }
)
GIVEN = {
    "age in years": [40.0, np.nan, 60.0, 70.0],
    "age.in.years": [0.5, 0.0, -1.0, np.nan],
    "1st": ["a", "ö", "new", "NA"],
    "class": ["yes", "no", "", "maybe"],
    "grade": ["low", "high", "NaN", "top"],
}


@pytest.fixture(scope="module")
def train():
    return read_own(TABLE).train


@pytest.fixture(scope="module")
def saved(train, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows") / "saved"
    exported(train, folder)
    return folder


def exported(train, folder, kind="flipout", **changes):
    facts = {"columns": [list(x) for x in train.columns], "encoding": [x._asdict() for x in train.encoding], **changes}
    model = mlp(kind, train.element_shape, 2, hidden=(4,), seed=0)
    export.save(model, folder, export.Info(class_names=train.class_names, data=facts))


def inputs(named=None):
    as_tensor = lambda x: tf.constant(x, tf.string if isinstance(x[0], str) else tf.float32)
    return {(named or {}).get(name, name): as_tensor(x) for name, x in GIVEN.items()}


@pytest.fixture(scope="module")
def encoded(train, tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "given.csv"
    return from_file(train, path, GIVEN)


def from_file(train, path, given):
    pyarrow.csv.write_csv(pyarrow.table(given), path)
    return read_encoded(path, train.encoding, train.columns).rows


def test_the_graph_encodes_as_the_reader_of_files(train, encoded):
    graph = rows.encoder(train.encoding, train.columns)(inputs())
    np.testing.assert_allclose(graph, encoded, rtol=1e-6)


def test_the_graph_has_the_reader_s_empty_cells_and_trims_text(train, tmp_path):
    text = ["", "   ", " a", "ö ", " new ", "a\t", "\u00a0ö\u3000", *EMPTY, *(f" {word} " for word in EMPTY)]
    number = [1.0] * len(text)
    given = {x.name: text if x.is_text else number for x in train.encoding}
    as_tensors = {name: tf.constant(x, tf.string if x is text else tf.float32) for name, x in given.items()}
    graph = rows.encoder(train.encoding, train.columns)(as_tensors)
    np.testing.assert_allclose(graph, from_file(train, tmp_path / "given.csv", given), rtol=1e-6)
    blanks = np.array([not x.strip() or x.strip() in EMPTY for x in text])
    place = [column.name for column in train.columns].index("1st[missing]")
    np.testing.assert_array_equal(graph[:, place], blanks)


NUMBERS = {  # Texts of one category.
    "0": ["0", "0.0", " 0.00", "-0.0", "+0", "0."],
    "1.5": ["1.5", "1.50", "+1.5 ", "  1.500"],
    "0.5": [".5", "0.50", "+.5"],
    "007": ["007", " 007"],
    "Male": ["Male", " Male", "Male  ", "Male\t", "Male\r\n"],
}


@pytest.fixture(scope="module")
def by_code(tmp_path_factory):
    """A model of a column of codes, trained on a file, and the probabilities of each code."""
    folder = tmp_path_factory.mktemp("codes")
    codes = np.resize([texts[0] for texts in NUMBERS.values()], SIZE)
    lines = [f"{code},{i},{'ab'[i % 2]}" for i, code in enumerate(RNG.permutation(codes))]
    (folder / "train.csv").write_text("\n".join(["code,x,label", *lines]) + "\n")
    data = read_own(folder / "train.csv", categorical=["code"], only=["code", "x"])
    assert data.train.encoding[0].levels == ("0", "0.5", "1.5", "007", "Male")
    exported(data.train, folder / "saved", "deterministic")
    export.save_tflite(folder / "saved", folder / "m.tflite", num_samples=1)
    return folder, data.train


@pytest.mark.parametrize("category", NUMBERS)
def test_a_category_is_the_same_on_every_path(by_code, category):
    """Files, tables in memory, SavedModels and files of TensorFlow Lite."""
    folder, train = by_code
    texts = NUMBERS[category]
    assert {as_category(text) for text in texts} == {category}
    place = train.encoding[0].levels.index(category)
    given = {"code": texts, "x": [1.0] * len(texts)}
    encoded = from_file(train, folder / "given.csv", {"code": [x.strip() for x in texts], "x": given["x"]})
    np.testing.assert_array_equal(encoded[:, :5], np.tile(np.eye(5)[place], (len(texts), 1)))
    many = {"code": texts * 10, "x": given["x"] * 10, "label": ["a", "b"] * (5 * len(texts))}
    in_memory = read_own(pyarrow.table(many), categorical=["code"])
    assert in_memory.train.encoding[0].levels == (category,)
    tensors = {"code": tf.constant(texts), "x": tf.constant(given["x"])}
    loaded = export.load(folder / "saved")
    wanted = loaded.predict(encoded)["probabilities"]
    np.testing.assert_allclose(loaded.predict_rows(tensors)["probabilities"], wanted, rtol=1e-6)
    lite = lite_interpreter(folder / "m.tflite").get_signature_runner("predict_rows")
    found = lite(**{name: value.numpy() for name, value in tensors.items()})
    np.testing.assert_allclose(found["probabilities"], wanted, rtol=1e-5)


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64, str])
def test_numbers_of_every_type_are_one_category(kind):
    values = np.resize([0, 1, 2], 60).astype(kind)
    table = pyarrow.table({"code": values, "x": RNG.normal(size=60), "label": np.resize(["a", "b"], 60)})
    assert read_own(table, categorical=["code"]).train.encoding[0].levels == ("0", "1", "2")
    tenths = pyarrow.table({"code": np.float32(np.resize([0.1, 2.5], 60)), "label": np.resize(["a", "b", "b"], 60)})
    assert read_own(tenths, categorical=["code"]).train.encoding[0].levels == ("0.1", "2.5")


@pytest.mark.parametrize("level", ["K\u00f6ln (S\u00fcd)", "\u1ebf \u00c5", "\ud55c\uad6d", "\u03cc", "\u0915\u093c"])
def test_every_form_of_a_level_is_looked_up(level):
    """Decomposed, with characters that nobody sees, blanks, and characters that Unicode has for compatibility."""
    parts = unicodedata.normalize("NFD", level)
    forms = [level, parts, f"\ufeff{parts}\u200b ", level.replace(" ", "\u00a0 "), "\u00ad".join(level)]
    forms += [level.replace(x, y) for x, y in (("\u00c5", "\u212b"), ("\u1ebf", "\u00ea\u0301"), ("\u03cc", "\u1f79"))]
    forms += [level.replace("\u0915\u093c", "\u0958"), parts[:4] + level[3:] if "(" in level else level]
    assert {as_category(form) for form in forms} == {level}
    feature = Feature("c", "category", ("a", level, "b"))
    graph = rows.encoder([feature], [(name, 0.5, 1.0) for name in feature.columns])({"c": tf.constant(forms)})
    np.testing.assert_array_equal(graph, np.tile([0, 1, 0], (len(forms), 1)))
    assert {level, parts} <= {*rows.spellings(level)}


def test_spellings_for_tensorflow_lite_are_of_their_category():
    for category in (*NUMBERS, "-0.25", "-3", "10", "", "NA"):
        found = rows.spellings(category)
        assert {as_category(text) for text in found} == {category} and len(set(found)) == len(found)
        assert {f"  {category}    ", f"{category}\r\n"} <= {*found}


def test_a_saved_model_accepts_rows(saved, train, encoded):
    loaded = export.load(saved)
    wanted = loaded.predict(encoded, num_samples=5, seed=1)
    names = {name: spec.name for name, spec in rows.inputs_of(train.encoding).items()}
    assert list(names.values()) == ["age_in_years", "age_in_years_2", "column_1st", "column_class", "grade"]
    signature = loaded.signatures["predict_rows"]
    numbers = {"num_samples": tf.constant(5), "seed": tf.constant(1)}
    for found in (loaded.predict_rows(inputs(), 5, 1), signature(**inputs(names), **numbers)):
        assert found.keys() == wanted.keys()
        np.testing.assert_allclose(found["probabilities"], wanted["probabilities"], rtol=1e-5)


def test_tensorflow_lite_accepts_rows_with_its_own_operations(saved, train, tmp_path):
    export.save_tflite(saved, tmp_path / "m.tflite", num_samples=3, seed=1)
    interpreter = lite_interpreter(tmp_path / "m.tflite")
    names = {name: spec.name for name, spec in rows.inputs_of(train.encoding).items()}
    runner = interpreter.get_signature_runner("predict_rows")
    found = runner(**{name: value.numpy() for name, value in inputs(names).items()})
    wanted = export.load(saved).predict_rows(inputs(), 3, 1)
    np.testing.assert_allclose(found["probabilities"], wanted["probabilities"], rtol=1e-4)


def test_the_card_states_columns_and_inputs(saved):
    card = (saved / "model_card.md").read_text()
    for line in ("| 1st | `column_1st` | a, ö |", "| age in years | `age_in_years` | numbers |", "predict_rows"):
        assert line in card


X, C = Feature("x", "number")._asdict(), Feature("x", "category")._asdict()


@pytest.mark.parametrize("encoding", ["x", [X], [{"name": "x"}], [{**X, "kind": "code"}], [{**C, "levels": [1]}]])
def test_an_encoding_of_another_form_is_refused(train, tmp_path, encoding):
    message = "encoding of info's data is .*, but must describe the columns"
    refuses(message, exported, train, tmp_path / "saved", encoding=encoding)
    exported(train, tmp_path / "saved", encoding=[])
    assert not hasattr(export.load(tmp_path / "saved"), "predict_rows")


def test_a_graph_that_does_not_fit_its_encoding_is_refused(saved, tmp_path):
    forged = copy(saved, tmp_path / "forged")

    def without(content):
        info = json.loads(content)
        info["data"].pop("encoding")
        return json.dumps(info).encode()

    change_file(forged, loading.INFO, without)
    refuses("it has a signature 'predict_rows', which an export has not", export.load, forged)
    forged = copy(saved, tmp_path / "forged")
    change_file(forged, loading.INFO, lambda content: content.replace(b'"1st"', b'"2nd"').replace(b'"1st[', b'"2nd['))
    refuses("its signature predict_rows does not take the columns that its info", export.load, forged)
