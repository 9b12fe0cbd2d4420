"""Finite numbers that no honest client sends: named, left out, and never saved, whatever rule pools them."""

import functools
import logging
import re

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import json_of, refuses
from tfp_bfl import algorithms, data, errors, federated, models, servers, weighting
from tfp_bfl.contracts import ClientWork
from tfp_bfl.data import Clients
from tfp_bfl.federated import notices
from tfp_bfl.weights import ClientResult, Population, get_weights

from . import toys

MEAN = {"mean": 1e20}, "a number beyond max_magnitude"
POINT = {"point": 3e38}, "a number beyond max_magnitude"
VARIANCE = {"variance": 1e-37}, "a standard deviation below min_stddev"


def model_fn():
    return models.mlp("flipout", input_shape=(2,), hidden=(), num_classes=2, initial_stddev=0.1)


def hostile(client, mean=None, variance=None, point=None):
    """Everybody adds its number to the means; one sends other values."""

    def work(message, examples, seed):
        number = tf.cast(tf.reduce_max(examples.client), tf.float32)
        bad = tf.equal(number, client)
        send = lambda value, x: x if value is None else tf.where(bad, tf.constant(value, x.dtype), x)
        put = lambda value, leaves: tf.nest.map_structure(functools.partial(send, value), leaves)
        q = message.weights.posterior
        means = tf.nest.map_structure(lambda m: m + 0.01 * number, q.mean)
        posterior = q._replace(mean=put(mean, means), variance=put(variance, q.variance))
        weights = message.weights._replace(posterior=posterior, point=put(point, message.weights.point))
        return ClientResult(weights, tf.shape(examples.labels)[0], toys.no_metrics())

    return ClientWork(lambda: work)


def run(work, rule="log_linear_pool", rounds=2, step=None, clients=toys.CLIENTS, directory=None, **options):
    process = algorithms.compose(model_fn, work, rule, step or servers.replace(), weighting="equal", **options)
    return federated.simulate(process, clients, rounds, engine="local", checkpoint_dir=directory)


@pytest.mark.parametrize(
    ("rule", "poison"),
    [("linear_pool", MEAN), ("log_linear_pool", POINT), ("log_linear_pool", VARIANCE), ("conflation", MEAN)],
)
def test_a_finite_poison_is_left_out_and_named_in_the_last_round_too(rule, poison, tmp_path):
    result = run(hostile(1, **poison[0]), rule, rounds=1, directory=tmp_path)
    assert result.rounds[0]["faulty_clients"] == {"1": poison[1]}
    without = run(
        hostile(9), rule, rounds=1, clients=Clients(toys.SOURCE, [toys.CLIENTS.indices[k] for k in (0, 2, 3)])
    )
    assert np.isfinite(result.state.weights.posterior.mean[0]).all()
    # Their numbers are 0, 2, 3 there and 0, 1, 2 here: the step is that of the numbers.
    start = get_weights(model_fn()).posterior.mean[0].numpy()
    ratio = (result.state.weights.posterior.mean[0] - start) / (without.state.weights.posterior.mean[0] - start)
    np.testing.assert_allclose(ratio, 5 / 3, rtol=1e-3)


def amplified(factor):
    """A server step that makes of the pooled change `factor` times as much, and more of larger weights."""

    def advance(state, weights, pooled, seed):
        move = lambda new, old: tf.nest.map_structure(lambda x, y: y + factor * (1 + tf.abs(y)) * (x - y), new, old)
        posterior = pooled.posterior._replace(mean=move(pooled.posterior.mean, weights.posterior.mean))
        return state, pooled._replace(posterior=posterior)

    return servers.replace()._replace(next=advance, name="amplified")


def test_who_spoils_the_servers_weights_is_named_and_the_round_is_the_others(caplog):
    """Client 2 sends numbers within every bound, of which the server's step makes more than the bound."""
    with caplog.at_level(logging.WARNING, logger="tfp_bfl"):
        result = run(hostile(2, mean=0.9), rounds=1, step=amplified(1e7))
    reason = "with it the server's weights are not finite, or beyond max_magnitude"
    assert [row["faulty_clients"] for row in result.rounds] == [{"2": reason}]
    assert float(np.abs(result.state.weights.posterior.mean[0]).max()) < 1e6
    assert "continues without faulty clients: client 2: with it the server's weights" in caplog.text


def test_a_step_that_diverges_blames_no_client(tmp_path):
    with pytest.raises(errors.Diverged, match=r"or beyond 1e\+06, after round 3, by its step amplified"):
        run(hostile(9), rounds=4, step=amplified(1e4), directory=tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.sha256")) == ["round_1.sha256", "round_2.sha256"]


def test_a_run_goes_back_past_a_checkpoint_whose_weights_are_not_finite(tmp_path, caplog):
    process = toys.process()
    wanted = federated.simulate(process, toys.CLIENTS, 3, engine="local").state
    federated.simulate(process, toys.CLIENTS, 1, engine="local", checkpoint_dir=tmp_path)
    description = json_of(tmp_path / "round_1.json")["description"]
    store = federated.checkpoints.Checkpoints(tmp_path, description)
    state, record = store.latest(process.local.initialize(), process.state_spec)
    kernel, bias = state.weights.point
    poisoned = state._replace(round=np.int32(2), weights=state.weights._replace(point=(kernel, bias * np.inf)))
    store.save(poisoned, record)
    with caplog.at_level(logging.WARNING, logger="tfp_bfl"):
        result = federated.simulate(process, toys.CLIENTS, 3, engine="local", checkpoint_dir=tmp_path)
    assert "round_2 is damaged (its weights are not finite): going back" in caplog.text
    tf.nest.map_structure(np.testing.assert_array_equal, result.state, wanted)


def free_rider(client):
    """It sends back what it got; the others move by their numbers."""

    def work(message, examples, seed):
        number = tf.cast(tf.reduce_max(examples.client), tf.float32)
        change = tf.where(tf.equal(number, client), 0.0, 0.1 + 0.01 * number)
        q = message.weights.posterior
        moved = q._replace(mean=tf.nest.map_structure(lambda m: m + change, q.mean))
        return ClientResult(message.weights._replace(posterior=moved), tf.shape(examples.labels)[0], toys.no_metrics())

    return ClientWork(lambda: work)


@pytest.mark.parametrize(
    ("by", "ratio", "least", "most"),
    [
        # Of 1, 1, 1 and 10 at no change: 0.023 for a step of 0.1 to 0.13; without a bound it is 1e-12.
        ("distance", 10.0, 0.02, 0.03),
        ("distance", 1.0, 0.07, 0.1),
        ("distance", None, 0.0, 1e-8),
        ("max_discrepancy_farthest", 10.0, 0.05, 0.13),
    ],
)
def test_a_free_rider_does_not_freeze_the_federation(by, ratio, least, most, caplog):
    process = algorithms.compose(
        model_fn, free_rider(0), "naive_weighted_average", servers.replace(), weighting=by, max_weight_ratio=ratio
    )
    with caplog.at_level(logging.WARNING, logger="tfp_bfl"):
        result = federated.simulate(process, toys.CLIENTS, 1, engine="local")
    start = get_weights(model_fn()).posterior.mean[0].numpy()
    step = result.state.weights.posterior.mean[0] - start
    assert least <= step.min() <= step.max() <= most
    told = "weighs no client more than 10 times the median one: client 0 weighed more" in caplog.text
    assert told == (by == "distance" and ratio == 10.0)
    assert result.state.federation.most_weight == np.float32(Population().most_weight)


def test_capped_weights_by_hand():
    weights = weighting.capped(tf.constant([1.0, 2.0, 4.0, 1e12]), 10.0)
    np.testing.assert_allclose(weights, np.array([1, 2, 4, 20]) / 27, rtol=1e-6)
    np.testing.assert_allclose(weighting.capped(tf.constant([1.0, 1e12]), 3.0), [0.25, 0.75])
    assert weighting.capped(tf.constant([5.0]), 1.0).numpy() == [1.0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("max_change_norm", x) for x in (0.0, -1.0, np.nan)),
        *(("max_magnitude", 0.0), ("max_weight_ratio", 0.5), ("max_weight_ratio", np.nan)),
    ],
)
def test_bounds_out_of_range(name, value):
    refuses(f"{name} is .*, but must be", toys.process, limits=federated.faults.Limits(**{name: value}))


def units(factor):
    """Six clients of the digits, the first with features in other units."""
    source = data.load("digits")
    features = source.features.reshape(len(source.features), -1).astype(np.float32) / 255
    parts = source.partition(data.iid(6), seed=0).indices
    features[parts[0]] *= factor
    return Clients(data.Source("digits", "train", features, source.labels, source.class_names), parts)


def test_wrong_units_at_one_client_are_left_out_or_reported(caplog):
    """FedProx's client moves a quarter of a million times as far as the others; of Flipout's the loss alone tells."""
    build = functools.partial(models.mlp, input_shape=(64,), hidden=(8,), num_classes=10)
    result = federated.simulate(
        algorithms.fed_prox(functools.partial(build, "deterministic"), proximal=0.1, local_epochs=2),
        units(1e4),
        rounds=1,
        engine="local",
    )
    reason = "its weights moved more than 1000 times as far as the median client's"
    assert result.rounds[0]["faulty_clients"] == {"0": reason}
    process = algorithms.variational(functools.partial(build, "flipout"), local_epochs=2, optimizer="adam")
    result = federated.simulate(process, units(1e4), rounds=1, engine="local")
    (told,) = [sentence for sentence in result.warnings if "client 0" in sentence]
    assert "check the units of its features" in told
    assert not federated.simulate(process, units(1.0), rounds=1, engine="local").rounds[0]["faulty_clients"]


def test_clients_with_an_outlying_loss_are_reported():
    told = dict(notices.loss_warning(np.arange(6), np.array([0.2, 0.3, 40.0, np.nan, 20.0, 0.1])))
    assert list(told) == [2] and "client 2 is 40 nats per example, where the median client's is 0.3" in told[2]
    assert not dict(notices.loss_warning(np.arange(3), np.array([np.nan] * 3)))
    assert not dict(notices.loss_warning(np.arange(3), np.array([2.0, 2.3, 9.0])))


def test_where_all_fail_at_once_the_option_and_a_rate_to_try_are_named():
    build = functools.partial(models.mlp, "deterministic", input_shape=(64,), hidden=(8,), num_classes=10)
    process = algorithms.fed_prox(build, proximal=0.1, local_epochs=2, learning_rate=1e6)
    with pytest.raises(errors.Error, match=r"look at learning_rate \(1000000.0\) first: training diverges .* 100000\."):
        federated.simulate(process, units(1.0), rounds=2, engine="local")
    wrong = {"initial_stddev": (1e18, "10"), "prior_stddev": (1e-30, "1e+06"), "min_stddev": (1e-30, "1e+06")}
    for option, (value, most) in wrong.items():
        with pytest.raises(
            errors.InvalidArgument, match=re.escape(f"{option} is {value}, but must lie between 1e-12 and {most}")
        ):
            models.mlp("flipout", input_shape=(64,), **{option: value})
