"""Runs with a backbone: from a folder of photographs to an exported model that takes photographs."""

import json

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import tfp_bfl as bfl
from tests.kit import call, refusal, refuses, summary_of
from tfp_bfl.app.one_run import after, datasets
from tfp_bfl.app.options.afterwards import after_options
from tfp_bfl.app.options.config import make_config
from tfp_bfl.models import backbones, feature_cache

pytestmark = pytest.mark.cpu_seconds(60)  # one run serves the tests of the file

COLOURS = {"green": (60, 200, 60), "red": (200, 60, 60)}
CLIENTS = ("north", "south", "west")
deep = pytest.mark.deep(after="tests/app/test_backbone.py")
layers = tf.keras.layers


def write_network(path, seed=1):
    tf.keras.utils.set_random_seed(seed)
    parts = [layers.Conv2D(6, 3, activation="relu"), layers.GlobalAveragePooling2D(), layers.Dense(3)]
    tf.keras.Sequential([layers.Input((8, 8, 3)), *parts]).save(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("backbone"), np.random.default_rng(0)
    for client in CLIENTS:
        for name, colour in COLOURS.items():
            (folder / "photos" / client / name).mkdir(parents=True)
            for i in range(10):
                pixels = np.clip(rng.normal(0, 40, (12, 16, 3)) + colour, 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / "photos" / client / name / f"{i}.png")
    write_network(folder / "net.keras")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TFP_BFL_CACHE", str(folder / "cache"))
        yield folder


def options(folder, **more):
    return {"dataset": str(folder / "photos"), "backbone": str(folder / "net.keras"), "engine": "local", **more}


@pytest.fixture(scope="module")
def run(folder):
    given = options(folder, algorithm="fed_opt", rounds=6, hold_out=0.2, learning_rate=1.0)
    arguments = [x for name, value in given.items() for x in (f"--{name.replace('_', '-')}", value)]
    assert call("run", *arguments, "--output", folder / "run") == 0
    return folder / "run"


def images_of(folder):
    return bfl.data.read_own(str(folder / "photos")).test


def test_a_run_on_features_records_its_backbone(run):
    summary, info = summary_of(run), bfl.export.read_info(run / "saved_model")
    config = make_config(run / "config.yaml", {})
    assert summary["accuracy"] > 0.9 and config.model == "linear"
    assert info.model["input_shape"] == [12, 16, 3] and info.data["backbone"].startswith("net.keras (")
    # A dense layer of 6 features to 2 classes, and the convolution of the backbone.
    assert info.model["num_weights"] == 6 * 2 + 2 + 3 * 3 * 3 * 6 + 6
    assert str(run.parent) not in json.dumps(info._asdict())


def test_the_exported_model_takes_photographs(run, folder, capsys):
    test = images_of(folder)
    with np.load(run / "predictions.npz") as predictions:
        wanted = predictions["probabilities"]
    # Far from the file of the backbone, which the export does not read.
    exported = bfl.export.load(run / "saved_model")
    np.testing.assert_allclose(exported.predict(test.features)["probabilities"], wanted, atol=1e-5)
    np.testing.assert_allclose(exported.mean(test.features / np.float32(255))["probabilities"], wanted, atol=1e-4)
    assert {"predict", "predict_uint8"} <= exported.signatures.keys() and "unusual" in exported.predict(test.features)
    capsys.readouterr()
    assert call("predict", run, folder / "photos" / "north" / "red", "--format", "json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert np.mean([row["label"] == "red" for row in rows]) > 0.9


@deep
def test_a_posterior_of_the_last_layer_is_exported_with_the_backbone(run, folder, tmp_path):
    after.find_posterior(run, tmp_path / "posterior", after_options("last_layer", {}))
    exported = bfl.export.load(tmp_path / "posterior" / "saved_model")
    assert float(tf.reduce_max(exported.predict(images_of(folder).features)["epistemic"])) > 0


def test_another_backbone_cannot_resume_a_run(run, folder, capsys, tmp_path):
    summary, network = (run / "summary.json").read_bytes(), (folder / "net.keras").read_bytes()
    (run / "summary.json").unlink()
    write_network(folder / "net.keras", seed=2)
    try:
        assert "backbone" in refusal(capsys, "run", "--resume", run)
    finally:
        (run / "summary.json").write_bytes(summary)
        (folder / "net.keras").write_bytes(network)


def test_features_are_read_from_the_cache(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("TFP_BFL_CACHE", str(tmp_path))
    computed = datasets.load(make_config(None, options(folder))).train.features
    files = sorted((tmp_path / "features").iterdir())
    assert len(files) == 2 and all(x.suffix == ".npy" for x in files)
    calls = []
    network = backbones.Backbone.call
    monkeypatch.setattr(backbones.Backbone, "call", lambda *x: calls.append(x) or network(*x))
    model = bfl.models.features(folder / "net.keras")
    calls.clear()
    images = bfl.data.read_own(str(folder / "photos")).train.features
    found = feature_cache.cached_features(model, images)
    np.testing.assert_array_equal(found, computed)
    assert not calls
    # A damaged file is no file: its features are computed again.
    for file in files:
        file.write_bytes(file.read_bytes()[:-5])
    np.testing.assert_array_equal(feature_cache.cached_features(model, images), computed)
    assert calls and sorted((tmp_path / "features").iterdir()) == files
    write_network(folder / "other.keras", seed=2)
    other = feature_cache.cached_features(bfl.models.features(folder / "other.keras"), images)
    assert not np.allclose(other, computed) and len([*(tmp_path / "features").iterdir()]) == 3


def test_blocks_and_batches_do_not_change_features(folder, monkeypatch, tmp_path):
    model, images = bfl.models.features(folder / "net.keras"), images_of(folder).features
    whole = feature_cache.cached_features(model, images)
    monkeypatch.setattr(feature_cache, "_BLOCK", 5)
    monkeypatch.setattr(feature_cache, "_BATCH", 2)
    monkeypatch.setenv("TFP_BFL_CACHE", str(tmp_path))
    np.testing.assert_allclose(feature_cache.cached_features(model, images), whole, atol=1e-6)
    assert len([*(tmp_path / "features").iterdir()]) == -(-len(images) // 5)


@deep
def test_a_program_gives_images_and_another_model(folder, tmp_path):
    test = images_of(folder)
    found = bfl.run(
        tmp_path / "run", dataset=test, test_data=test, backbone=str(folder / "net.keras"), model="mlp",
        partition="iid", clients=2, rounds=1, engine="local",
    )  # fmt: skip
    exported = bfl.export.load(found.folder / "saved_model")
    assert exported.predict(test.features)["probabilities"].shape == (test.num_examples, 2)


def test_what_does_not_fit_a_backbone_is_refused(run, folder, tmp_path, capsys, monkeypatch):
    table = ["run", "--dataset", "breast_cancer", "--backbone", folder / "net.keras", "--output", tmp_path / "run"]
    assert "backbone is of images, and breast_cancer has examples of shape [30]" in refusal(capsys, *table)
    table = ["run", "--dataset", "breast_cancer", "--augmentation", "crop_and_flip:2", "--output", tmp_path / "new"]
    assert "augmentation is of images, and the model takes examples of shape [30]" in refusal(capsys, *table)
    assert not (tmp_path / "new").exists()
    assert "no training_histograms" in refusal(capsys, "drift", run, folder / "photos" / "north" / "red")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TFP_BFL_CACHE", str(tmp_path / "file"))
    model = bfl.models.features(folder / "net.keras")
    images = images_of(folder).features[:1]
    refuses("set TFP_BFL_CACHE to another folder", feature_cache.cached_features, model, images)
    monkeypatch.setenv("TFP_BFL_CACHE", str(tmp_path))
    model.weights[1].assign(model.weights[1] + np.inf)
    refuses("not finite for image 0", feature_cache.cached_features, model, images)
