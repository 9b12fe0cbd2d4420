"""A row of its own for a client that was never in training."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tfp_bfl.algorithms.personal.evaluation import fit_newcomers
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.federated.round import fold

SOURCE = bfl.data.load("breast_cancer")
KNOWN, OTHERS = SOURCE.partition(bfl.data.iid(20), seed=0).split(3)
WORK = {"local_epochs": 10, "batch_size": 8, "learning_rate": 0.2, "seed": 5}


def model_fn():
    return bfl.models.mlp("variational_dropout", SOURCE.element_shape, 2, hidden=(3,))


def process_of(variances, **options):
    return bfl.algorithms.meta_vd(model_fn, num_clients=3, variances=variances, **{**WORK, **options})


def log_variances(weights):
    return np.log(np.concatenate([np.ravel(v) for v in weights.posterior.variance]))


def test_one_round_of_free_rows_is_the_clients_own_training():
    """At its middle the range has a slope of 1, so that l goes where training takes it, but for tanh's curvature."""
    process = process_of("free_variances")
    state = process.local.initialize()
    own = OTHERS.examples(0)._replace(client=np.full(len(OTHERS.examples(0).labels), 3, np.int32))
    told = tf.nest.map_structure(tf.convert_to_tensor, state.step.parameters)
    message = bfl.weights.ServerMessage(state.weights, tf.constant(0), told, (), state.federation)
    key, one = fold(0, 0, 0, -4), bfl.data.Clients(OTHERS.source, OTHERS.indices[:1])
    trained = process.client_work.build()(message, tf.nest.map_structure(tf.convert_to_tensor, own), key)
    wanted = np.log(np.concatenate([np.ravel(v) for v in trained.weights.posterior.variance]))
    found = log_variances(fit_newcomers(process, state, one, rounds=1)[0])
    moved = wanted + 8.5
    assert np.abs(moved).max() > 1e-3
    np.testing.assert_allclose(found + 8.5, 8.5 * np.tanh(moved / 8.5), atol=1e-5)


def test_means_stay_and_variances_become_its_own():
    process = process_of("hypernetwork", variance_options={"hidden": (4,)})
    result = bfl.simulate(process, KNOWN, rounds=2, engine="local")
    mean_row = process.personal_weights(result.state, 3)
    two = bfl.data.Clients(OTHERS.source, OTHERS.indices[:2])
    first, second = fitted = fit_newcomers(process, result.state, two, rounds=5)
    np.testing.assert_array_equal(first.posterior.mean[0], mean_row.posterior.mean[0])
    assert np.abs(log_variances(first) - log_variances(mean_row)).max() > 1e-3
    assert np.abs(log_variances(first) - log_variances(second)).max() > 1e-4
    mean = lambda weights: float(np.mean(weights.posterior.variance[0]))
    variance = lambda model, *_: {"variance": mean(bfl.weights.get_weights(model))}
    scores = bfl.algorithms.personal.evaluate_clients(process, result, two, two, variance, first=3, weights=fitted)
    assert [score.before["variance"] for score in scores] == pytest.approx([mean(first), mean(second)], rel=1e-5)
    with pytest.raises(InvalidArgument, match="1 weights for 2 clients"):
        bfl.algorithms.personal.evaluate_clients(process, result, two, two, variance, first=3, weights=fitted[:1])


@pytest.mark.parametrize("recipe", ["common_variances", "fed_opt"])
def test_clients_without_rows_are_refused(recipe):
    process = bfl.algorithms.fed_opt(model_fn) if recipe == "fed_opt" else process_of(recipe)
    with pytest.raises(InvalidArgument, match="A newcomer's row requires a process with rows of clients"):
        fit_newcomers(process, process.local.initialize(), OTHERS)


def test_no_rounds_are_refused():
    process = process_of("free_variances")
    with pytest.raises(InvalidArgument, match="rounds is 0"):
        fit_newcomers(process, process.local.initialize(), OTHERS, rounds=0)
