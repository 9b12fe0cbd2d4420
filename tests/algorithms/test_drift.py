"""SCAFFOLD, FedDyn and FedNova: a client's step by hand, and where rounds rest on problems whose minimum is known."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests import gaussians
from tfp_bfl import algorithms, clients, models, servers
from tfp_bfl.algorithms.chains.driver import simulate_chains
from tfp_bfl.algorithms.drift import reach_of
from tfp_bfl.data import Clients, Column, Source
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior import MeanField
from tfp_bfl.training import cosine_decay
from tfp_bfl.weights import ModelWeights, Population, ServerMessage, get_weights

SIZES = (8, 24, 40)


def line():
    """A linear regression of three inputs, without a posterior."""
    inputs = tf.keras.Input((3,))
    outputs = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")(inputs)
    return tf.keras.Model(inputs, outputs)


@functools.cache
def federation():
    """Three clients whose own minima are far apart, and features of other scales at each."""
    rng = np.random.default_rng(5)
    features, labels, rows = [], [], []
    for size, truth in zip(SIZES, ([2.0, -1.0, 0.0], [-1.0, 1.0, 1.0], [0.0, 0.5, -2.0])):
        x = rng.normal(size=(size, 3)) * rng.uniform(0.6, 1.6, 3)
        rows.append(np.arange(size) + sum(map(len, rows)))
        features.append(x)
        labels.append(x @ truth + 0.1 * rng.normal(size=size))
    x, y = np.concatenate(features).astype(np.float32), np.concatenate(labels).astype(np.float32)
    return Clients(Source("line", "train", x, y, target=Column("y", 0.0, 1.0)), rows)


def least_squares(weights=None):
    """argmin of the mean squared error, with clients by their size or by `weights`."""
    parts = [federation().examples(k) for k in range(len(SIZES))]
    shares = np.array(SIZES if weights is None else weights) / np.sum(SIZES if weights is None else weights)
    matrix = sum(b * p.features.T @ p.features / len(p.labels) for b, p in zip(shares, parts))
    return np.linalg.solve(matrix, sum(b * p.features.T @ p.labels / len(p.labels) for b, p in zip(shares, parts)))


@pytest.mark.parametrize("build", [algorithms.scaffold, algorithms.fed_dyn])
def test_the_share_of_a_round_is_that_of_the_clients_where_their_sizes_are_unknown(build):
    """Rounds of one: of three clients a third each; with sizes the fraction of the examples, also beside clients that
    have none."""
    for sizes, number, shares in (
        ((), 3, [1 / 3, 1 / 3, 1 / 3]),
        (SIZES, 3, np.array(SIZES) / sum(SIZES)),
        ((SIZES[0], 0), 2, [1.0]),
    ):
        process = build(line, element_spec=federation().element_spec, **{**OPTIONS, "optimizer": "sgd"})
        state, found = process.with_clients(process.local.initialize(), range(number), sizes), []
        for k in range(len(shares)):
            state = process.local.next(state, [federation().dataset(k)]).state
            found.append(state.step.share)
        np.testing.assert_allclose(found, shares, rtol=1e-6)


OPTIONS = {"likelihood": "gaussian:1", "learning_rate": 0.1, "local_epochs": 5, "batch_size": 64}


def rest(build, rounds=60, data=None, **options):
    """Where rounds of all clients have come: the weights [3]."""
    data = data or federation()
    process = build(line, element_spec=data.element_spec, **{**OPTIONS, "optimizer": "sgd", **options})
    state = process.with_clients(process.local.initialize(), range(len(SIZES)), data.sizes)
    clients = [data.dataset(k) for k in range(len(SIZES))]
    for _ in range(rounds):
        state = process.local.next(state, clients).state
    return np.ravel(state.weights.point[0])


def test_scaffold_rests_at_the_minimum_that_federated_averaging_misses():
    """Full batches without noise: the distance is that of the algorithm alone."""
    wanted = least_squares()
    missed = np.linalg.norm(rest(algorithms.fed_opt) - wanted)
    assert missed > 0.05
    assert np.linalg.norm(rest(algorithms.scaffold) - wanted) < 1e-3 * missed
    momentum = {"optimizer": "momentum", "learning_rate": 0.02}
    assert np.linalg.norm(rest(algorithms.scaffold, **momentum) - wanted) < 1e-2 * missed


@pytest.mark.parametrize("how", [{}, {"weighting": "equal"}, {"robust": "median"}])
@pytest.mark.parametrize(
    ("build", "options"), [(algorithms.scaffold, {"learning_rate": 0.05}), (algorithms.fed_dyn, {"alpha": 1.0})]
)
def test_cohorts_rest_at_the_minimum_of_all_clients(build, options, how):
    """Four clients of 2, 2, 2 and 18 examples with minima 0, 1, 2 and 10, two of them a round."""
    sizes, minima = np.array([2, 2, 2, 18]), np.array([0.0, 1.0, 2.0, 10.0])
    data = gaussians.clients_of([np.full((n, 1), m) for n, m in zip(sizes, minima)])
    given = {"likelihood": "density", "optimizer": "sgd", "learning_rate": 0.2, "local_epochs": 5, "batch_size": 32}
    process = build(gaussians.model_fn(1), **{**given, **options, **how})
    chains = simulate_chains(process, data, 400, num_chains=2, cohorts=2)
    wanted = np.average(minima, weights=None if how else sizes)
    np.testing.assert_allclose(chains.draws.point[0][:, -1], wanted, atol=0.02)


UNDER = [
    {"server_optimizer": servers.server_optimizer("sgd", 0.5, momentum=0.5), "rounds": 200},
    {"server_optimizer": servers.server_optimizer("adam", cosine_decay(0.1, 400, last=0)), "rounds": 400},
]
later = pytest.mark.deep(after="tests/algorithms/test_drift.py")
under_each = pytest.mark.parametrize("server", [{}, *(pytest.param(given, marks=later) for given in UNDER)])


@under_each
def test_fed_dyn_rests_at_the_minimum_of_equal_clients(server):
    """Its h is a plain mean over clients, whose regularised loss of each counts once."""
    wanted = least_squares((1, 1, 1))
    given = {"alpha": 1.0, "weighting": "equal", **server}
    missed = np.linalg.norm(rest(algorithms.fed_opt, weighting="equal") - wanted)
    assert missed > 0.05
    assert np.linalg.norm(rest(algorithms.fed_dyn, **given) - wanted) < 1e-2 * missed


@under_each
def test_fed_nova_rests_at_the_minimum_where_clients_take_unequal_numbers_of_steps(server):
    """In batches of 8 clients take 1, 3 and 5 steps a pass. To first order in the rate, so at small rates."""
    small = {"learning_rate": 0.01, "batch_size": 8, "local_epochs": 1, "rounds": 200, **server}
    wanted = least_squares()
    missed, found = (
        np.linalg.norm(rest(build, **small) - wanted) for build in (algorithms.fed_opt, algorithms.fed_nova)
    )
    assert missed > 0.1 and found < 0.1 * missed


def message(told, memory):
    weights = get_weights(line())
    federation = Population(tf.constant(3), tf.constant(sum(SIZES)))
    return ServerMessage(weights, tf.constant(0), told, memory, federation)


def worked(process, given):
    """Return what client 1 sends, and its examples."""
    examples = federation().examples(1)
    work = process.client_work.build()
    return work(given, tf.nest.map_structure(tf.constant, examples), tf.constant([0, 1])), examples


def gradient(examples, w):
    return examples.features.T @ (examples.features @ w - examples.labels) / len(examples.labels)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_clients_steps_of_scaffold_by_hand(momentum):
    control, own = np.float32([0.3, -0.2, 0.1]), np.float32([0.05, 0.4, -0.1])
    options = {**OPTIONS, "optimizer": lambda: tf.keras.optimizers.SGD(momentum=momentum)}
    process = algorithms.scaffold(line, element_spec=federation().element_spec, **options)
    result, examples = worked(process, message(tf.constant(control), tf.constant(own)))
    w, velocity, gradients = np.zeros(3), np.zeros(3), []
    for _ in range(5):
        gradients.append(gradient(examples, w))
        velocity = momentum * velocity - 0.1 * (gradients[-1] - own + control)
        w = w + velocity
    np.testing.assert_allclose(np.ravel(result.weights.point[0]), w, rtol=1e-4, atol=1e-6)
    # Gradient i moves the weights by rate (1 + m + ... + m^(4 - i)).
    coefficients = np.array([sum(momentum**j for j in range(5 - i)) for i in range(5)])
    mean = coefficients @ np.array(gradients) / coefficients.sum()
    np.testing.assert_allclose(result.memory, mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(result.extra, mean - own, rtol=1e-4, atol=1e-5)


def test_a_clients_steps_of_fed_dyn_by_hand():
    own, alpha = np.float32([0.05, 0.4, -0.1]), 0.3
    process = algorithms.fed_dyn(line, alpha=alpha, element_spec=federation().element_spec, **OPTIONS, optimizer="sgd")
    result, examples = worked(process, message((), tf.constant(own)))
    w = np.zeros(3)
    for _ in range(5):
        w = w - 0.1 * (gradient(examples, w) - own + alpha * w)
    np.testing.assert_allclose(np.ravel(result.weights.point[0]), w, rtol=1e-5)
    np.testing.assert_allclose(result.memory, own - alpha * w, rtol=1e-5)


def test_fed_nova_of_clients_of_one_size_is_federated_averaging():
    equal = Clients(federation().source, [np.arange(24), np.arange(24, 48), np.arange(48, 72)])
    found = [rest(build, 3, equal) for build in (algorithms.fed_nova, algorithms.fed_opt)]
    np.testing.assert_allclose(*found, rtol=1e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_reach_is_the_sum_of_the_coefficients_of_the_gradients(momentum):
    reach = reach_of(
        local_epochs=3, batch_size=8, learning_rate=0.2, optimizer_fn=lambda: tf.keras.optimizers.SGD(momentum=momentum)
    )
    rate, steps, number = reach(tf.constant(0), tf.constant(17))
    wanted = sum(sum(momentum**j for j in range(9 - i)) for i in range(9))  # Three passes of three batches.
    np.testing.assert_allclose((rate, steps, number), (0.2, wanted, 9), rtol=1e-5)


GUARDS = {
    "median": {"robust": "median"},
    "trimmed": {"robust": "trimmed:0.34"},
    "centered_clip": {"robust": "centered_clip"},
    "clip": {"robust": "clip:5"},
    "bounded": {"max_change_norm": 100.0},
    "compressed": {"compressor": "quantiser:64"},
    "error memory": {"compressor": "largest:0.5", "error_memory": True},
    "secure sums": {"secure_sums": 64.0},
}
DRIFT = ("scaffold", "fed_dyn", "fed_nova")


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("name", DRIFT)
def test_every_guard_serves(name, guard):
    """Compare with the process without it where the guard changes nothing: whole numbers, and bounds nobody meets."""
    build = getattr(algorithms, name)
    plain, guarded = (rest(build, rounds=4, **options) for options in ({}, GUARDS[guard]))
    assert np.all(np.isfinite(guarded)) and np.linalg.norm(guarded) > 0.1
    if guard in ("clip", "bounded", "secure sums"):
        np.testing.assert_allclose(guarded, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", DRIFT)
@pytest.mark.parametrize(
    ("options", "reason"), [({"optimizer": "adam"}, "'adam'"), ({"inference": "natural"}, "inference 'natural'")]
)
def test_means_that_do_not_move_by_sgd_are_refused(name, options, reason):
    with pytest.raises(InvalidArgument, match=f"by {reason}: use optimizer 'sgd' or 'momentum'"):
        getattr(algorithms, name)(lambda: models.mlp("flipout"), **options)


@pytest.mark.parametrize("name", DRIFT)
def test_a_rule_by_precisions_is_warned_of(name):
    build = getattr(algorithms, name)
    gaussian = lambda: models.mlp("flipout", (3,), 2, hidden=(4,))
    assert "'log_linear_pool' weights means by precision" in build(gaussian, rule="log_linear_pool").notices[0]
    assert not build(gaussian).notices and not build(line, rule="log_linear_pool").notices


def test_fed_dyn_takes_no_second_proximal_term():
    with pytest.raises(InvalidArgument, match="leave proximal out"):
        algorithms.fed_dyn(line, proximal=0.1)


def test_gaussian_weights_are_corrected_in_their_means():
    """The memory has a number for each mean and point weight, whatever the standard deviations."""
    model_fn = lambda: models.mlp("flipout", (3,), 2, hidden=(4,))
    process = algorithms.scaffold(model_fn)
    weights = get_weights(model_fn())
    assert isinstance(weights, ModelWeights) and isinstance(weights.posterior, MeanField)
    number = sum(np.size(x) for x in (*weights.posterior.mean, *weights.point))
    assert process.client_work.memory(weights, 0.0).shape == (number,)
    assert clients.variational(model_fn).memory is None
