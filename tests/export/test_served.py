"""What is served is what was calibrated: every way to ask a model for its predictions gives those of `tfp-bfl predict`.

The ways: `serve` and the default signature in Python, `saved_model_cli`, a server over HTTP, and LiteRT's interpreter.
"""

import http.client
import json
import runpy
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.csv
import pytest
import tensorflow as tf

from tests.kit import refuses
from tests.lite import lite_interpreter
from tfp_bfl import evaluation, export, models
from tfp_bfl.app.one_run.predict import predict
from tfp_bfl.data import read_own

PROGRAM = Path(__file__).resolve().parents[2] / "docs" / "examples" / "serve.py"
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(256, size=[7, 4, 4, 1]).astype(np.uint8)
CELLS = {"age": [40.0, 55.5, 61.0, 70.0], "dose": [0.5, 0.0, -1.0, 2.0], "sex": ["f", "m", "", "f"]}
SIZE = 200
COLUMNS = {
    "age": RNG.normal(50, 9, SIZE),
    "dose": RNG.normal(size=SIZE),
    "sex": RNG.choice(["f", "m", ""], SIZE),
    "label": RNG.choice(["ill", "well", "dead"], SIZE),
    "score": RNG.normal(1e4, 5, SIZE),
}
CALIBRATION = export.Calibration(
    **{"number": 100, "num_samples": 3, "temperature": 1.7, "by": "entropy", "limit": 0.8, "coverage": 0.5},
    **{"accuracy": 0.9, "at_least": 0.8, "confidence": 0.9, "set_coverage": 0.9, "set_limit": 0.25},
)
CASES = {
    "image": CALIBRATION,
    "aps": CALIBRATION._replace(set_score="aps", by="epistemic", limit=0.02),
    "not calibrated": None,
    "rows": CALIBRATION._replace(set_score="raps:0.1"),
    "table": CALIBRATION._replace(limit=None, temperature=0.4, best_accuracy=0.5, best_coverage=0.1),
    "number": None,
}


def made(name):
    """Return model, facts, and the inputs of the default signature."""
    if name in ("image", "aps", "not calibrated"):
        model = models.mlp("flipout", (4, 4, 1), 3, hidden=(4,), initial_stddev=0.5, seed=0)
        return model, export.Info(), {"images": (PIXELS / np.float32(255)).astype(np.float32)}
    used = {
        "rows": ("age", "dose", "sex", "label"),
        "table": ("age", "dose", "label"),
        "number": ("age", "dose", "score"),
    }
    table = pyarrow.table({column: COLUMNS[column] for column in used[name]})
    train = read_own(table, **({"label": "score", "task": "regression"} if name == "number" else {})).train
    data = {"columns": [list(x) for x in train.columns], "target": None if train.target is None else list(train.target)}
    inputs = {"images": np.array([CELLS["age"], CELLS["dose"]], np.float32).T}
    if name == "rows":
        data["encoding"] = [x._asdict() for x in train.encoding]
        inputs = {column: np.array(CELLS[column], None if column == "sex" else np.float32) for column in used[name][:3]}
    outputs = 2 if name == "number" else 3
    model = models.mlp("flipout", train.element_shape, outputs, hidden=(4,), initial_stddev=0.5, seed=0)
    return model, export.Info(class_names=train.class_names or None, data=data), inputs


deep = pytest.mark.deep(after="tests/export/test_served.py")


@pytest.fixture(scope="module", params=[x if x in ("image", "rows") else pytest.param(x, marks=deep) for x in CASES])
def case(request, tmp_path_factory):
    """(name, folder, inputs, rows): a calibrated copy of an export, and what `tfp-bfl predict` prints of the inputs."""
    name, folder = request.param, tmp_path_factory.mktemp("served")
    model, info, inputs = made(name)
    export.save(model, folder / "run", info)
    path = folder / "run"
    if CASES[name]:
        path = folder / "model"
        export.save(folder / "run", path, export.Info(calibration=CASES[name]._asdict()))
    file = folder / ("some.npz" if name in ("image", "aps", "not calibrated") else "some.csv")
    if file.suffix == ".npz":
        np.savez(file, PIXELS)
    else:
        pyarrow.csv.write_csv(pyarrow.table(CELLS), file)
    return name, path, inputs, predict(path, file).records()


def agree(name, answer, rows, exact=1e-6):
    """Compare outputs with the rows of `tfp-bfl predict`."""
    answer = {output: np.asarray(value) for output, value in answer.items()}
    numbers = [x for x in ("entropy", "epistemic", "aleatoric", "mean", "stddev", "low", "high") if x in rows[0]]
    for output in numbers:
        np.testing.assert_allclose(answer[output], [row[output] for row in rows], rtol=exact, atol=exact)
    assert answer["abstain"].tolist() == [row["abstain"] for row in rows]
    if name != "number":
        np.testing.assert_allclose(answer["probabilities"].max(-1), [row["confidence"] for row in rows], atol=exact)
        names = ("dead", "ill", "well") if name in ("rows", "table") else ("0", "1", "2")
        assert [names[label] for label in answer["label"]] == [row["label"] for row in rows]
        sets = ["|".join(np.array(names)[one]) for one in answer["set"]]
        assert sets == [row["set"] for row in rows]
    assert set(answer) == {*numbers, "abstain", *(() if name == "number" else ("probabilities", "label", "set"))}


def test_the_default_signature_takes_inputs_alone(case):
    name, path, inputs, rows = case
    loaded = tf.saved_model.load(str(path))
    signature = loaded.signatures["serving_default"]
    assert set(signature.structured_input_signature[1]) == set(inputs)
    agree(name, signature(**{x: tf.constant(value) for x, value in inputs.items()}), rows)
    alone = [signature(**{x: tf.constant(value[i : i + 1]) for x, value in inputs.items()}) for i in range(len(rows))]
    agree(name, {output: np.concatenate([x[output] for x in alone]) for output in alone[0]}, rows)
    if "images" in inputs:
        assert len(loaded.serve(inputs["images"][:0])["abstain"]) == 0


def test_it_applies_the_calibration(case):
    """Against NumPy's probabilities at a temperature, and the sets of `evaluation.prediction_sets`."""
    name, path, inputs, _ = case
    if CASES[name] is None or name == "rows":
        return
    loaded, found = export.load(path), CASES[name]
    plain = loaded.predict(inputs["images"], num_samples=found.num_samples, seed=0)
    wanted = evaluation.at_temperature(plain["probabilities"], found.temperature)
    answer = loaded.serve(inputs["images"])
    np.testing.assert_allclose(answer["probabilities"], wanted, atol=1e-6)
    sets = evaluation.prediction_sets(wanted, found.set_limit, found.set_score)
    np.testing.assert_array_equal(answer["set"], sets)
    uncertainty = answer[found.by].numpy()
    assert answer["abstain"].numpy().tolist() == (uncertainty > (found.limit or np.inf)).tolist()
    for part in ("epistemic", "aleatoric", "label"):
        np.testing.assert_array_equal(answer[part], plain[part])


def test_settings_override_it_for_all_examples_or_each(case):
    name, path, inputs, _ = case
    if name != "image":
        return
    loaded, images = export.load(path), inputs["images"]
    size = len(images)
    by_seed = [loaded.serve(images, seed=seed)["entropy"].numpy() for seed in range(size)]
    assert np.std(by_seed, axis=0).min() > 1e-4
    np.testing.assert_allclose(loaded.serve(images, seed=list(range(size)))["entropy"], np.diag(by_seed), atol=1e-6)
    more = loaded.serve(images, num_samples=[9], temperature=1.0, max_uncertainty=0.0, set_limit=0.0)
    plain = loaded.predict(images, num_samples=9, seed=0)
    np.testing.assert_allclose(more["probabilities"], plain["probabilities"], atol=1e-6)
    assert more["abstain"].numpy().all() and more["set"].numpy().all()
    for settings, match in (
        ({"seed": [1, 2]}, "must each be one value, or one for each example"),
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"num_samples": 0}, "num_samples must be at least 1"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=match):
            loaded.serve(images, **settings)


@deep
def test_saved_model_cli_needs_no_settings(case, tmp_path):
    """It reads the graph without its objects, as TensorFlow Serving does; settings of `serve` have defaults."""
    name, path, inputs, rows = case
    if name == "rows":
        return  # Its files have one array each of numbers or of text.
    np.save(tmp_path / "x.npy", inputs["images"])
    run = f"-m tensorflow.python.tools.saved_model_cli run --dir {path} --tag_set serve --overwrite"
    for signature, more in (("serving_default", ""), ("serve", ""), ("serve", " --input_exprs seed=0")):
        command = f"{run} --signature_def {signature} --inputs images=x.npy --outdir answer{more}"
        done = subprocess.run([sys.executable, *command.split()], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        agree(name, {file.stem: np.load(file) for file in (tmp_path / "answer").iterdir()}, rows)


@pytest.fixture
def ask(case):
    """Return the function that sends a request to the program of the documentation, and returns status and answer."""
    server = runpy.run_path(str(PROGRAM))["make_server"](str(case[1]), 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def send(body, path="/v1/models/model:predict"):
        connection = http.client.HTTPConnection(*server.server_address)
        connection.request("POST", path, body if isinstance(body, str) else json.dumps(body))
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    yield send
    server.shutdown()
    server.server_close()


def test_over_http(case, ask):
    name, _, inputs, rows = case
    each = [dict(zip(inputs, values)) for values in zip(*(value.tolist() for value in inputs.values()))]
    status, answer = ask({"instances": each})
    assert status == 200, answer
    agree(name, {output: [row[output] for row in answer["predictions"]] for output in answer["predictions"][0]}, rows)
    if name == "image":
        assert ask({"instances": inputs["images"].tolist()}) == (200, answer)
        scaled = ask({"instances": PIXELS.tolist(), "signature_name": "serving_default_uint8"})[1]["predictions"]
        agree(name, {output: [row[output] for row in scaled] for output in scaled[0]}, rows)


BAD = {
    "image": [
        (
            {"instances": [[[1.0]]]},
            "images of each instance must be numbers of shape [4, 4, 1], not numbers of shape [1, 1].",
        ),
        ({"instances": [[1.0, [2.0]]]}, "must be numbers of shape [4, 4, 1], but the lists differ in length."),
        (
            {"instances": [[[["a"]] * 4] * 4]},
            "must be numbers of shape [4, 4, 1], not text of shape [4, 4, 1].",
        ),
        (
            {"instances": [[[[None]] * 4] * 4]},
            "numbers of shape [4, 4, 1], not other values of shape [4, 4, 1].",
        ),
        ({"instances": [[[[float("nan")]] * 4] * 4]}, "examples hold numbers that are not finite: fill them in"),
        ({"instances": [[[[7]] * 4] * 4]}, "images are floats outside 0 to 1, but must be uint8, or floats in [0, 1"),
        ({"instances": [[[[256]] * 4] * 4], "signature_name": "mean_uint8"}, "whole numbers from 0 to 255."),
        ({"instances": [{"image": 1}]}, "Each instance must have the inputs images, and no others."),
        ({"instances": []}, 'must be a JSON object with a list "instances"'),
        ({"instances": [1], "signature_name": ["more"]}, "There is no signature ['more']: use "),
        ("{", "The request must be JSON: Expecting property name"),
    ],
    "rows": [
        ({"instances": [{"age": "old", "dose": 1.0, "sex": "f"}]}, "age of each instance must be numbers of shape []"),
        ({"instances": [{"age": 1.0, "dose": 1.0, "sex": 1.0}]}, "sex of each instance must be text of shape []"),
        ({"instances": [{"age": 1.0, "sex": "f"}]}, "Each instance must have the inputs age, dose, sex"),
        ({"instances": [{"age": float("inf"), "dose": 1.0, "sex": "f"}]}, "not finite"),
    ],
    "number": [({"instances": [[1.0, float("nan")]]}, "not finite")],
}


def test_a_request_that_can_not_be_answered_is_refused_with_one_sentence(case, ask):
    for request, sentence in BAD.get(case[0], ()):
        status, answer = ask(request)
        assert status == 400 and sentence in answer["error"] and "\n" not in answer["error"], answer
    assert ask({}, "/v1/models/other:predict")[1] == {"error": "Send requests to /v1/models/model:predict."}


def test_litert(case, tmp_path):
    name, path, inputs, rows = case
    export.save_tflite(path, tmp_path / "m.tflite", **({} if CASES[name] else {"num_samples": 20}))
    answer = lite_interpreter(tmp_path / "m.tflite").get_signature_runner("serving_default")(**inputs)
    agree(name, answer, rows, 1e-3 if name == "number" else 2e-6)


def test_another_calibration_replaces_the_first(case, tmp_path):
    name, path, inputs, _ = case
    if name != "image":
        return
    export.save(path, tmp_path / "hot", export.Info(calibration=CALIBRATION._replace(temperature=9.0)._asdict()))
    hot, first = (export.load(folder).serve(inputs["images"])["probabilities"] for folder in (tmp_path / "hot", path))
    np.testing.assert_allclose(hot, evaluation.at_temperature(first, 9.0 / 1.7), atol=1e-5)
    refuses("temperature", export.save, path, tmp_path / "no", export.Info(calibration={"temperature": 1.0}))
