"""User-supplied Keras models: what is refused in one sentence, and what trains, predicts and exports."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_bfl as bfl
from tests.kit import assert_same, refuses

keras = tf.keras
layers = tf.keras.layers
SHAPE = (5, 3)


def sequence(*inner, shape=SHAPE, classes=3):
    return keras.Sequential([keras.Input(shape), *inner, layers.Dense(classes)])


def attention(dropout=0.0):
    inputs = keras.Input(SHAPE)
    x = layers.MultiHeadAttention(2, 4, dropout=dropout)(inputs, inputs)
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return keras.Model(inputs, layers.Dense(3)(x))


DETERMINISTIC = {
    "lstm": lambda: sequence(layers.LSTM(4)),
    "gru after masking": lambda: sequence(layers.Masking(), layers.GRU(4)),
    "bidirectional": lambda: sequence(layers.Bidirectional(layers.LSTM(3))),
    "two lstms": lambda: sequence(layers.LSTM(4, return_sequences=True), layers.LSTM(3)),
    "attention": attention,
    "dropout of rate 0": lambda: sequence(layers.Flatten(), layers.Dropout(0.0), layers.GaussianNoise(0.0)),
    "embedding": lambda: sequence(layers.Embedding(9, 4), layers.Flatten(), shape=(5,)),
}


def clients(model):
    rng = np.random.default_rng(1)
    features = rng.integers(0, 9, (24, *model.input_shape[1:])) / (1 if len(model.input_shape) == 2 else 9)
    source = bfl.data.Source("made", "train", features, np.arange(24) % 3)
    return source, source.partition(bfl.data.iid(2), seed=0)


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_layers_that_draw_no_noise_train_and_export(name, tmp_path):
    model = DETERMINISTIC[name]()
    source, data = clients(model)
    process = bfl.algorithms.fed_opt(DETERMINISTIC[name], local_epochs=2, batch_size=4)
    result = bfl.simulate(process, data, rounds=2, engine="local", seed=0)
    assert result.rounds[-1]["num_faulty"] == 0
    assert all(np.isfinite(row["nll"]) for row in result.rounds)
    moved = [np.abs(a - b).max() for a, b in zip(result.model.get_weights(), process.model_fn().get_weights())]
    assert max(moved) > 0
    found = bfl.evaluation.predict(result.model, source.features)[0]
    bfl.export.save(result.model, tmp_path / "saved")
    exported = bfl.export.load(tmp_path / "saved").mean(tf.constant(source.features))["probabilities"]
    np.testing.assert_allclose(exported, found, atol=1e-6)


def test_a_recurrent_layer_below_a_variational_one():
    build = lambda: keras.Sequential([keras.Input(SHAPE), layers.GRU(4), bfl.layers.DenseFlipout(3)])
    _, data = clients(build())
    result = bfl.simulate(bfl.algorithms.variational(build, local_epochs=1), data, rounds=1, engine="local")
    assert np.isfinite(result.rounds[-1]["nll"]) and result.rounds[-1]["num_faulty"] == 0


@pytest.mark.parametrize(
    "build",
    [
        lambda: sequence(layers.LSTM(4, dropout=0.1)),
        lambda: sequence(layers.GRU(4, recurrent_dropout=0.1)),
        lambda: attention(0.2),
        lambda: sequence(layers.Flatten(), layers.Dropout(0.3)),
        lambda: sequence(layers.Flatten(), layers.GaussianNoise(0.3)),
        lambda: sequence(layers.Reshape((5, 3, 1)), layers.RandomFlip(), layers.Flatten()),
    ],
)
def test_layers_that_draw_noise_are_refused(build):
    refuses("draws noise that the run's seed does not reach: set its dropout to 0", bfl.algorithms.fed_opt, build)


class Drawing(layers.Layer):
    """A layer that adds what a function draws."""

    def __init__(self, draw):
        super().__init__()
        self._draw = draw

    def call(self, x):
        return x + self._draw(x)


class FromGenerator(layers.Layer):
    """A layer with a `tf.random.Generator` of its own."""

    def __init__(self):
        super().__init__()
        self._generator = tf.random.Generator.from_seed(1)

    def call(self, x):
        return x + self._generator.normal(tf.shape(x))


def inside_loop(x):
    step = lambda i, y: (i + 1, y + tf.random.normal(tf.shape(y)))
    return tf.while_loop(lambda i, y: i < 2, step, (0, x))[1]


def inside_branch(x):
    return tf.cond(tf.reduce_sum(x) > 0, lambda: x + tf.random.uniform(tf.shape(x)), lambda: x)


@tf.function
def inner(x):
    return x + tf.random.normal(tf.shape(x))


@tf.function
def inside_functions(x):
    return 2.0 * inner(x)


NOISY = {
    "a layer": lambda: Drawing(lambda x: tf.random.normal(tf.shape(x))),
    "lambda": lambda: layers.Lambda(lambda x: x + tf.random.normal(tf.shape(x), seed=3)),
    "dropout in a lambda": lambda: layers.Lambda(lambda x: tf.nn.dropout(x, 0.3)),
    "loop": lambda: layers.Lambda(inside_loop),
    "branch": lambda: layers.Lambda(inside_branch),
    "nested functions": lambda: layers.Lambda(inside_functions),
    "generator": FromGenerator,
    "shuffle": lambda: layers.Lambda(tf.random.shuffle),
    "python": lambda: layers.Lambda(lambda x: x + tf.reshape(tf.py_function(np.random.normal, [], tf.float32), [])),
    "only in prediction": lambda: OnlyInPrediction(),
}


class OnlyInPrediction(layers.Layer):
    def call(self, x, training=None):
        return x if training else x + tf.random.normal(tf.shape(x))


@pytest.mark.parametrize("kind", NOISY)
def test_random_operations_without_the_seed_are_refused_by_the_name_of_their_layer(kind):
    layer = NOISY[kind]()
    model = keras.Sequential([keras.Input((4,)), layers.Dense(4), layer, layers.Dense(3)])
    named = f"The layer '{layer.name}' .{type(layer).__name__}. draws noise that the run's seed does not reach"
    caught = refuses(named, bfl.weights.check_layers, model)
    assert caught.count(". ") == 0
    refuses("draws noise", bfl.weights.check_layers, keras.Sequential([keras.Input((4,)), model]))


def stateless(x):
    return 0.1 * tf.random.stateless_normal(tf.shape(x), [1, 2])


def watched(x):
    with tf.control_dependencies([tf.py_function(lambda n: None, [tf.size(x)], [])]):
        return tf.identity(x)


QUIET = {
    "python that watches": lambda: layers.Lambda(watched),
    "stateless": lambda: layers.Lambda(lambda x: x + stateless(x)),
    "stateless in a loop": lambda: layers.Lambda(
        lambda x: tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, y + stateless(y)), (0, x))[1]
    ),
    "dropout of the library": lambda: bfl.layers.MCDropout(0.3),
    "random initial weights": lambda: layers.Dense(4, kernel_initializer="random_normal"),
    "noise times 0": lambda: layers.GaussianNoise(0.0),
}


@pytest.mark.parametrize("kind", QUIET)
def test_models_whose_noise_follows_from_the_seed_pass_and_give_equal_bits(kind):
    build = lambda: keras.Sequential([keras.Input((4,)), layers.Dense(4), QUIET[kind](), layers.Dense(3)])
    features = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
    data = bfl.data.Source("made", "train", features, np.arange(12) % 3).partition(bfl.data.iid(2), seed=0)
    process = bfl.algorithms.fed_opt(build, local_epochs=1)
    runs = [bfl.simulate(process, data, rounds=2, engine="local", seed=0) for _ in range(2)]
    assert_same(*(run.state.weights for run in runs))


def ending(*ends):
    return lambda: keras.Sequential([keras.Input((4,)), layers.Dense(8, "relu"), *ends])


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3)

    def call(self, inputs):
        return self.dense(inputs)


def two_inputs():
    inputs = [keras.Input((2,)), keras.Input((3,))]
    return keras.Model(inputs, layers.Dense(3)(layers.Concatenate()(inputs)))


class Distilling(keras.Model):
    def train_step(self, data):
        raise NotImplementedError


def distilling():
    inputs = keras.Input((4,))
    return Distilling(inputs, layers.Dense(3)(inputs))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (ending(layers.Dense(3), layers.Lambda(tf.nn.softmax)), "sum to 1: they are probabilities"),
        (ending(layers.Dense(3), layers.Activation(lambda x: tf.nn.softmax(x))), "sum to 1: they are probabilities"),
        (ending(layers.Dense(3, "sigmoid")), "all lie between 0 and 1, as those of a sigmoid do"),
        (ending(layers.Dense(3), layers.Lambda(tf.sigmoid)), "all lie between 0 and 1, as those of a sigmoid do"),
        (ending(layers.Dense(3, "softmax")), "The last layer, 'dense.*', gives probabilities, but must give logits"),
        (ending(layers.Dense(3), layers.Softmax()), "gives probabilities, but must give logits"),
        (ending(layers.Dense(3), layers.Activation("softmax")), "gives probabilities, but must give logits"),
        (ending(keras.Sequential([layers.Dense(3, "softmax")])), "gives probabilities, but must give logits"),
        (ending(layers.Dense(3, kernel_regularizer="l2")), "losses of its own"),
        (ending(tfp.layers.DenseFlipout(3)), "use the layers of tfp_bfl.layers"),
        (two_inputs, "has 2 inputs, but must have one: concatenate them"),
        (lambda: None, "The function of the model returns None, but must return a Keras model"),
        (Subclassed, r"\(Subclassed\) is subclassed, or has no input shape: build it as a functional model"),
        (distilling, r"\(Distilling\) has a train_step of its own, which no run calls: leave it out"),
        (distilling(), "has a train_step of its own"),
        (lambda: keras.Sequential([layers.Dense(3)]), "is subclassed, or has no input shape"),
        (lambda: keras.Sequential([keras.Input((4,)), layers.Dense(3, dtype="float64")]), "of type float64, but must"),
    ],
)
def test_models_of_another_form_are_refused(build, message):
    caught = refuses(message, bfl.algorithms.fed_opt, build)
    assert caught.count(". ") == 0


@pytest.mark.parametrize(
    "end",
    [
        layers.Dense(3, kernel_initializer="zeros"),
        layers.Dense(3, "relu"),
        layers.Dense(3, "tanh"),
        layers.Dense(3, kernel_initializer="ones", kernel_constraint="non_neg"),
    ],
)
def test_logits_of_any_range_pass(end):
    model = ending(end)()
    bfl.weights.check_logits(model)
    log = keras.Sequential([keras.Input((4,)), layers.Dense(3), layers.Lambda(tf.nn.log_softmax)])
    bfl.weights.check_logits(log)


def test_a_sigmoid_is_no_error_where_numbers_are_predicted():
    bfl.weights.check_logits(ending(layers.Dense(2, "sigmoid"))(), of_classes=False)


def test_models_of_this_library_pass():
    for name, shape in {"mlp": (4,), "lenet": (28, 28, 1), "conv_net": (32, 32, 3), "resnet20": (32, 32, 3)}.items():
        for kind in bfl.models.KINDS:
            model = bfl.models.MODELS[name](kind, shape, 10)
            bfl.weights.check_form(model)
            bfl.weights.check_layers(model)
            bfl.weights.check_logits(model)
