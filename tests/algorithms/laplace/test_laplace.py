"""Laplace's approximation end to end: rounds and partitions, clients that come and go, predictions, export."""

import functools
import logging

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tests.algorithms.laplace.test_last_layer import posterior_of
from tests.kit import assert_same, refuses
from tfp_bfl.algorithms.held import Held
from tfp_bfl.algorithms.laplace.pool import Curvatures
from tfp_bfl.algorithms.laplace.posterior import Head
from tfp_bfl.algorithms.laplace.work import STRUCTURES, layers_of
from tfp_bfl.data import Clients, load
from tfp_bfl.posterior import LowRank, MeanField, marginals
from tfp_bfl.posterior.kronecker import Kronecker

SOURCE = load("breast_cancer").subset(90, seed=0)
PARTITIONS = {
    "one client": [np.arange(90)],
    "by label": np.array_split(np.argsort(SOURCE.labels, kind="stable"), 3),
    "uneven": np.split(np.arange(90), [3, 40]),
}


def model_fn():
    return bfl.models.mlp("deterministic", hidden=(4,), seed=2)


@functools.cache
def mode():
    """Weights after some rounds of averaging."""
    process = bfl.algorithms.fed_opt(model_fn, local_epochs=20, learning_rate=0.05)
    return bfl.simulate(process, clients_of("uneven"), rounds=3, engine="local").state.weights


def clients_of(partition):
    return Clients(SOURCE, PARTITIONS[partition])


@functools.cache
def result_of(structure, partition, cohort_size=None, rounds=1, **options):
    process = bfl.algorithms.laplace(model_fn, structure=structure, batch_size=16, **options)
    clients = clients_of(partition)
    return bfl.simulate(process, clients, rounds, cohort_size=cohort_size, start=mode(), engine="local")


def state_of(structure, partition="uneven", groups=(), **settings):
    state = result_of(structure, partition).state  # The sums do not depend on the settings.
    return Held.of_stack(state.step, state.weights, Curvatures(Head(**settings), groups=groups))


@pytest.mark.parametrize("partition", [name for name in PARTITIONS if name != "one client"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_federated_posterior_is_the_central_one(structure, partition):
    q, central = (posterior_of(result_of(structure, x, temperature=1.0)) for x in (partition, "one client"))
    assert type(q) is {"diagonal": MeanField, "last_layer": LowRank, "kronecker": Kronecker}[structure]
    assert_same(marginals(q), marginals(central), rtol=1e-5)
    if structure == "last_layer":
        np.testing.assert_allclose(bfl.posterior.covariance(q), bfl.posterior.covariance(central), rtol=1e-4, atol=1e-7)


def test_clients_may_come_in_several_rounds_and_again():
    """Cohorts of two of three in eight rounds: everyone has come, and each counts once."""
    q = posterior_of(result_of("diagonal", "uneven", cohort_size=2, rounds=8))
    assert_same(q.variance, posterior_of(result_of("diagonal", "uneven")).variance, rtol=1e-6)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_client_that_leaves_and_joins(structure, tmp_path):
    whole = state_of(structure)
    two = whole.remove("1")
    kept = Clients(SOURCE, [PARTITIONS["uneven"][k] for k in (0, 2)])
    process = bfl.algorithms.laplace(model_fn, structure=structure, batch_size=16, temperature=1.0)
    never = posterior_of(bfl.simulate(process, kept, 1, start=mode(), engine="local"))
    assert_same(*(marginals(q) for q in (two.pool().posterior, never)), rtol=1e-5)
    # Its own sums, sent again, are those of the first time.
    again = two.join(whole, ["1"])
    assert_same(*(s.pool() for s in (again, whole)), rtol=1e-5, atol=1e-7)
    two.save(tmp_path / "two.npz")
    loaded = Held.load(tmp_path / "two.npz")
    assert list(loaded.rows) == ["0", "2"] and loaded.settings == two.settings
    assert_same(*(s.pool() for s in (loaded, two)))


def test_clients_that_do_not_fit_are_refused():
    state = state_of("diagonal")
    moved = state._replace(weights=tf.nest.map_structure(lambda x: x + 1, state.weights))
    refuses("at other weights", state.remove("1").join, moved)
    refuses("of another structure", state.join, state_of("last_layer"))
    refuses("must be left", state.remove, "0", "1", "2")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("settings/head/temperature", np.array(0.0)),
        ("settings/head/prior_stddev", np.array(-1.0)),
        ("rows/1/gradient/0", np.zeros((3, 2), np.float32)),
        ("rows/1/curvature/0", np.full((30, 4), -1, np.float32)),
        ("rows/1/nll", np.array([1.0, 2.0], np.float32)),
        ("settings/groups/0", np.array(0)),
    ],
)
def test_files_that_hold_no_state_are_refused(name, value, tmp_path):
    arrays = {**state_of("diagonal")._arrays(), name: value}
    np.savez(tmp_path / "bad.npz", **arrays)
    refuses(r"bad\.npz is not a file of clients", Held.load, tmp_path / "bad.npz")


def test_priors_by_layer():
    approximate = lambda state: state.settings.approximate(state.rows, state.weights)
    approximation = approximate(state_of("diagonal", groups=layers_of(model_fn(), "diagonal")))
    one = approximate(state_of("diagonal"))
    assert len(approximation.prior_stddev) == 2
    assert approximation.log_marginal_likelihood > one.log_marginal_likelihood
    q = posterior_of(result_of("diagonal", "uneven", prior_by_layer=True, temperature=1.0))
    assert_same(q.variance, approximation.posterior.variance, rtol=1e-6)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("prior_stddev", [None, 0.5])
def test_a_temperature_scales_the_covariance_alone(structure, prior_stddev):
    cold, warm = (state_of(structure, prior_stddev=prior_stddev, temperature=T) for T in (0.1, 1.0))
    for a, b in zip(*(tf.nest.flatten(marginals(s.pool().posterior).variance) for s in (cold, warm)), strict=True):
        np.testing.assert_allclose(a, 0.1 * b, rtol=1e-4)
    a, b = (s.settings.approximate(s.rows, s.weights) for s in (cold, warm))
    assert_same(a.posterior.mean, b.posterior.mean)
    assert a[1:] == b[1:]


@pytest.mark.parametrize(
    ("recipe", "options", "temperature"),
    [
        (bfl.algorithms.laplace, {}, 0.01),
        (bfl.algorithms.laplace, {"likelihood": "gaussian:0.5"}, 1.0),
        (bfl.algorithms.laplace, {"likelihood": "gaussian:0.5", "temperature": 0.2}, 0.2),
        (bfl.algorithms.last_layer, {}, 0.01),
        (bfl.algorithms.last_layer, {"likelihood": "gaussian"}, 1.0),
        (bfl.algorithms.last_layer, {"temperature": 1.0}, 1.0),
    ],
)
def test_the_default_temperature_is_that_of_the_likelihood_and_stated(recipe, options, temperature):
    assert recipe(model_fn, **options).settings["temperature"] == temperature


def test_linearised_outputs_have_the_gaussian_of_the_jacobian():
    """Mean f(x; m) and covariance J Sigma J^T, estimated from 4,000 weight samples.

    Error rate: a mean is beyond 5 of its standard errors with probability 6e-7, and a variance's relative standard
    error is sqrt(2 / 4,000) = 0.022, of which 0.15 is 6.7.
    """
    model, x = result_of("diagonal", "uneven", temperature=0.1).model, tf.constant(SOURCE.features[:2])
    layer, number = bfl.weights.weight_sampling(model), 4000

    def one(seed):
        with bfl.layers.sampling("shared", seed):
            return layer.linearised(x)

    sampled = tf.function(lambda seeds: tf.map_fn(one, seeds, fn_output_signature=tf.float32), autograph=False)
    outputs = sampled(tf.stack([tf.range(number), tf.zeros([number], tf.int32)], 1)).numpy()
    leaves = bfl.weights.layout(layer.model).point
    with tf.GradientTape(persistent=True) as tape:
        f = layer.model(x)
    jacobians = [tape.jacobian(f, v).numpy().reshape(2, 2, -1) for v in leaves]
    variances = [np.ravel(v) for v in posterior_of(result_of("diagonal", "uneven", temperature=0.1)).variance]
    wanted = sum(np.square(j) @ v for j, v in zip(jacobians, variances))
    assert np.all(np.abs(outputs.mean(0) - f) < 5 * np.sqrt(wanted / number))
    np.testing.assert_allclose(outputs.var(0), wanted, rtol=0.15)


def test_a_last_layer_is_linear_as_it_is():
    model = result_of("last_layer", "uneven").model
    predict = functools.partial(bfl.evaluation.predict, model, SOURCE.features, num_samples=4)
    np.testing.assert_allclose(predict(linearised=True), predict(), atol=1e-5)
    assert np.ptp(predict(), 0).max() > 1e-3


def test_linearised_evaluation_is_that_of_its_predictions():
    model, given = result_of("diagonal", "uneven").model, {"num_samples": 4, "linearised": True}
    found = bfl.evaluation.evaluate(model, SOURCE.features, SOURCE.labels, **given)
    samples = bfl.evaluation.predict(model, SOURCE.features, **given)
    np.testing.assert_allclose(found.probabilities, samples.mean(0), atol=1e-6)
    plain = bfl.evaluation.predict(model, SOURCE.features, num_samples=4)
    assert np.abs(plain - samples).max() > 1e-3
    refuses("the model has none", bfl.evaluation.predict, model_fn(), SOURCE.features, linearised=True)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_an_exported_posterior_predicts_the_same(structure, tmp_path):
    model = result_of(structure, "uneven").model
    bfl.export.save(model, tmp_path / "model")
    answer = bfl.export.load(tmp_path / "model").predict(SOURCE.features, num_samples=5, seed=1)
    wanted = bfl.evaluation.predict(model, SOURCE.features, num_samples=5, seed=1).mean(0)
    np.testing.assert_allclose(answer["probabilities"], wanted, atol=1e-5)


@pytest.mark.parametrize("recipe", [bfl.algorithms.laplace, bfl.algorithms.last_layer])
def test_a_model_with_dropout_is_the_network_without_masks(recipe):
    dropping = lambda: bfl.models.mlp("mc_dropout", hidden=(4,), seed=2, dropout_rate=0.5)
    found, wanted = (
        bfl.simulate(recipe(network), clients_of("uneven"), 2, start=mode(), engine="local").model
        for network in (dropping, model_fn)
    )
    predict = functools.partial(bfl.evaluation.predict, features=SOURCE.features, num_samples=4)
    np.testing.assert_allclose(predict(found), predict(wanted), atol=1e-6)
    assert bfl.evaluation.is_stochastic(dropping()) and np.ptp(predict(found), 0).max() > 1e-4


def test_weights_that_are_no_mode_are_warned_of(caplog):
    assert not any("no mode" in text for text in result_of("diagonal", "uneven").warnings)
    process = bfl.algorithms.laplace(model_fn, structure="diagonal", prior_stddev=1.0)
    start = tf.nest.map_structure(lambda x: 3.0 * x, mode())
    start = start._replace(point=tuple(-x for x in start.point))
    with caplog.at_level(logging.WARNING):
        result = bfl.simulate(process, clients_of("uneven"), 1, start=start, engine="local")
    (words,) = [text for text in result.warnings if "no mode of the likelihood" in text]
    assert words in caplog.text and "train for more rounds" in words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"structure": "last"}, "structure 'last'"),
        ({"prior_stddev": 0.0}, "prior_stddev"),
        ({"temperature": -1.0}, "temperature"),
        ({"structure": "last_layer", "prior_by_layer": True}, "prior_by_layer is for the structure 'diagonal'"),
        ({"local_epochs": 2}, "local_epochs"),
        ({"likelihood": "density"}, "fisher_root"),
    ],
)
def test_options_out_of_range_are_refused(options, words):
    refuses(words, bfl.algorithms.laplace, model_fn, **options)
