"""Requests and responses as TensorFlow Serving's REST API has them, answered in process.

`answer` does what its server does: JSON to tensors by the signature's types, the call, tensors to JSON.
(https://www.tensorflow.org/tfx/serving/api_rest)
"""

import functools
import json
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl import export, models
from tfp_bfl.export.calibrated import serving
from tfp_bfl.export.graph_checks import ARITHMETIC, EXPORTED, SAVING
from tfp_bfl.export.info import describe
from tfp_bfl.export.signatures import make_functions, make_signatures
from tfp_bfl.posterior import LowRank, Samples
from tfp_bfl.weights import get_weights, predictive_model

PIXELS = np.random.default_rng(0).integers(256, size=[2, 8, 8, 1]).astype(np.uint8)
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "serving.md"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "digits" / "1"
    export.save(models.mlp("flipout", (8, 8, 1), num_classes=10, hidden=(), initial_stddev=0.1), folder)
    return tf.saved_model.load(str(folder))


def answer(served, body):
    request = json.loads(body)
    signature = served.signatures[request.get("signature_name", "serving_default")]
    specs = signature.structured_input_signature[1]
    by_row = "instances" in request
    assert by_row != ("inputs" in request)
    given = request["instances" if by_row else "inputs"]
    if by_row and isinstance(given[0], dict):
        given = {name: [row[name] for row in given] for name in given[0]}
    elif not isinstance(given, dict):
        (name,) = specs
        given = {name: given}
    assert set(given) == set(specs)
    tensors = {name: tf.constant(value, specs[name].dtype) for name, value in given.items()}
    assert all(specs[name].shape.is_compatible_with(tensor.shape) for name, tensor in tensors.items())
    outputs = {name: value.numpy().tolist() for name, value in signature(**tensors).items()}
    if by_row:
        rows = [dict(zip(outputs, values)) for values in zip(*outputs.values(), strict=True)]
        return json.dumps({"predictions": rows})
    return json.dumps({"outputs": outputs if len(outputs) > 1 else next(iter(outputs.values()))})


def ask(served, **request):
    return json.loads(answer(served, json.dumps(request)))


def numbers(**more):
    return {"images": PIXELS.tolist(), "num_samples": 5, "seed": 1, **more}


def test_predict_in_columns(served):
    outputs = ask(served, signature_name="predict_uint8", inputs=numbers())["outputs"]
    wanted = served.predict(PIXELS, num_samples=5, seed=1)
    assert set(outputs) == {"probabilities", "mean", "entropy", "aleatoric", "epistemic", "label"}
    for name, value in wanted.items():
        np.testing.assert_allclose(outputs[name], value, rtol=1e-5, atol=1e-7)
    floats = ask(served, signature_name="predict", inputs=numbers(images=(PIXELS / 255).tolist()))["outputs"]
    np.testing.assert_allclose(floats["entropy"], outputs["entropy"], rtol=1e-4)


def test_abstain_in_columns(served):
    entropy = served.predict(PIXELS, num_samples=5, seed=1)["entropy"].numpy()
    limit = float(entropy.mean())
    outputs = ask(served, signature_name="abstain_uint8", inputs=numbers(max_uncertainty=limit))["outputs"]
    assert [label == -1 for label in outputs["label"]] == (entropy > limit).tolist()
    # One output has no name.
    assert np.shape(ask(served, signature_name="sample_uint8", inputs=numbers())["outputs"]) == (5, 2, 10)


def test_mean_in_rows(served):
    """It takes images alone, so that each instance is an image."""
    predictions = ask(served, signature_name="mean_uint8", instances=PIXELS.tolist())["predictions"]
    wanted = served.mean(PIXELS)
    assert [row["label"] for row in predictions] == wanted["label"].numpy().tolist()
    np.testing.assert_allclose([row["probabilities"] for row in predictions], wanted["probabilities"], rtol=1e-5)


def test_the_documentation_s_requests_are_answered(served):
    """Each block of JSON with a signature's name, its images filled in."""
    blocks = re.findall(r"```json\n(.*?)```", DOCUMENT.read_text(), re.S)
    images = {'"IMAGES"': json.dumps(PIXELS.tolist()), '"IMAGE"': json.dumps(PIXELS[0].tolist())}
    filled = [functools.reduce(lambda text, word: text.replace(word, images[word]), images, block) for block in blocks]
    requests = [block for block in filled if "signature_name" in block]
    assert len(requests) >= 3
    for request in requests:
        assert set(json.loads(answer(served, request))) & {"outputs", "predictions"}


SHAPES = {"lenet": (8, 8, 1), "resnet20": (8, 8, 3), "mlp": (8, 8, 1), "conv_net": (8, 8, 1), "linear": (8, 8, 1)}
CASES = [(name, kind, {}) for name in models.MODELS for kind in models.KINDS]
CASES += [("lenet", "flipout", {"normalization": "group"}), ("lenet", "deterministic", {"precision": "bfloat16"})]
# Of the graph around the functions, in which variables are made and saved.
AROUND = {"PlaceholderWithDefault", "Select", "VarHandleOp"}


each = tf.nest.map_structure


def used_by(model):
    signatures = make_signatures(module := make_functions(model), model.input_shape[1:])
    served = serving(module, export.Info(model=describe(model))).values()
    return set().union(*map(operations, [*signatures.values(), *(x.get_concrete_function() for x in served)]))


def operations(function):
    graph = function.graph.as_graph_def()
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    return {node.op for node in nodes}


def test_a_small_model_s_export_uses_none_that_is_not_on_the_list():
    used = used_by(models.mlp("flipout", SHAPES["mlp"], 3))
    assert "MatMul" in used and used <= EXPORTED
    assert not EXPORTED & ARITHMETIC and not EXPORTED & SAVING and not ARITHMETIC & SAVING


@pytest.mark.long
@pytest.mark.deep(after="tests/export/test_saved_model.py")
def test_the_list_is_what_exports_use():
    found = set()
    for name, kind, options in CASES:
        model = models.MODELS[name](kind=kind, input_shape=SHAPES[name], num_classes=3, **options)
        found |= used_by(model)
    # Draws from a posterior beside the model, with BatchNorm's statistics computed anew for each.
    weights = get_weights(model := models.resnet20("deterministic", (8, 8, 3)))
    rows = each(lambda x: x[None], weights.point)
    for q in (LowRank(weights.point, each(tf.ones_like, weights.point), rows), Samples(rows)):
        beside = weights._replace(posterior=q, point=())
        found |= used_by(predictive_model(model, beside, np.ones([4, 8, 8, 3], np.float32)))
    assert found <= EXPORTED
    assert EXPORTED - found == AROUND
