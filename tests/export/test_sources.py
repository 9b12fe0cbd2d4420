"""The inputs of `save`: models, results of simulations and folders of runs, with given information."""

import types

import numpy as np
import pytest
import tensorflow as tf

from tests.export.tampering import copy
from tests.kit import refuses
from tfp_bfl import export, models
from tfp_bfl.export.loading import FILES

PIXELS = np.random.default_rng(0).integers(256, size=[3, 4, 4, 1]).astype(np.uint8)
MODEL = models.mlp("flipout", input_shape=(4, 4, 1), num_classes=3, hidden=(), initial_stddev=0.1)
NAMES = ["cat", "dog", "owl"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    export.save(MODEL, folder / "saved_model", export.Info(class_names=NAMES, metrics={"accuracy": 0.5}))
    return folder


def probabilities(folder):
    loaded = export.load(folder)
    return loaded.predict(PIXELS, num_samples=4, seed=1)["probabilities"].numpy()


def test_a_run_s_folder(run, tmp_path):
    export.save(run, tmp_path / "saved")
    for name in FILES:
        assert (tmp_path / "saved" / name).read_bytes() == (run / "saved_model" / name).read_bytes()
    np.testing.assert_array_equal(probabilities(tmp_path / "saved"), probabilities(run / "saved_model"))


def test_given_information_wins_over_that_of_the_run(run, tmp_path):
    export.save(str(run), tmp_path / "saved", export.Info(metrics={"accuracy": 0.75}, data={"dataset": "mine"}))
    info = export.read_info(tmp_path / "saved")
    assert (info.class_names, info.metrics, info.data) == (NAMES, {"accuracy": 0.75}, {"dataset": "mine"})
    assert "| dataset | mine |" in (tmp_path / "saved" / "model_card.md").read_text()
    probabilities(tmp_path / "saved")  # its checksums are those of the new files


def test_a_card_does_not_name_numbers_twice_and_says_what_the_metrics_are_of(tmp_path):
    data = {"dataset": "mine", "metrics_on": "test"}
    info = export.Info(class_names=["0", "1", "2"], metrics={"accuracy": 0.5}, data=data)
    export.save(MODEL, tmp_path / "saved", info)
    card = (tmp_path / "saved" / "model_card.md").read_text()
    assert "## Classes\n\nThe numbers 0 to 2.\n" in card
    assert "## Metrics\n\nSplit: test.\n\n| metric |" in card and "metrics_on" not in card
    assert export.read_info(tmp_path / "saved").data == data


@pytest.mark.deep(after="tests/export/test_sources.py")
def test_a_simulation_s_result(tmp_path):
    """Scores are the model's metrics; how the last round went is not."""
    went = {"num_clients": 9, "num_examples": 90, "num_faulty": 1, "num_dropped": 2, "faulty_clients": {}}
    went |= {"retries": 0, "restarts": 0, "train_seconds": 1.5, "seconds": 2.0}
    rows = [{"round": 1, "accuracy": 0.1}, {"round": 2, "accuracy": 0.5, "nll": float("nan"), **went}]
    export.save(types.SimpleNamespace(model=MODEL, rounds=rows), tmp_path / "saved")
    assert export.read_info(tmp_path / "saved").metrics == {"round": 2, "accuracy": 0.5, "nll": None}


def test_a_broken_run_is_refused_before_anything_is_written(run, tmp_path):
    broken = copy(run, tmp_path / "broken")
    (broken / "saved_model" / "saved_model.pb").write_bytes(b"x")
    refuses("is not a SavedModel of this library", export.save, broken, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize("function", [export.save, export.save_tflite])
@pytest.mark.parametrize(
    ("source", "match"),
    [
        *[(x, "is neither the folder of a complete run nor a SavedModel") for x in ("empty", "nowhere", "a\0b")],
        ("unfinished", "is not complete and has no model yet"),
        *[(x, "can't be exported") for x in (3, types.SimpleNamespace(model=3))],
    ],
)
def test_what_is_no_model(tmp_path, monkeypatch, function, source, match):
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "unfinished"):
        (tmp_path / name).mkdir()
    (tmp_path / "unfinished" / "config.yaml").write_text("rounds: 3")
    refuses(match, function, source, "new")
    assert not (tmp_path / "new").exists()


def test_a_model_without_classes(tmp_path):
    images = tf.keras.Input([4, 4, 1])
    refuses(r"logits \[B, C\]", export.save, tf.keras.Model(images, images), tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("path", ["file/new", "a\0b", 3])
def test_a_path_that_can_t_be(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    for function in (export.save, export.save_tflite):
        refuses(".", function, MODEL, path)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("info", "match"),
    [
        ({"class_names": NAMES}, "must be a tfp_bfl.export.Info"),
        (export.Info(class_names=["a", "b"]), "2 class names, but the model has 3 classes"),
        (export.Info(class_names="abc"), "a list of printable names"),
        (export.Info(class_names=["a", "b", "c\nd"]), "a list of printable names"),
        (export.Info(metrics={"accuracy": "high"}), "must give a number for each name"),
        (export.Info(metrics=[0.5]), "must be a mapping"),
        (export.Info(configuration={1: 2}), "must be a mapping with names"),
        (export.Info(configuration={"model": MODEL}), "what JSON can hold"),
        (export.Info(configuration={"notes": "x" * 2**23}), "too large"),
    ],
)
def test_info_that_does_not_fit(tmp_path, info, match):
    refuses(match, export.save, MODEL, tmp_path / "new", info)
    assert not (tmp_path / "new").exists()
