"""FedBE: what the ensemble is, what it teaches, and what the student learns of it."""

import importlib

import numpy as np
import pytest
import tensorflow as tf
from scipy import special

from tests.kit import assert_same, refuses
from tfp_bfl import models, servers
from tfp_bfl.algorithms.averaging.step import distil
from tfp_bfl.federated import server_optimizer
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights import ModelWeights, get_weights

module = importlib.import_module("tfp_bfl.algorithms.averaging.step")  # The package has the function of this name.
NONE = MeanField((), ())
SEED = tf.constant([2, 3])
RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(37, 3)).astype(np.float32)
KERNELS, BIASES = (RNG.normal(size=(4, *shape)).astype(np.float32) for shape in ((3, 2), (2,)))
STACKED = ModelWeights(NONE, (tf.constant(KERNELS), tf.constant(BIASES)), NONE)
START = ModelWeights(NONE, (tf.zeros([3, 2]), tf.zeros([2])), NONE)
MEAN = [KERNELS.mean(0), BIASES.mean(0)]
model_fn = lambda: models.mlp("deterministic", input_shape=(3,), num_classes=2, hidden=())


def predictions(kernels, biases):
    logits = FEATURES @ np.asarray(kernels, np.float64) + np.asarray(biases, np.float64)[..., np.newaxis, :]
    return special.softmax(logits, -1)


def student(stacked=STACKED, features=FEATURES, seed=SEED, **options):
    step = distil(model_fn, features, **options)
    return step.next(step.initialize(START), START, stacked, seed)[1]


def test_student_that_hardly_learns_is_the_mean_of_the_clients():
    actual = student(learning_rate=1e-12)
    assert_same(actual.point, MEAN, rtol=1e-5, atol=1e-6)
    assert actual.posterior == NONE and actual.moments == NONE


@pytest.mark.parametrize("at_once", [5, 37, 500])
def test_teacher_is_the_mean_prediction(at_once, monkeypatch):
    monkeypatch.setattr(module, "EXAMPLES_AT_ONCE", at_once)
    model = model_fn()
    teacher = module._teach(lambda own, x: module._logits(model, own, x, NONE), STACKED.point, tf.constant(FEATURES))
    np.testing.assert_allclose(teacher, predictions(KERNELS, BIASES).mean(0), rtol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_one_step_is_plain_gradient_descent_to_the_teacher(temperature, monkeypatch):
    """Of one batch with all examples: the gradient of the cross-entropy is x (p - teacher)."""
    monkeypatch.setattr(module, "_draws", lambda point, *_: [x[:2] for x in point])
    actual = student(temperature=temperature, num_epochs=1, batch_size=37, learning_rate=0.5)
    members = [np.concatenate([x, m[np.newaxis], x[:2]]) for x, m in zip((KERNELS, BIASES), MEAN)]
    teacher = predictions(*members).mean(0) ** (1 / temperature)
    teacher /= teacher.sum(1, keepdims=True)
    error = (predictions(*MEAN) - teacher) / len(FEATURES)
    np.testing.assert_allclose(actual.point[0], MEAN[0] - 0.5 * FEATURES.T @ error, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(actual.point[1], MEAN[1] - 0.5 * error.sum(0), rtol=1e-4, atol=1e-6)


def test_student_is_the_mean_of_its_iterates(monkeypatch):
    monkeypatch.setattr(module, "_draws", lambda point, *_: [x[:2] for x in point])
    options = {"batch_size": 37, "learning_rate": 0.5}
    members = [np.concatenate([x, m[np.newaxis], x[:2]]) for x, m in zip((KERNELS, BIASES), MEAN)]
    teacher, (kernel, bias), path = predictions(*members).mean(0), MEAN, []
    for _ in range(3):
        error = (predictions(kernel, bias) - teacher) / len(FEATURES)
        kernel, bias = kernel - 0.5 * FEATURES.T @ error, bias - 0.5 * error.sum(0)
        path.append(kernel)
    np.testing.assert_allclose(student(num_epochs=3, **options).point[0], np.mean(path, 0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("distribution", module.DISTRIBUTIONS)
def test_learning_lowers_the_cross_entropy_to_the_teacher(distribution, monkeypatch):
    taught = []
    teach = module._teach
    monkeypatch.setattr(module, "_teach", lambda *arguments: taught.append(teach(*arguments)) or taught[-1])
    actual = student(distribution=distribution, num_epochs=20, batch_size=8, learning_rate=0.3)
    cross_entropy = lambda own: -np.mean(np.sum(taught[0].numpy() * np.log(predictions(*own)), 1))
    assert cross_entropy(actual.point) < cross_entropy(MEAN) - 1e-3


def test_dirichlet_draws_are_the_same_convex_combination_in_every_leaf():
    draws = module._draws(STACKED.point, SEED, "dirichlet", 50, 1.0)
    assert [x.shape.as_list() for x in draws] == [[50, 3, 2], [50, 2]]
    rows = np.concatenate([np.reshape(x, [len(x), -1]) for x in (KERNELS, BIASES)], 1).astype(np.float64)
    drawn = np.concatenate([np.reshape(x, [50, -1]) for x in draws], 1)
    shares = np.linalg.lstsq(rows.T, drawn.T, rcond=None)[0]
    np.testing.assert_allclose(rows.T @ shares, drawn.T, atol=1e-5)
    np.testing.assert_allclose(shares.sum(0), 1, atol=1e-5)
    assert np.all(shares > -1e-5) and np.std(shares, 1).min() > 0.05


def test_a_large_concentration_draws_the_mean():
    for draw, mean in zip(module._draws(STACKED.point, SEED, "dirichlet", 4, 1e8), MEAN, strict=True):
        np.testing.assert_allclose(draw, np.broadcast_to(mean, draw.shape), atol=2e-3)


@pytest.mark.statistical
def test_gaussian_draws_have_the_clients_mean_and_spread():
    """20,000 draws of eight weights, seeded: bounds of 5 standard errors, which a fresh seed fails below 1e-5."""
    for draw, values in zip(module._draws(STACKED.point, SEED, "gaussian", 20000, 1.0), (KERNELS, BIASES)):
        sd = values.std(0)
        assert np.all(np.abs(draw.numpy().mean(0) - values.mean(0)) < 5 * sd / np.sqrt(20000))
        assert np.all(np.abs(draw.numpy().std(0) / sd - 1) < 5 / np.sqrt(2 * 20000))


def test_seed_decides():
    step = distil(model_fn, FEATURES, learning_rate=0.1)
    run = lambda *seed: step.next((), START, STACKED, tf.constant(seed))[1].point[0].numpy()
    np.testing.assert_array_equal(run(1, 2), run(1, 2))
    assert np.abs(run(1, 2) - run(1, 3)).max() > 1e-5


def test_the_type_of_a_table_does_not_decide_its_scale():
    numbers = RNG.integers(4, size=(9, 3)).astype(np.uint8)
    scaled = student(features=numbers.astype(np.float32), learning_rate=0.1)
    actual = student(features=numbers, learning_rate=0.1)
    np.testing.assert_allclose(actual.point[0], scaled.point[0], rtol=1e-5, atol=1e-6)


def test_an_optimizer_takes_the_students_change():
    """Of rate 0.5, from zero: half of the student."""
    half = servers.optimize(server_optimizer("sgd", 0.5))
    actual, whole = student(server_step=half, learning_rate=0.1), student(learning_rate=0.1)
    np.testing.assert_allclose(2 * actual.point[0], whole.point[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"distribution": "cauchy"}, "distribution of FedBE"),
        ({"num_models": 0}, "num_models is 0"),
        ({"num_epochs": 0}, "num_epochs is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"concentration": 0.0}, "concentration is 0.0"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"learning_rate": float("inf")}, "learning_rate is inf"),
        ({"features": FEATURES[:0]}, "features is empty"),
        ({"features": np.where(FEATURES[1, 0] == FEATURES, np.nan, FEATURES)}, r"not finite in 1 of \d+ examples"),
    ],
)
def test_bad_arguments(options, message):
    refuses(message, distil, model_fn, **{"features": FEATURES, **options})


def test_models_with_variational_layers_are_refused():
    weights = get_weights(models.mlp("flipout", input_shape=(3,), hidden=()))
    refuses("FedBE finds a posterior over point weights", distil(model_fn, FEATURES).initialize, weights)


def test_a_step_that_draws_has_a_seed_of_its_own():
    """Not the one that orders the student's batches."""
    seen = []
    draw = servers.replace()._replace(next=lambda state, weights, pooled, seed: (seen.append(seed.numpy()), pooled))
    student(server_step=draw, learning_rate=0.1)
    ordered = []
    learn = module._learn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_learn", lambda *given: ordered.append(given[4].numpy()) or learn(*given))
        student(server_step=draw, learning_rate=0.1)
    np.testing.assert_array_equal(seen[0], seen[1])
    assert not np.array_equal(seen[1], ordered[0])
