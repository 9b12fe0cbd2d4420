"""Models at other weights than their own: as if these had been assigned, with the variables left alone."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import assert_same, refuses
from tfp_bfl import models
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.layers import sampling
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights import (
    ModelWeights,
    assign_weights,
    batch_moments,
    batch_normalized_call,
    functional_call,
    get_weights,
    layout,
)

L = tf.keras.layers
IMAGE, ROWS = (8, 8, 1), (6, 4)


def user_model(build, shape):
    inputs = tf.keras.Input(shape)
    return tf.keras.Model(inputs, L.Dense(3)(build(inputs)))


def nested():
    inner = tf.keras.Sequential(
        [tf.keras.Input(IMAGE), L.Conv2D(4, 3), L.BatchNormalization(), L.Flatten(), L.Dense(5)]
    )
    outer = tf.keras.Sequential([tf.keras.Input(IMAGE), inner, L.BatchNormalization()])
    return user_model(outer, IMAGE)


class Transposed(L.Layer):
    """A decoder with the weights of its encoder."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def build(self, _):
        self.kernel = self.encoder.kernel

    def call(self, inputs):
        return tf.matmul(inputs, self.kernel, transpose_b=True)


def tied():
    encoder = L.Dense(2)
    return user_model(tf.keras.Sequential([tf.keras.Input((4,)), encoder, Transposed(encoder)]), (4,))


class Subclass(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.last = L.Dense(3), L.Dense(2)

    def call(self, inputs):
        return self.last(tf.nn.relu(self.first(inputs)))


def subclass():
    model = Subclass()
    model(tf.zeros([1, 4]))
    return model


build = functools.partial
CASES = {
    "lenet": build(models.lenet, "deterministic", IMAGE),
    "lenet mc_dropout": build(models.lenet, "mc_dropout", IMAGE, dropout_rate=0.4),
    "lenet batch": build(models.lenet, "deterministic", IMAGE, normalization="batch"),
    "lenet group": build(models.lenet, "deterministic", IMAGE, normalization="group"),
    "lenet bfloat16": build(models.lenet, "deterministic", IMAGE, precision="bfloat16"),
    "resnet20": build(models.resnet20, "deterministic", IMAGE),
    "mlp": build(models.mlp, "deterministic", (4,), hidden=(5, 5)),
    "mlp mc_dropout": build(models.mlp, "mc_dropout", (4,), hidden=(5, 5)),
    "nested": nested,
    "recurrent": build(user_model, L.LSTM(3), ROWS),
    "wrapped": build(user_model, L.Bidirectional(L.GRU(3)), ROWS),
    "attention": build(user_model, lambda x: L.Flatten()(L.MultiHeadAttention(2, 3)(x, x)), ROWS),
    "embedding": build(user_model, lambda x: L.Flatten()(L.Embedding(7, 3)(x)), (4,)),
    "tied": tied,
    "subclass": subclass,
}
NORMALIZED = ["lenet batch", "resnet20", "nested"]
SLOW = ("lenet group", "lenet bfloat16", "mlp mc_dropout", "resnet20", "wrapped", "attention")
deep = pytest.mark.deep(after="tests/weights/test_functional_call.py")
slow = lambda case: case in SLOW
of_cases = lambda names: pytest.mark.parametrize("case", [pytest.param(x, marks=deep) if slow(x) else x for x in names])
every_case = of_cases(CASES)
every_normalized = of_cases(NORMALIZED)


def examples(case, number=6):
    rng = np.random.default_rng(2)
    shape = {"subclass": (4,)}.get(case) or CASES[case]().input_shape[1:]
    if case == "embedding":
        return tf.constant(rng.integers(7, size=(number, *shape)))
    return tf.constant(rng.uniform(size=(number, *shape)), tf.float32)


def moved(tensors, low=-0.2, high=0.2):
    rng = np.random.default_rng(1)
    return [t + tf.constant(rng.uniform(low, high, t.shape), t.dtype) for t in map(tf.convert_to_tensor, tensors)]


def moved_moments(model):
    places = layout(model)
    return MeanField(tuple(moved(places.moving_mean)), tuple(moved(places.moving_variance, 0.0, 1.0)))


def snapshot(model):
    """Values of the variables, and what the layers' attributes are."""
    attributes = [(layer, dict(vars(layer))) for layer in model._flatten_layers()]
    return [v.numpy() for v in model.variables], attributes


def assert_untouched(model, before):
    values, attributes = before
    assert_same(values, model.variables)
    for layer, held in attributes:
        now = vars(layer)
        assert {name for name in held if now.get(name) is not held[name]} <= {"_thread_local", "_called"}
        assert "call" not in now.keys() - held.keys()


def gradients(call, sources):
    """The outputs of `call`, and the gradients of a function of them."""
    with tf.GradientTape() as tape:
        tape.watch(sources)
        outputs = call()
        loss = tf.reduce_sum(tf.sin(tf.cast(outputs, tf.float32)))
    return outputs, [tf.convert_to_tensor(g) for g in tape.gradient(loss, sources)]


@every_case
def test_outputs_and_gradients_are_those_of_the_model_with_these_weights(case):
    model, x = CASES[case](), examples(case)
    point, moments = moved(layout(model).point), moved_moments(model)
    before, own = snapshot(model), model(x, training=False)
    with sampling("flipout", [1, 2]):
        outputs, gradient = gradients(lambda: functional_call(model, point, x, moments), point)
    assert_untouched(model, before)
    assert np.abs(outputs - own).max() > 1e-3
    assign_weights(model, ModelWeights(MeanField((), ()), tuple(point), moments))
    with sampling("flipout", [1, 2]):
        wanted, wanted_gradient = gradients(lambda: model(x, training=False), layout(model).point)
    assert outputs.dtype == wanted.dtype
    np.testing.assert_allclose(outputs, wanted, rtol=1e-5, atol=1e-6)
    for a, b in zip(gradient, wanted_gradient, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * np.abs(b).max())


@every_case
def test_in_a_graph_no_variable_is_even_captured(case):
    model, x = CASES[case](), examples(case)
    point, moments = moved(layout(model).point), moved_moments(model)
    call = tf.function(lambda point, moments, x: functional_call(model, point, x, moments))
    with sampling("shared", [3, 4]):
        wanted = functional_call(model, point, x, moments)
    with sampling("shared", [3, 4]):
        concrete = call.get_concrete_function(point, moments, x)
    outputs = concrete(point, moments, x)
    assert not [c for c in concrete.captured_inputs if c.dtype == tf.resource]
    # A graph keeps digits between fused operations that bfloat16 has not.
    error = 0.05 if "bfloat16" in case else 1e-5
    np.testing.assert_allclose(outputs, wanted, rtol=error, atol=error * np.abs(wanted).max())


def test_moments_default_to_the_model_s_own():
    model, x = CASES["nested"](), examples("nested")
    places = layout(model)
    for variable in [*places.moving_mean, *places.moving_variance]:
        variable.assign(moved([variable], 0.0, 1.0)[0])
    np.testing.assert_array_equal(functional_call(model, places.point, x), model(x, training=False))
    own = get_weights(model).moments
    np.testing.assert_array_equal(functional_call(model, places.point, x, own), model(x, training=False))


@pytest.mark.parametrize("number", [0, 1, 2, 5])
def test_fewer_values_are_for_the_last_weights(number):
    model, x = CASES["lenet"](), examples("lenet")
    point = list(get_weights(model).point)
    new = point[: len(point) - number] + moved(point[len(point) - number :])
    outputs = functional_call(model, new[len(point) - number :], x)
    assign_weights(model, get_weights(model)._replace(point=tuple(new)))
    np.testing.assert_array_equal(outputs, model(x, training=False))


def test_draws_in_parallel_in_one_graph():
    model, x = CASES["lenet"](), examples("lenet")
    draws = [tf.stack([v, v + 0.1, v - 0.2]) for v in get_weights(model).point]
    together = tf.function(
        lambda draws: tf.map_fn(lambda w: functional_call(model, w, x), draws, fn_output_signature=tf.float32)
    )(draws)
    apart = [functional_call(model, [w[i] for w in draws], x) for i in range(3)]
    np.testing.assert_allclose(together, apart, rtol=1e-5, atol=1e-6)


def test_numpy_arrays_and_variables_will_do():
    model, x = CASES["mlp"](), examples("mlp")
    point = moved(layout(model).point)
    wanted = functional_call(model, point, x)
    for values in ([w.numpy() for w in point], [np.float64(w) for w in point], [tf.Variable(w) for w in point]):
        np.testing.assert_array_equal(functional_call(model, values, x), wanted)


class Listed(L.Layer):
    def build(self, _):
        self.kernels = [self.add_weight("kernel", [4, 4])]

    def call(self, inputs):
        return tf.matmul(inputs, self.kernels[0])


def test_weights_that_are_no_attributes_are_refused():
    model = user_model(Listed(), (4,))
    before = snapshot(model)
    refuses("kernel:0 is no attribute of its layer", functional_call, model, get_weights(model).point, tf.zeros([1, 4]))
    assert_untouched(model, before)
    assert functional_call(model, get_weights(model).point[1:], tf.zeros([1, 4])).shape == (1, 3)


@pytest.mark.parametrize(
    ("point", "moments", "message"),
    [
        (lambda w: [*w, w[0]], None, "There are 11 values, but the model has 10 point weights"),
        (lambda w: [*w[:-2], w[-2][:2], w[-1]], None, r"is \(5, 3\) float32, but its value \(2, 3\) float32"),
        (lambda w: [*w[:-1], tf.cast(w[-1], tf.float64)], None, r"float32, but its value \(3,\) float64"),
        (lambda w: w, lambda m: m._replace(mean=m.mean[:1]), "1 means and 2 variances, but the model has 2"),
        (lambda w: w, lambda m: MeanField((), ()), "0 means and 0 variances, but the model has 2"),
        (lambda w: w, lambda m: m._replace(variance=m.variance[::-1]), r"is \(4,\) float32, but its value \(5,\)"),
    ],
    ids=["too many", "shape", "type", "few means", "no moments", "shape of a variance"],
)
def test_what_does_not_fit_is_refused(point, moments, message):
    model = CASES["nested"]()
    weights, before = get_weights(model), snapshot(model)
    with pytest.raises(InvalidArgument, match=message):
        functional_call(model, point(weights.point), examples("nested"), moments and moments(weights.moments))
    assert_untouched(model, before)


@pytest.mark.parametrize("call", [functional_call, batch_moments])
def test_variables_are_back_after_an_error_inside_the_model(call):
    model = CASES["nested"]()
    point, before = moved(layout(model).point), snapshot(model)
    with pytest.raises(Exception, match=r"(?i)incompatible|shape"):
        call(model, point, tf.zeros([2, 5, 5, 1]))
    assert_untouched(model, before)


def seen_in_training(model, x):
    """What each BatchNormalization has seen in the batch: its moving statistics with momentum 0."""
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, L.BatchNormalization)]
    sizes = {}
    for layer in layers:
        layer.momentum = 0.0
        layer.call = functools.partial(record, layer, layer.call, sizes)
    outputs = model(x, training=True)
    means = [layer.moving_mean.numpy() for layer in layers]
    # The fused kernel's is the unbiased estimate.
    unbiased = [(n - 1) / n if layer.fused else 1.0 for layer, n in ((x, sizes[id(x)]) for x in layers)]
    return outputs, means, [factor * layer.moving_variance.numpy() for factor, layer in zip(unbiased, layers)]


def record(layer, call, sizes, inputs, training=None):
    sizes[id(layer)] = inputs.shape.num_elements() // inputs.shape[-1]
    return call(inputs, training=training)


@every_normalized
def test_batch_moments_are_what_batch_normalization_sees_in_training(case):
    model, x = CASES[case](), examples(case, 16)
    point, before = moved(layout(model).point), snapshot(model)
    with sampling("shared", [5, 6]):
        moments = batch_moments(model, point, x)
    with sampling("shared", [5, 6]):
        outputs, same = batch_normalized_call(model, point, x)
    assert_untouched(model, before)
    tf.nest.map_structure(np.testing.assert_array_equal, moments, same)
    assign_weights(model, get_weights(model)._replace(point=tuple(point)))
    with sampling("shared", [5, 6]):
        wanted, means, variances = seen_in_training(model, x)
    assert len(moments.mean) == len(means) == len(get_weights(model).moments.mean)
    # Nineteen layers of eight bits, each normalised by the last one's rounding.
    error = 0.05 if "bfloat16" in case else 1e-4
    for actual, value in zip([*moments.mean, *moments.variance, outputs], [*means, *variances, wanted]):
        assert actual.dtype == tf.float32
        np.testing.assert_allclose(actual, value, rtol=error, atol=error * np.abs(value).max())


@every_normalized
def test_batch_normalized_call_has_the_gradients_of_training(case):
    """They go through the batch's mean and variance too."""
    model, x = CASES[case](), examples(case, 16)
    point = moved(layout(model).point)
    _, gradient = gradients(lambda: batch_normalized_call(model, point, x)[0], point)
    moments = batch_moments(model, point, x)
    _, frozen = gradients(lambda: functional_call(model, point, x, moments), point)
    assign_weights(model, get_weights(model)._replace(point=tuple(point)))
    _, wanted = gradients(lambda: model(x, training=True), layout(model).point)
    largest = max(np.abs(g).max() for g in wanted)
    assert_same(gradient, wanted, rtol=1e-3, atol=1e-4 * largest)
    assert max(np.abs(a - b).max() for a, b in zip(frozen, wanted)) > 0.01 * largest


@every_normalized
def test_with_batch_moments_the_batch_is_normalised_by_itself(case):
    model, x = CASES[case](), examples(case, 16)
    point = moved(layout(model).point)
    outputs, moments = tf.function(lambda: batch_normalized_call(model, point, x))()
    again = functional_call(model, point, x, moments)
    np.testing.assert_allclose(again, outputs, rtol=1e-4, atol=1e-4 * np.abs(outputs).max())


def test_batch_moments_of_the_last_weights():
    model, x = CASES["nested"](), examples("nested")
    point = get_weights(model).point
    new = moved(point[-4:])
    whole = batch_moments(model, [*point[:-4], *new], x)
    tf.nest.map_structure(np.testing.assert_array_equal, batch_moments(model, new, x), whole)


def test_batch_moments_of_a_model_without_batch_normalization():
    assert batch_moments(CASES["mlp"](), (), examples("mlp")) == MeanField((), ())


def test_another_axis_than_the_last_is_refused():
    model = user_model(tf.keras.Sequential([tf.keras.Input((4, 3)), L.BatchNormalization(axis=1), L.Flatten()]), (4, 3))
    before = snapshot(model)
    with pytest.raises(InvalidArgument, match="must normalise over the last axis"):
        batch_moments(model, (), tf.zeros([2, 4, 3]))
    assert_untouched(model, before)
