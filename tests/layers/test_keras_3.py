"""The layers for models of Keras 3 against those of Keras 2: outputs, gradients, KL, `fit`, files and noise."""

import types

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tfp_bfl.errors import InvalidArgument, MissingDependency
from tfp_bfl.layers.base import check_keras_3

keras = pytest.importorskip("keras")
needs_keras_3 = pytest.mark.skipif(
    int(keras.__version__.partition(".")[0]) < 3, reason="Keras 3 needs TensorFlow 2.16 or newer"
)
IMAGES = np.random.default_rng(0).normal(size=[8, 6, 6, 2]).astype(np.float32)
ROWS = IMAGES[:, 0, :2].reshape(8, 4)
LABELS = np.arange(8) % 3


def layers_of(k):
    return bfl.layers if k is tf.keras else bfl.layers.keras_3


def network(k):
    """Every layer of this library, with options of each kind."""
    of, initializer = layers_of(k), k.initializers.HeNormal
    return k.Sequential(
        [
            k.Input((6, 6, 2)),
            of.Conv2DFlipout(3, 3, activation="relu", variational_bias=True, kernel_initializer=initializer(seed=1)),
            of.Conv2DVariationalDropout(2, 3, kl_weight=0.1, kernel_initializer=initializer(seed=2)),
            k.layers.Flatten(),
            of.DenseVariationalDropout(
                4, "tanh", parametrization="log_alpha", kl_weight=0.1, kernel_initializer=initializer(seed=3)
            ),
            of.MCDropout(0.3),
            of.DenseFlipout(3, prior_stddev="fan_in", kernel_initializer=initializer(seed=4)),
        ]
    )


def flipout(k, **options):
    initializer = k.initializers.HeNormal(seed=1)
    layer = layers_of(k).DenseFlipout(3, kernel_initializer=initializer, initial_stddev=0.3, **options)
    return k.Sequential([k.Input((4,)), layer])


def both(build):
    return build(keras), build(tf.keras)


def assert_same(a, b, atol=1e-6):
    np.testing.assert_allclose(np.array(tf.cast(a, tf.float32)), np.array(tf.cast(b, tf.float32)), rtol=0, atol=atol)


def called(model, inputs, mode="flipout", seed=(3, 1), **options):
    with bfl.layers.sampling(mode, seed, **options):
        return model(inputs)


@needs_keras_3
@pytest.mark.parametrize("mode", ["flipout", "shared", "mean"])
def test_outputs_and_gradients_are_those_of_keras_2(mode):
    outputs, gradients = [], []
    for model in both(network):
        with tf.GradientTape() as tape:
            outputs.append(called(model, IMAGES, mode))
            loss = tf.reduce_sum(tf.square(outputs[-1])) + sum(model.losses)
        variables = [v if isinstance(v, tf.Variable) else v.value for v in model.trainable_variables]
        gradients.append(tape.gradient(loss, variables))
    assert_same(*outputs)
    for a, b in zip(*gradients):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    assert len(gradients[0]) == 13
    assert np.abs(outputs[0] - called(model, IMAGES, mode, seed=(4, 1))).max() > 1e-3 or mode == "mean"


@needs_keras_3
def test_the_kl_is_a_loss_of_each_layer_once():
    models = both(network)
    losses = [[float(x) for x in model.losses] for model in models]
    np.testing.assert_allclose(*losses, rtol=1e-6)
    assert len(losses[0]) == 4 and min(losses[0]) > 1
    inputs, layer = keras.Input((4,)), bfl.layers.keras_3.DenseFlipout(4)
    twice = keras.Model(inputs, layer(layer(inputs)))
    twice(ROWS)
    assert len(twice.losses) == 1


@needs_keras_3
def test_fit_has_the_weights_of_keras_2():
    models, histories = both(network), []
    before = models[0].get_weights()
    for k, model in zip((keras, tf.keras), models):
        model.compile(k.optimizers.SGD(1e-3), k.losses.SparseCategoricalCrossentropy(from_logits=True))
        with bfl.layers.sampling("mean"):  # The two trace a model different times, which moves the noise's seeds.
            histories.append(model.fit(IMAGES, LABELS, batch_size=4, epochs=5, shuffle=False, verbose=0))
    for a, b in zip(*(model.get_weights() for model in models)):
        assert_same(a, b, 1e-5)
    np.testing.assert_allclose(*(h.history["loss"] for h in histories), rtol=1e-5)
    assert max(np.abs(a - b).max() for a, b in zip(before, models[0].get_weights())) > 0.01


@needs_keras_3
def test_fit_holds_the_floor_of_standard_deviations_and_follows_the_seed():
    ends = []
    for seed in (1, 1, 2):
        tf.random.set_seed(seed)
        model = flipout(keras, min_stddev=0.29)
        model.compile(keras.optimizers.SGD(0.5), "mse")
        model.fit(ROWS, 9 * ROWS[:, :3], epochs=3, shuffle=False, verbose=0)
        ends.append(model.get_weights())
    np.testing.assert_array_equal(ends[0][0], ends[1][0])
    assert np.abs(ends[0][0] - ends[2][0]).max() > 1e-3
    assert ends[0][1].min() == np.float32(np.log(0.29))


@needs_keras_3
def test_files_of_keras_3(tmp_path):
    model = network(keras)
    model.save(tmp_path / "model.keras")
    read = keras.saving.load_model(tmp_path / "model.keras")
    for mode in ("flipout", "shared"):
        assert_same(called(model, IMAGES, mode), called(read, IMAGES, mode), 0)
    assert [x.get_config() for x in read.layers] == [x.get_config() for x in model.layers]
    np.testing.assert_array_equal([float(x) for x in read.losses], [float(x) for x in model.losses])


@needs_keras_3
@pytest.mark.deep(after="tests/layers/test_keras_3.py")
def test_exports_of_keras_3_draw_noise(tmp_path):
    model = network(keras)
    model.export(tmp_path / "noisy", verbose=False)
    noisy = tf.saved_model.load(str(tmp_path / "noisy"))
    assert np.abs(noisy.serve(IMAGES) - noisy.serve(IMAGES)).max() > 1e-3
    with bfl.layers.sampling("mean"):
        model.export(tmp_path / "mean", verbose=False)
    of_mean = tf.saved_model.load(str(tmp_path / "mean"))
    assert_same(of_mean.serve(IMAGES), called(model, IMAGES, "mean"))


@needs_keras_3
def test_predictions_draw_anew():
    model = flipout(keras)
    assert np.abs(model.predict(ROWS, verbose=0) - model.predict(ROWS, verbose=0)).max() > 0.01


@needs_keras_3
def test_perturbations_that_are_drawn_for_the_whole_model():
    perturbation, outputs = tf.ones([4, 3]), []
    for model in both(flipout):
        mean = model.layers[-1].kernel_mean
        key = (mean if isinstance(mean, tf.Variable) else mean.value).ref()
        outputs.append(called(model, ROWS, "shared", perturbations={key: perturbation}))
        assert_same(outputs[-1] - called(model, ROWS, "mean"), ROWS @ perturbation, 1e-5)
    assert_same(*outputs)


@needs_keras_3
@pytest.mark.parametrize("mode", ["flipout", "shared"])
def test_mixed_precision(mode):
    outputs = [called(model, ROWS, mode) for model in both(lambda k: flipout(k, dtype="mixed_bfloat16"))]
    assert [x.dtype for x in outputs] == [tf.bfloat16, tf.bfloat16]
    assert_same(*outputs)


@needs_keras_3
@pytest.mark.parametrize("name", ["DenseFlipout", "MCDropout"])
def test_a_layer_of_keras_2_on_an_input_of_keras_3_is_one_sentence(name):
    with pytest.raises(InvalidArgument, match=rf"of Keras 2, but its input is of Keras 3: use tfp_bfl.*_3\.{name}\.$"):
        getattr(bfl.layers, name)(1 if name == "DenseFlipout" else 0.5)(keras.Input((4,)))


@needs_keras_3
def test_the_names_are_those_for_keras_2():
    assert {*bfl.layers.keras_3.__all__} == {*bfl.layers.__all__} - {"as_floats", "sampling", "without_autograph"}


@needs_keras_3
def test_bad_options_are_refused_as_in_keras_2():
    with pytest.raises(InvalidArgument, match="prior_stddev > 0"):
        bfl.layers.keras_3.DenseFlipout(3, prior_stddev=-1.0)


@pytest.mark.skipif(int(keras.__version__.partition(".")[0]) > 2, reason="here is Keras 3")
def test_python_without_keras_3_is_one_sentence():
    with pytest.raises(MissingDependency, match=r"needs Keras 3, but the package keras is 2\."):
        bfl.layers.keras_3.DenseFlipout(3)


@pytest.mark.parametrize(
    ("version", "backend", "error", "match"),
    [
        ("2.14.0", None, MissingDependency, r"needs Keras 3, but the package keras is 2\.14\.0: use Python 3\.12"),
        ("3.15.1", "jax", InvalidArgument, r"computes by jax, but must compute by TensorFlow: set .*KERAS_BACKEND"),
    ],
)
def test_another_keras_is_one_sentence(version, backend, error, match):
    package = types.SimpleNamespace(__version__=version, config=types.SimpleNamespace(backend=lambda: backend))
    with pytest.raises(error, match=match):
        check_keras_3(package)
