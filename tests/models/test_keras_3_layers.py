"""Models of Keras 3 with the layers of this library: builders, rounds, predictions and exports as of Keras 2."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tests.kit import assert_same, refuses
from tests.layers.test_keras_3 import IMAGES, called, layers_of, network
from tests.models.test_keras_3 import FIT, LABELS, PIXELS, ROWS, as_inputs, same_results

keras = pytest.importorskip("keras")
pytestmark = pytest.mark.skipif(
    int(keras.__version__.partition(".")[0]) < 3, reason="Keras 3 needs TensorFlow 2.16 or newer"
)

SMALL = {
    "mlp": {"input_shape": (4,), "hidden": (5,)},
    "lenet": {"input_shape": (8, 8, 2)},
    "conv_net": {"input_shape": (8, 8, 2), "width": 4, "variational_initializer": "uniform"},
    "resnet20": {"input_shape": (8, 8, 2)},
}


def build(name, kind, **options):
    return bfl.models.MODELS[name](kind, num_classes=3, seed=4, **{**SMALL[name], **options})


def inputs_of(name):
    return np.random.default_rng(5).uniform(size=[6, *SMALL[name]["input_shape"]]).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("mlp", kind) for kind in bfl.models.KINDS),
        ("lenet", "flipout"),
        ("conv_net", "variational_dropout"),
        pytest.param("resnet20", "flipout", marks=pytest.mark.deep(after="tests/models/test_keras_3_layers.py")),
        pytest.param("resnet20", "mc_dropout", marks=pytest.mark.deep(after="tests/models/test_keras_3_layers.py")),
    ],
)
def test_builders(name, kind):
    """The same initial weights, and the same outputs under the same seed."""
    model, wanted, features = build(name, kind, keras=3), build(name, kind), inputs_of(name)
    assert isinstance(model, keras.Model) and model.name == wanted.name
    assert_same(model.get_weights(), wanted.get_weights())
    converted = bfl.models.from_keras_3(model)
    assert isinstance(converted, tf.keras.Model)
    for mode in ("flipout", "shared", "mean"):
        outputs = called(wanted, features, mode)
        np.testing.assert_allclose(called(converted, features, mode), outputs, rtol=0, atol=1e-6)
        np.testing.assert_allclose(called(model, features, mode), outputs, rtol=0, atol=1e-4)  # BatchNorm of Keras 3


@pytest.mark.parametrize("name", ["mlp", "resnet20"])
def test_weights_are_those_of_the_model_of_keras_2(name):
    """Refuse those of Keras 3, whose layers do not say which weights are variational."""
    model = build(name, "flipout", keras=3)
    for call in (bfl.weights.get_weights, bfl.weights.layout):
        refuses(r"is a model of Keras 3: give bfl\.models\.from_keras_3", call, model)
    weights = bfl.weights.get_weights(bfl.models.from_keras_3(model))
    tf.nest.map_structure(np.testing.assert_array_equal, weights, bfl.weights.get_weights(build(name, "flipout")))


def test_the_number_of_keras_is_checked():
    refuses("keras is 4, but must be 2 or 3", build, "mlp", "flipout", keras=4)


@pytest.mark.deep(after="tests/models/test_keras_3_layers.py")
def test_a_builder_in_bfloat16():
    models = [build("resnet20", "flipout", keras=k, precision="bfloat16") for k in (3, 2)]
    models.append(bfl.models.from_keras_3(models[0]))
    outputs = [called(model, inputs_of("resnet20"), "shared") for model in models]
    assert {x.dtype for x in outputs} == {tf.float32}
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=0, atol=0.05)
    np.testing.assert_allclose(outputs[2], outputs[1], rtol=0, atol=1e-6)


same_runs = functools.partial(same_results, **FIT)


@pytest.mark.deep(after="tests/models/test_keras_3_layers.py")
def test_rounds_of_a_model_with_every_layer(tmp_path):
    """The states of Keras 2 after two rounds; exports and the model of Keras 3 predict what the result does."""
    result = same_runs(bfl.algorithms.variational, [lambda: network(keras), lambda: network(tf.keras)], PIXELS)
    before = bfl.weights.get_weights(bfl.models.from_keras_3(network(keras))).posterior
    after = result.state.weights.posterior
    assert len(after.mean) == 5
    assert min(np.abs(a - b).max() for a, b in zip(before.mean, after.mean)) > 1e-4
    assert min(np.abs(a / b - 1).max() for a, b in zip(before.variance, after.variance)) > 1e-4
    scores = bfl.evaluation.evaluate(result.model, PIXELS, LABELS, num_samples=4)
    assert scores.metrics["epistemic"] > 0
    bfl.export.save(result.model, tmp_path / "saved")
    exported = bfl.export.load(tmp_path / "saved").mean(PIXELS)["probabilities"]
    features = as_inputs(PIXELS)
    np.testing.assert_allclose(exported, tf.nn.softmax(called(result.model, features, "mean")), atol=1e-6)
    target = network(keras)
    bfl.models.copy_to_keras_3(result.model, target)
    for mode in ("flipout", "shared", "mean"):
        np.testing.assert_allclose(called(target, features, mode), called(result.model, features, mode), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mlp", "flipout"),
        pytest.param("mlp", "mc_dropout", marks=pytest.mark.deep(after="tests/models/test_keras_3_layers.py")),
        pytest.param("lenet", "flipout", marks=pytest.mark.deep(after="tests/models/test_keras_3_layers.py")),
        pytest.param("resnet20", "flipout", marks=pytest.mark.deep(after="tests/models/test_keras_3_layers.py")),
    ],
)
def test_rounds_of_builders(name, kind):
    algorithm = bfl.algorithms.fed_opt if kind == "mc_dropout" else bfl.algorithms.variational
    model_fns = [lambda k=k: build(name, kind, keras=k) for k in (3, 2)]
    images = np.random.default_rng(6).integers(256, size=[30, 8, 8, 2]).astype(np.uint8)
    same_runs(algorithm, model_fns, ROWS if name == "mlp" else images, rounds=1)


@pytest.mark.deep(after="tests/models/test_keras_3_layers.py")
@pytest.mark.parametrize("algorithm", ["partitioned_vi", "scaffold", "fed_dyn"])
def test_other_algorithms(algorithm):
    model_fns = [lambda k=k: build("mlp", "flipout", keras=k) for k in (3, 2)]
    same_runs(getattr(bfl.algorithms, algorithm), model_fns, ROWS)


def test_activations_and_shared_layers():
    """A custom activation is computed by Keras 3, after the layer; a layer that is called twice is one layer."""

    def cubed(x):
        return x**3

    def build_of(k):
        inputs, of = k.Input((4,)), layers_of(k)
        initializer = k.initializers.HeNormal(seed=1)
        layer = of.DenseFlipout(4, activation=cubed, kernel_initializer=initializer)
        return k.Model(inputs, of.DenseFlipout(3, kernel_initializer=initializer)(layer(layer(inputs))))

    source, wanted = build_of(keras), build_of(tf.keras)
    model = bfl.models.from_keras_3(source)
    assert len(model.losses) == 2 and len(model.get_weights()) == 6
    for mode in ("shared", "mean"):
        np.testing.assert_allclose(called(model, ROWS, mode), called(wanted, ROWS, mode), rtol=0, atol=1e-6)
    ending = keras.Sequential([keras.Input((4,)), bfl.layers.keras_3.DenseFlipout(3, "softmax")])
    refuses("must give logits", bfl.algorithms.variational, lambda: ending, **FIT)


def test_an_initial_seed_and_a_model_in_place_of_a_function():
    source = keras.Sequential([keras.Input((4,)), bfl.layers.keras_3.DenseFlipout(3)])
    model = bfl.models.as_model_fn(source)()
    np.testing.assert_array_equal(model.get_weights()[0], source.get_weights()[0])
    values = []
    for seed in (1, 1, 2):
        with bfl.weights.seeded(seed):
            values.append(bfl.models.mlp("flipout", (4,), 3, keras=3).get_weights()[0])
            values.append(keras.layers.Dense(3)(ROWS).numpy())
    np.testing.assert_array_equal(values[1], values[3])
    assert np.abs(values[1] - values[5]).max() > 0.1


def custom(inner):
    class Custom(keras.layers.Layer):
        def __init__(self):
            super().__init__(name="custom")
            self.inner = inner

        def call(self, x):
            return self.inner(x)

    return Custom()


def with_layer(make):
    return lambda: keras.Sequential([keras.Input((4,)), make(bfl.layers.keras_3), keras.layers.Dense(3)])


def masked(of):
    return keras.Sequential([keras.Input((4,)), keras.layers.Masking(), of.DenseFlipout(2)])


def called_for_prediction(of):
    return lambda x: keras.Sequential([keras.Input((4,)), of.DenseFlipout(4)], name="nested")(x, training=False)


def subclassed(of):
    class Own(of.DenseFlipout):
        def call(self, inputs):
            return 2 * super().call(inputs)

    return Own(3, name="own")


WHOLE = "is subclassed or inside '{}', which Keras 3 computes as a whole"


@pytest.mark.filterwarnings("ignore:.*does not support masking")
@pytest.mark.parametrize(
    ("model_fn", "match"),
    [
        (with_layer(lambda of: custom(of.DenseFlipout(3))), WHOLE.format("custom")),
        (with_layer(lambda of: custom(of.MCDropout(0.5))), WHOLE.format("custom")),
        (with_layer(masked), WHOLE.format(".*")),
        (with_layer(subclassed), WHOLE.format("own")),
        (with_layer(lambda of: of.DenseFlipout(3, activity_regularizer="l2")), "losses of its own"),
        (with_layer(lambda of: custom(bfl.layers.DenseFlipout(3))), "holds 'dense_flipout.*', a layer of Keras 2, who"),
        (with_layer(lambda of: keras.layers.Dropout(0.5)), "set its dropout to 0, or use .*keras_3.MCDropout"),
    ],
)
def test_what_cannot_be_trained_is_one_sentence(model_fn, match):
    refuses(match, bfl.algorithms.variational, model_fn, **FIT)


def test_frozen_layers_are_constants():
    """A variational layer that is frozen has no posterior, and each model that is built has its first weights."""
    model_fn = with_layer(lambda of: of.DenseFlipout(3, trainable=False, kernel_initializer=keras.initializers.Ones()))
    process = bfl.algorithms.default(model_fn, **FIT)
    weights = process.initialize().weights
    assert not weights.posterior.mean and [x.shape for x in weights.point] == [(3, 3), (3,)]
    np.testing.assert_array_equal(process.model_fn().layers[1].get_weights()[0], np.ones([4, 3]))


def test_a_nested_model_that_is_called_with_training_is_one_sentence():
    inputs = keras.Input((4,))
    outputs = keras.layers.Dense(3)(called_for_prediction(bfl.layers.keras_3)(inputs))
    refuses(WHOLE.format("nested"), bfl.models.from_keras_3, keras.Model(inputs, outputs))


def test_nested_models():
    """The layers of a model inside a model are those of one model."""
    source = keras.Sequential([keras.Input((6, 6, 2)), network(keras)])
    model = bfl.models.from_keras_3(source)
    assert len(model.losses) == 4
    np.testing.assert_allclose(called(model, IMAGES), called(network(tf.keras), IMAGES), rtol=0, atol=1e-6)
