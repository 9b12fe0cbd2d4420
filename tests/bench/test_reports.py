"""`tfp-bfl report` on folders: what it shows, and what it refuses."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
import yaml
from PIL import Image

import tfp_bfl as bfl
from tests.kit import facts_of, plain, refusal, refuses, summary_of
from tfp_bfl.algorithms.fixed_points import DEFAULT_RULE
from tfp_bfl.app.cli import run_command_line
from tfp_bfl.app.one_run import records
from tfp_bfl.app.options.config import make_config
from tfp_bfl.bench import reports as pages

pytestmark = pytest.mark.cpu_seconds(30)  # one run serves the tests of the file

SMALL = (
    *("--rounds", "2", "--local-epochs", "1", "--num-samples", "3"),
    *("--clients", "3", "--partition", "iid", "--examples-per-client", "20"),
    *("--model", "mlp", "--engine", "local"),
)


def new_run(folder, *options):
    assert run_command_line(["run", *SMALL, *options, "--output", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return new_run(tmp_path_factory.mktemp("runs") / "digits_run")


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    options = ["--dataset", "breast_cancer", "--kind", "deterministic"]
    return new_run(tmp_path_factory.mktemp("runs") / "tables_run", *options)


@pytest.fixture
def copy(digits, tmp_path):
    return shutil.copytree(digits, tmp_path / "copies" / digits.name)


def make(*arguments):
    return run_command_line(["report", *map(str, arguments)])


def elsewhere(monkeypatch, features):
    """Makes `--ood elsewhere` a dataset with these features."""
    load = bfl.data.load

    def patched(name, split="train", data_dir=None, image_size=None):
        if name != "elsewhere":
            return load(name, split, data_dir, image_size)
        return bfl.data.Source(name, split, features, np.zeros(len(features), np.int32), ("one", "two"))

    monkeypatch.setattr(bfl.data, "load", patched)


@pytest.mark.deep(after="tests/bench/test_reports.py")
def test_one_run_is_the_page_that_the_run_wrote(digits, tmp_path, capsys):
    assert make(digits, "--output", tmp_path / "new" / "page.html") == 0
    assert capsys.readouterr().out.endswith("page.html shows 1 run.\n")
    assert (tmp_path / "new" / "page.html").read_text() == (digits / "report.html").read_text()


@pytest.mark.deep(after="tests/bench/test_reports.py")
def test_a_page_that_is_written_later_has_the_date_of_the_run(copy, tmp_path):
    summary = json.loads((copy / "summary.json").read_text())
    (copy / "summary.json").write_text(json.dumps({**summary, "date": "2020-01-02"}))
    assert make(copy, "--output", tmp_path / "page.html") == 0
    assert facts_of(tmp_path / "page.html")["Date"] == "2020-01-02"


@pytest.mark.deep(after="tests/plots/test_report.py")
def test_runs_side_by_side(digits, tables, copy, tmp_path):
    config = yaml.safe_load((copy / "config.yaml").read_text())
    (copy / "config.yaml").write_text(yaml.safe_dump({**config, "algorithm": "variational", "rule": "conflation"}))
    assert make(digits, tables, copy, "--output", tmp_path / "page.html") == 0
    page = plain((tmp_path / "page.html").read_text())
    assert "<h1>3 runs on breast_cancer and digits</h1>" in page and "their scores do not compare" in page
    # Two folders of one name differ by their whole paths.
    assert str(copy) in page and str(tables) in page
    rows = re.findall('<tr><th scope="row">(.*?)</th>(.*data-head="rule".*)</tr>', page)
    assert [(name, re.findall('"rule">(.*?)</td>', row)) for name, row in rows] == [
        *((str(digits), [DEFAULT_RULE]), (str(tables), ["\u2013"]), (str(copy), ["conflation"])),
    ]
    # There are images of two runs, eight of each kind.
    assert page.count("image/png") == 2 * 16


def test_a_model_predicts_what_its_run_recorded(digits):
    config, _ = records.read_record(digits)
    test = bfl.data.load("digits", split="test")
    predicted = pages._predict(digits / "saved_model", test, config, test.num_examples)
    with np.load(digits / "predictions.npz") as recorded:
        for name, values in predicted.items():
            np.testing.assert_allclose(values, recorded[name], rtol=1e-3, atol=1e-5)


def test_out_of_distribution(digits, tmp_path, monkeypatch):
    images = np.random.default_rng(0).integers(0, 256, (700, 8, 8, 1), dtype=np.uint8)
    elsewhere(monkeypatch, images)
    assert make(digits, "--ood", "elsewhere", "--output", tmp_path / "page.html") == 0
    page = (tmp_path / "page.html").read_text()
    # As many as the test set has, of which there are 359.
    assert "<h2>Out of distribution</h2>" in page and "elsewhere (359)" in page and "is 0.50." in page
    assert "AUROC of the entropy" in page and "AUPR of the epistemic" in page
    assert "AUROC of the mutual information" in page


def test_out_of_distribution_images_of_a_path(digits, tmp_path, capsys):
    for i, image in enumerate(np.random.default_rng(0).integers(0, 256, (9, 8, 8), dtype=np.uint8)):
        path = tmp_path / "scans" / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    assert make(digits, "--ood", tmp_path / "scans", "--output", tmp_path / "page.html") == 0
    assert "scans (9)" in (tmp_path / "page.html").read_text()
    Image.fromarray(np.zeros((3, 3), np.uint8)).save(tmp_path / "scans" / "a" / "x.png")
    assert make(digits, "--ood", tmp_path / "scans", "--output", tmp_path / "other.html") == 2
    assert "x.png is 3 x 3" in capsys.readouterr().err


def test_out_of_distribution_rows_of_a_table(tmp_path):
    """Standardised by the run's columns, and for its model again as they are in the file."""
    (tmp_path / "new.csv").write_text("dose,name,age\n" + "2.5,x,40\n" * 3)
    columns = (bfl.data.Column("age", 50.0, 9.0), bfl.data.Column("dose", 2.0, 1.0))
    like = bfl.data.Source("rows", "test", np.zeros((2, 2)), np.zeros(2, int), ("a", "b"), columns)
    config = make_config(None, {})
    other = pages._from_path(tmp_path / "new.csv", like, config)
    np.testing.assert_array_equal(other.features, np.float32([[-10 / 9, 0.5]] * 3))
    np.testing.assert_allclose(pages._as_exported(other), [[40, 2.5]] * 3, rtol=1e-6)
    plain = dataclasses.replace(like, columns=())
    refuses("neither images nor columns", pages._from_path, tmp_path / "new.csv", plain, config)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("digits", "is what a run was trained on"),
        ("breast_cancer", "has examples float32 [30], but those of digits are uint8 [8, 8, 1]"),
        ("elsewhere", "has examples float32 [8, 8, 1], but"),
        ("breast_cancr", "did you mean 'breast_cancer'"),
    ],
)
def test_other_data_that_the_model_cant_take(digits, tmp_path, monkeypatch, capsys, name, message):
    elsewhere(monkeypatch, np.zeros((5, 8, 8, 1), np.float32))
    assert message in refusal(capsys, "report", digits, "--ood", name, "--output", tmp_path / "new" / "page.html")
    assert not (tmp_path / "new").exists()


def cut(name):
    def change(folder):
        (folder / name).write_bytes((folder / name).read_bytes()[:-30])

    return change


def without(name):
    return lambda folder: (folder / name).unlink()


def of_other_data(folder):
    with np.load(folder / "predictions.npz") as arrays:
        changed = {**arrays, "labels": arrays["labels"][::-1]}
    np.savez(folder / "predictions.npz", **changed)


def not_finite(folder):
    with np.load(folder / "predictions.npz") as arrays:
        changed = {**arrays, "entropy": arrays["entropy"] * np.nan}
    np.savez(folder / "predictions.npz", **changed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("config.yaml"), "is not the folder of a run: it has no config.yaml"),
        (without("summary.json"), "is not finished: go on with it by tfp-bfl run --resume"),
        (without("predictions.npz"), "has no predictions.npz"),
        (without("metrics.jsonl"), "has no metrics.jsonl"),
        (cut("summary.json"), "is damaged"),
        (cut("metrics.jsonl"), "is damaged"),
        (cut("predictions.npz"), "is not a file of arrays, or is damaged"),
        (lambda folder: (folder / "summary.json").write_text("[1]"), "is damaged"),
        (lambda folder: (folder / "summary.json").write_text('{"accuracy": "high"}'), "is damaged"),
        (lambda folder: (folder / "metrics.jsonl").write_text('{"round": 1, "faulty_clients": 3}'), "is damaged"),
        (lambda folder: (folder / "metrics.jsonl").write_text('{"nll": 1}'), "its number under the key 'round'"),
        (lambda folder: (folder / "config.yaml").write_text("dataset: [1]"), "dataset is [1]"),
        (of_other_data, "are not of the test set that digits has here"),
        (not_finite, "is not a run's file of predictions"),
    ],
)
def test_a_folder_that_is_no_complete_run(copy, tmp_path, capsys, change, message):
    change(copy)
    assert message in refusal(capsys, "report", copy, "--output", tmp_path / "new" / "page.html")
    assert not (tmp_path / "new").exists()


def test_bad_arguments(digits, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "report.html").write_text("kept")
    for arguments, message in (
        ([digits], "report.html exists already"),
        ([digits, digits / ".." / digits.name, "--output", "new.html"], "named twice"),
        (["nowhere", "--output", "new.html"], "nowhere is not the folder of a run"),
        ([digits, "--output", "report.html/new.html"], "can't be written: "),
        ([], "Missing argument"),
    ):
        assert message in refusal(capsys, "report", *arguments)
    assert (tmp_path / "report.html").read_text() == "kept" and len(list(tmp_path.iterdir())) == 1


def test_a_collapsed_posterior_is_said_first(copy, tmp_path):
    summary = {**summary_of(copy), "warnings": [bfl.federated.collapse_warning(2)]}
    (copy / "summary.json").write_text(json.dumps(summary))
    assert make(copy, "--output", tmp_path / "page.html") == 0
    page = (tmp_path / "page.html").read_text()
    assert page.index("The posterior collapsed in round 2") < page.index("<h2>Learning curve")
