"""An exact last layer: against conjugate regression and Newton's method in one place, with clients that come and go."""

import functools
import math

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import tensorflow as tf

import tfp_bfl as bfl
from tests.kit import assert_same, flat, refuses
from tfp_bfl.algorithms.held import Held
from tfp_bfl.algorithms.laplace.pool import Curvatures
from tfp_bfl.algorithms.laplace.posterior import Head
from tfp_bfl.algorithms.laplace.step import held_sums
from tfp_bfl.data import Clients, load
from tfp_bfl.posterior import LowRank, covariance

TABLE, CLASSES = load("diabetes").subset(120, seed=0), load("breast_cancer").subset(90, seed=0)
HIDDEN = 6


def network(outputs=2, features=10):
    return bfl.models.mlp("deterministic", (features,), outputs, hidden=(HIDDEN,), seed=2)


def image_network():
    """A last layer of 70 weights, for the sake of the central Hessian."""
    inputs = tf.keras.Input((8, 8, 1))
    he_normal = tf.keras.initializers.HeNormal
    x = tf.keras.layers.Conv2D(6, 3, 2, activation="relu", kernel_initializer=he_normal(1))(inputs)
    x = tf.keras.layers.GlobalAveragePooling2D()(x)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(10, kernel_initializer=he_normal(2))(x))


def clients_of(source, *sizes):
    return Clients(source, np.split(np.arange(source.num_examples), np.cumsum(sizes)))


def uneven(source):
    """Clients of 3, 40 and the other examples, in the order of the labels."""
    order = np.argsort(source.labels, kind="stable")
    return Clients(source, np.split(order, [3, 43]))


def posterior_of(result):
    return bfl.weights.predictive_weights(result.model).posterior


def fit(model_fn, clients, rounds=1, cohort_size=None, **options):
    process = bfl.algorithms.last_layer(model_fn, element_spec=clients.element_spec, **options)
    return bfl.simulate(process, clients, rounds, cohort_size=cohort_size, engine="local")


@functools.cache
def regression(partition="uneven", rounds=1, cohort_size=None, **options):
    clients = uneven(TABLE) if partition == "uneven" else clients_of(TABLE)
    return fit(network, clients, rounds, cohort_size, likelihood="gaussian", **options)


@functools.cache
def design(model_fn=network, source=TABLE):
    """The features of the frozen network with a 1 behind, in float64 [N, F + 1]."""
    model = model_fn()
    below = tf.keras.Model(model.inputs, model.layers[-1].input)
    return np.pad(
        np.float64(below(tf.image.convert_image_dtype(source.features, tf.float32))),
        [(0, 0), (0, 1)],
        constant_values=1,
    )


def conjugate(prior_stddev, noise_stddev, rows=slice(None), temperature=1.0):
    """The posterior of Bayesian linear regression and its log evidence (Bishop 2006, 3.53 and 3.86)."""
    x, y = design()[rows], np.float64(TABLE.labels)[rows]
    precision = np.eye(HIDDEN + 1) / prior_stddev**2 + x.T @ x / noise_stddev**2
    of_labels = noise_stddev**2 * np.eye(len(y)) + prior_stddev**2 * x @ x.T
    evidence = -0.5 * (np.linalg.slogdet(2 * math.pi * of_labels)[1] + y @ np.linalg.solve(of_labels, y))
    mean = np.linalg.solve(precision, x.T @ y / noise_stddev**2)  # T scales the covariance alone.
    return mean, temperature * np.linalg.inv(precision), evidence


def first_output(q):
    """Mean and covariance of the weights of the first of two outputs, kernel before bias."""
    mean = flat(q.mean)
    return mean[::2], covariance(q).numpy()[::2, ::2]


def state_of(result, head):
    return held_sums(result.state.step, result.state.weights, Curvatures(head, exact=True))


def approximate(result, head):
    held = state_of(result, head)
    return held.settings.approximate(held.rows, held.weights)


@pytest.mark.parametrize("temperature", [1.0, 0.2])
def test_regression_is_exact_after_one_round(temperature):
    q = posterior_of(regression(prior_stddev=0.7, noise_stddev=0.4, temperature=temperature))
    mean, sigma, _ = conjugate(0.7, 0.4, temperature=temperature)
    found_mean, found_sigma = first_output(q)
    stddevs = np.sqrt(np.diag(sigma))
    np.testing.assert_allclose((found_mean - mean) / stddevs, 0, atol=1e-5)
    np.testing.assert_allclose(found_sigma / np.outer(stddevs, stddevs), sigma / np.outer(stddevs, stddevs), atol=1e-5)
    # The second output, the log variance, is a constant.
    assert isinstance(q, LowRank) and np.all(q.mean[0][:, 1] == 0)
    assert float(q.mean[1][1]) == pytest.approx(2 * math.log(0.4), rel=1e-6)
    assert np.max(np.diag(covariance(q))[1::2]) < 1e-11


def test_prior_and_noise_maximise_the_marginal_likelihood():
    found = approximate(regression(), Head(True))
    minus = lambda logs: -conjugate(*np.exp(logs))[2]
    best = scipy.optimize.minimize(minus, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-3, "fatol": 1e-7})
    assert found.log_marginal_likelihood == pytest.approx(-best.fun, abs=1e-6)
    assert [*found.prior_stddev, found.noise_stddev] == pytest.approx(np.exp(best.x), rel=1e-2)
    for given in ({"prior_stddev": 0.5}, {"noise_stddev": 0.8}):
        one = approximate(regression(**given), Head(True, **given))
        pick = lambda x, given=given: (given.get("prior_stddev", x), given.get("noise_stddev", x))
        best = scipy.optimize.minimize_scalar(lambda x, pick=pick: -conjugate(*pick(np.exp(x)))[2], bounds=(-6, 6))
        assert one.log_marginal_likelihood == pytest.approx(-best.fun, abs=1e-6)
        assert one.log_marginal_likelihood <= found.log_marginal_likelihood


@pytest.mark.parametrize("given", [{"partition": "one client"}, {"rounds": 8, "cohort_size": 2}])
def test_partitions_and_cohorts_give_one_posterior(given):
    found, wanted = posterior_of(regression(**given)), posterior_of(regression())
    assert_same(first_output(found), first_output(wanted), rtol=1e-5, atol=1e-7)


def test_the_initial_head_does_not_matter_for_regression():
    other = network()
    other.layers[-1].set_weights([x + 1 for x in other.layers[-1].get_weights()])
    found = posterior_of(fit(other, uneven(TABLE), likelihood="gaussian"))
    assert_same(first_output(found), first_output(posterior_of(regression())), rtol=1e-5, atol=1e-6)


def test_clients_leave_and_join_exactly(tmp_path):
    settings = {"prior_stddev": 0.7, "noise_stddev": 0.4}
    whole = state_of(regression(**settings), Head(True, **settings))
    whole.remove("1").save(tmp_path / "two.npz")
    two = Held.load(tmp_path / "two.npz")
    assert list(two.rows) == ["0", "2"] and two.settings == whole.settings
    kept = np.concatenate([uneven(TABLE).indices[k] for k in (0, 2)])
    mean, sigma, _ = conjugate(0.7, 0.4, kept)
    assert_same(first_output(two.pool().posterior), (mean, sigma), rtol=1e-4, atol=1e-6)
    # Sums at other weights of the last layer are those of the same quadratic function.
    moved = network()
    moved.layers[-1].set_weights([x - 2 for x in moved.layers[-1].get_weights()])
    other = state_of(fit(moved, uneven(TABLE), likelihood="gaussian", **settings), Head(True, **settings))
    again = two.join(other, ["1"]).pool().posterior
    assert_same(first_output(again), first_output(whole.pool().posterior), rtol=1e-5, atol=1e-7)
    lower = whole._replace(weights=whole.weights._replace(point=(whole.weights.point[0] + 1, *whole.weights.point[1:])))
    refuses("at other weights", two.join, lower, ["1"])


def softmax_mode(x, y, num_classes, prior_stddev):
    """The mode and the covariance there of softmax regression in one place, by Newton's steps of SciPy in float64."""
    hot, size = np.eye(num_classes)[y], x.shape[1] * num_classes

    def parts(b):
        p = scipy.special.softmax(x @ b.reshape(-1, num_classes), 1)
        gradient = (x.T @ (p - hot)).ravel() + b / prior_stddev**2
        fisher = np.einsum("ij,jk->ijk", p, np.eye(num_classes)) - np.einsum("ij,ik->ijk", p, p)
        hessian = np.einsum("if,ig,ijk->fjgk", x, x, fisher).reshape(size, size) + np.eye(size) / prior_stddev**2
        value = -np.sum(np.log(p[np.arange(len(y)), y])) + 0.5 * b @ b / prior_stddev**2
        return value, gradient, hessian

    value, slope, curvature = (lambda w, k=k: parts(w)[k] for k in range(3))
    given = {"jac": slope, "hess": curvature, "method": "trust-exact", "options": {"gtol": 1e-10}}
    best = scipy.optimize.minimize(value, np.zeros(size), **given)
    return best.x, np.linalg.inv(parts(best.x)[2])


IMAGES = load("digits").subset(60, seed=0)
CASES = {
    "table": (functools.partial(network, 2, 30), CLASSES, 2),
    "images": (image_network, IMAGES, 10),
}


@pytest.mark.parametrize("name", CASES)
def test_classes_converge_to_the_central_mode(name):
    """From random weights, in twelve messages; a head that is trained already needs fewer."""
    model_fn, source, num_classes = CASES[name]
    result = fit(model_fn, uneven(source), 12, prior_stddev=0.6, temperature=1.0)
    q = posterior_of(result)
    mean, sigma = softmax_mode(design(model_fn, source), source.labels, num_classes, 0.6)
    stddevs = np.sqrt(np.diag(sigma))
    found = flat(q.mean)
    np.testing.assert_allclose((found - mean) / stddevs, 0, atol=1e-4)
    scale = np.outer(stddevs, stddevs)
    np.testing.assert_allclose(covariance(q) / scale, sigma / scale, atol=1e-4)
    assert not any("Newton step" in text for text in result.warnings)
    central = posterior_of(fit(model_fn, clients_of(source), 12, prior_stddev=0.6))
    assert_same(q.mean, central.mean, rtol=1e-7, atol=1e-5)


@pytest.mark.parametrize("prior_stddev", [None, 0.6])
def test_the_temperature_of_classes_scales_the_covariance_alone(prior_stddev):
    """The mode is the same for each, and in the same number of rounds."""
    model_fn, source, _ = CASES["table"]
    given = {"prior_stddev": prior_stddev}
    warm, *colder = (fit(model_fn, uneven(source), 6, temperature=T, **given) for T in (1.0, 0.1, 0.001))
    for heat, cold in zip((0.1, 0.001), colder, strict=True):
        assert_same(cold.state.weights.point, warm.state.weights.point, rtol=1e-7, atol=1e-6)
        a, b = (covariance(posterior_of(x)).numpy() for x in (cold, warm))
        np.testing.assert_allclose(a, heat * b, rtol=1e-3, atol=1e-5 * heat)


def test_one_round_of_classes_is_one_gauss_newton_step():
    """The same for every partition; a warning states how long the step is."""
    model_fn, source, _ = CASES["table"]
    one, other = (fit(model_fn, clients, 1, prior_stddev=0.6) for clients in (uneven(source), clients_of(source)))
    assert_same(posterior_of(one).mean, posterior_of(other).mean, rtol=1e-7, atol=1e-5)
    assert any("Newton step" in text and "run more rounds" in text for text in one.warnings)


@pytest.mark.parametrize("scale", [10.0, 40.0])
def test_steps_that_overshoot_are_halved(scale):
    """A confident, wrong head, from which Newton's full steps diverge."""
    model_fn, source, _ = CASES["table"]
    model = model_fn()
    model.layers[-1].set_weights([scale * x for x in model.layers[-1].get_weights()])
    start = fit(model, uneven(source), 1, prior_stddev=0.6)
    result = fit(model, uneven(source), 25, prior_stddev=0.6)
    values = [float(start.state.step.value), float(result.state.step.value)]
    mean, _ = softmax_mode(design(model_fn, source), source.labels, 2, 0.6)
    assert values[1] < values[0]
    np.testing.assert_allclose(flat(posterior_of(result).mean), mean, atol=1e-3)


def test_a_fitted_prior_rests():
    model_fn, source, _ = CASES["table"]
    priors = [float(fit(model_fn, uneven(source), rounds).state.step.prior_precision) for rounds in (14, 15)]
    assert priors[0] == pytest.approx(priors[1], rel=1e-4) and 1e-4 < priors[0] < 1e4


def test_layers_below_never_change_and_the_export_predicts_the_same(tmp_path):
    result = regression()
    assert_same(result.state.weights.point[:-2], network().get_weights()[:-2])
    bfl.export.save(result.model, tmp_path / "model")
    answer = bfl.export.load(tmp_path / "model").predict(TABLE.features[:20], num_samples=5, seed=1)
    assert all(np.all(np.isfinite(x)) for x in answer.values())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"likelihood": "heteroscedastic"}, "likelihood 'heteroscedastic'"),
        ({"prior_stddev": 0.0}, "prior_stddev"),
        ({"likelihood": "gaussian", "noise_stddev": -1.0}, "noise_stddev"),
        ({"noise_stddev": 1.0}, "noise_stddev is of the likelihood 'gaussian'"),
        ({"temperature": 0.0}, "temperature"),
        ({"structure": "diagonal"}, "structure"),
    ],
)
def test_options_out_of_range_are_refused(options, words):
    refuses(words, bfl.algorithms.last_layer, network, **options)
