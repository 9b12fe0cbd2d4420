"""Sums of clients' counts beyond 32 bits, and checkpoints that hold them."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl import federated, models, rules, servers
from tfp_bfl.federated.checkpoints import Checkpoints, Record
from tfp_bfl.federated.round import Round
from tfp_bfl.weights import ClientResult, TrainingMetrics

COUNTS = (1_500_000_000, 1_500_000_000, 2**31 - 1, 7)


def reported(message, count):
    """Return the result of a client that sends the weights it got."""
    zero, counts = tf.constant(0.0), {"weights_at_floor": count}
    return ClientResult(message.weights, count, TrainingMetrics(zero, zero, zero), counts=counts)


@pytest.fixture(scope="module")
def process():
    def work(message, examples, seed):
        return reported(message, tf.shape(examples.labels)[0])

    return federated.build_process(
        lambda: models.mlp("flipout", input_shape=(2,), hidden=(), initial_stddev=0.1),
        client_work=lambda: work,
        weigh=lambda local, anchor, num_examples: tf.constant(1.0),
        rule=rules.whole_model(rules.parse_rule("naive_weighted_average")),
        server_step=servers.replace(),
    )


def concluded(process):
    moments: Round = process.round
    state = moments.initialize()
    message, total = moments.broadcast(state).message, None
    for k, count in enumerate(map(tf.constant, COUNTS)):
        one = moments.take(message, reported(message, count), tf.constant(k), count)
        total = one if total is None else moments.add(total, one)
    return moments.conclude(state, total)


def test_sums_of_counts_are_exact(process):
    state, metrics = concluded(process)
    assert int(metrics["num_faulty"]) == 0
    assert int(metrics["num_examples"]) == int(metrics["weights_at_floor"]) == sum(COUNTS)
    assert int(state.federation.num_examples) == sum(COUNTS)
    assert process.with_clients(process.initialize(), range(4), COUNTS).federation.num_examples == sum(COUNTS)


def test_checkpoints_of_32_bits_are_read(process, tmp_path):
    state = tf.nest.map_structure(np.asarray, concluded(process)[0])
    first = process.initialize()
    folder = Checkpoints(tmp_path, {})
    folder.save(state, Record())
    assert folder.latest(first).state.federation.num_examples == sum(COUNTS)
    old = state._replace(round=np.int32(2), federation=state.federation._replace(num_examples=np.int32(9)))
    folder.save(old, Record())
    found = folder.latest(first).state.federation.num_examples
    assert found == 9 and found.dtype == np.int64
