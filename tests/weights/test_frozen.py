"""Frozen layers: what they are, what is refused, and that runs, checkpoints and exports hold them."""

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.method import CLIENTS, body, mlp, on_body
from tests.kit import refuses
from tfp_bfl import algorithms, evaluation, export, simulate
from tfp_bfl.layers import DenseFlipout, MCDropout, sampling
from tfp_bfl.models import as_model_fn
from tfp_bfl.weights import check_layers, get_weights
from tfp_bfl.weights.frozen import frozen_digest, frozen_variables

SMALL = {"local_epochs": 1, "batch_size": 8, "learning_rate": 0.05}
X = CLIENTS.source.features[:7]


def network(*layers):
    return tf.keras.Sequential([tf.keras.Input((30,)), *layers, tf.keras.layers.Dense(2, kernel_initializer=glorot(2))])


def glorot(seed=1):
    return tf.keras.initializers.GlorotNormal(seed=seed)


def test_weights_are_those_of_the_layers_that_train():
    model = as_model_fn(on_body(mlp("flipout")))()
    weights = get_weights(model)
    assert [x.shape.as_list() for x in tf.nest.flatten(weights)] == [[30, 3], [3, 2], [30, 3], [3, 2], [3], [2]]
    dense, normalization, flipout = [30 * 30, 30], [30] * 4, [30 * 30, 30 * 30, 30]
    sizes = sorted(v.shape.num_elements() for v in frozen_variables(model))
    assert sizes == sorted(dense + normalization + flipout)


def test_frozen_layers_draw_nothing_and_never_update():
    """A layer inside that was set to train again is frozen too, and a network in training is that in prediction."""
    assert body().layers[2].trainable
    (frozen,) = [x for x in as_model_fn(on_body(mlp("flipout")))().layers if x.name == "body"]
    assert not any(x.trainable for x in frozen.layers)
    before = frozen_digest(frozen)
    with sampling("flipout", seed=tf.constant([1, 2])):
        outputs = [frozen(X, training=is_training) for is_training in (True, False)]
    with sampling("mean"):
        outputs.append(frozen(X, training=False))
    for found in outputs[1:]:
        np.testing.assert_array_equal(found, outputs[0])
    assert frozen_digest(frozen) == before and not frozen.losses[0].numpy()


@pytest.mark.parametrize("layer", [DenseFlipout(3, trainable=False), MCDropout(0.5, trainable=False)])
def test_a_model_with_frozen_noise_alone_has_no_samples(layer):
    assert not evaluation.predictive.is_stochastic(network(layer))


class Counter(tf.keras.layers.Layer):
    def build(self, input_shape):
        self.number = self.add_weight("number", [], initializer="zeros", trainable=False)

    def call(self, inputs):
        self.number.assign_add(1.0)
        return inputs


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (lambda: tf.keras.layers.Dense(3, trainable=False), "differ from one call of its function to the next"),
        (lambda: Counter(trainable=False), "A frozen layer changes its variable .*number"),
        (lambda: tf.keras.layers.Normalization(), "or freeze theirs by trainable=False"),
    ],
    ids=["unseeded", "state", "not frozen"],
)
def test_what_is_no_constant_is_refused(layer, words):
    refuses(words, algorithms.fed_opt, lambda: network(layer()), **SMALL)


def test_a_frozen_state_that_no_call_changes_is_a_constant():
    normalization = tf.keras.layers.Normalization(mean=[1.0] * 30, variance=[4.0] * 30, trainable=False)
    model = as_model_fn(lambda: network(normalization))()
    check_layers(model)
    assert len(get_weights(model).point) == 2


def test_a_model_that_is_all_frozen_is_refused():
    def build():
        model = network(tf.keras.layers.Dense(3, kernel_initializer=glorot()))
        model.trainable = False
        return model

    refuses(r"All weights of the model .* are frozen, so that nothing is trained", algorithms.fed_opt, build, **SMALL)


def test_a_last_layer_that_is_frozen_is_refused():
    def build():
        model = network(tf.keras.layers.Dense(3, kernel_initializer=glorot()))
        model.layers[-1].trainable = False
        return model

    refuses(r"The last layer of .* is frozen, but it is the one to fit", algorithms.last_layer, build)


def test_a_run_resumes_with_the_same_frozen_weights_alone(tmp_path):
    frozen = lambda seed: tf.keras.layers.Dense(4, "tanh", kernel_initializer=glorot(seed), trainable=False)
    process = lambda seed: algorithms.fed_opt(lambda: network(frozen(seed)), **SMALL)
    run = lambda seed, rounds: simulate(process(seed), CLIENTS, rounds, checkpoints=tmp_path)
    run(1, 1)
    assert int(run(1, 2).state.round) == 2
    refuses(r"differs in frozen weights, .*124 numbers \(\w{16}\).*; this run has 124", run, 2, 3)


@pytest.mark.parametrize("kind", ["flipout", "deterministic"])
def test_exports_hold_the_frozen_weights(kind, tmp_path):
    options = SMALL if kind == "deterministic" else {"local_epochs": 1, "batch_size": 8}
    recipe = algorithms.fed_opt if kind == "deterministic" else algorithms.default
    result = simulate(recipe(on_body(mlp(kind)), **options), CLIENTS, 1, engine="local")
    wanted = evaluation.predict(result.model, X, num_samples=3, seed=1).mean(0)
    export.save(result.model, tmp_path / "saved")
    found = export.load(tmp_path / "saved").predict(tf.constant(X), num_samples=3, seed=1)["mean"]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    result.model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    assert frozen_digest(loaded) == frozen_digest(result.model)
    np.testing.assert_allclose(evaluation.predict(loaded, X, 3, seed=1).mean(0), wanted, rtol=1e-5, atol=1e-6)
