"""Flipout layers as Keras layers: KL, gradients, operations, the floor, configuration and training."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests.layers.differences import check_gradients
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.layers import Conv2DFlipout, DenseFlipout, sampling

from .helpers import convolution, dense, set_posterior

MODES = ["flipout", "shared", "mean"]
LAYERS = {"dense": (dense, (5, 4)), "convolution": (convolution, (3, 4, 5, 2))}
every_layer = pytest.mark.parametrize("kind", LAYERS)
every_mode = pytest.mark.parametrize("mode", MODES)


def make(kind, **options):
    build, shape = LAYERS[kind]
    dtype = options.get("dtype", "float32")
    return build(**options), tf.constant(np.random.default_rng(1).normal(size=shape), dtype)


@every_layer
@pytest.mark.parametrize("variational_bias", [False, True])
def test_kl_is_that_of_tfp(kind, variational_bias):
    layer, _ = make(kind, variational_bias=variational_bias, prior_stddev=2.5)
    wanted = 0.0
    for w in layer.variational_weights:
        q = tfp.distributions.Normal(tf.cast(w.mean, tf.float64), tf.exp(tf.cast(w.log_stddev, tf.float64)))
        p = tfp.distributions.Normal(tf.constant(0.0, tf.float64), tf.constant(2.5, tf.float64))
        wanted += float(tf.reduce_sum(tfp.distributions.kl_divergence(q, p)))
    assert len(layer.variational_weights) == 1 + variational_bias
    np.testing.assert_allclose(layer.kl_divergence(), wanted, rtol=1e-6)


@every_layer
def test_gradients_of_kl(kind):
    layer, _ = make(kind, variational_bias=True, prior_stddev=2.0)
    weights = layer.variational_weights
    with tf.GradientTape() as tape:
        kl = layer.kl_divergence()
    gradients = tape.gradient(kl, [(w.mean, w.log_stddev) for w in weights])
    for w, (of_mean, of_log_stddev) in zip(weights, gradients):
        np.testing.assert_allclose(of_mean, w.mean.numpy() / 4, rtol=1e-5)
        np.testing.assert_allclose(of_log_stddev, np.exp(2 * w.log_stddev.numpy()) / 4 - 1, rtol=1e-5)


@every_layer
def test_float64_layer_has_a_kl(kind):
    layer, _ = make(kind, dtype="float64", prior_stddev=2.5)
    same, _ = make(kind, prior_stddev=2.5)
    assert layer.kl_divergence().dtype == tf.float64
    np.testing.assert_allclose(layer.kl_divergence(), same.kl_divergence(), rtol=1e-6)


@every_layer
@every_mode
def test_gradients_against_central_differences(kind, mode):
    layer, inputs = make(kind, variational_bias=True, dtype="float64", activation="tanh")
    variables = [v for w in layer.variational_weights for v in (w.mean, w.log_stddev)]
    check_gradients(layer, inputs, variables, mode)


def operations(layer, inputs, mode, seed=(1, 2)):
    @tf.function
    def run(x):
        with sampling(mode, seed):
            return layer(x)

    return [op.type for op in run.get_concrete_function(inputs).graph.get_operations()]


@every_layer
@pytest.mark.parametrize(("mode", "products"), [("flipout", 2), ("shared", 1), ("mean", 1)])
def test_number_of_products_and_random_draws(kind, mode, products):
    layer, inputs = make(kind)
    types = operations(layer, inputs, mode)
    assert types.count("Conv2D" if kind == "convolution" else "MatMul") == products
    draws = [t for t in types if t.startswith(("StatelessRandomNormal", "StatelessRandomUniform"))]
    assert len(draws) == {"mean": 0, "shared": 1, "flipout": 2}[mode]
    assert not [t for t in types if t in ("RandomStandardNormal", "RandomUniform", "RandomUniformInt")]


@every_layer
def test_same_seed_same_noise(kind):
    layer, inputs = make(kind)
    for mode in ("flipout", "shared"):
        outputs = []
        for seed in ([7, 0], tf.constant([7, 0]), np.array([7, 0]), [8, 0], [7, 1]):
            with sampling(mode, seed):
                outputs.append(layer(inputs).numpy())
        np.testing.assert_array_equal(outputs[0], outputs[1])
        np.testing.assert_array_equal(outputs[0], outputs[2])
        assert all(np.abs(outputs[0] - other).max() > 0.1 for other in outputs[3:])


def test_calls_in_a_block_have_noise_of_their_own():
    layer, inputs = make("dense")
    with sampling("shared", [7, 0]):
        first, second = layer(inputs), layer(inputs)
    with sampling("shared", [7, 0]):
        again = layer(inputs), layer(inputs)
    assert np.abs(first - second).max() > 0.1
    np.testing.assert_array_equal((first, second), again)


def test_calls_under_neighbouring_seeds_share_no_noise():
    """A block's later calls do not repeat the first calls of a block whose seed is a little higher."""
    layer, inputs = make("dense", variational_bias=True)

    def passes(seed):
        with sampling("shared", seed):
            return [layer(inputs).numpy() for _ in range(4)]

    streams = [passes([7, s]) for s in range(8)]
    repeats = [
        (s, i, t, j)
        for (s, a), (t, b) in itertools.combinations(enumerate(streams), 2)
        for (i, x), (j, y) in itertools.product(enumerate(a), enumerate(b))
        if np.array_equal(x, y)
    ]
    assert not repeats


@every_layer
def test_without_a_seed_noise_is_new_each_call_and_follows_the_global_seed(kind):
    layer, inputs = make(kind)
    for wrap in (lambda f: f, tf.function):
        streams = []
        for seed in (5, 5, 6):
            tf.random.set_seed(seed)
            call = wrap(lambda x: layer(x))
            streams.append([call(inputs).numpy() for _ in range(3)])
        np.testing.assert_array_equal(streams[0], streams[1])
        assert np.abs(streams[0][0] - streams[2][0]).max() > 0.1
        assert np.abs(streams[0][0] - streams[0][1]).max() > 0.1


def test_scopes_nest_and_end():
    layer, inputs = make("dense")
    with sampling("mean"):
        mean = layer(inputs)
        with sampling("shared", [1, 2]):
            drawn = layer(inputs)
        np.testing.assert_array_equal(layer(inputs), mean)
    assert np.abs(drawn - mean).max() > 0.1
    with pytest.raises(KeyError), sampling("mean"):
        raise KeyError
    assert np.abs(layer(inputs) - mean).max() > 0.1


@pytest.mark.parametrize("variational_bias", [False, True])
@pytest.mark.parametrize("shape", [(5, 4), (5, 3, 4), (5, 2, 3, 4)])
def test_dense_mean_mode_is_keras_dense(shape, variational_bias):
    layer = dense(activation="relu", variational_bias=variational_bias)
    inputs = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    keras = tf.keras.layers.Dense(3, activation="relu")
    keras.build(shape)
    keras.set_weights([layer.kernel_mean.numpy(), layer.bias.numpy()])
    with sampling("mean"):
        np.testing.assert_array_equal(layer(inputs), keras(inputs))
    for mode in ("flipout", "shared"):
        with sampling(mode, [1, 1]):
            assert layer(inputs).shape == (*shape[:-1], 3)


@pytest.mark.parametrize(("kernel_size", "strides"), [(3, 1), ((2, 3), 2), (1, (1, 2)), ([3, 2], (2, 1))])
@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize("use_bias", [True, False])
def test_convolution_mean_mode_is_keras_convolution(kernel_size, strides, padding, use_bias):
    options = {"kernel_size": kernel_size, "strides": strides, "padding": padding, "use_bias": use_bias}
    layer = convolution(**options)
    keras = tf.keras.layers.Conv2D(2, **options)
    inputs = np.random.default_rng(0).normal(size=(2, 7, 6, 2)).astype(np.float32)
    keras.build(inputs.shape)
    keras.set_weights([layer.kernel_mean.numpy(), *([layer.bias.numpy()] if use_bias else [])])
    wanted = keras(inputs)
    with sampling("mean"):
        np.testing.assert_array_equal(layer(inputs), wanted)
    with sampling("flipout", [1, 1]):
        assert layer(inputs).shape == wanted.shape


@every_layer
def test_floor_holds_and_is_left_again(kind):
    layer, _ = make(kind, min_stddev=0.1, initial_stddev=0.2, variational_bias=True)
    variables = [w.log_stddev for w in layer.variational_weights]
    optimizer = tf.keras.optimizers.SGD(0.3)
    for _ in range(20):
        optimizer.apply_gradients((tf.ones_like(v), v) for v in variables)
    for v in variables:
        np.testing.assert_allclose(tf.exp(v), 0.1, rtol=1e-6)
    with tf.GradientTape() as tape:
        kl = layer.kl_divergence()
    gradients = tape.gradient(kl, variables)
    for gradient in gradients:
        np.testing.assert_allclose(gradient, 0.1**2 - 1, rtol=1e-5)  # (s / prior_stddev)^2 - 1
    optimizer.apply_gradients(zip(gradients, variables))
    assert all((tf.exp(v).numpy() > 0.12).all() for v in variables)


@every_layer
def test_initial_posterior(kind):
    _, shape = LAYERS[kind]
    layer = (DenseFlipout if kind == "dense" else lambda n, **o: Conv2DFlipout(n, 3, **o))(
        6, initial_stddev=0.03, kernel_initializer="ones", variational_bias=True
    )
    layer.build((None, *shape[1:]))
    kernel, bias = layer.variational_weights
    np.testing.assert_array_equal(kernel.mean, np.ones(kernel.mean.shape))
    np.testing.assert_array_equal(bias.mean, np.zeros(6))
    for w in (kernel, bias):
        np.testing.assert_allclose(tf.exp(w.log_stddev), 0.03, rtol=1e-6)
        assert w.log_stddev.shape == w.mean.shape


def test_no_bias():
    layer, inputs = make("dense", use_bias=False, variational_bias=True)
    assert len(layer.trainable_variables) == 2 and len(layer.variational_weights) == 1
    with sampling("flipout", [1, 2]):
        np.testing.assert_array_equal(layer(0 * inputs), np.zeros((5, 3)))


OPTIONS = {
    "activation": "relu",
    "use_bias": True,
    "variational_bias": True,
    "prior_stddev": 3.0,
    "initial_stddev": 0.2,
    "min_stddev": 0.1,
    "kl_weight": 0.25,
    "kernel_initializer": "zeros",
}


@pytest.mark.parametrize(
    "layer",
    [
        DenseFlipout(4, name="d", **OPTIONS),
        Conv2DFlipout(4, (2, 3), strides=(2, 1), padding="same", name="c", **OPTIONS),
    ],
    ids=["dense", "convolution"],
)
def test_configuration_round_trip(layer):
    config = layer.get_config()
    assert (
        OPTIONS.items() - {("kernel_initializer", "zeros")}
        <= {k: v for k, v in config.items() if isinstance(v, (str, float, bool))}.items()
    )
    again = type(layer).from_config(config)
    assert again.get_config() == config
    assert isinstance(again.kernel_initializer, tf.keras.initializers.Zeros)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("channels", [1, 2])
@every_mode
def test_mixed_precision(policy, channels, mode):
    """Weights stay float32; outputs have the type of the computation and its rounding around those of float32."""
    for make, shape in ((lambda **o: Conv2DFlipout(3, 2, **o), (4, 4)), (lambda **o: DenseFlipout(3, **o), ())):
        layer, exact = make(dtype=policy), make()
        for same in (layer, exact):
            same.build((None, *shape, channels))
            set_posterior(same)
        inputs = np.random.default_rng(0).normal(size=(5, *shape, channels)).astype(np.float32)
        outputs = []
        for same in (layer, exact):
            with sampling(mode, [1, 2]):
                outputs.append(same(tf.cast(inputs, same.compute_dtype)))
        assert outputs[0].dtype == layer.compute_dtype and layer.kernel_mean.dtype == tf.float32
        np.testing.assert_allclose(tf.cast(outputs[0], tf.float32), outputs[1], rtol=0.02, atol=0.1)


@pytest.fixture(scope="module")
def model():
    images = tf.keras.Input((6, 6, 2))
    x = Conv2DFlipout(3, 3, strides=2, padding="same", activation="relu", kl_weight=0.01, initial_stddev=0.3)(images)
    x = tf.keras.layers.Flatten()(x)
    x = DenseFlipout(3, kl_weight=0.01, variational_bias=True, min_stddev=0.2, initial_stddev=0.3)(x)
    return tf.keras.Model(images, x)


def data():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 60)
    return (rng.normal(size=(60, 6, 6, 2)) + labels[:, None, None, None]).astype(np.float32), labels


def test_losses_are_the_weighted_kl(model):
    layers = [layer for layer in model.layers if hasattr(layer, "kl_divergence")]
    assert len(model.losses) == len(layers) == 2
    for loss, layer in zip(model.losses, layers):
        np.testing.assert_allclose(loss, 0.01 * layer.kl_divergence(), rtol=1e-6)
        assert loss > 0.1


def test_saved_model_gives_the_same_outputs_and_trains_on(model, tmp_path):
    model.save(tmp_path / "model.keras")
    again = tf.keras.models.load_model(tmp_path / "model.keras")
    features, _ = data()
    for mode in MODES:
        with sampling(mode, [4, 2]):
            outputs = model(features)
        with sampling(mode, [4, 2]):
            np.testing.assert_array_equal(again(features), outputs)
    np.testing.assert_allclose(sum(again.losses), sum(model.losses), rtol=1e-6)
    log_stddev = again.layers[-1].kernel_log_stddev
    log_stddev.assign(log_stddev.constraint(-9 * tf.ones_like(log_stddev)))
    np.testing.assert_allclose(tf.exp(log_stddev), 0.2, rtol=1e-6)  # the floor came with it


def test_fit_minimises_likelihood_and_kl(model):
    features, labels = data()
    tf.random.set_seed(0)
    model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.optimizer.learning_rate = 0.02
    history = model.fit(features, labels, batch_size=20, epochs=15, verbose=0, shuffle=False).history["loss"]
    assert history[-1] < 0.8 * history[0]
    with sampling("mean"):
        nll = tf.keras.losses.sparse_categorical_crossentropy(labels, model(features), from_logits=True)
    assert history[-1] > float(tf.reduce_mean(nll)) + 0.9 * float(sum(model.losses))  # the KL is in what it reports


@pytest.mark.parametrize(
    "options",
    [
        {"prior_stddev": 0.0},
        {"prior_stddev": -1.0},
        {"initial_stddev": 0.0},
        {"min_stddev": 0.0},
        {"min_stddev": 0.1, "initial_stddev": 0.05},
        {"prior_stddev": float("nan")},
        {"initial_stddev": float("nan")},
    ],
)
def test_bad_standard_deviations(options):
    for build in (lambda **o: DenseFlipout(3, **o), lambda **o: Conv2DFlipout(3, 2, **o)):
        with pytest.raises(InvalidArgument, match=r"prior_stddev > 0 and 0 < min_stddev <= initial_stddev"):
            build(**options)


def test_no_such_mode():
    message = "sampling has no mode 'maen': choose one of 'flipout', 'shared', 'mean'"
    with pytest.raises(InvalidArgument, match=message), sampling("maen"):
        pass
    layer, inputs = make("dense")
    set_posterior(layer)
    assert layer(inputs).shape == (5, 3)  # and no scope is left behind
