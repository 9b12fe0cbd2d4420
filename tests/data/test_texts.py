"""Columns of texts: their features are columns of a model, in runs, predictions and exports."""

import csv
import importlib.util

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import tfp_bfl as bfl
from tests.kit import call, refuses, summary_of
from tfp_bfl.data import cells, encoding
from tfp_bfl.data.own import read_own
from tfp_bfl.data.rows import read_encoded
from tfp_bfl.data.texts import WIDTHS

pytestmark = pytest.mark.cpu_seconds(30)  # for the runs

with_wordllama = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("wordllama", "tokenizers"))),
    reason="pip install --no-deps wordllama tokenizers",
)
SICK, WELL = ("chest pain", "fever and cough", "vomiting"), ("a routine visit", "travel advice", "a vaccination")
RNG = np.random.default_rng(0)
TEXTS = [f"{RNG.choice(SICK if i % 2 else WELL)}, case {i}" if i % 7 else "" for i in range(120)]
ROWS = [[int(RNG.integers(20, 90)), text, i % 3, ("no", "yes")[i % 2]] for i, text in enumerate(TEXTS)]
NAMES = ["age", "note", "site", "admitted"]
OWN = ("--label", "admitted", "--client-column", "site")


def stand_in(backbone):
    """Features as the package's: the same for the same text, and 0 for an empty one."""
    words = np.random.default_rng(1).normal(size=(997, WIDTHS[backbone])).astype(np.float32)
    of = lambda text: words[[sum(map(ord, x)) % 997 for x in text.split()]].mean(0) if text else 0 * words[0]
    return lambda texts: np.stack([of(text) for text in texts])


@pytest.fixture
def features(monkeypatch):
    monkeypatch.setattr(cells, "text_features", stand_in)
    return stand_in("wordllama")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return write(tmp_path_factory.mktemp("texts") / "notes.csv")


def write(path, rows=ROWS, names=NAMES):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *rows])
    return path


@pytest.mark.parametrize("given", ["wordllama", "wordllama:note"])
def test_texts_become_standardised_features(given, table, features):
    data = read_own(table, "admitted", "site", text_features=given)
    assert (
        data.train.element_shape == (1 + 256,)
        and data.notes[0] == "'note' is read as texts: 256 features of wordllama."
    )
    rows = np.array([int(row[0]) for row in ROWS]), features(TEXTS)
    whole = np.concatenate([rows[0][:, None], rows[1]], 1)
    means, scales = np.array([(c.mean, c.scale) for c in data.train.columns]).T
    found = {tuple(np.round(x, 3)) for x in np.concatenate([data.train.features, data.test.features])}
    assert found == {tuple(np.round(x, 3)) for x in ((whole - means) / scales).astype(np.float32)}
    np.testing.assert_allclose(data.train.features.mean(0), 0, atol=1e-5)
    assert data.train.columns[1].name == "note[wordllama 1]"
    number, text = data.train.encoding
    assert encoding.parse_features([number._asdict(), text._asdict()]) == data.train.encoding


def test_rows_to_predict_have_the_features_of_their_texts(table, features, tmp_path):
    train = read_own(table, "admitted", "site", text_features="wordllama").train
    new = write(tmp_path / "new.csv", [["50", "12"], ["", "12"], ["50", ""]], ["age", "note"])
    rows, notes, _ = read_encoded(new, train.encoding, train.columns)
    np.testing.assert_allclose(rows[:, 1:], features(["12", "12", ""]), atol=1e-6)
    assert rows[1, 0] == train.columns[0].mean and len(notes) == 1
    refuses("has no column 'note', which the model requires", read_encoded,
            write(tmp_path / "none.csv", [["50"]], ["age"]), train.encoding, train.columns)  # fmt: skip
    numbers = pyarrow.table({"age": [1.0], "note": [3.5]})
    pyarrow.parquet.write_table(numbers, tmp_path / "new.parquet")
    refuses(
        "column 'note' holds '3.5'.*is no text", read_encoded, tmp_path / "new.parquet", train.encoding, train.columns
    )


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (None, "the column 'note' holds 102 texts, .* give --text-features wordllama for texts, or give --categorical"),
        ("wordllama:age", "the column 'age' holds '.*', which is no text; .*leave it out of --text-features"),
        ("wordllama:notes", "There is no column 'notes' in .* for --text-features: did you mean 'note'"),
        ("word2vec", "There is no backbone of texts 'word2vec' for text_features"),
    ],
)
def test_what_is_refused(given, sentence, table, features):
    refuses(sentence, read_own, table, "admitted", "site", text_features=given)


def test_texts_are_of_tables_with_their_rows_in_one_place(table, tmp_path, features, capsys):
    np.savez(tmp_path / "a.npz", features=np.ones((4, 2), np.float32), labels=[0, 1, 0, 1])
    refuses("text_features belongs to tables", read_own, tmp_path / "a.npz", text_features="wordllama")
    memory = {"dataset": pyarrow.table({"a": [1, 2], "label": [0, 1]}), "text_features": "wordllama"}
    refuses("text_features belongs to files: give the array that bfl.models.text_features", bfl.run, tmp_path, **memory)
    refuses("holds 102 texts, such as .*: leave columns out with --drop, or give --categorical", bfl.data.read_part,
            table, "admitted")  # fmt: skip
    with pytest.raises(ValueError):
        encoding.parse_features([encoding.Feature("note", "text", unit="word2vec")._asdict()])


def check_a_run(table, folder, capsys):
    how = ("--model", "linear", "--algorithm", "head", "--engine", "local", "--text-features", "wordllama")
    assert call("run", "--dataset", table, *OWN, *how, "--output", folder / "run") == 0
    capsys.readouterr()
    assert summary_of(folder / "run")["accuracy"] > 0.7
    new = write(folder / "new.csv", [[50, TEXTS[1]], [50, TEXTS[2]]], ["age", "note"])
    assert call("predict", folder / "run", new, "--format", "csv") == 0
    rows = [*csv.DictReader(capsys.readouterr().out.splitlines())]
    assert [row["label"] for row in rows] == ["yes", "no"]
    saved = bfl.export.load(folder / "run" / "saved_model")
    assert "predict_rows" not in saved.signatures
    card = (folder / "run" / "saved_model" / "model_card.md").read_text()
    assert "Features of texts are computed before the model, as `tfp-bfl predict` does:\nnote.\n" in card


def test_a_run_of_texts_and_its_exported_model(table, features, tmp_path, capsys):
    check_a_run(table, tmp_path, capsys)


@with_wordllama
def test_a_run_of_texts_with_the_package(table, tmp_path, capsys):
    check_a_run(table, tmp_path, capsys)


def test_without_the_package_a_run_says_what_to_install(table, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert call("run", "--dataset", table, *OWN, "--text-features", "wordllama", "--output", tmp_path / "run") == 2
    assert "not installed: pip install --no-deps tokenizers wordllama" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
