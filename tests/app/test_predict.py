"""`tfp-bfl export` and `tfp-bfl predict`, as a user meets them."""

import csv
import io
import json

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.fuzz.test_images import png
from tests.kit import summary_of
from tests.lite import lite_interpreter
from tfp_bfl import export, models
from tfp_bfl.algorithms.fixed_points import DEFAULT_RULE
from tfp_bfl.app.cli import run_command_line
from tfp_bfl.app.one_run.predict import FORMATS, Predictions, Row

pytestmark = pytest.mark.cpu_seconds(30)  # one run serves the tests of the file

NAMES = ["cat", "dog", "owl"]
PIXELS = np.random.default_rng(0).integers(256, size=[4, 4, 4, 1]).astype(np.uint8)
COLUMNS = ["image", "label", "confidence", "entropy", "epistemic", "aleatoric", "abstain", "set"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "saved"
    mlp = models.mlp("flipout", input_shape=(4, 4, 1), num_classes=3, hidden=(), initial_stddev=0.3)
    export.save(mlp, folder, export.Info(class_names=NAMES))
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    for i, pixels in enumerate(PIXELS):
        Image.fromarray(pixels[..., 0]).save(folder / f"{i} [red].png")
    return folder


@pytest.fixture
def call(capsys):
    def run(*arguments):
        status = run_command_line([str(a) for a in arguments])
        out = capsys.readouterr()
        return status, out.out, out.err

    return run


def test_json_is_what_the_model_says(call, model, images):
    loaded = export.load(model)
    answer = loaded.predict(PIXELS, num_samples=7, seed=3)
    limit = float(np.median(answer["entropy"]))
    options = ["--num-samples", 7, "--seed", 3, "--max-uncertainty", limit, "--format", "json"]
    status, out, err = call("predict", model, images, *options)
    assert (status, err) == (0, "")
    rows = json.loads(out)
    assert [list(row) for row in rows] == [COLUMNS] * 4
    assert [row["image"] for row in rows] == [str(images / f"{i} [red].png") for i in range(4)]
    assert [row["label"] for row in rows] == [NAMES[i] for i in answer["label"].numpy()]
    assert [row["abstain"] for row in rows] == (answer["entropy"].numpy() > limit).tolist()
    assert {row["abstain"] for row in rows} == {True, False}
    for column in ("entropy", "epistemic", "aleatoric"):
        np.testing.assert_allclose([row[column] for row in rows], answer[column], rtol=1e-5)
    np.testing.assert_allclose([row["confidence"] for row in rows], answer["probabilities"].numpy().max(1), rtol=1e-5)


def test_csv_and_archives(call, model, tmp_path, monkeypatch):
    monkeypatch.setattr("tfp_bfl.app.one_run.predict.BATCH_SIZE", 3)
    np.savez(tmp_path / "images.npz", PIXELS)
    status, out, _ = call("predict", model, tmp_path / "images.npz", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert status == 0 and list(rows[0]) == COLUMNS
    assert [row["image"] for row in rows] == [f"{tmp_path / 'images.npz'}[{i}]" for i in range(4)]
    loaded = export.load(model)
    wanted = loaded.predict(PIXELS, num_samples=20, seed=0)
    np.testing.assert_allclose([float(row["entropy"]) for row in rows], wanted["entropy"], rtol=1e-5)
    assert {row["abstain"] for row in rows} == {"False"}


def test_a_table_shows_names_as_they_are():
    rows = [
        Row("a" * 150 + "[/red].png", "[b]cat", 0.5, 0.25, 0.125, 0.25, True),
        Row("b.png", "dog", 1, 0, 0, 0, False),
    ]
    header, *lines = FORMATS["table"](Predictions("image", rows)).split("\n")
    assert header.split() == COLUMNS[:-1]  # No set says more than its label.
    assert lines[-2].split() == ["a" * 150 + "[/red].png", "[b]cat", "0.500", "0.250", "0.1250", "0.2500", "yes"]
    assert lines[-1].split()[0] == "b.png" and lines[-1].endswith("no")


def test_one_bad_file_does_not_stop_the_others(call, model, images, tmp_path):
    Image.fromarray(PIXELS[0][..., 0]).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_text("text")
    Image.fromarray(np.zeros([4, 5], np.uint8)).save(tmp_path / "c.png")
    Image.fromarray(np.zeros([4, 4, 3], np.uint8)).save(tmp_path / "d.png")
    (tmp_path / "e.png").write_bytes(png(50_000, 50_000, b"\0" * 100, color=0))
    Image.fromarray(PIXELS[1][..., 0]).save(tmp_path / "f.png")
    status, out, err = call("predict", model, tmp_path, "--format", "json")
    assert status == 1
    assert [row["image"] for row in json.loads(out)] == [str(tmp_path / "a.png"), str(tmp_path / "f.png")]
    assert err.splitlines() == [
        f"tfp-bfl: {tmp_path / 'b.png'} is not an image file: it must be BMP, GIF, JPEG or PNG, or .npz.",
        f"tfp-bfl: {tmp_path / 'c.png'} is 4 x 5 with 1 channel, but must be 4 x 4 with 1 channel.",
        f"tfp-bfl: {tmp_path / 'd.png'} is 4 x 4 with 3 channels, but must be 4 x 4 with 1 channel.",
        f"tfp-bfl: {tmp_path / 'e.png'} is not an image file: it must be BMP, GIF, JPEG or PNG, or .npz.",
    ]


def test_bad_input_is_one_sentence_and_status_2(call, model, images, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.png").write_text("text")
    module = tf.Module()
    module.predict = tf.function(lambda x: x, input_signature=[tf.TensorSpec([])])
    tf.saved_model.save(module, str(tmp_path / "other"))
    table = tmp_path / "table"
    export.save(models.mlp("deterministic", input_shape=(5,), num_classes=3, hidden=()), table)
    for arguments, match in [
        ((model, tmp_path / "empty"), "has no image files"),
        ((model, tmp_path / "text.png"), "is not an image file: it must be"),
        ((model, tmp_path / "nowhere"), "No such file or directory"),
        ((model, images, "--num-samples", 0), "num_samples is 0, but must be an integer of at least 1"),
        ((model, images, "--num-samples", 10**11), "num_samples is 100000000000, but may be at most 10000"),
        ((model, images, "--num-samples", "many"), "'many' is not a valid integer"),
        ((model, images, "--seed", -1), "is not in the range"),
        ((model, images, "--max-uncertainty", 1.5), "max_uncertainty is 1.5, but must be between 0 and 1"),
        ((model, images, "--max-uncertainty", "nan"), "max_uncertainty is nan, but must be between 0 and 1"),
        ((model, images, "--format", "xml"), "'xml' is not one of"),
        ((model,), "Missing argument"),
        ((tmp_path / "other", images), "is not a SavedModel of this library"),
        ((tmp_path / "empty", images), "is neither the folder of a complete run nor a SavedModel"),
        ((table, images), "The model takes rows of [5] numbers"),
    ]:
        status, out, err = call("predict", *arguments)
        assert (status, out) == (2, ""), (arguments, err)
        assert match in err and len(err.splitlines()) == 1, err


@pytest.mark.deep(after="test_predict.py")
def test_export_of_a_run_and_what_predicts_with_it(call, tmp_path):
    """The run's own options, metrics and data travel with its model."""
    run = tmp_path / "run"
    options = "--rounds 1 --local-epochs 1 --clients 2 --examples-per-client 20 --num-samples 2 --model mlp"
    assert call("run", *options.split(), "--output", run)[0] == 0
    status, out, _ = call("export", run, tmp_path / "model")
    assert status == 0 and "model_card.md" in out
    info = export.read_info(tmp_path / "model")
    summary = summary_of(run)
    assert info.class_names == [str(digit) for digit in range(10)]
    assert info.configuration["rule"] == DEFAULT_RULE and "output" not in info.configuration
    assert info.metrics["accuracy"] == summary["accuracy"] and "train_seconds" not in info.metrics
    assert info.data["dataset"] == "digits" and len(info.data["sha256"]) == 64
    card = (tmp_path / "model" / "model_card.md").read_text()
    assert info.data["sha256"] in card and "Unknown" not in card
    np.savez(tmp_path / "images.npz", np.zeros([2, 8, 8, 1], np.uint8))
    for model in (run, tmp_path / "model"):
        assert call("predict", model, tmp_path / "images.npz")[0] == 0
    assert call("export", run, tmp_path / "model.tflite", "--tflite", "--num-samples", 2)[0] == 0
    assert "predict_uint8" in lite_interpreter(tmp_path / "model.tflite").get_signature_list()
    for arguments, match in [
        ((run, tmp_path / "model"), "exists already"),
        ((run, tmp_path / "more", "--seed", 3), "--seed is for --tflite"),
        ((run, tmp_path / "more", "--tflite", "--num-samples", 0), "num_samples is 0"),
        ((tmp_path, tmp_path / "more"), "is neither the folder of a complete run"),
    ]:
        status, out, err = call("export", *arguments)
        assert (status, out) == (2, "") and match in err and len(err.splitlines()) == 1, err
    assert not (tmp_path / "more").exists()
