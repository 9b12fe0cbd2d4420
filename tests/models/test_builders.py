import numpy as np
import pytest
import tensorflow as tf

from tests.kit import assert_same
from tfp_bfl import models
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.layers import (
    Conv2DFlipout,
    Conv2DVariationalDropout,
    DenseFlipout,
    DenseVariationalDropout,
    MCDropout,
    sampling,
)
from tfp_bfl.weights import layout

VARIATIONAL = {
    "flipout": (Conv2DFlipout, DenseFlipout),
    "variational_dropout": (Conv2DVariationalDropout, DenseVariationalDropout),
}
KINDS = ["deterministic", "mc_dropout", *VARIATIONAL]
SHAPES = [(8, 8, 1), (28, 28, 1), (32, 32, 3)]
# Convolutions and dense layers: five for LeNet, nineteen convolutions and one dense layer for ResNet-20.
NUM_LAYERS = {"lenet": 5, "resnet20": 20, "mlp": 3, "conv_net": 6, "linear": 1}
deep = pytest.mark.deep(after="tests/models/test_builders.py")
every_kind = pytest.mark.parametrize("kind", KINDS)
every_model = pytest.mark.parametrize("name", models.MODELS)


def weight_layers(model):
    kinds = (tf.keras.layers.Conv2D, tf.keras.layers.Dense, *sum(VARIATIONAL.values(), ()))
    return [layer for layer in model.layers if isinstance(layer, kinds)]


def test_table():
    assert models.MODELS.keys() == NUM_LAYERS.keys() and set(models.KINDS) == set(KINDS)
    assert all(getattr(models, name) is builder for name, builder in models.MODELS.items())


def test_lenet_has_its_parameters():
    # 6 (25 + 1) + 16 (6 x 25 + 1) + 120 (400 + 1) + 84 (120 + 1) + 10 (84 + 1)
    assert models.lenet("deterministic").count_params() == 61_706
    # Every kernel weight has a mean and a standard deviation; the 236 biases are points.
    assert models.lenet("flipout").count_params() == 2 * (61_706 - 236) + 236
    assert models.lenet("flipout", variational_bias=True).count_params() == 2 * 61_706


def test_resnet20_has_its_parameters():
    """269,722 trained (kernels, the last bias, BatchNorm's scale and shift) and 2 x 688 moving statistics."""
    model = models.resnet20("deterministic")
    kernels = 9 * (3 * 16 + 6 * 16 * 16 + 16 * 32 + 5 * 32 * 32 + 32 * 64 + 5 * 64 * 64) + 640
    channels = 7 * 16 + 6 * 32 + 6 * 64
    count = lambda variables: sum(int(np.prod(v.shape)) for v in variables)
    assert count(model.trainable_variables) == kernels + 10 + 2 * channels == 269_722
    assert model.count_params() == kernels + 10 + 4 * channels == 271_098


@every_model
@every_kind
def test_layers_are_of_the_kind(name, kind):
    shape = (8, 8, 1)
    model = models.MODELS[name](kind, shape, normalization="none", variational_layers="all")
    layers = weight_layers(model)
    assert len(layers) == NUM_LAYERS[name]
    for other, types in VARIATIONAL.items():
        assert {isinstance(layer, types) for layer in layers} == {kind == other}
    dropouts = [layer for layer in model.layers if isinstance(layer, MCDropout)]
    assert len(dropouts) == (NUM_LAYERS[name] - 1 if kind == "mc_dropout" else 0)
    assert model.layers[-1] is layers[-1]
    assert len(model.losses) == (len(layers) if kind in VARIATIONAL else 0)
    assert model.name == f"{name}_{kind}"


@pytest.mark.parametrize("name", ["lenet", "resnet20"])
def test_dropout_follows_each_layer_but_the_output(name):
    """Between a convolution or dense layer and the next there is a dropout, on the main path."""
    model = models.MODELS[name]("mc_dropout", (8, 8, 1), normalization="none", dropout_rate=0.35)
    order = [layer for layer in model.layers if layer in weight_layers(model) or isinstance(layer, MCDropout)]
    assert [isinstance(layer, MCDropout) for layer in order] == [False, True] * (NUM_LAYERS[name] - 1) + [False]
    for dropout in order[1::2]:
        assert dropout.rate == 0.35
        (before,) = [node.layer for inbound in dropout.inbound_nodes for node in inbound.parent_nodes]
        inside = isinstance(before, tf.keras.layers.Conv2D) and name == "resnet20"  # Before an addition.
        relu = tf.keras.activations.relu
        assert inside or isinstance(before, tf.keras.layers.ReLU) or before.activation is relu


@every_kind
def test_predictions_vary_where_the_kind_says_so(kind):
    model = models.lenet(kind, (8, 8, 1), initial_stddev=0.1)
    images = np.random.default_rng(0).uniform(size=(4, 8, 8, 1)).astype(np.float32)
    tf.random.set_seed(0)
    first, second = model.predict(images, verbose=0), model.predict(images, verbose=0)
    assert (np.abs(first - second).max() > 1e-3) == (kind != "deterministic")
    with sampling("mean"):
        np.testing.assert_array_equal(model(images), model(images))


@deep
@pytest.mark.parametrize("name", ["lenet", "resnet20"])
@pytest.mark.parametrize(("kind", "shape"), [("flipout", SHAPES[0]), ("mc_dropout", SHAPES[1]), ("flipout", SHAPES[2])])
def test_logits(name, kind, shape):
    model = models.MODELS[name](kind, shape, num_classes=7)
    logits = model(np.zeros((3, *shape), np.float32))
    assert logits.shape == (3, 7) and model.output_shape == (None, 7)
    assert np.isfinite(logits).all()
    assert getattr(model.layers[-1], "activation", None) is tf.keras.activations.linear


def test_odd_sizes():
    for name, shape in (("lenet", (9, 11, 2)), ("resnet20", (15, 17, 1)), ("conv_net", (9, 15, 2))):
        assert models.MODELS[name]("deterministic", shape, 3)(np.zeros((2, *shape), np.float32)).shape == (2, 3)


@every_kind
def test_seed_decides_the_initial_weights(kind):
    weights = [models.lenet(kind, (8, 8, 1), seed=seed).get_weights() for seed in (0, 0, 1)]
    assert_same(weights[0], weights[1])
    differ = [not np.array_equal(a, b) for a, b in zip(weights[0], weights[2])]
    assert sum(differ) == 5  # the five kernels


def test_no_two_kernels_of_ten_seeds_are_alike():
    """Of one shape, so that a seed whose second layer is another's first would be seen."""
    build = lambda seed: models.mlp("deterministic", (4,), 4, hidden=(4, 4), seed=seed)
    kernels = [layer.kernel.numpy().tobytes() for seed in range(10) for layer in weight_layers(build(seed))]
    assert len(kernels) == 30 and len(set(kernels)) == 30


def test_initial_weights_do_not_depend_on_the_kind_and_differ_between_layers():
    point = models.lenet("deterministic", (8, 8, 1), seed=3)
    for kind in VARIATIONAL:
        of_kind = models.lenet(kind, (8, 8, 1), seed=3)
        for a, b in zip(weight_layers(point), weight_layers(of_kind)):
            np.testing.assert_array_equal(a.kernel, b.kernel_mean)
    resnet = weight_layers(models.resnet20("deterministic", (8, 8, 1)))
    assert not np.array_equal(resnet[1].kernel, resnet[2].kernel)


@pytest.mark.statistical
def test_initial_scale_is_he_normal():
    """The sd of 48,000 weights within 3 % of sqrt(2 / 400): more than 9 standard errors, below 1e-9."""
    kernel = weight_layers(models.lenet("flipout"))[2].kernel_mean.numpy()
    assert kernel.shape == (400, 120)
    np.testing.assert_allclose(kernel.std(), np.sqrt(2 / 400), rtol=0.03)


@pytest.mark.parametrize("name", ["lenet", pytest.param("resnet20", marks=deep)])
def test_normalization(name):
    batch, group = tf.keras.layers.BatchNormalization, tf.keras.layers.GroupNormalization
    for option, wanted in (("batch", batch), ("group", group), ("none", ())):
        model = models.MODELS[name]("deterministic", (8, 8, 1), normalization=option)
        layers = [layer for layer in model.layers if isinstance(layer, (batch, group))]
        convolutions = [layer for layer in weight_layers(model) if isinstance(layer, tf.keras.layers.Conv2D)]
        assert all(isinstance(layer, wanted) for layer in layers)
        assert len(layers) == (len(convolutions) if wanted else 0)
        assert {layer.use_bias for layer in convolutions} == {option == "none"}
        assert bool(model.non_trainable_variables) is (option == "batch")


def test_mlp():
    model = models.mlp("deterministic", (30,), num_classes=2, hidden=(64, 32))
    assert model.count_params() == 31 * 64 + 65 * 32 + 33 * 2
    assert models.mlp("flipout", (4, 3), hidden=()).layers[-1].kernel_mean.shape == (12, 2)


def test_options_reach_every_layer():
    options = {"variational_bias": True, "initial_stddev": 0.05, "min_stddev": 0.02, "kl_weight": 0.5}
    for layer in weight_layers(models.lenet("flipout", (8, 8, 1), prior_stddev=3.0, **options)):
        config = layer.get_config()
        assert {**options, "prior_stddev": 3.0}.items() <= config.items()


def test_options_reach_layers_with_variational_dropout():
    options = {"parametrization": "log_alpha", "logit_range": (-9.0, 2.0), "kl_weight": 0.5}
    for layer in weight_layers(models.lenet("variational_dropout", (8, 8, 1), **options)):
        assert {**options, "initial_logit": -3.5}.items() <= layer.get_config().items()
    for layer in weight_layers(models.lenet("variational_dropout", (8, 8, 1), initial_stddev=0.05)):
        np.testing.assert_allclose(tf.exp(layer.variational_weights[0].log_stddev), 0.05, rtol=1e-5)
    types = {"float32": None, "bfloat16": "bfloat16", "bfloat16_noise": "bfloat16"}
    for precision, noise_dtype in types.items():
        model = models.mlp("variational_dropout", (3,), hidden=(), precision=precision)
        (layer,) = [layer for layer in model.layers if isinstance(layer, DenseVariationalDropout)]
        assert layer.noise_dtype == noise_dtype and model(np.ones((2, 3), np.float32)).dtype == tf.float32


@pytest.mark.parametrize("kind", VARIATIONAL)
@pytest.mark.parametrize(
    ("names", "places"),
    [(("dense_1",), {3}), ("dense", {2}), (["conv2d", "conv2d_1", "dense_2"], {0, 1, 4}), ((), set())],
)
def test_some_layers_are_variational_and_the_others_points(kind, names, places):
    layers = weight_layers(models.lenet(kind, (8, 8, 1), variational_layers=names))
    assert {i for i, layer in enumerate(layers) if isinstance(layer, VARIATIONAL[kind])} == places
    point = weight_layers(models.lenet("deterministic", (8, 8, 1)))
    for a, b in zip(point, layers):
        np.testing.assert_array_equal(a.kernel, b.kernel if hasattr(b, "kernel") else b.kernel_mean)


def test_conv_net_is_the_published_one():
    """A second dense layer of 4 w x 2 w variational weights: 32,768 for w = 64."""
    model = models.conv_net(num_classes=100)
    (weight,) = layout(model).variational
    assert weight.mean.shape == (256, 128) and weight.prior is None
    counts = [3 * 9 * 64, 64 * 9 * 64, 64 * 9 * 64, 1024 * 256, 256 * 128, 128 * 100]
    biases = [64, 64, 64, 256, 128, 100]
    assert model.count_params() == sum(counts) + sum(biases) + 256 * 128
    slopes = [float(layer.alpha) for layer in model.layers if isinstance(layer, tf.keras.layers.LeakyReLU)]
    np.testing.assert_allclose(slopes, [0.1, 0.1])
    assert models.conv_net("deterministic", (8, 8, 1), 3, width=2)(np.zeros((2, 8, 8, 1), np.float32)).shape == (2, 3)


def test_authors_initial_means_of_the_variational_layer_are_uniform():
    """U(-1 / 16, 1 / 16) for 256 inputs, whose standard deviation is 1 / 16 / sqrt(3); other layers as ever."""
    ours, theirs = models.conv_net(seed=3), models.conv_net(seed=3, variational_initializer="uniform")
    (mean,) = (weight.mean.numpy() for weight in layout(theirs).variational)
    assert 0.99 / 16 < np.abs(mean).max() <= 1 / 16
    np.testing.assert_allclose(mean.std(), 1 / 16 / np.sqrt(3), rtol=0.02)
    assert_same(layout(ours).point, layout(theirs).point)


@every_model
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variational_initializer": "unifom"}, "There is no initializer 'unifom': did you mean 'uniform'"),
        ({"kind": "flip-out"}, "There is no kind of model 'flip-out': did you mean 'flipout'?"),
        ({"normalization": "bath"}, "There is no normalization 'bath': did you mean 'batch'"),
        ({"dropout_rate": 1.0}, "dropout_rate must be at least 0 and below 1, but is 1.0"),
        ({"dropout_rate": -0.1}, "dropout_rate must be at least 0 and below 1"),
        ({"num_classes": 1}, "num_classes must be at least 2, but is 1"),
        (
            {"variational_layers": ("dense_9",)},
            "There is no layer for variational_layers 'dense_9': did you mean 'dense",
        ),
        ({"kind": "variational_dropout", "initial_stddev": 2.0}, "initial_logit must lie within logit_range"),
        ({"kind": "variational_dropout", "initial_stddev": 0.0}, "initial_stddev must be above 0, but is 0.0"),
        (
            {"kind": "variational_dropout", "parametrization": "log_alpha", "initial_stddev": 0.1},
            "initial_stddev must be left out",
        ),
        ({"kind": "flipout", "prior_stddev": 0.0}, "needs prior_stddev > 0"),
        ({"kind": "flipout", "min_stddev": 1.0}, "0 < min_stddev <= initial_stddev"),
    ],
)
def test_bad_arguments(name, options, message):
    with pytest.raises(InvalidArgument) as caught:
        models.MODELS[name](input_shape=(8, 8, 1), **options)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["lenet", "resnet20", "conv_net"])
@pytest.mark.parametrize("shape", [(7, 8, 1), (8, 7, 1), (8, 8), (8, 8, 0), (2, 8, 8, 1), (30,)])
def test_bad_shapes(name, shape):
    with pytest.raises(InvalidArgument) as caught:
        models.MODELS[name](input_shape=shape)
    assert f"{name} takes images [height, width, channels] of at least 8 x 8 pixels" in str(caught.value)
    assert str(list(shape)) in str(caught.value)


@pytest.mark.deep(after="tests/layers/test_flipout.py")
@pytest.mark.parametrize(
    ("name", "kind", "normalization"),
    [
        ("lenet", "flipout", "none"),
        ("lenet", "mc_dropout", "none"),
        ("lenet", "deterministic", "none"),
        ("resnet20", "deterministic", "batch"),
    ],
)
def test_fit_lowers_the_loss(name, kind, normalization):
    """Four classes, each a bright quadrant with noise: a few steps must help."""
    rng = np.random.default_rng(0)
    labels = np.arange(64) % 4
    images = rng.uniform(0, 0.3, (64, 8, 8, 1)).astype(np.float32)
    for image, label in zip(images, labels):
        image[4 * (label // 2) :][:4, 4 * (label % 2) :][:, :4] += 0.7
    model = models.MODELS[name](kind, (8, 8, 1), 4, normalization=normalization, kl_weight=1e-6, dropout_rate=0.1)
    tf.random.set_seed(0)
    model.compile(tf.keras.optimizers.Adam(3e-3), tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = model.fit(images, labels, batch_size=32, epochs=6, verbose=0, shuffle=False).history["loss"]
    assert losses[-1] < 0.7 * losses[0]


def test_dropout_leaves_what_a_block_adds_alone():
    """Each residual sum has dropout on the side of its convolutions; on the other that after the first layer alone."""
    model = models.resnet20("mc_dropout", (8, 8, 3))
    sums = [layer for layer in model.layers if isinstance(layer, tf.keras.layers.Add)]
    assert sums
    sides = [[isinstance(x._keras_history.layer, MCDropout) for x in layer.input] for layer in sums]
    assert all(branch for branch, _ in sides) and sum(shortcut for _, shortcut in sides) == 1


@pytest.mark.parametrize("name", sorted(models.MODELS))
def test_logits_may_be_dropped_too(name):
    number = lambda **options: sum(
        isinstance(layer, MCDropout) for layer in models.MODELS[name]("mc_dropout", (8, 8, 1), 3, **options).layers
    )
    assert number(output_dropout=True) == number() + 1
