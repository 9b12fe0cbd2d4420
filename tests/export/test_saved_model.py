"""SavedModels, loaded where neither this package nor TensorFlow Probability can be imported."""

import collections
import functools
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tests.kit import json_of, refuses
from tfp_bfl import evaluation, export, layers, models
from tfp_bfl.export.signatures import make_functions, make_signatures
from tfp_bfl.weights import assign_weights, get_weights

RNG = np.random.default_rng(0)
IMAGE = {"input_shape": (8, 8, 1), "num_classes": 3, "initial_stddev": 0.05, "dropout_rate": 0.4}
TABLE = {"input_shape": (5,), "num_classes": 3, "hidden": (4,), "initial_stddev": 0.3}
BUILDERS = {
    "flipout": lambda: models.lenet("flipout", normalization="batch", **IMAGE),
    "mc_dropout": lambda: models.lenet("mc_dropout", normalization="batch", **IMAGE),
    "deterministic": lambda: models.mlp("deterministic", hidden=(6,), **IMAGE),
    "table": lambda: models.mlp("flipout", **TABLE),
}
PIXELS = RNG.integers(256, size=[6, 8, 8, 1]).astype(np.uint8)
ROWS = RNG.normal(size=[6, 5]).astype(np.float32)
INFO = export.Info(class_names=["cat", "dog", "a | b"], configuration={"rule": "x"}, metrics={"accuracy": 0.75})
NUM_SAMPLES, SEED = 5, 7
OUTPUTS = ("probabilities", "entropy", "aleatoric", "epistemic")
deep = pytest.mark.deep(after="tests/export/test_saved_model.py")
# The small ones are loaded here; those of convolutions in a process of their own, where there is no library to help.
SMALL = ("table", "deterministic")
of_models = lambda names: pytest.mark.parametrize(
    "name", [name if name in SMALL else pytest.param(name, marks=deep) for name in names]
)
every_model = of_models(BUILDERS)

WITHOUT_THE_LIBRARY = """
import importlib, sys

BLOCKED = ("tfp_bfl", "tensorflow_probability", "tensorflow_federated")

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Blocker())
for name in BLOCKED:
    try:
        importlib.import_module(name)
    except ImportError:
        continue
    raise SystemExit(name + " is not blocked")
"""
# Loads a model, and writes its answers and what it says of itself.
LOADER = """
import json, sys
import numpy as np
import tensorflow as tf

folder, name, num_samples, seed = *sys.argv[1:3], *map(int, sys.argv[3:])
inputs = np.load(folder + "/inputs.npz")
loaded = tf.saved_model.load(folder + "/" + name)
x = inputs["rows"] if name == "table" else inputs["pixels"].astype(np.float32) / np.float32(255)
predict = lambda x, n=num_samples, seed=seed: loaded.predict(x, num_samples=n, seed=seed)
numbers = {"num_samples": tf.constant(num_samples), "seed": tf.constant(seed)}
sign = lambda signature, images: loaded.signatures[signature](images=tf.constant(images), **numbers)
found = {"first": predict(x), "again": predict(x), "other": predict(x, seed=seed + 1), "one": predict(x[:1])}
found |= {"single": predict(x, n=1), "mean": loaded.mean(x), "signature": sign("predict", x)}
found["sample"] = loaded.sample(x, num_samples=num_samples, seed=seed)
limit = float(np.median(found["first"]["entropy"]))
found["abstain"] = loaded.abstain(x, num_samples=num_samples, seed=seed, max_uncertainty=limit)
if name != "table":
    found |= {"bytes": predict(inputs["pixels"]), "bytes signature": sign("predict_uint8", inputs["pixels"])}
try:
    predict(x, n=0)
    error = ""
except tf.errors.InvalidArgumentError as e:
    error = str(e)
with open(loaded.info.asset_path.numpy()) as file:
    facts = {"signatures": sorted(loaded.signatures), "error": error, "info": json.load(file)}
flat = {f"{key}/{output}": x.numpy() for key, own in found.items() for output, x in own.items()}
np.savez(f"{folder}/{name}.npz", **flat)
with open(f"{folder}/{name}.json", "w") as file:
    json.dump(facts, file)
"""


@functools.cache
def build(name):
    """A model, with BatchNorm statistics that are not those of a new one."""
    model = BUILDERS[name]()
    weights = get_weights(model)
    moved = tf.nest.map_structure(lambda x: x + 0.5, weights.moments)
    assign_weights(model, weights._replace(moments=moved))
    return model


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """name -> (folder, call -> output -> answer, facts)."""
    folder = tmp_path_factory.mktemp("saved")
    np.savez(folder / "inputs.npz", pixels=PIXELS, rows=ROWS)

    @functools.cache
    def of(name):
        export.save(build(name), folder / name, INFO)
        arguments = [str(folder), name, str(NUM_SAMPLES), str(SEED)]
        if name in SMALL:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sys, "argv", ["loader", *arguments])
                exec(LOADER, {})
        else:
            command = [sys.executable, "-c", WITHOUT_THE_LIBRARY + LOADER, *arguments]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, done.stderr
        answers = collections.defaultdict(dict)
        with np.load(folder / f"{name}.npz") as file:
            for key, value in file.items():
                answers[key.split("/")[0]][key.split("/")[1]] = value
        return folder, answers, json_of(folder / f"{name}.json")

    return of


def assert_same(actual, wanted):
    for output in wanted:
        assert actual[output].shape == wanted[output].shape
        np.testing.assert_allclose(actual[output], wanted[output], rtol=1e-5, atol=1e-6, err_msg=output)


@every_model
def test_answers_are_those_of_the_library(saved, name):
    """Export BatchNorm and dropout too: the one by its moving statistics, the other on."""
    _, answers, _ = saved(name)
    x = ROWS if name == "table" else PIXELS
    samples = evaluation.predict(build(name), x, num_samples=NUM_SAMPLES, seed=SEED)
    uncertainty = evaluation.decompose(np.array(samples))
    wanted = (samples.mean(0), uncertainty.entropy, *evaluation.scalars(uncertainty))
    assert_same(answers["first"], dict(zip(OUTPUTS, wanted)))
    np.testing.assert_allclose(answers["sample"]["probabilities"], samples, rtol=1e-4, atol=1e-6)
    is_stochastic = name != "deterministic"
    assert (samples.std(0).max() > 1e-3) == (answers["first"]["epistemic"].max() > 1e-5) == is_stochastic
    np.testing.assert_allclose(answers["single"]["epistemic"], np.zeros(6), atol=1e-12)
    with layers.sampling("mean"):  # One pass at the posterior's mean.
        p = tf.nn.softmax(build(name)(layers.as_floats(tf.constant(x)), training=False)).numpy()
    np.testing.assert_allclose(answers["mean"]["probabilities"], p, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(answers["mean"]["label"], p.argmax(1))
    np.testing.assert_allclose(answers["mean"]["entropy"], evaluation.decompose(p[np.newaxis]).entropy, rtol=1e-4)


@every_model
def test_seeds_batches_signatures_and_limits(saved, name):
    _, answers, facts = saved(name)
    first, other = answers["first"], answers["other"]
    for output, value in answers["again"].items():
        np.testing.assert_array_equal(value, first[output])
    differ = bool(np.abs(other["probabilities"] - first["probabilities"]).max() > 1e-4)
    assert differ is (name != "deterministic")
    assert_same(answers["one"], {output: value[:1] for output, value in first.items()})
    functions = ["abstain", "mean", "predict", "sample", "serve", "serving_default"]
    bytes_too = [] if name == "table" else [f"{function}_uint8" for function in functions]
    assert facts["signatures"] == sorted(functions + bytes_too)
    for key in ("signature", *(("bytes", "bytes signature") if bytes_too else ())):
        assert_same(answers[key], first)
    exceeds = answers["abstain"]["entropy"] > np.float32(np.median(answers["abstain"]["entropy"]))
    assert 0 < exceeds.sum() < len(exceeds)
    np.testing.assert_array_equal(answers["abstain"]["label"], np.where(exceeds, -1, first["label"]))
    assert "num_samples must be at least 1." in facts["error"]


@every_model
def test_what_is_known_travels_as_an_asset(saved, name):
    folder, _, facts = saved(name)
    info = facts["info"]
    assert info["class_names"] == ["cat", "dog", "a | b"] and info["metrics"] == {"accuracy": 0.75}
    assert info["model"]["stochastic"] is (name != "deterministic") and info["data"] is None
    card = (folder / name / "model_card.md").read_text()
    assert "| Accuracy | 0.75 |" in card and "2. a \\| b" in card
    assert "Not recorded at export." in card  # the data
    assert export.read_info(folder / name).configuration == {"rule": "x"}


@deep
def test_saved_model_cli_runs_it(saved, tmp_path):
    """A program of TensorFlow's alone, by the graph without its objects, as TensorFlow Serving reads it."""
    np.save(tmp_path / "images.npy", PIXELS)
    command = f"-m tensorflow.python.tools.saved_model_cli run --dir {saved('flipout')[0]}/flipout --tag_set serve"
    command += " --signature_def predict_uint8 --inputs images=images.npy --outdir answer"
    command += f" --input_exprs num_samples={NUM_SAMPLES};seed={SEED}"
    done = subprocess.run([sys.executable, *command.split()], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    for output in OUTPUTS:
        answer = np.load(tmp_path / "answer" / f"{output}.npy")
        np.testing.assert_allclose(answer, saved("flipout")[1]["first"][output], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_exists_stays_untouched(tmp_path, what):
    path = tmp_path / "saved"
    if what == "folder":
        path.mkdir()
        (path / "notes.txt").write_text("mine")
    else:
        path.write_text("mine")
    refuses("exists already", export.save, build("table"), path)
    left = [p.name for p in sorted(tmp_path.rglob("*"))]
    assert left == (["saved", "notes.txt"] if what == "folder" else ["saved"])
    assert (path / "notes.txt" if what == "folder" else path).read_text() == "mine"


def test_an_empty_folder_will_do(tmp_path):
    export.save(models.mlp("deterministic", (5,), 3, hidden=()), tmp_path)
    assert tf.saved_model.contains_saved_model(str(tmp_path))


# Per comparison; eight of them are made.
ERROR_RATE = 1e-4


@pytest.mark.deep(after="tests/layers/test_flipout.py")
@pytest.mark.parametrize(("name", "convolutions"), [("lenet", 2), ("resnet20", 19)])
def test_a_sample_costs_one_convolution_a_layer(name, convolutions):
    model = models.MODELS[name]("flipout", input_shape=(8, 8, 3), num_classes=3)
    functions = make_functions(model)
    signature = make_signatures(functions, (8, 8, 3))["predict"]
    graph = signature.graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    # The loop over samples has the model once, in whichever function.
    bodies = {f.signature.name: [node.op for node in f.node_def].count("Conv2D") for f in graph.library.function}
    assert max(bodies.values()) == convolutions
    assert sum(node.op in ("While", "StatelessWhile") for node in nodes) >= 1


@pytest.mark.deep(after="tests/layers/test_distribution.py")
@pytest.mark.statistical
def test_one_draw_for_the_batch_is_distributed_as_a_draw_of_each_example_s_own():
    """Kolmogorov-Smirnov between the two ways of prediction, Flipout's and one weight sample for a batch, for each of 4
    examples and 2 classes: by chance one of the 8 fails in 8e-4 of all cases."""
    model = models.mlp("flipout", input_shape=(3,), num_classes=3, hidden=(5,), initial_stddev=0.5)
    features = np.random.default_rng(0).normal(size=[4, 3]).astype(np.float32)
    functions = make_functions(model)
    ours = functions.sample(features, 2000, 1)["probabilities"].numpy()

    @tf.function
    def alone(example, seeds):
        """Flipout's own noise for one example, in a batch and with seeds of its own: [S, C]."""

        def one(seed):
            with layers.sampling("flipout", seed):
                return tf.nn.softmax(model(example, training=False))[0]

        return tf.map_fn(one, seeds, fn_output_signature=tf.float32)

    seeds = evaluation.sample_seeds(2, 2000)
    theirs = np.stack([alone(features[b : b + 1], seeds + b) for b in range(4)], 1)
    for b in range(4):
        for c in range(2):
            assert stats.ks_2samp(ours[:, b, c], theirs[:, b, c]).pvalue > ERROR_RATE
            # It would see a shift by a quarter of the spread.
            shifted = ours[:, b, c] + 0.25 * ours[:, b, c].std()
            assert stats.ks_2samp(shifted, theirs[:, b, c]).pvalue < ERROR_RATE
