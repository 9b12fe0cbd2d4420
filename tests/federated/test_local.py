"""The engine of this process, and what a round gives whichever engine runs it."""

import functools
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import assert_same, refuses
from tfp_bfl import algorithms, federated, models, rules, servers
from tfp_bfl.contracts import ClientWork
from tfp_bfl.data import Clients, cohort
from tfp_bfl.errors import ComputationError, Diverged
from tfp_bfl.federated import simulate
from tfp_bfl.federated.faults import Limits
from tfp_bfl.federated.round import fold
from tfp_bfl.layers.noise import standard_normal

from . import toys
from .toys import CLIENTS, NUM_CLIENTS, UNEQUAL


def run(process, rounds=1, clients=CLIENTS, **options):
    return simulate(process, clients, rounds, engine="local", **options)


def test_a_round_by_hand():
    """Equal clients: the bias goes half way to the mean of their means, the kernel is the mean of their noises."""
    state = run(toys.process(seed=3)).state
    kernel, bias = state.weights.point
    np.testing.assert_allclose(bias, [0.5 * 1.5, 0.5 * 11.5], rtol=1e-6)
    noises = [tf.reshape(standard_normal(4, fold(3, 0, k)), [2, 2]) for k in range(NUM_CLIENTS)]
    np.testing.assert_allclose(kernel, 0.01 * np.mean(noises, 0), rtol=1e-5)
    assert (state.round, state.seed) == (1, 3)


def test_clients_are_weighed_and_their_order_or_shards_do_not_matter():
    process = toys.process(weigh=lambda local, anchor, number: tf.cast(number, tf.float32))
    engine = process.local
    state = engine.initialize()
    means = np.array([np.mean(toys.FEATURES[part], 0) for part in UNEQUAL.indices])
    wanted = 0.5 * np.average(means, 0, UNEQUAL.sizes)
    for datasets in (
        [UNEQUAL.dataset(k) for k in (2, 0, 3, 1)],
        UNEQUAL.shards(range(4), 2),
        [UNEQUAL.dataset(3, 1, 0, 2)],
    ):
        output = engine.next(state, datasets)
        np.testing.assert_allclose(output.state.weights.point[1], wanted, rtol=1e-6)
        assert output.metrics["clients"]["client"].tolist() == [0, 1, 2, 3]
        assert output.metrics["clients"]["weight"].tolist() == UNEQUAL.sizes.tolist()


def test_rows_in_memory_give_what_their_dataset_gives():
    """Compare the bits for clients of several sizes who keep something, on one core and on two."""
    process = counting()
    state = process.with_clients(process.local.initialize(), range(4))
    for most in (1, 2):
        found, wanted = (
            process.local.next(state, give(range(4), most)) for give in (UNEQUAL.rows_by_part, UNEQUAL.shards)
        )
        assert_same((found.state, found.metrics), (wanted.state, wanted.metrics))


def test_simulate_takes_the_seed_of_the_process_or_its_own():
    process = toys.process(seed=3)
    assert run(process).state.seed == 3
    assert run(process, seed=4).state.seed == 4


def test_a_client_that_raises_is_left_out_and_named(caplog):
    def work(message, examples, seed):
        check = tf.debugging.assert_less(tf.reduce_max(examples.client), 2, "on purpose")
        with tf.control_dependencies([check]):
            return toys.towards(message, examples, seed)

    process = toys.process(work)
    with pytest.raises(ComputationError, match="on purpose"):
        process.local.next(process.local.initialize(), [CLIENTS.dataset(3)])
    (row,) = run(process).rounds
    assert (row["num_clients"], row["num_faulty"], sorted(row["faulty_clients"])) == (4, 2, ["2", "3"])
    assert row["faulty_clients"]["2"].startswith("A computation failed: assertion failed: [on purpose]")
    assert "client 2: A computation failed: assertion failed: [on purpose]" in caplog.text


# What a client keeps.


def counts(state):
    return dict(zip(state.memory.client.tolist(), state.memory.rows.tolist()))


@functools.cache
def counting(work=toys.counting):
    return toys.process(work, memory=lambda weights, share: tf.constant(0.0))


def test_clients_keep_their_rows_over_rounds_and_absent_ones_as_they_were():
    result = run(counting(), rounds=6, cohort_size=2, seed=1)
    came = np.zeros(NUM_CLIENTS)
    process = counting()
    for number in range(1, 7):
        came[cohort(NUM_CLIENTS, 2, number, 1)] += 1
    assert counts(result.state) == dict(enumerate(came.tolist())) and len(set(came)) > 1
    # With one client a round the bias is the sum of 1, 2, ... by client.
    alone = run(process, rounds=5, cohort_size=1, seed=2).state
    assert alone.weights.point[1][0] == sum(n * (n + 1) / 2 for n in counts(alone).values())


def test_clients_join_and_rows_stay_in_order():
    process = counting()
    state = process.with_clients(process.local.initialize(), [2, 0])
    state = process.local.next(state, [CLIENTS.dataset(0, 2)]).state
    state = process.with_clients(state, [1, 2])
    assert counts(state) == {0: 1, 1: 0, 2: 1} and state.memory.client.tolist() == [0, 1, 2]
    # Whom the state does not know is faulty.
    output = process.local.next(state, [CLIENTS.dataset(1, 3)])
    assert federated.faults.FAULTS[output.metrics["clients"]["fault"][1]].startswith("the server's state has no memory")
    assert counts(output.state) == {0: 1, 1: 1, 2: 1}


# Messages without weights, what the server tells, personal weights, numbers to report.


def test_clients_that_send_forces_and_a_server_that_descends():
    """bias <- bias - 0.05 sum_k N_k (bias - mean_k): by hand for two rounds."""
    process = toys.langevin_like(step=toys.descend(0.05))
    result = run(process, rounds=2)
    bias = np.zeros(2)
    for _ in range(2):
        bias = bias - 0.05 * 3 * sum(bias - np.array([k, 10 + k]) for k in range(NUM_CLIENTS))
    np.testing.assert_allclose(result.state.weights.point[1], bias, rtol=1e-6)
    assert result.state.step == 2
    assert [row["bits"] for row in result.rounds] == [256, 256]
    np.testing.assert_allclose(process.personal_weights(result.state, 3).point[1], bias + 3, rtol=1e-6)
    assert process.predictive_weights(result.state).point[1].tolist() == result.state.weights.point[1].tolist()


def test_weights_that_are_not_finite_stop_the_run_before_they_are_saved(tmp_path):
    process = toys.langevin_like(step=toys.descend(1e3))
    with pytest.raises(Diverged, match=r"after round 2, by its step descend \(step size 1000\)") as caught:
        run(process, rounds=9, checkpoint_dir=tmp_path)
    assert caught.value.state.round == 1 and np.all(np.isfinite(caught.value.state.weights.point[1]))
    kept = federated.Checkpoints(tmp_path, {}).latest(process.local.initialize(), process.state_spec)
    assert kept.state.round == 1 and len(kept.record.rows) == 1


def test_the_floor_is_on_what_the_step_returns():
    """A step may make its own variances, not only those that were pooled."""
    fn = lambda: models.mlp("flipout", input_shape=(2,), hidden=(2,), initial_stddev=0.5, min_stddev=0.1)
    smaller = lambda q: q._replace(variance=tf.nest.map_structure(lambda v: 1e-9 * v, q.variance))
    shrink = lambda state, weights, pooled, seed: (state, pooled._replace(posterior=smaller(pooled.posterior)))
    send = lambda message, examples, seed: (message.weights, tf.shape(examples.labels)[0], toys.no_metrics())
    work = ClientWork(lambda: lambda *given: toys.ClientResult(*send(*given)))
    step = servers.replace()._replace(next=shrink)
    process = algorithms.compose(fn, work, "log_linear_pool", step, weighting="equal")
    state = run(process).state
    for variance in state.weights.posterior.variance:
        np.testing.assert_allclose(variance, 0.01, rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: simulate(toys.process(), CLIENTS, 1, engine="spark"), "no engine 'spark': choose one of 'compiled'"),
        (lambda: run(toys.process(), runtime=object()), "runtime holds workers of the engine tff or ray, and this is"),
        (lambda: run(toys.process(), clients=[CLIENTS.dataset(0)]), "must be Clients, such as .* gives, not list"),
        (lambda: toys.process(rule=rules.conflation()), r"'conflation' is no rule over one: wrap it in tfp_bfl\.rules"),
        (
            lambda: toys.langevin_like(step=toys.descend(0.05), limits=Limits(max_change_norm=1.0)),
            "these clients send no weights",
        ),
    ],
)
def test_refused(call, message):
    refuses(message, call)


@pytest.mark.deep(after="tests/app/test_run.py")
@pytest.mark.cpu_seconds(20)  # one of the few fresh interpreters
def test_a_run_without_tensorflow_federated_imports_none(tmp_path):
    program = """
import json, sys
sys.modules["tensorflow_federated"] = None  # any import of it raises
import tfp_bfl as bfl
train = bfl.data.load("breast_cancer")
clients = train.partition(bfl.data.iid(2), seed=0)
fn = lambda: bfl.models.mlp("flipout", input_shape=train.element_shape, hidden=(2,), num_classes=2)
process = bfl.algorithms.variational(fn, bfl.rules.conflation(), local_epochs=1)
result = bfl.simulate(process, clients, rounds=1, engine="local")
print(json.dumps([int(result.state.round), isinstance(process, bfl.federated.BayesianProcess)]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [1, True]


def test_clients_of_other_numbers_have_other_noise():
    """A client's noise is of its number, wherever it lies in the cohort."""
    process = toys.process(seed=3)
    one = Clients(toys.SOURCE, [CLIENTS.indices[1]])
    first = process.local.next(process.local.initialize(), [CLIENTS.dataset(1)]).state
    other = process.local.next(process.local.initialize(), [one.dataset(0)]).state
    assert np.abs(first.weights.point[0] - other.weights.point[0]).max() > 1e-4


@pytest.mark.parametrize(("cores", "clients", "threads"), [(2, 10, 1), (8, 4, 2), (8, 1, 8), (8, 3, 2)])
def test_cores_are_shared_among_the_clients_at_once(monkeypatch, cores, clients, threads):
    set_to = []
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores))
    monkeypatch.setattr(tf.config.threading, "set_intra_op_parallelism_threads", set_to.append)
    federated.share_cores(clients)
    assert set_to == [threads]
    refuses("num_clients", federated.share_cores, 0)
    assert set_to == [threads]


def test_cores_are_the_users_where_the_environment_says_so_and_tensorflows_once_it_has_started(monkeypatch):
    tf.constant(0)
    before = tf.config.threading.get_intra_op_parallelism_threads()
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    federated.share_cores(10)
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "3")
    monkeypatch.setattr(tf.config.threading, "set_intra_op_parallelism_threads", None)
    federated.share_cores(10)
    assert tf.config.threading.get_intra_op_parallelism_threads() == before


def test_cores_share_a_graph_unless_an_operation_keeps_what_a_call_gave_it():
    """Two batches of different sizes at once end the process in oneDNN's normalization of rows (TensorFlow 2.21)."""
    shared = []
    for layer in (tf.keras.layers.ReLU, tf.keras.layers.LayerNormalization, tf.keras.layers.BatchNormalization):
        model_fn = lambda layer=layer: tf.keras.Sequential([tf.keras.Input((2,)), layer(), tf.keras.layers.Dense(2)])
        process = algorithms.fed_opt(model_fn, local_epochs=1, batch_size=2, learning_rate=0.1)
        process.local.concurrent_calls = 2
        process.local.next(process.local.initialize(), [UNEQUAL.dataset(k) for k in range(2)])
        shared.append(len({id(lane.works[False].graph) for lane in process.local._lanes}) == 1)
    assert shared == [True, False, True]
