"""What Flipout and variational dropout share: gradients, seeds, precision, configuration, files and training."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl.layers import (
    Conv2DFlipout,
    Conv2DVariationalDropout,
    DenseFlipout,
    DenseVariationalDropout,
    sampling,
)

from .helpers import LAYERS, MODES, check_gradients, make

every_layer = pytest.mark.parametrize("kind", LAYERS)
every_mode = pytest.mark.parametrize("mode", MODES)


@every_mode
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {"variational_bias": True}) for kind in ("dense", "convolution")),
        *(
            (f"{kind} dropout", {"parametrization": p})
            for kind in ("dense", "convolution")
            for p in ("log_variance", "log_alpha")
        ),
    ],
)
def test_gradients_against_central_differences(kind, options, mode):
    layer, inputs = make(kind, dtype="float64", activation="tanh", **options)
    scales = [v for w in layer.variational_weights for v in (w.mean, w.scale)]
    check_gradients(layer, inputs, scales if "variational_bias" in options else [*scales, layer.bias], mode)


@every_layer
@every_mode
def test_the_same_seed_gives_the_same_noise(kind, mode):
    layer, inputs = make(kind)
    outputs = []
    for seed in ([7, 0], tf.constant([7, 0]), np.array([7, 0]), [8, 0], [7, 1]):
        with sampling(mode, seed):
            outputs.append(layer(inputs).numpy())
    np.testing.assert_array_equal(outputs[0], outputs[1])
    np.testing.assert_array_equal(outputs[0], outputs[2])
    assert all((np.abs(outputs[0] - other).max() > 0.1) == (mode != "mean") for other in outputs[3:])


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [*((kind, {}) for kind in LAYERS), ("dense", {"width": 1}), ("convolution", {"channels": 1})],
)
@every_mode
def test_mixed_precision(policy, kind, options, mode):
    """Weights stay float32; outputs have the type of the computation and its rounding around those of float32."""
    outputs, inputs = [], make(kind)[1][..., : 1 if options else None]
    for dtype in (policy, "float32"):
        layer, _ = make(kind, dtype=dtype, **options)
        with sampling(mode, [1, 2]):
            outputs.append(layer(tf.cast(inputs, layer.compute_dtype)))
        assert outputs[-1].dtype == layer.compute_dtype and {v.dtype for v in layer.weights} == {tf.float32}
    np.testing.assert_allclose(tf.cast(outputs[0], tf.float32), outputs[1], rtol=0.02, atol=0.1)


COMMON = {"activation": "relu", "kl_weight": 0.25}
SPREAD = {"variational_bias": True, "prior_stddev": 3.0, "initial_stddev": 0.2, "min_stddev": 0.1}
LOGITS = {"parametrization": "log_alpha", "initial_logit": -2.5, "logit_range": (-9.0, 2.0), "detached": False}


@pytest.mark.parametrize(
    ("kinds", "options"),
    [
        ((DenseFlipout, Conv2DFlipout), {**COMMON, "use_bias": True, **SPREAD}),
        (
            (DenseVariationalDropout, Conv2DVariationalDropout),
            {**COMMON, "use_bias": False, "noise_dtype": "float32", **LOGITS},
        ),
    ],
)
def test_configuration_round_trip(kinds, options):
    dense, convolution = kinds
    shape = {"strides": (2, 1), "padding": "same", "name": "c"}
    given = {**options, "kernel_initializer": "zeros"}
    for layer in (dense(4, name="d", **given), convolution(4, (2, 3), **shape, **given)):
        config = layer.get_config()
        assert {name: config[name] for name in options} == options
        again = type(layer).from_config(config)
        assert again.get_config() == config
        assert isinstance(again.kernel_initializer, tf.keras.initializers.Zeros)


def model_of(convolution, dense, **options):
    tf.keras.utils.set_random_seed(0)
    images = tf.keras.Input((6, 6, 2))
    of_images = {"strides": 2, "padding": "same", "activation": "relu", "kl_weight": 0.01}
    start = {} if convolution is Conv2DVariationalDropout else {"initial_stddev": 0.3}
    x = convolution(3, 3, **of_images, **start)(images)
    x = tf.keras.layers.Flatten()(x)
    return tf.keras.Model(images, dense(3, kl_weight=0.01, **options, **start)(x))


MODELS = {
    "flipout": (Conv2DFlipout, DenseFlipout, {"variational_bias": True, "min_stddev": 0.2}),
    "dropout": (
        Conv2DVariationalDropout,
        DenseVariationalDropout,
        {"parametrization": "log_alpha", "logit_range": (-6, 2)},
    ),
}
# A change of the last layer's scale, and the end of its range that it comes to.
ENDS = {"flipout": (-50.0, np.log(0.2)), "dropout": (50.0, 2.0)}


@pytest.fixture(params=MODELS)
def name_and_model(request):
    convolution, dense, options = MODELS[request.param]
    return request.param, model_of(convolution, dense, **options)


def data():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 60)
    return (rng.normal(size=(60, 6, 6, 2)) + labels[:, None, None, None]).astype(np.float32), labels


def test_losses_are_the_weighted_kl(name_and_model):
    _, model = name_and_model
    layers = [layer for layer in model.layers if hasattr(layer, "kl_divergence")]
    assert len(model.losses) == len(layers) == 2
    for loss, layer in zip(model.losses, layers):
        np.testing.assert_allclose(loss, 0.01 * layer.kl_divergence(), rtol=1e-6)
        assert loss > 0.1


def test_saved_model_gives_the_same_outputs_and_keeps_its_range(name_and_model, tmp_path):
    name, model = name_and_model
    model.save(tmp_path / "model.keras")
    again, (features, _) = tf.keras.models.load_model(tmp_path / "model.keras"), data()
    for mode in MODES:
        outputs = []
        for same in (model, again):
            with sampling(mode, [4, 2]):
                outputs.append(same(features))
        np.testing.assert_array_equal(*outputs)
    np.testing.assert_allclose(sum(again.losses), sum(model.losses), rtol=1e-6)
    scale, (change, end) = again.layers[-1].variational_weights[0].scale, ENDS[name]
    np.testing.assert_allclose(scale.constraint(scale + change), tf.fill(scale.shape, end), rtol=1e-6)


def test_fit_minimises_likelihood_and_kl(name_and_model):
    _, model = name_and_model
    features, labels = data()
    model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.optimizer.learning_rate = 0.02
    history = model.fit(features, labels, batch_size=20, epochs=15, verbose=0, shuffle=False).history["loss"]
    assert history[-1] < 0.8 * history[0]
    with sampling("mean"):
        nll = tf.keras.losses.sparse_categorical_crossentropy(labels, model(features), from_logits=True)
    assert history[-1] > float(tf.reduce_mean(nll)) + 0.9 * float(sum(model.losses))  # the KL is in what it reports
