"""A limit from held-out examples: what `tfp-bfl calibrate` finds, writes and promises, and `predict` then goes by."""

import contextlib
import csv
import io
import shutil

import numpy as np
import pytest

import tfp_bfl as bfl
from tests.kit import call, refusal
from tfp_bfl.app.one_run import datasets
from tfp_bfl.app.one_run.calibrate import calibrate, entropy
from tfp_bfl.app.one_run.records import HELD_OUT
from tfp_bfl.app.options.config import make_config
from tfp_bfl.errors import InvalidArgument

pytestmark = pytest.mark.cpu_seconds(30)  # one run serves the tests of the file

TRAINING = ["--rounds", "20", "--local-epochs", "2", "--num-samples", "5", "--engine", "local", "--model", "mlp"]
HOLD_OUT = ["--hold-out", "0.3"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "digits"
    assert call("run", *TRAINING, *HOLD_OUT, "--output", folder) == 0
    return folder


@pytest.fixture(scope="module")
def calibrated(run):
    path = run.parent / "model"
    figure = run.parent / "limit.png"
    asked = ["--accuracy", "0.8", "--sets", "0.95", "--figure", str(figure)]
    assert call("calibrate", run, path, *asked) == 0
    assert figure.stat().st_size > 5000
    return path


def held_out(run):
    with np.load(run / HELD_OUT) as arrays:
        return dict(arrays)


def test_what_is_held_out_is_in_nobodys_training(run):
    config = make_config(run / "config.yaml", {})
    data = datasets.load(config)
    found = datasets.shares(config, data.train)
    apart = found.calibration.indices[0]
    assert len(apart) == round(0.3 * data.train.num_examples) == len(held_out(run)["labels"])
    assert not np.isin(apart, np.concatenate(found.clients.indices)).any()
    np.testing.assert_array_equal(held_out(run)["labels"], data.train.labels[apart])


def test_shares_are_all_of_the_whole():
    config = make_config(None, {"hold_out": 0.2, "pretrain_share": 0.3, "partition": "iid", "algorithm": "fed_be"})
    train = bfl.data.load("digits")
    found = datasets.shares(config, train)
    sizes = [part.sizes.sum() for part in (found.calibration, found.clients)]
    sizes += [found.server.sizes.sum() + found.held_out.sizes.sum(), len(found.unlabelled)]
    np.testing.assert_allclose(np.array(sizes) / train.num_examples, [0.2, 0.4, 0.3, 0.1], atol=2e-3)


def test_the_model_says_what_was_found(run, calibrated):
    found = bfl.export.calibration_of(bfl.export.read_info(calibrated))
    held = held_out(run)
    assert found.number == len(held["labels"]) and found.by == "entropy" and found.at_least == 0.8
    assert found.num_samples == 5  # of the run
    probabilities = bfl.evaluation.at_temperature(held["probabilities"], found.temperature)
    np.testing.assert_allclose(entropy(held["probabilities"]), held["entropy"], rtol=1e-3, atol=1e-5)
    right = probabilities.argmax(-1) == held["labels"]
    below = entropy(probabilities) <= found.limit
    # On all held-out examples, of which half chose the limit.
    assert right[below].mean() > 0.8 and abs(below.mean() - found.coverage) < 0.1
    card = (calibrated / "model_card.md").read_text()
    assert f"Softmax temperature {found.temperature:.3g}" in card and "at least 0.8 with confidence 0.9" in card
    assert "None. Use `tfp-bfl calibrate`" in (run / "saved_model" / "model_card.md").read_text()
    # The weights are those of the run.
    loaded = [bfl.export.load(path) for path in (calibrated, run / "saved_model")]
    pixels = bfl.data.load("digits", split="test").features[:50]
    for name in ("probabilities", "entropy"):
        np.testing.assert_array_equal(*(model.predict(pixels)[name] for model in loaded))


@pytest.mark.parametrize("limit", [None, 0.01])
def test_predict_goes_by_it(run, calibrated, tmp_path, capsys, limit):
    test = bfl.data.load("digits", split="test")
    np.savez(tmp_path / "some.npz", test.features[:100])
    asked = [] if limit is None else ["--max-uncertainty", str(limit)]
    command = ["predict", str(calibrated), str(tmp_path / "some.npz"), "--format", "csv", *asked]
    assert call(*command) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    found = bfl.export.calibration_of(bfl.export.read_info(calibrated))
    plain = bfl.export.load(run / "saved_model")
    probabilities = bfl.evaluation.at_temperature(
        plain.predict(test.features[:100], num_samples=5)["probabilities"], found.temperature
    )
    wanted = entropy(probabilities)
    np.testing.assert_allclose([float(row["entropy"]) for row in rows], wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose([float(row["confidence"]) for row in rows], probabilities.max(-1), rtol=1e-5)
    assert [row["abstain"] == "True" for row in rows] == (wanted > (found.limit if limit is None else limit)).tolist()
    sets = bfl.evaluation.prediction_sets(probabilities, found.set_limit)
    assert [len(row["set"].split("|")) for row in rows] == sets.sum(-1).tolist()
    holds = [str(label) in row["set"].split("|") for label, row in zip(test.labels, rows)]
    assert np.mean(holds) > 0.85


def test_adaptive_sets_are_served(run, tmp_path, capsys):
    command = ["calibrate", str(run), str(tmp_path / "model"), "--coverage", "0.8", "--set-score", "aps"]
    assert call(*command) == 0
    found = bfl.export.calibration_of(bfl.export.read_info(tmp_path / "model"))
    assert found.set_score == "aps" and f"sets: aps >= {found.set_limit:.4g}" in capsys.readouterr().out
    test = bfl.data.load("digits", split="test")
    np.savez(tmp_path / "some.npz", test.features[:100])
    assert call("predict", tmp_path / "model", tmp_path / "some.npz", "--format", "csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    plain = bfl.export.load(run / "saved_model").predict(test.features[:100], num_samples=5)["probabilities"]
    probabilities = bfl.evaluation.at_temperature(plain, found.temperature)
    sets = bfl.evaluation.prediction_sets(probabilities, found.set_limit, "aps")
    assert [len(row["set"].split("|")) for row in rows] == sets.sum(-1).tolist()


def test_by_the_epistemic_part_and_a_coverage(run, tmp_path):
    found = calibrate(run, tmp_path / "model", coverage=0.5, by="epistemic")
    assert 0.5 <= found.coverage < 0.51 and found.at_least is None
    assert np.median(held_out(run)["epistemic"]) == pytest.approx(found.limit, rel=0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accuracy": 0.9, "coverage": 0.5}, "and not both"),
        ({"by": "aleatoric"}, "by is 'aleatoric', but must be one of entropy, epistemic"),
        ({"accuracy": 0.6, "set_coverage": 0.9999}, "held-out examples, and here are"),
        ({"accuracy": 0.6, "set_score": "apps"}, "no score 'apps': did you mean 'aps'"),
        ({"accuracy": 0.6, "confidence": 1.5}, "confidence is 1.5"),
    ],
)
def test_what_can_not_be_had_is_one_sentence_and_nothing_written(run, tmp_path, options, message):
    with pytest.raises(InvalidArgument, match=message):
        calibrate(run, tmp_path / "model", **options)
    assert not (tmp_path / "model").exists()


def test_the_best_promise_is_offered_where_the_asked_one_can_not_be_made(run, tmp_path, capsys):
    path, test = tmp_path / "model", bfl.data.load("digits", split="test")
    assert call("calibrate", run, path, "--accuracy", "0.9999", "--figure", f"{path}.png") == 0
    found = bfl.export.calibration_of(bfl.export.read_info(path))
    assert found.limit is None and found.temperature > 0 and found.set_limit > 0
    said = capsys.readouterr().out
    assert f"{found.best_accuracy:g} can be promised, keeping {found.best_coverage:.0%}" in said
    assert f"Accuracy {found.best_accuracy:g} can be promised" in (path / "model_card.md").read_text()
    np.savez(tmp_path / "some.npz", test.features[:100])
    assert call("predict", path, tmp_path / "some.npz", "--format", "csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["abstain"] for row in rows} == {"False"} and max(len(row["set"]) for row in rows) >= 1
    kept = calibrate(run, tmp_path / "kept", accuracy=found.best_accuracy)
    assert kept.coverage >= found.best_coverage and kept.limit is not None and kept.best_accuracy is None
    with pytest.raises(bfl.evaluation.NoThreshold):
        held = held_out(run)
        given = held["probabilities"], held["labels"], held["entropy"]
        bfl.evaluation.abstention_limit(*given, accuracy=0.9999)


def test_of_shuffled_labels_nothing_is_promised(run, calibrated, tmp_path):
    """The control: the same predictions, of which the labels say nothing."""
    shutil.copytree(run, tmp_path / "run")
    held = held_out(run)
    shuffled = np.random.default_rng(0).permutation(held["labels"])
    np.savez_compressed(tmp_path / "run" / HELD_OUT, **{**held, "labels": shuffled})
    found = calibrate(tmp_path / "run", tmp_path / "none", accuracy=0.8)
    assert found.limit is None and found.best_accuracy < 0.3
    found = calibrate(tmp_path / "run", tmp_path / "model", coverage=0.5)
    true = bfl.export.calibration_of(bfl.export.read_info(calibrated))
    sizes = [
        bfl.evaluation.prediction_sets(bfl.evaluation.at_temperature(held["probabilities"], c.temperature), c.set_limit)
        .sum(-1)
        .mean()
        for c in (found, true)
    ]
    assert found.temperature > 2 * true.temperature and found.accuracy < 0.3 and sizes[0] > 7 > sizes[1]


def test_bad_commands(run, calibrated, tmp_path, capsys):
    assert "exists already: choose another name" in refusal(capsys, "calibrate", run, calibrated)
    for name in ("limit", "limit.png,svg"):
        said = refusal(capsys, "calibrate", run, tmp_path / "model", "--figure", tmp_path / name)
        assert "There is no format of figures" in said
    (run / HELD_OUT).rename(run / "elsewhere.npz")
    try:
        assert "held nothing out" in refusal(capsys, "calibrate", run, tmp_path / "model")
    finally:
        (run / "elsewhere.npz").rename(run / HELD_OUT)


def test_a_calibration_of_another_form_is_refused(calibrated, tmp_path):
    info = bfl.export.read_info(calibrated)
    for change in ({"limit": float("nan")}, {"by": "x"}, {"temperature": 0}, {"more": 1}):
        with pytest.raises(InvalidArgument):
            bfl.export.save(calibrated, tmp_path / "model", info._replace(calibration={**info.calibration, **change}))
    assert not (tmp_path / "model").exists()


@pytest.mark.statistical
@pytest.mark.deep(after="tests/app/test_calibrate.py")
@pytest.mark.parametrize("partition", ["iid", "dirichlet:0.1"])
def test_sets_and_limits_hold_on_new_examples_whoever_has_the_data(tmp_path, partition):
    """Over 60 divisions of the test set in held-out and new: means within 5 standard errors (error rate 6e-7)."""
    folder = tmp_path / "run"
    assert call("run", *TRAINING, "--partition", partition, "--output", folder) == 0
    with np.load(folder / "predictions.npz") as arrays:
        probabilities, labels = arrays["probabilities"], arrays["labels"]
    covered, kept, right = [], [], probabilities.argmax(-1) == labels
    for seed in range(60):
        order = np.random.default_rng(seed).permutation(len(labels))
        first, new = order[:150], order[150:]
        limit = bfl.evaluation.conformal_limit(probabilities[first], labels[first], 0.9)
        covered.append(np.mean(np.take_along_axis(probabilities[new], labels[new, None], -1) >= limit))
        u = entropy(probabilities)
        given = probabilities[first], labels[first], u[first]
        wanted = right.mean() - 0.05
        with contextlib.suppress(InvalidArgument):  # Of some divisions the held-out half is too bad.
            safe = bfl.evaluation.abstention_limit(*given, accuracy=wanted).limit
            kept.append(right[new][u[new] <= safe].mean() >= wanted)
    assert np.mean(covered) > 0.9 - 5 * np.std(covered) / 60**0.5
    assert len(kept) > 30 and np.mean(kept) > 0.7
