"""Several clients in one dataset of a round: the result is that of one dataset each, and clients stay apart."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.rules.forms import CONTRACT
from tfp_bfl import algorithms, rules
from tfp_bfl.data import Clients, load
from tfp_bfl.federated.faults import FAULTS
from tfp_bfl.layers import DenseFlipout
from tfp_bfl.weights import TrainingMetrics

from .test_process import CLIENTS, EVERYONE, SIZES, assert_same, build, plain, shift, spoil

every_most = pytest.mark.parametrize("most", [1, 2, len(SIZES)])
pytestmark = pytest.mark.usefixtures("runtime")


def run_round(process, datasets, state=None):
    return process.next(process.initialize() if state is None else state, datasets)


def alone(cohort):
    return [CLIENTS.dataset(k) for k in cohort]


@functools.cache
def one_dataset_each(rule):
    return run_round(plain(rule), alone(EVERYONE))


@pytest.mark.deep(after="tests/federated/test_local.py")
@pytest.mark.parametrize("rule", CONTRACT)
@every_most
def test_same_round_as_with_one_dataset_a_client(rule, most):
    output, wanted = run_round(plain(rule), CLIENTS.shards(EVERYONE, most)), one_dataset_each(rule)
    assert_same(output.state, wanted.state, rtol=1e-5)
    assert_same(output.metrics, wanted.metrics, rtol=1e-5)
    report = output.metrics["clients"]
    assert report["client"].tolist() == [0, 1, 2, 3] and report["num_examples"].tolist() == list(SIZES)
    assert_same(report["kl"], wanted.metrics["clients"]["kl"])


@pytest.mark.parametrize(
    "shares", [[(3, 2, 1, 0)], [(1, 3), (2, 0)], [(2,), (3, 0, 1)]], ids=lambda shares: str(len(shares[0]))
)
def test_which_clients_lie_together_does_not_matter(shares):
    output = run_round(plain(), [CLIENTS.dataset(*share) for share in shares])
    wanted = one_dataset_each("naive_weighted_average")
    assert_same(output.state, wanted.state, rtol=1e-5)
    assert_same(output.metrics, wanted.metrics, rtol=1e-5)


@pytest.mark.parametrize("shares", [[(1, 0, 2, 3)], [(3, 2, 0, 1)], [(0, 1), (2, 3)], [(1,), (0, 2, 3)]])
def test_a_faulty_client_is_left_out_alone(shares):
    """First and last in a shard of all, in one with client 0, and in one of its own."""
    without = run_round(plain(), alone((0, 2, 3)))
    spoiled = run_round(build(spoil, seed=7), [CLIENTS.dataset(*share) for share in shares])
    assert_same(spoiled.state.weights, without.state.weights, rtol=1e-5)
    assert [FAULTS[code] for code in spoiled.metrics["clients"]["fault"]] == ["", "not finite", "", ""]
    assert (spoiled.metrics["num_faulty"], spoiled.metrics["num_clients"]) == (1, 4)
    for name in ("nll", "kl", "tempered_elbo", "num_examples"):
        np.testing.assert_allclose(spoiled.metrics[name], without.metrics[name], rtol=1e-5)


@pytest.mark.parametrize("weight", [0.0, pytest.param(np.nan, marks=pytest.mark.deep(after="test_shards.py"))])
def test_a_client_without_a_proper_weight_is_left_out_alone(weight):
    def weigh(local, anchor, num_examples):
        return tf.where(tf.equal(num_examples, 1), np.float32(weight), tf.cast(num_examples, tf.float32))

    output = run_round(build(weigh=weigh, seed=7), CLIENTS.shards(EVERYONE, 1))
    assert [FAULTS[code] for code in output.metrics["clients"]["fault"]] == ["", "weight not above zero", "", ""]
    assert_same(output.state.weights, run_round(plain(), alone((0, 2, 3))).state.weights, rtol=1e-5)


def test_client_work_is_built_once_and_its_variables_pass_on_from_client_to_client():
    """Work with a state shows that the clients of a shard run one after another, in the dataset's order, and that what
    was built for the first shard serves the others and the next round."""

    def build_work():
        count = tf.Variable(0.0)

        def work(message, examples, seed):
            result = shift(message, examples, seed)
            return result._replace(metrics=TrainingMetrics(count.assign_add(1.0), tf.constant(0.0), tf.constant(0.0)))

        return work

    process = build(client_work=build_work)
    output = run_round(process, [CLIENTS.dataset(2, 0), CLIENTS.dataset(3, 1)])
    assert output.metrics["clients"]["nll"].tolist() == [2, 4, 1, 3]
    assert run_round(process, alone(EVERYONE)).metrics["clients"]["nll"].tolist() == [5, 6, 7, 8]


def normalised():
    inputs = tf.keras.Input((8, 8, 1))
    x = DenseFlipout(6, activation="relu", initial_stddev=0.05)(tf.keras.layers.Flatten()(inputs))
    return tf.keras.Model(inputs, tf.keras.layers.Dense(10)(tf.keras.layers.BatchNormalization()(x)))


@pytest.mark.deep(after="tests/algorithms/test_contract.py")
def test_training_starts_from_the_server_for_every_client_of_a_shard():
    """Weights, BatchNorm's statistics and Adam's state; two rounds, so that the state is not the first."""
    options = {"local_epochs": 1, "batch_size": 8, "learning_rate": 0.01}
    process = algorithms.variational(normalised, rules.log_linear_pool(), **options)
    clients = Clients(load("digits"), [np.arange(0, 30), np.arange(30, 42), np.arange(42, 60)])
    state = run_round(process, [clients.dataset(k) for k in range(3)]).state
    wanted = run_round(process, [clients.dataset(k) for k in range(3)], state)
    for most in (1, 2):
        output = run_round(process, clients.shards(range(3), most), state)
        assert_same(output.state, wanted.state, rtol=1e-5, atol=1e-7)
        assert_same(output.metrics, wanted.metrics, rtol=1e-5)
    (before,), (after,) = state.weights.moments.mean, wanted.state.weights.moments.mean
    assert np.abs(after - before).max() > 1e-3
