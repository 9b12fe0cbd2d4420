"""Bayesian ADMM's server against its equations in float64 numpy."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests import kit
from tests.algorithms.laplace.test_laplace_work import conv
from tfp_bfl import algorithms, models
from tfp_bfl.algorithms.factors.factor import Factor
from tfp_bfl.algorithms.factors.laplace_work import laplace_factors
from tfp_bfl.algorithms.factors.step import dual
from tfp_bfl.data import ClientExamples
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights import ModelWeights, Population, ServerMessage, get_weights

SHAPES = ((4, 3), (3,))
SEED = tf.constant([1, 2])


def random_posterior(number, low=0.5, high=2.0):
    rng = np.random.default_rng(number)
    draw = lambda make: tuple(np.float32(make(shape)) for shape in SHAPES)
    return MeanField(draw(rng.standard_normal), draw(lambda shape: rng.uniform(low, high, shape)))


def weights(posterior, point=0.0):
    constants = tf.nest.map_structure(tf.constant, posterior)
    return ModelWeights(constants, (tf.fill([2], point),), MeanField((), ()))


def natural(posterior):
    """[2, D]: precisions and shifts."""
    mean, variance = (np.concatenate([np.ravel(np.float64(x)) for x in part]) for part in posterior)
    return np.stack([1 / variance, mean / variance])


def from_natural(flat):
    ends = np.cumsum([np.prod(shape) for shape in SHAPES])[:-1]
    shaped = lambda x: tuple(np.float32(p).reshape(s) for p, s in zip(np.split(x, ends), SHAPES))
    return MeanField(shaped(flat[1] / flat[0]), shaped(1 / flat[0]))


def a_round(step, state, own, sent, num_clients):
    """The server's next state and weights, of clients in the round whose natural parameters are `sent`."""
    pooled = weights(from_natural(np.mean([natural(q) for q in sent], 0)), point=7.0)
    state = step.meet(state, kit.sized(num_clients, 9, len(sent)))
    return step.next(state, own, pooled, SEED)


def product_of(state):
    return np.stack([kit.flat(part) for part in (state.precision, state.shift)])


@pytest.mark.parametrize(("step_size", "damping"), [(1.0, 1.0), (0.2, 0.5), (3.0, 0.1)])
@pytest.mark.parametrize("present", [[0, 1, 2], [1], [0, 2]], ids=["all", "one", "two"])
def test_two_rounds_are_those_of_the_equations(step_size, damping, present):
    """Sites in numpy: those of absent clients stay, and an absent client counts in the mean with the server's q."""
    step, num_clients = dual(step_size, damping), 3
    prior, start = natural(random_posterior(0, 4.0, 5.0)), random_posterior(1)
    sites = [(natural(start) - prior) / num_clients] * num_clients
    share = 1 / (1 + num_clients * step_size)
    own, state = weights(start), step.initialize(weights(start))
    q = natural(start)
    for number in (1, 2):
        # No wider than q, so that no precision of the new one falls below zero.
        sent = {k: from_natural(q + natural(random_posterior(10 * number + k))) for k in present}
        state, own = a_round(step, state, own, list(sent.values()), num_clients)
        local = [natural(sent[k]) if k in sent else q for k in range(num_clients)]
        sites = [t + damping * step_size * (found - q) for t, found in zip(sites, local)]
        q = (1 - share) * np.mean(local, 0) + share * (prior + np.sum(sites, 0))
        np.testing.assert_allclose(product_of(state), prior + np.sum(sites, 0), rtol=2e-5, atol=1e-5)
        np.testing.assert_allclose(natural(own.posterior), q, rtol=2e-5, atol=1e-5)
        np.testing.assert_array_equal(own.point[0], [7.0, 7.0])
        assert (state.num_clients, state.num_present) == (num_clients, len(present))


@pytest.mark.parametrize("step_size", [0.3, 1.0])
def test_one_client_alone_with_whole_steps_is_the_server(step_size):
    """K = 1: q <- ((1 - a) + a rho) natural(q_1) + a (1 - rho) natural(q), which for rho = 1 is natural(q_1)."""
    step = dual(step_size)
    start, found = random_posterior(1), random_posterior(2)
    state, own = a_round(step, step.initialize(weights(start)), weights(start), [found], 1)
    share = 1 / (1 + step_size)
    wanted = (1 - share + share * step_size) * natural(found) + share * (1 - step_size) * natural(start)
    np.testing.assert_allclose(natural(own.posterior), wanted, rtol=1e-5)
    if step_size == 1:
        np.testing.assert_allclose(natural(own.posterior), natural(found), rtol=1e-5)
        np.testing.assert_allclose(product_of(state), natural(found), rtol=1e-5)


@pytest.mark.parametrize("present", [1, 4])
def test_where_nobody_moves_nothing_changes(present):
    step = dual(0.5, 0.5)
    start = random_posterior(3)
    own, state = weights(start), step.initialize(weights(start))
    for _ in range(3):
        state, own = a_round(step, state, own, [own.posterior] * present, 4)
    np.testing.assert_allclose(natural(own.posterior), natural(start), rtol=1e-5)
    np.testing.assert_allclose(product_of(state), natural(start), rtol=1e-5)


def test_at_rest_the_server_has_the_product_of_the_sites():
    """A product that q differs from is what q moves to, by a = 1 / (1 + K rho) a round."""
    step, start, product = dual(0.5), random_posterior(4), natural(random_posterior(5))
    precision, shift = (from_natural(np.stack([x, x])).variance for x in (1 / product))
    state = step.initialize(weights(start))._replace(precision=precision, shift=shift)
    own = weights(start)
    for rounds in range(1, 4):
        state, own = a_round(step, state, own, [own.posterior] * 4, 4)
        left = (1 - 1 / 3) ** rounds
        np.testing.assert_allclose(natural(own.posterior), left * natural(start) + (1 - left) * product, rtol=1e-4)


def test_empty_sites_begin_at_the_prior():
    """Nobody moves: q goes from the first posterior to the prior, by 1 / (1 + K rho) in the first round."""
    prior, start = random_posterior(5), random_posterior(4)
    step, own = dual(0.5, product=prior), weights(start)
    state, own = a_round(step, step.initialize(own), own, [own.posterior] * 4, 4)
    np.testing.assert_allclose(product_of(state), natural(prior), rtol=1e-5)
    np.testing.assert_allclose(natural(own.posterior), 2 / 3 * natural(start) + 1 / 3 * natural(prior), rtol=1e-5)


def test_the_state_keeps_its_structure_in_a_graph():
    step, own = dual(), weights(random_posterior(1))
    state = step.initialize(own)
    compiled = step._replace(next=tf.function(step.next, autograph=False))
    new, moved = a_round(compiled, state, own, [random_posterior(2)], 2)
    tf.nest.assert_same_structure((new, moved), (state, own))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"step_size": 0.0}, "step_size is 0.0, but must be"),
        ({"damping": 1.1}, "damping is 1.1, but must be above 0 and at most 1"),
    ],
)
def test_numbers_out_of_range(given, message):
    kit.refuses(message, dual, **given)


def test_name_says_the_step_size():
    assert dual(0.25).name == "dual (step size 0.25)"


K, N, D, NOISE, PRIOR_STDDEV = 4, 12, 3, 0.5, 2.0
PRIOR = 1 / PRIOR_STDDEV**2
SPEC = ClientExamples(
    tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, D], tf.float32), tf.TensorSpec([None], tf.float32)
)
# Gradient descent near the optimum: the largest curvature of a client is 25 to 30 times N.
EXACT = {"local_epochs": 200, "batch_size": N, "learning_rate": 0.02, "optimizer_fn": tf.keras.optimizers.SGD}
EXACT["likelihood"] = f"gaussian:{NOISE}"


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
    given = {**EXACT, "local_epochs": 20, "prior_stddev": PRIOR_STDDEV, **options}
    process = algorithms.fed_lap(model_fn, element_spec=SPEC, **given)
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
    work = laplace_factors(model_fn, prior_precision=1 / PRIOR_STDDEV**2, **EXACT, **options)
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
    kit.refuses(words, algorithms.fed_lap, build, **options)
