"""Regression from file to prediction: runs, reports, exports, and what is refused."""

import csv
import json

import numpy as np
import pytest

import tfp_bfl as bfl
from tests.kit import call, refusal, summary_of
from tests.lite import lite_interpreter

pytestmark = pytest.mark.cpu_seconds(30)  # one run serves the tests of the file

FLAGS = "--model mlp --rounds 20 --local-epochs 10 --schedule cosine --engine local --num-samples 10"
SMALL = FLAGS.split()


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """price = 500 + 30 a - 20 b + noise whose sd is 5, or 40 where c = 1."""
    path = tmp_path_factory.mktemp("tables") / "houses.csv"
    rng = np.random.default_rng(0)
    a, b, c = rng.normal(size=600), rng.normal(3, 2, 600), rng.integers(0, 2, 600)
    price = 500 + 30 * a - 20 * b + np.where(c == 1, 40, 5) * rng.normal(size=600)
    owners = rng.integers(0, 3, 600)
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([["a", "b", "c", "agency", "price"], *zip(a, b, c, owners, price)])
    return path


@pytest.fixture(scope="module")
def run(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "houses"
    options = ("--dataset", str(table), "--label", "price", "--client-column", "agency", "--task", "regression")
    assert call("run", *SMALL, *options, "--output", folder) == 0
    return folder


def test_it_learns_the_means_and_who_is_noisy(run):
    """The best there is: RMSE sqrt((5^2 + 40^2) / 2) = 28.5; a constant has 58. Noise is found by c."""
    summary = summary_of(run)
    assert summary["rmse"] < 40 and 0.75 < summary["coverage"] <= 1 and 0 < summary["epistemic_share"] < 0.5
    loaded = bfl.export.load(run / "saved_model")
    rows = np.array([[0.0, 3.0, 0.0], [0.0, 3.0, 1.0], [1.0, 3.0, 0.0]], np.float32)
    answer = {name: value.numpy() for name, value in loaded.predict(rows).items()}
    assert answer["mean"][0] == pytest.approx(440, abs=15) and answer["mean"][2] > answer["mean"][0] + 10
    assert answer["aleatoric"][1] > 4 * answer["aleatoric"][0]
    np.testing.assert_allclose(answer["aleatoric"] + answer["epistemic"], answer["stddev"] ** 2, rtol=1e-4)
    assert np.all((answer["low"] < answer["mean"]) & (answer["mean"] < answer["high"]))


def test_the_export_says_what_the_run_recorded(run, table):
    saved = np.load(run / "predictions.npz")
    loaded = bfl.export.load(run / "saved_model")
    test = bfl.data.read_own(table, "price", "agency", task="regression").test
    rows = test.features * [c.stddev for c in test.columns] + [c.mean for c in test.columns]
    answer = loaded.predict(rows.astype(np.float32), num_samples=10, seed=0)
    for name in ("mean", "stddev", "low", "high"):
        np.testing.assert_allclose(answer[name], saved[name], rtol=1e-3, atol=0.05)
    np.testing.assert_allclose(saved["labels"], test.target.mean + test.target.stddev * test.labels, rtol=1e-5)
    sampled, at_mean = loaded.sample(rows[:4].astype(np.float32)), loaded.mean(rows[:4].astype(np.float32))
    assert sampled["mean"].shape == (20, 4) and at_mean["stddev"].shape == (4,)
    limited = loaded.abstain(rows.astype(np.float32), 10, 0, float(np.median(saved["stddev"])))["mean"].numpy()
    assert 0.4 < np.mean(np.isnan(limited)) < 0.6


def test_report_and_card_speak_of_numbers(run):
    page = (run / "report.html").read_text()
    for text in ("RMSE", "90 % intervals", "Coverage", "RMSE and coverage", "Predictions"):
        assert text in page
    assert "Reliability" not in page and "Accuracy" not in page
    card = (run / "saved_model" / "model_card.md").read_text()
    info = bfl.export.read_info(run / "saved_model")
    assert info.configuration["temperature"] == 1 and "; temperature 1: the Bayesian posterior" in page
    assert "; temperature 1: the Bayesian posterior" in card and "sharpened" not in card
    assert "A regression model with" in card and "Output: price." in card and "classes" not in card


def test_rows_are_predicted_from_the_command_line(run, table, capsys):
    assert call("predict", run, table, "--format", "json", "--max-uncertainty", "20") == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 600 and rows[1]["row"] == f"{table}[1]"
    assert set(rows[0]) >= {"mean", "stddev", "low", "high", "abstain"}
    assert {row["abstain"] for row in rows} == {row["stddev"] > 20 for row in rows} == {True, False}
    assert call("predict", run, table) == 0
    stated, _, head, *_ = capsys.readouterr().out.splitlines()
    assert stated.endswith("; temperature 1: the Bayesian posterior.")
    assert head.split()[:4] == ["row", "mean", "stddev", "low"]


def test_lite_says_the_same(run, tmp_path):
    bfl.export.save_tflite(run, tmp_path / "m.tflite", num_samples=3)
    rows = np.array([[0.0, 3.0, 0.0], [0.0, 3.0, 1.0]], np.float32)
    lite = lite_interpreter(tmp_path / "m.tflite").get_signature_runner("predict")(images=rows)
    answer = bfl.export.load(run / "saved_model")
    wanted = answer.predict(rows, num_samples=3, seed=0)
    for name in ("mean", "stddev", "low"):
        np.testing.assert_allclose(lite[name], wanted[name], rtol=1e-3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--algorithm", "fed_be", "--kind", "deterministic"), "fed_be is of classification"),
        (("--pretrain-share", "0.1"), "pretrain_share is of classification"),
    ],
)
def test_what_is_of_classes_alone_is_refused(tmp_path, capsys, options, words):
    assert words in refusal(capsys, "run", *SMALL, "--dataset", "diabetes", *options, "--output", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_numbers_without_the_task_say_which_option_is_missing(table, tmp_path, capsys):
    options = ("--dataset", str(table), "--label", "price", "--output", str(tmp_path / "x"))
    assert "--task regression" in refusal(capsys, "run", *SMALL, *options)
    assert "task belongs to user" in refusal(capsys, "run", "--task", "regression", "--output", tmp_path / "x")


@pytest.mark.deep(after="tests/app/test_regression.py")
@pytest.mark.parametrize(
    "algorithm",
    [
        *("partitioned_vi", "fl_swag", "fed_pa"),
        *(pytest.param(x, marks=pytest.mark.long) for x in ("bayesian_admm", "fed_opt", "fed_sgld", "fed_kp")),
        *(pytest.param(x, marks=pytest.mark.long) for x in ("qlsd", "dg_sgld", "fsgld")),
    ],
)
def test_every_other_family_regresses_too(tmp_path, algorithm):
    """Better than the mean of the training labels, whose RMSE on the test set is the control."""
    train, test = (bfl.data.load("diabetes", split) for split in ("train", "test"))
    constant = test.target.stddev * float(np.sqrt(np.mean(test.labels**2)))
    kind = "flipout" if algorithm in ("partitioned_vi", "bayesian_admm") else "deterministic"
    rounds = {"fl_swag": 1, "qlsd": 150, "dg_sgld": 150, "fsgld": 150}.get(algorithm, 8)
    more = {"fl_swag": {"local_epochs": 40, "min_examples": 1}, "fsgld": {"surrogate_steps": 5, "step_size": 1e-5}}.get(
        algorithm, {}
    )
    found = bfl.run(
        tmp_path / "run",
        **{"dataset": "diabetes", "model": "mlp", "kind": kind, "algorithm": algorithm, "rounds": rounds, **more},
        **{"clients": 3, "partition": "iid", "engine": "local", "evaluate_every": rounds},
    )
    assert train.target == test.target and found.summary["rmse"] < 0.97 * constant
