"""Models converted to point weights and to Monte Carlo dropout: architecture, weights, places, refusals."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tests.kit import refuses

KERAS = tf.keras.layers


def outputs(model, inputs, mode="mean"):
    with bfl.layers.sampling(mode):
        return model(inputs).numpy()


def jolted(model):
    """Return the model with other values of all its weights."""
    rng = np.random.default_rng(3)
    model.set_weights([np.abs(x) + rng.uniform(0.1, 0.2, x.shape) * (x > -3) for x in model.get_weights()])
    return model


@pytest.mark.parametrize("kind", ["flipout", "variational_dropout"])
@pytest.mark.parametrize("name", ["lenet", "resnet20", "mlp", "conv_net"])
def test_point_weights_are_the_means_of_the_same_architecture(name, kind):
    shape = (32, 32, 3)
    model = bfl.models.MODELS[name](kind, input_shape=shape, num_classes=4)
    twin = bfl.models.deterministic(model)
    inputs = np.random.default_rng(0).random((3, *shape), np.float32)
    np.testing.assert_allclose(outputs(twin, inputs), outputs(model, inputs), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(outputs(twin, inputs, "shared"), outputs(twin, inputs))
    plain = bfl.models.MODELS[name]("deterministic", input_shape=shape, num_classes=4)
    assert twin.count_params() == plain.count_params()
    assert [type(x) for x in twin.layers] == [type(x) for x in plain.layers]
    assert bfl.models.kind_of(model) == kind and bfl.models.kind_of(twin) == "deterministic"


@pytest.mark.parametrize("name", ["lenet", "mlp", "conv_net"])
def test_dropout_stands_where_the_builders_have_it(name):
    shape = (32, 32, 3)
    twin = bfl.models.mc_dropout(bfl.models.MODELS[name]("flipout", input_shape=shape, num_classes=4), 0.35)
    plain = bfl.models.MODELS[name]("mc_dropout", input_shape=shape, num_classes=4, dropout_rate=0.35)
    assert [type(x) for x in twin.layers] == [type(x) for x in plain.layers]
    assert {x.rate for x in twin.layers if isinstance(x, bfl.layers.MCDropout)} == {0.35}
    assert bfl.models.kind_of(twin) == "mc_dropout"


def test_present_weights_of_every_layer_are_copied():
    inputs = tf.keras.Input((6, 6, 1))
    x = bfl.layers.Conv2DFlipout(3, 3, use_bias=False)(inputs)
    x = KERAS.ReLU()(KERAS.BatchNormalization()(x))
    x = KERAS.Conv2D(3, 1)(x) + x
    x = KERAS.Flatten()(x)
    x = bfl.layers.DenseFlipout(4, activation="tanh", variational_bias=True)(x)
    model = jolted(tf.keras.Model(inputs, bfl.layers.DenseVariationalDropout(2, logit_range=(-9.0, 9.0))(x)))
    rows = np.random.default_rng(0).random((5, 6, 6, 1), np.float32)
    for twin in (bfl.models.deterministic(model), bfl.models.mc_dropout(model)):
        np.testing.assert_allclose(outputs(twin, rows), outputs(model, rows), rtol=1e-4)
    kinds = [type(x).__name__ for x in bfl.models.mc_dropout(model).layers]
    assert kinds[kinds.index("ReLU") + 1] == "MCDropout" and kinds[-1] == "Dense"


def test_models_in_models_and_derived_layers_are_converted():
    part = tf.keras.Sequential([tf.keras.Input((4,)), Named(3, activation="relu")])
    model = tf.keras.Sequential([tf.keras.Input((4,)), part, bfl.layers.DenseFlipout(2)])
    rows = np.random.default_rng(0).random((5, 4), np.float32)
    twin = bfl.models.mc_dropout(model)
    np.testing.assert_allclose(outputs(twin, rows), outputs(model, rows), rtol=1e-5)
    assert bfl.models.kind_of(twin) == "mc_dropout"
    assert bfl.models.kind_of(bfl.models.deterministic(model)) == "deterministic"


def test_a_layer_that_is_called_twice_remains_one():
    inputs, shared = tf.keras.Input((3,)), bfl.layers.DenseFlipout(3)
    twin = bfl.models.deterministic(tf.keras.Model(inputs, shared(shared(inputs))))
    assert len(twin.weights) == 2


def test_dropout_of_the_model_has_the_rate_and_its_place():
    layers = [tf.keras.Input((4,)), bfl.layers.DenseFlipout(3), bfl.layers.MCDropout(0.5), KERAS.Dense(2)]
    model = tf.keras.Sequential(layers)
    rates = lambda twin: [(x.rate, x.at_prediction) for x in twin.layers if isinstance(x, bfl.layers.MCDropout)]
    assert rates(bfl.models.mc_dropout(model, 0.1)) == [(0.1, True)]
    assert rates(bfl.models.deterministic(model)) == [(0.5, False)]


def test_one_round_sends_half_the_bytes():
    model = bfl.models.mlp("flipout", input_shape=(30,), num_classes=2)
    size = lambda model: sum(x.size for x in model.get_weights() if x.ndim == 2)
    assert size(model) == 2 * size(bfl.models.deterministic(model))


def _time_distributed():
    return tf.keras.Sequential([tf.keras.Input((5, 4)), KERAS.TimeDistributed(bfl.layers.DenseFlipout(3))])


Named = type("Named", (bfl.layers.DenseFlipout,), {})
Halved = type("Halved", (Named,), {"call": lambda self, x: super(Halved, self).call(x / 2)})


class Closed(KERAS.Layer):
    """A layer without a configuration."""

    def get_config(self):
        raise NotImplementedError

    def call(self, inputs):
        return inputs


class Subclassed(tf.keras.Model):
    def call(self, inputs):
        return inputs


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (_time_distributed, r"The layer 'time_distributed.*' \(TimeDistributed\) holds layers of tfp_bfl.layers"),
        (lambda: tf.keras.Sequential([tf.keras.Input((4,)), Closed()]), r"\(Closed\) cannot be built again"),
        (lambda: tf.keras.Sequential([tf.keras.Input((4,)), Halved(2)]), r"\(Halved\) has its own call, which Keras"),
        (Subclassed, "is neither functional nor a Sequential model"),
    ],
)
def test_what_cannot_be_converted_is_one_sentence(build, message):
    for convert in (bfl.models.deterministic, bfl.models.mc_dropout):
        refuses(message, convert, build())


def test_a_rate_outside_its_range():
    model = bfl.models.mlp("flipout", input_shape=(3,), num_classes=2)
    refuses("rate must be at least 0 and below 1, but is 1", bfl.models.mc_dropout, model, 1)


def test_a_model_of_one_layer_has_no_place_for_dropout():
    model = tf.keras.Sequential([tf.keras.Input((3,)), bfl.layers.DenseFlipout(2)])
    refuses("has one layer", bfl.models.mc_dropout, model)
