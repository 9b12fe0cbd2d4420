"""Client-level privacy as its accountant assumes it: who takes part, and how far one client moves what is summed."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tests.federated import toys
from tfp_bfl.contracts import ClientWork
from tfp_bfl.federated import simulation
from tfp_bfl.privacy import Privacy

pytest.importorskip("dp_accounting")

NUM_CLIENTS, EXPECTED, ROUNDS = 12, 4, 300
FEATURES = np.random.default_rng(0).normal(size=(2 * NUM_CLIENTS, 2)).astype(np.float32)
SOURCE = bfl.data.Source("made", "train", FEATURES, np.tile(np.int32([0, 1]), NUM_CLIENTS), ("no", "yes"))
CLIENTS = bfl.data.Clients(SOURCE, [np.arange(2 * k, 2 * k + 2) for k in range(NUM_CLIENTS)])


def named(message, examples, seed):
    """Client k moves the bias by 2^k, so that the pool names the clients in binary."""
    kernel, bias = message.weights.point
    bias += 2.0 ** tf.cast(tf.reduce_max(examples.client), tf.float32)
    moved = message.weights._replace(point=(kernel, bias))
    return bfl.weights.ClientResult(moved, tf.shape(examples.labels)[0], toys.no_metrics())


@pytest.mark.statistical
def test_the_clients_of_a_run_are_drawn_as_the_accountant_assumes(monkeypatch):
    """In 300 rounds each client takes part with probability 1/3, for itself, whatever the others and earlier rounds.

    Numbers of clients and their variance, rounds of each client, pairs of clients and pairs of rounds lie within 5
    standard errors: wrong for one seed in 1e4 (170 comparisons).
    """
    monkeypatch.setattr(simulation, "secret_seed", lambda: np.int32([5, 0]))
    # Powers of two: clip, noise and division by the expected number change no bit of the sum.
    hidden = Privacy(clip_norm=2.0**20, noise_multiplier=0.0, cohort_size=EXPECTED)
    parts = ClientWork(lambda: named), "naive_weighted_average", bfl.servers.replace()
    process = bfl.algorithms.compose(toys.model_fn, *parts, weighting="equal", privacy=hidden)
    bias = lambda model: {"bias": float(model.get_weights()[1][0])}
    rows = bfl.simulate(process, CLIENTS, ROUNDS, engine="local", seed=0, evaluate=bias).rounds
    sums = np.diff([0.0, *(row["bias"] for row in rows)]) * EXPECTED
    there = np.array([[int(x) >> k & 1 for k in range(NUM_CLIENTS)] for x in sums])
    # Where nobody is drawn, one client works for nothing and is counted in the round's row.
    assert np.maximum(there.sum(1), 1).tolist() == [row["num_clients"] for row in rows]
    q = EXPECTED / NUM_CLIENTS
    one = q * (1 - q)
    numbers = there.sum(1)
    assert abs(numbers.mean() - EXPECTED) < 5 * np.sqrt(NUM_CLIENTS * one / ROUNDS)
    assert abs(numbers.var() / (NUM_CLIENTS * one) - 1) < 5 * np.sqrt(2 / ROUNDS)
    np.testing.assert_array_less(np.abs(there.mean(0) - q), 5 * np.sqrt(one / ROUNDS))
    centred = there - q
    together = centred.T @ centred / ROUNDS - one * np.eye(NUM_CLIENTS)
    np.testing.assert_array_less(np.abs(together[np.triu_indices(NUM_CLIENTS, 1)]), 5 * one / np.sqrt(ROUNDS))
    later = centred[:-1].T @ centred[1:] / (ROUNDS - 1)
    np.testing.assert_array_less(np.abs(np.diag(later)), 5 * one / np.sqrt(ROUNDS - 1))


CLIP = 0.5
model = lambda kind: functools.partial(bfl.models.mlp, kind, (2,), 2, hidden=(3,), seed=0)
ALGORITHMS = {
    "fed_opt": (bfl.algorithms.fed_opt, model("deterministic"), {}),
    "scaffold": (bfl.algorithms.scaffold, model("deterministic"), {}),
    "scaffold, Gaussian weights": (bfl.algorithms.scaffold, model("flipout"), {}),
    "fed_nova": (bfl.algorithms.fed_nova, model("deterministic"), {}),
    "fed_nova, Gaussian weights": (bfl.algorithms.fed_nova, model("flipout"), {}),
    "meta_vd": (bfl.algorithms.meta_vd, model("variational_dropout"), {"num_clients": NUM_CLIENTS}),
}


# Federated averaging sends nothing beside the weights.
HOSTILE = [("fed_opt", "weights"), *itertools.product([*ALGORITHMS][1:], ["weights", "extra", "both"])]


@pytest.mark.parametrize(("name", "hostile"), HOSTILE)
def test_all_that_a_client_sends_counts_in_its_clip(name, hostile):
    """Whatever a client sends, its summands have norm 1 at most in units of the clip, and statistics count in it.

    Means, point weights and the statistics beside them share one clip; variances have their own (`rules.private`).
    """
    build, model_fn, options = ALGORITHMS[name]
    hidden = Privacy(clip_norm=CLIP, noise_multiplier=0.0, cohort_size=EXPECTED)
    process = build(model_fn, weighting="equal", privacy=hidden, element_spec=CLIENTS.element_spec, **options)
    weights = tf.nest.map_structure(tf.constant, process.local.initialize().weights)
    message = process.round.broadcast(process.round.initialize()._replace(noise=tf.constant([1, 2]))).message
    far = lambda x: tf.nest.map_structure(lambda y: tf.constant(y) + 300.0, x)
    sent = weights
    if hostile != "extra":
        sent = weights._replace(posterior=weights.posterior._replace(mean=far(weights.posterior.mean)))
        sent = sent._replace(point=far(weights.point))
    extra = () if process.client_work.extra is None else process.client_work.extra(weights)
    if hostile != "weights":
        extra = far(extra)
    memory = process.client_work.memory(weights, 0.5) if process.client_work.memory else ()
    result = bfl.weights.ClientResult(sent, tf.constant(2), toys.no_metrics(), memory=memory, extra=extra)
    contribution = process.round.take(message, result, tf.constant(0), tf.constant(2))
    assert contribution.report.fault.numpy().tolist() == [0]
    summed = [np.ravel(x) for x in tf.nest.flatten(contribution.statistics.sums)]
    assert np.linalg.norm(np.concatenate(summed)) == pytest.approx(1.0, rel=1e-4)  # Sums of squares in float32.
