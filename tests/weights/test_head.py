"""A model in two: features below the last dense layer, and that layer with what follows it."""

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import refuses
from tfp_bfl import models
from tfp_bfl.layers import sampling
from tfp_bfl.weights import layout, split_head

layers = tf.keras.layers
IMAGE = {"input_shape": (8, 8, 1), "num_classes": 3}


def functional(outputs_of, shape=(4,)):
    inputs = tf.keras.Input(shape)
    return tf.keras.Model(inputs, outputs_of(inputs), name="made")


def sequential():
    return tf.keras.Sequential([layers.Dense(5, "relu", input_shape=(4,)), layers.Dense(3)])


def with_activation():
    return functional(lambda x: layers.Activation("tanh")(layers.Dropout(0.0)(layers.Dense(3)(layers.Dense(5)(x)))))


BUILDERS = {
    "lenet": (lambda: models.lenet("deterministic", **IMAGE), 84),
    "lenet in bfloat16": (lambda: models.lenet("mc_dropout", precision="bfloat16", **IMAGE), 84),
    "resnet20": (lambda: models.resnet20("deterministic", **IMAGE), 64),
    "mlp": (lambda: models.mlp("mc_dropout", input_shape=(4,), num_classes=3, hidden=(6, 5)), 5),
    "logistic regression": (lambda: models.mlp("deterministic", input_shape=(4,), num_classes=3, hidden=()), 4),
    "sequential": (sequential, 5),
    "activation after it": (with_activation, 5),
}
deep = pytest.mark.deep(after="tests/weights/test_head.py")
every_model = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=deep) if name == "resnet20" else name for name in BUILDERS]
)


def randomized(model):
    """Every weight at random, statistics and biases as well, so that none of them can be missed."""
    rng = np.random.default_rng(0)
    for variable in model.variables:
        variable.assign(np.abs(rng.normal(0.1, 0.3, variable.shape)) + 0.01)
    return model


@every_model
def test_parts_one_after_the_other_are_the_model(name):
    build, num_features = BUILDERS[name]
    model = randomized(build())
    parts = split_head(model)
    inputs = np.random.default_rng(1).normal(size=[7, *model.input_shape[1:]]).astype(np.float32)
    with sampling("mean"):
        features = parts.features(inputs)
        np.testing.assert_allclose(parts.head(features), model(inputs), rtol=1e-6)
    assert features.shape == (7, num_features) and parts.head.output_shape == model.output_shape
    assert np.ptp(model(inputs)) > 1e-4


@every_model
def test_parts_share_the_models_variables(name):
    """The head has the last two of the point weights, and a change of theirs is one of the model's."""
    model = BUILDERS[name][0]()
    parts, whole = split_head(model), layout(model)
    identities = lambda variables: [id(v) for v in variables]
    assert identities(layout(parts.head).point) == identities(whole.point[-2:])
    assert identities(layout(parts.features).point) == identities(whole.point[:-2])
    assert layout(parts.head).moving_mean == []
    assert len(layout(parts.features).moving_mean) == len(whole.moving_mean)
    assert [v.shape.rank for v in layout(parts.head).point] == [2, 1]


def test_activations_behind_the_last_layer_belong_to_the_head():
    parts = split_head(randomized(with_activation()))
    logits = parts.head(10 * tf.random.stateless_normal([9, 5], [1, 2]))
    assert np.abs(logits).max() <= 1 and np.abs(parts.features(tf.fill([1, 4], 100.0))).max() > 1


def test_it_works_where_graphs_are_of_tensorflow_1():
    with tf.Graph().as_default():
        parts = split_head(sequential())
        assert parts.head.input_shape == (None, 5) and parts.head.output_shape == (None, 3)


class Subclassed(tf.keras.Model):
    def __init__(self):
        super().__init__(name="own")
        self.dense = layers.Dense(3)

    def call(self, inputs, training=None):
        return self.dense(inputs)


class Tied(layers.Dense):
    """With the kernel of another layer."""

    def __init__(self, units, other):
        super().__init__(units)
        self.other = other

    def build(self, input_shape):
        super().build(input_shape)
        self.kernel = self.other.kernel


def called(model):
    model(tf.zeros([1, 4]))
    return model


def shared(x):
    dense = layers.Dense(4)
    return dense(dense(x))


def tied(x):
    first = layers.Dense(4)
    return Tied(4, first)(first(x))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: functional(layers.Conv2D(2, 2), (4, 4, 1)), "'made' ends with Conv2D"),
        (lambda: functional(lambda x: layers.BatchNormalization()(layers.Dense(3)(x))), "ends with BatchNormalization"),
        (lambda: functional(lambda x: sequential()(x)), "ends with Sequential"),
        (lambda: models.mlp("flipout", input_shape=(4,)), "'mlp_flipout' ends with DenseFlipout"),
        (lambda: functional(layers.Softmax()), "'made' has no layer with weights"),
        (lambda: tf.keras.Sequential([layers.Dense(3)]), "has no layer with weights"),
        (Subclassed, "'own' has no layer with weights"),
        (lambda: called(Subclassed()), "called once in a functional or sequential model: 'own' ends with Dense"),
        (lambda: functional(shared), "that is called once in a functional or sequential model: 'made' ends with Dense"),
        (lambda: functional(lambda x: layers.Dense(3)(x), (2, 4)), r"must take vectors \[B, F\], not \(None, 2, 4\)"),
        (lambda: functional(lambda x: layers.Add()([layers.Dense(3)(layers.Dense(5)(x)), layers.Dense(3)(x)])),
         "After the last layer of 'made' there must be one chain of layers"),
        (lambda: functional(tied), "The weights of the last layer of 'made' must be the last of the model's"),
    ],
)  # fmt: skip
def test_models_that_can_not_be_split(build, message):
    refuses(message, split_head, build())


def test_a_sequential_model_without_input_is_split_once_it_was_built():
    model = tf.keras.Sequential([layers.Dense(5), layers.Dense(3)])
    model.build((None, 4))
    assert split_head(model).features.output_shape == (None, 5)
