"""A model of Keras 3 against the same layers of Keras 2 from the same weights: its outputs, rounds and exports."""

import functools
import sys

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tests.kit import refuses
from tests.lite import lite_interpreter
from tfp_bfl.data import Clients, Source
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.models.keras_3 import is_keras_3

keras = pytest.importorskip("keras")
pytestmark = pytest.mark.skipif(
    int(keras.__version__.partition(".")[0]) < 3, reason="Keras 3 needs TensorFlow 2.16 or newer"
)

ROWS = np.random.default_rng(0).normal(size=[30, 4]).astype(np.float32)
PIXELS = np.random.default_rng(1).integers(256, size=[30, 6, 6, 2]).astype(np.uint8)
LABELS = (np.arange(30) % 3).astype(np.int32)
FIT = {"local_epochs": 1, "batch_size": 8, "learning_rate": 0.05}


def clients_of(features):
    return Clients(Source("made", "train", features, LABELS, ("a", "b", "c")), [np.arange(12), np.arange(12, 30)])


def table(k):
    """Dense layers of a Keras, with an activation and a constraint."""
    layers = k.layers
    hidden = layers.Dense(5, activation="relu", kernel_constraint=k.constraints.MaxNorm(0.5))
    return k.Sequential([k.Input((4,)), hidden, layers.LayerNormalization(), layers.Dense(3)])


def images(k):
    """A residual network of a Keras: BatchNorm, an operation with a constant, a layer that is called twice."""
    layers = k.layers
    inputs = k.Input((6, 6, 2))
    x = layers.BatchNormalization(momentum=0.5)(layers.Conv2D(4, 3, padding="same", use_bias=False)(inputs))
    shared = layers.Conv2D(4, 1, activation="tanh")
    x = layers.Add()([layers.ReLU()(x), shared(x), shared(2.0 * x)])
    return k.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling2D()(x)))


def nested(k):
    """A network inside a network."""
    return k.Sequential([k.Input((4,)), k.Sequential([k.Input((4,)), k.layers.Dense(6, "relu")]), k.layers.Dense(3)])


BUILDERS = {"table": (table, ROWS), "images": (images, PIXELS), "nested": (nested, ROWS)}


@functools.cache
def start(name):
    """A model of Keras 3, whose weights no test changes."""
    return BUILDERS[name][0](keras)


def model_fns(name):
    """Functions that build the network in Keras 3 and in Keras 2, of the same weights."""
    build, source = BUILDERS[name][0], start(name)
    weights = bfl.models.from_keras_3(source).get_weights()

    def of_keras(k, values):
        model = build(k)
        model.set_weights(values)
        return model

    return lambda: of_keras(keras, source.get_weights()), lambda: of_keras(tf.keras, weights)


def as_inputs(features):
    return tf.image.convert_image_dtype(features, tf.float32) if features.dtype == np.uint8 else features


@pytest.mark.parametrize("name", BUILDERS)
def test_outputs_are_those_of_keras_3(name):
    source, features = start(name), as_inputs(BUILDERS[name][1])
    model = bfl.models.from_keras_3(source)
    np.testing.assert_allclose(model(features), np.array(source(features)), rtol=0, atol=1e-6)
    np.testing.assert_allclose(model(features), model_fns(name)[1]()(features), rtol=0, atol=1e-6)
    other = [np.array(x) + 0.1 for x in bfl.weights.get_weights(model).point]
    moved = bfl.weights.functional_call(model, other, features)
    assert np.abs(moved - model(features)).max() > 0.01
    bfl.weights.assign_weights(model, bfl.weights.get_weights(model)._replace(point=other))
    np.testing.assert_allclose(model(features), moved, rtol=0, atol=1e-6)


def same_runs(algorithm, name, **options):
    return same_results(algorithm, model_fns(name), BUILDERS[name][1], **options)


def same_results(algorithm, model_fns, features, rounds=2, **options):
    """Return the results for Keras 3, once its states are those for Keras 2."""
    results = []
    for model_fn in model_fns:
        process = algorithm(model_fn, **options)
        results.append(bfl.simulate(process, clients_of(features), rounds=rounds, seed=3))
    leaves = [tf.nest.flatten(result.state.weights) for result in results]
    assert len(leaves[0]) == len(leaves[1])
    for a, b in zip(*leaves):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
    return results[0]


def test_federated_averaging_has_the_states_of_keras_2():
    result = same_runs(bfl.algorithms.fed_opt, "table", **FIT)
    before = bfl.weights.get_weights(bfl.models.from_keras_3(start("table"))).point
    assert min(np.abs(a - b).max() for a, b in zip(before, result.state.weights.point)) > 1e-4
    # The constraint of Keras 3 holds for the weights.
    assert np.linalg.norm(result.state.weights.point[0], axis=0).max() < 0.5 + 1e-5


@pytest.mark.deep(after="tests/models/test_keras_3.py")
def test_images_export_and_weights_go_back(tmp_path):
    """BatchNorm's statistics are averaged; the exports and the model of Keras 3 predict what the result does."""
    result = same_runs(bfl.algorithms.fed_opt, "images", **FIT)
    assert np.abs(result.state.weights.moments.mean[0]).max() > 1e-3
    wanted = tf.nn.softmax(result.model(PIXELS))
    bfl.export.save(result.model, tmp_path / "saved")
    np.testing.assert_allclose(bfl.export.load(tmp_path / "saved").mean(PIXELS)["probabilities"], wanted, atol=1e-6)
    bfl.export.save_tflite(tmp_path / "saved", tmp_path / "m.tflite")
    lite = lite_interpreter(tmp_path / "m.tflite").get_signature_runner("mean_uint8")(images=PIXELS)
    np.testing.assert_allclose(lite["probabilities"], wanted, atol=1e-5)
    target = images(keras)
    bfl.models.copy_to_keras_3(result.model, target)
    np.testing.assert_allclose(keras.ops.softmax(target(as_inputs(PIXELS))), wanted, atol=1e-6)


@pytest.mark.deep(after="tests/models/test_keras_3.py")
@pytest.mark.parametrize("structure", ["last_layer", "diagonal"])
def test_laplace(structure):
    result = same_runs(bfl.algorithms.laplace, "table", rounds=1, structure=structure)
    assert bfl.evaluation.evaluate(result.model, ROWS, LABELS).metrics["epistemic"] > 0


@pytest.mark.deep(after="tests/models/test_keras_3.py")
def test_swag_of_a_model_and_back():
    result = same_runs(bfl.algorithms.fl_swag, "table", rounds=1)
    target = table(keras)
    bfl.models.copy_to_keras_3(result.model, target)
    with bfl.layers.sampling("mean"):
        np.testing.assert_allclose(target(ROWS), result.model(ROWS), rtol=0, atol=1e-6)


def test_an_ensemble():
    model, source = bfl.models.from_keras_3(start("table")), start("table")
    weights = bfl.weights.get_weights(model)
    other = weights._replace(point=tuple(x + 0.3 for x in weights.point))
    network = bfl.weights.ensemble_model(model, [weights, other])
    with bfl.layers.sampling("mean"):
        mean = tf.nn.softmax(network(ROWS))
    wanted = (
        keras.ops.softmax(source(ROWS)) + tf.nn.softmax(bfl.weights.functional_call(model, other.point, ROWS))
    ) / 2
    np.testing.assert_allclose(mean, wanted, rtol=0, atol=1e-6)


def test_a_model_in_place_of_a_function():
    build = bfl.models.as_model_fn(start("nested"))
    np.testing.assert_allclose(build()(ROWS), np.array(start("nested")(ROWS)), rtol=0, atol=1e-6)
    first, second = build(), build()
    first.set_weights([x + 1 for x in first.get_weights()])
    assert np.abs(first(ROWS) - second(ROWS)).max() > 0.1
    again = bfl.models.as_model_fn(table)
    assert bfl.models.as_model_fn(again) is again


def test_seeds_reach_initial_weights():
    model_fn = bfl.models.as_model_fn(lambda: table(keras))
    values = []
    for seed in (1, 1, 2):
        with bfl.weights.seeded(seed):
            values.append(model_fn().get_weights()[0])
    np.testing.assert_array_equal(values[0], values[1])
    assert np.abs(values[0] - values[2]).max() > 0.1


def test_predictions_in_bfloat16():
    model = bfl.models.from_keras_3(start("table"))
    answers = [
        bfl.evaluation.evaluate(model, ROWS, LABELS, precision=p).metrics["test_nll"] for p in ("float32", "bfloat16")
    ]
    assert 0 < abs(answers[0] - answers[1]) < 0.05


def test_masks_pass_between_layers():
    words, layers = np.array([[3, 1, 0, 0], [2, 2, 2, 1]], np.float32), keras.layers
    source = keras.Sequential(
        [keras.Input((4,)), layers.Embedding(5, 3, mask_zero=True), layers.LSTM(4), layers.Dense(3)]
    )
    model = bfl.models.from_keras_3(source)
    np.testing.assert_allclose(model(words), np.array(source(words)), rtol=0, atol=1e-6)
    # The mask takes the last two words away.
    padded = np.array([[3, 1, 0, 0, 0, 0]])
    np.testing.assert_allclose(source(padded)[0], model(words)[0], rtol=0, atol=1e-6)


def with_layers(*layers):
    return keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(3)])


class Adds:
    """A layer with a loss, once Keras 3 is there."""

    def __new__(cls):
        class AddsLoss(keras.layers.Layer):
            def call(self, x):
                self.add_loss(keras.ops.sum(x))
                return x

        return AddsLoss()


def subclassed():
    class Own(keras.Model):
        def call(self, x):
            return x

    return Own()


def two_inputs():
    inputs = {"a": keras.Input((4,), name="a"), "b": keras.Input((4,), name="b")}
    return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Concatenate()(list(inputs.values()))))


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: with_layers(keras.layers.Dropout(0.1)), r"\(Dropout\) of Keras 3 draws noise .* its dropout to 0"),
        (lambda: with_layers(keras.layers.GaussianNoise(0.1)), "GaussianNoise. of Keras 3 draws noise"),
        (lambda: with_layers(keras.layers.Dense(4, kernel_regularizer="l2")), "losses of its own.*regularizers"),
        (lambda: with_layers(keras.layers.Dense(4, activity_regularizer="l2")), "losses of its own.*regularizers"),
        (lambda: with_layers(Adds()), "losses of its own.*add_loss"),
        (subclassed, "is subclassed, or has no input shape"),
        (lambda: keras.Sequential([keras.layers.Dense(3)]), "is subclassed, or has no input shape"),
        (two_inputs, "has 2 inputs, but must have one: concatenate"),
        (lambda: with_layers(keras.layers.Dense(4, trainable=False)), "frozen"),
        (lambda: with_layers(keras.layers.Dense(4, dtype="float64")), "is of type float64"),
        (lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax")]), "must give logits"),
    ],
)
def test_what_cannot_be_trained_is_one_sentence(build, match):
    refuses(match, bfl.algorithms.fed_opt, build)


def test_another_backend_is_refused(monkeypatch):
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    with pytest.raises(InvalidArgument, match=r"computes by jax, but must compute by TensorFlow: set .*KERAS_BACKEND"):
        bfl.models.from_keras_3(start("table"))


def test_what_is_no_model_of_keras_3(monkeypatch):
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(3)])
    refuses("is no model of Keras 3", bfl.models.from_keras_3, model)
    refuses("not built from a model of Keras 3", bfl.models.copy_to_keras_3, model, start("table"))
    built = bfl.models.from_keras_3(start("table"))
    refuses("has weights of shapes", bfl.models.copy_to_keras_3, built, start("nested"))
    refuses("must be a model of Keras 3", bfl.models.copy_to_keras_3, built, model)
    for use in (lambda x: bfl.evaluation.evaluate(x, ROWS, LABELS), lambda x: bfl.export.save(x, "none")):
        refuses(r"is a model of Keras 3: give bfl.models.from_keras_3", use, start("table"))
    monkeypatch.delitem(sys.modules, "keras")
    assert not is_keras_3(start("table"))


@pytest.mark.deep(after="tests/models/test_keras_3.py")
def test_a_file_of_the_command_line(tmp_path):
    from tfp_bfl.app.cli import run_command_line

    (tmp_path / "net.py").write_text(
        "import keras\n\n\ndef build(input_shape, num_classes):\n"
        "    layers = [keras.Input(input_shape), keras.layers.Flatten(), keras.layers.Dense(num_classes)]\n"
        "    return keras.Sequential(layers)\n"
    )
    options = ["--algorithm", "fed_opt", "--rounds", "1", "--clients", "2", "--dataset", "breast_cancer"]
    arguments = ["run", "--model", f"{tmp_path / 'net.py'}:build", "--output", str(tmp_path / "run"), *options]
    assert run_command_line(arguments) == 0
    assert (tmp_path / "run" / "saved_model").is_dir()
