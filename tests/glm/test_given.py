"""`tfp-bfl glm` on features that are given: an archive, and the features below the last layer of a run."""

import csv
import json

import numpy as np
import pytest

import tfp_bfl as bfl
from tests.kit import call, refusal
from tfp_bfl import glm
from tfp_bfl.glm.given import read_run

pytestmark = pytest.mark.cpu_seconds(30)  # one run serves two tests

RNG = np.random.default_rng(0)
SIZES = [12, 20, 15, 30]
FEATURES = RNG.normal(size=(sum(SIZES), 30)).astype(np.float32)
CLIENTS = np.repeat(["a", "b", "c", "d"], SIZES)
NUMBERS = FEATURES[:, 0] + np.repeat([-1, 0, 0.5, 2], SIZES) + 0.3 * RNG.normal(size=len(FEATURES))
PARTS = [name == CLIENTS for name in "abcd"]


def rows_of(path):
    with open(path, newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("given")
    np.savez(folder / "e.npz", features=FEATURES, labels=NUMBERS, clients=CLIENTS, test_features=FEATURES[:3])
    names, classes = np.array(["no", "yes"]), (NUMBERS > 0).astype(int)
    np.savez(folder / "classes.npz", features=FEATURES[:, :3], labels=classes, clients=CLIENTS, class_names=names)
    return folder


def test_an_archive_is_the_fit_of_its_arrays(folder, capsys):
    assert call("glm", folder / "e.npz", "--random", "(intercept)", "--fitted-prior", "--output", folder / "fit",
                "--predict", folder / "e.npz") == 0  # fmt: skip
    printed = capsys.readouterr().out
    pairs = [(FEATURES[part], NUMBERS[part]) for part in PARTS]
    wanted = glm.fit_hierarchical(pairs, prior_stddev="fitted")
    found = json.loads((folder / "fit" / "posterior.json").read_text())
    np.testing.assert_allclose(found["mean"], wanted.posterior.mean, rtol=1e-9)
    assert found["clients"] == list("abcd") and found["names"][:2] == ["(intercept)", "x1"]
    above, below = printed.split(f"\n... and 11 more in {folder}/fit/coefficients.csv.\n")
    assert above.splitlines()[-1].startswith("x19 ") and "Sd between clients" in below
    assert len(rows_of(folder / "fit" / "coefficients.csv")) == 31
    predicted = np.array([float(row["mean"]) for row in rows_of(folder / "fit" / "predictions.csv")])
    np.testing.assert_allclose(predicted[PARTS[1]], wanted.predict(FEATURES[PARTS[1]], 1), rtol=1e-9)


def test_names_of_classes_and_another_outcome(folder, capsys):
    assert call("glm", folder / "classes.npz", "--family", "bernoulli", "--prior-stddev", "2") == 0
    wanted = glm.fit([(FEATURES[:, :3], NUMBERS > 0)], "bernoulli", prior_stddev=2.0)
    (line,) = [x.split() for x in capsys.readouterr().out.splitlines() if x.startswith("(intercept)")]
    assert line[1] == f"{wanted.mean[0]:.4g}"
    np.savez(folder / "y.npz", features=FEATURES[:, :3], y=NUMBERS)
    assert call("glm", folder / "y.npz", "--outcome", "y") == 0


@pytest.fixture(scope="module")
def run(folder):
    how = {"model": "mlp", "algorithm": "fed_opt", "kind": "deterministic", "rounds": 2, "engine": "local"}
    data = folder / "classes.npz"
    options = [x for name, value in how.items() for x in (f"--{name}", value)]
    assert call("run", "--dataset", data, *options, "--output", folder / "run") == 0
    return folder / "run"


def test_features_of_a_run_are_the_inputs_of_its_last_layer(run, folder, capsys):
    table = read_run(run, "bernoulli").to_pandas()
    train = bfl.data.read_own(folder / "classes.npz").train
    assert len(table) == train.num_examples and sorted(table["labels"].unique()) == ["no", "yes"]
    features = table.filter(like="x").to_numpy()
    # Of a deterministic network with one hidden layer: its last layer of them gives the model's probabilities.
    saved = bfl.export.load(run / "saved_model")
    kernel, bias = (x for x in saved.weights[-2:])
    logits = features @ np.asarray(kernel, np.float64) + np.asarray(bias)
    wanted = np.concatenate([saved.mean(part)["probabilities"] for part in _raw(train)])
    found = np.exp(logits - np.logaddexp.reduce(logits, 1, keepdims=True))
    np.testing.assert_allclose(np.sort(found[:, 0]), np.sort(wanted[:, 0]), atol=1e-5)
    assert call("glm", "--features", run, "--family", "bernoulli", "--random", "(intercept)") == 0
    said = capsys.readouterr().out
    assert "more in coefficients.csv of --output." in said and "Prior sd, on columns with sd 1: columns" in said


def _raw(train):
    columns = np.array([(c.mean, c.scale) for c in train.columns]).T
    yield (train.features * columns[1] + columns[0]).astype(np.float32)


def test_what_is_refused(run, folder, capsys):
    np.savez(folder / "images.npz", features=np.zeros((4, 2, 2)), labels=np.zeros(4))
    for arguments, sentence in (
        (("e.csv",), "--outcome is missing: name the column with the outcome."),
        ((), "Give TABLE, or --features RUN without TABLE"),
        ((folder / "e.npz", "--features", run), "Give TABLE, or --features RUN without TABLE"),
        (
            ("--features", "randm:40"),
            "features is randm:40, but must be random:NUMBER, such as random:40, or the folder of a run.",
        ),
        (("--features", run), "are classes, which require --family bernoulli"),
        ((folder / "images.npz",), "The array features of .*images.npz has the shape [4, 2, 2]"),
        ((folder / "e.npz", "--family", "bernoulli"), "The column 'labels' of the table must hold two values"),
        ((folder / "e.npz", "--outcome", "label"), "There is no column 'label'"),
        ((folder / "e.npz", "--random", "feature 1", "--features", "random:3"), "There is no coefficient 'feature 1'"),
    ):
        assert sentence.replace(".*", str(folder) + "/") in refusal(capsys, "glm", *arguments)
