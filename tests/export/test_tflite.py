"""Files for TensorFlow Lite against the SavedModel of the same model."""

import functools
import logging

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import refuses
from tests.lite import lite_interpreter
from tfp_bfl import export, models
from tfp_bfl.posterior import LowRank
from tfp_bfl.weights import get_weights, predictive_model

NUM_SAMPLES, SEED = 3, 4
OPTIONS = {"input_shape": (8, 8, 1), "num_classes": 3, "initial_stddev": 0.1, "dropout_rate": 0.3}
PIXELS = np.random.default_rng(0).integers(256, size=[5, 8, 8, 1]).astype(np.uint8)
BUILDERS = {
    "flipout": lambda: models.lenet("flipout", normalization="batch", **OPTIONS),
    "mc_dropout": lambda: models.lenet("mc_dropout", **OPTIONS),
    "deterministic": lambda: models.mlp("deterministic", hidden=(4,), **OPTIONS),
    "low_rank": lambda: low_rank(),
}
deep = pytest.mark.deep(after="tests/export/test_tflite.py")
every_model = pytest.mark.parametrize(
    "name", [name if name == "deterministic" else pytest.param(name, marks=deep) for name in BUILDERS]
)


def low_rank():
    """A posterior beside the model, with BatchNorm's statistics computed anew for each draw."""
    model = models.lenet("deterministic", normalization="batch", **OPTIONS)
    weights = get_weights(model)
    each = tf.nest.map_structure
    variance, deviations = (lambda x: 0.003 * tf.ones_like(x)), (lambda x: 0.1 * tf.ones_like(x)[tf.newaxis])
    q = LowRank(weights.point, each(variance, weights.point), each(deviations, weights.point))
    return predictive_model(model, weights._replace(posterior=q, point=()), PIXELS)


@functools.cache
def build(name):
    return BUILDERS[name]()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


def interpreter(folder, name):
    file = folder / f"{name}.tflite"
    if not file.exists():
        export.save(build(name), folder / name)
        source = folder / name if name == "flipout" else build(name)
        export.save_tflite(source, file, num_samples=NUM_SAMPLES, seed=SEED)
    return lite_interpreter(file), tf.saved_model.load(str(folder / name))


@every_model
def test_answers_are_those_of_the_saved_model(folder, name):
    lite, loaded = interpreter(folder, name)
    numbers = {"num_samples": tf.constant(NUM_SAMPLES), "seed": tf.constant(SEED)}
    for signature in ("mean", "mean_uint8", "predict", "predict_uint8"):
        images = PIXELS if signature.endswith("uint8") else (PIXELS / 255).astype(np.float32)
        for part in (images, images[:1]):
            answer = lite.get_signature_runner(signature)(images=part)
            own = numbers if "predict" in signature else {}
            wanted = loaded.signatures[signature](images=tf.constant(part), **own)
            assert set(answer) == set(wanted)
            for output, value in wanted.items():
                np.testing.assert_allclose(answer[output], value, rtol=1e-4, atol=2e-6, err_msg=output)
    assert (answer["epistemic"].max() > 1e-5) == (name != "deterministic")


@every_model
@pytest.mark.deep(after="tests/export/test_tflite.py")
def test_only_operations_of_the_interpreter_s_own(folder, name):
    lite, _ = interpreter(folder, name)
    operations = {operation["op_name"] for operation in lite._get_ops_details()}
    assert "FULLY_CONNECTED" in operations
    assert not [op for op in operations if op.startswith("Flex") or "RANDOM" in op.upper()]


def test_size_is_that_of_the_samples(tmp_path):
    model, file = models.mlp("flipout", hidden=(300,), **OPTIONS), tmp_path / "wide.tflite"
    export.save_tflite(model, file, num_samples=NUM_SAMPLES)
    weights = 4 * sum(w.shape.num_elements() for w in model.trainable_variables if "log" not in w.name)
    # The samples, and the mean once more; the other signatures share them.
    assert weights * (NUM_SAMPLES + 1) < file.stat().st_size < weights * (NUM_SAMPLES + 2)


def small():
    return models.mlp("flipout", input_shape=(5,), num_classes=3, hidden=())


def test_a_table_takes_floats(tmp_path):
    export.save_tflite(small(), tmp_path / "table.tflite", num_samples=2)
    assert set(lite_interpreter(tmp_path / "table.tflite").get_signature_list()) == {
        "mean",
        "predict",
        "serving_default",
    }


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"num_samples": 0}, "num_samples is 0, but must be an integer of at least 1"),
        ({"num_samples": 2.5}, "num_samples is 2.5"),
        ({"seed": 2**31}, "an integer of 32 bits"),
        ({"seed": "a"}, "an integer of 32 bits"),
    ],
)
def test_bad_numbers(tmp_path, options, match):
    refuses(match, export.save_tflite, build("deterministic"), tmp_path / "new.tflite", **options)
    assert not list(tmp_path.iterdir())


def test_what_exists_stays_untouched(tmp_path):
    (tmp_path / "mine").write_text("mine")
    refuses("exists already", export.save_tflite, build("deterministic"), tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "mine"


def test_more_samples_than_a_file_holds(tmp_path, monkeypatch):
    monkeypatch.setattr("tfp_bfl.export.tflite.MOST_BYTES", 100)
    arguments = small(), tmp_path / "new.tflite"
    refuses("holds at most 100: take fewer", export.save_tflite, *arguments, num_samples=2)
    monkeypatch.undo()  # Before memory is taken for them:
    refuses("take fewer", export.save_tflite, *arguments, num_samples=10**11)
    assert not list(tmp_path.iterdir())


def test_a_temporary_folder_is_not_reported(tmp_path, caplog):
    logger = logging.getLogger("tensorflow")
    with caplog.at_level(logging.INFO, logger="tensorflow"):
        export.save_tflite(build("deterministic"), tmp_path / "new.tflite")
        assert logger.level == logging.INFO
    assert "Assets written" not in caplog.text
