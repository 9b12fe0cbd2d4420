"""FedLap and FedLap-Cov on conjugate linear regression: at rest the exact mean, and the exact diagonal precision."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.laplace.test_laplace_work import conv
from tfp_bfl import algorithms, models
from tfp_bfl.algorithms.factors.factor import Factor
from tfp_bfl.algorithms.factors.laplace_work import laplace_factors
from tfp_bfl.data import ClientExamples
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.weights import Population, ServerMessage, get_weights

K, N, D, NOISE, PRIOR_STDDEV = 4, 12, 3, 0.5, 2.0
PRIOR = 1 / PRIOR_STDDEV**2
SPEC = ClientExamples(
    tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, D], tf.float32), tf.TensorSpec([None], tf.float32)
)
# Gradient descent near the optimum: the largest curvature of a client is 25 to 30 times N.
EXACT = {"local_epochs": 200, "batch_size": N, "learning_rate": 0.02, "optimizer_fn": tf.keras.optimizers.SGD}
EXACT |= {"likelihood": f"gaussian:{NOISE}", "prior_stddev": PRIOR_STDDEV}


def model_fn():
    inputs = tf.keras.Input((D,))
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1, use_bias=False)(inputs))


@functools.cache
def data():
    """Clients with features of different means and scales, and labels shifted by client."""
    rng = np.random.default_rng(0)
    features = [rng.normal(size=(N, D)) * rng.uniform(0.5, 1.5, D) + rng.normal(size=D) for _ in range(K)]
    w = rng.normal(size=D)
    return features, [x @ w + NOISE * rng.normal(size=N) + 0.3 * k for k, x in enumerate(features)]


def curvature(features):
    return features.T @ features / NOISE**2


def posterior():
    """The mean and the diagonal of the precision of all data in one place."""
    features, labels = data()
    x, y = np.concatenate(features), np.concatenate(labels)
    precision = curvature(x) + PRIOR * np.eye(D)
    return np.linalg.solve(precision, x.T @ y / NOISE**2), np.diag(precision)


def dataset(k):
    x, y = np.float32(data()[0][k]), np.float32(data()[1][k])
    return tf.data.Dataset.from_tensors(ClientExamples(np.full(N, k, np.int32), x, y))


def at_rest(rounds, **options):
    process = algorithms.fed_lap(model_fn, element_spec=SPEC, **{**EXACT, "local_epochs": 20}, **options)
    state = process.with_clients(process.local.initialize(), range(K), [N] * K)
    for _ in range(rounds):
        state = process.local.next(state, [dataset(k) for k in range(K)]).state
    return process, state


def test_fed_lap_rests_at_the_exact_mean():
    process, state = at_rest(120, step_size=200.0, damping=0.5)
    mean, precision = posterior()
    assert np.max(np.abs(state.weights.point[0][:, 0] - mean) * np.sqrt(precision)) < 1e-3
    np.testing.assert_allclose(state.step.precision, PRIOR, rtol=1e-5)
    assert process.predictive_weights(state).posterior.mean == ()
    # The dual vectors are the clients' gradients there.
    features, labels = data()
    for k, shift in enumerate(np.asarray(state.memory.rows.shift)):
        np.testing.assert_allclose(shift, features[k].T @ (labels[k] - features[k] @ mean) / NOISE**2, atol=0.2)


def test_fed_lap_cov_rests_at_the_exact_mean_and_diagonal_precision():
    process, state = at_rest(50, covariance=True)
    mean, precision = posterior()
    assert np.max(np.abs(state.weights.point[0][:, 0] - mean) * np.sqrt(precision)) < 1e-3
    q = process.predictive_weights(state).posterior
    np.testing.assert_allclose(1 / np.asarray(q.variance[0])[:, 0], precision, rtol=1e-5)
    for k, site in enumerate(np.asarray(state.memory.rows.precision)):
        np.testing.assert_allclose(site, np.diag(curvature(data()[0][k])), rtol=1e-5)


@pytest.mark.parametrize(("rho", "temperature"), [(1.0, 1.0), (0.8, 0.5)])
def test_one_client_finds_its_optimum_in_closed_form(rho, temperature):
    """From a server's Gaussian and a site that are not at rest."""
    options = {"covariance": True, "step_size": rho, "damping": 0.3, "temperature": temperature}
    work = laplace_factors(model_fn, **EXACT, **options)
    mean, precision = np.array([0.3, -0.5, 1.0]), np.array([60.0, 80.0, 40.0])
    site = Factor(np.array([20.0, 30.0, 10.0]), np.array([5.0, -8.0, 2.0]))
    weights = get_weights(model_fn())._replace(point=(np.float32(mean)[:, None],))
    memory = tf.nest.map_structure(lambda x: tf.constant(x, tf.float32), site)
    told = tf.constant(precision, tf.float32)
    message = ServerMessage(weights, tf.constant(0), told, memory, Population(K, K * N))
    examples = next(iter(dataset(1)))
    result = work()(message, examples, tf.constant([1, 2]))
    x, y = data()[0][1], data()[1][1]
    lowest = precision - site.precision / rho
    h = curvature(x) / (temperature * rho)
    # Stationary: nll' / (T rho) + the local prior's gradient.
    shift = precision * mean - site.shift / rho
    local = np.linalg.solve(h + np.diag(lowest), x.T @ y / NOISE**2 / (temperature * rho) + shift)
    own = lowest + np.diag(h)
    np.testing.assert_allclose(result.weights.precision, own - precision, rtol=1e-4)
    np.testing.assert_allclose(result.weights.shift, own * local - precision * mean, rtol=1e-3, atol=1e-2)
    kept = site.precision + 0.3 * rho * (own - precision)
    np.testing.assert_allclose(result.memory.precision, kept, rtol=1e-4)


REFUSED = {
    "variational": (lambda: models.mlp("flipout"), {}, "has variational layers"),
    "dropout": (lambda: models.mlp("mc_dropout"), {}, "draws masks"),
    "BatchNorm": (conv, {}, "build it without BatchNorm"),
    "damping": (model_fn, {"damping": 2.0}, "damping"),
    "step size": (model_fn, {"step_size": 0.0}, "step_size"),
    "prior": (model_fn, {"prior_stddev": -1.0}, "prior_stddev"),
    "epochs": (model_fn, {"local_epochs": 0}, "local_epochs"),
    "no curvature": (model_fn, {"likelihood": "density", "covariance": True}, "has no fisher_root"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name):
    build, options, words = REFUSED[name]
    with pytest.raises(InvalidArgument, match=words):
        algorithms.fed_lap(build, **options)
