"""What each round would send again stays at the worker; what is new is sent, what is old is freed."""

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import dataset_options_pb2

from tfp_bfl.engines.tff import executor
from tfp_bfl.engines.tff.context import local_workers
from tfp_bfl.federated.round import Contribution, summed

from .test_workers import client_data, count, total

tff = pytest.importorskip("tensorflow_federated")


@pytest.fixture
def sent(monkeypatch):
    """The requests for values and for calls that a worker gets, newest last."""
    requests, call = [], executor._call

    def record(tff, method, request):
        requests.append(type(request).__name__.removesuffix("Request"))
        return call(tff, method, request)

    monkeypatch.setattr(executor, "_call", record)
    return requests


@pytest.fixture
def freed(monkeypatch):
    requests, call = [], executor._free

    def record(method, request):
        requests.append(type(request).__name__.removesuffix("Request"))
        return call(method, request)

    monkeypatch.setattr(executor, "_free", record)
    return requests


def values(requests):
    number = requests.count("CreateValue")
    requests.clear()
    return number


def test_computations_and_datasets_are_sent_once(sent):
    data = client_data(3)
    with local_workers(max_concurrent_calls=1):
        assert total(2.0, data) == 2 * (0 + 1 + 3)
        assert values(sent) == 3
        assert total(5.0, data) == 5 * (0 + 1 + 3)
        assert values(sent) == 1  # the factor
        assert count(7) == 7 and count(8) == 8
        assert values(sent) == 3  # two arguments, one computation


def test_the_computations_of_a_run_stay_at_the_worker(sent):
    """A round has four, and an evaluation may come between two rounds: eight are kept, in turn."""
    plus = lambda i: tff.tensorflow.computation(lambda n: n + i, np.int64)
    computations = [plus(i) for i in range(8)]
    with local_workers(max_concurrent_calls=1):
        for computation in computations:
            computation(1)
        values(sent)
        assert [computation(1) for computation in computations] == list(range(1, 9))
        assert values(sent) == 8  # the arguments


def test_other_datasets_in_the_same_list_are_sent(sent):
    data = client_data(3)
    with local_workers(max_concurrent_calls=1):
        total(1.0, data)
        values(sent)
        data[0] = data[2]
        assert total(1.0, data) == 3 + 1 + 3
        assert values(sent) == 2


def test_the_same_list_object_with_other_content_is_not_taken_for_the_old_one():
    with local_workers(max_concurrent_calls=1):
        for size in range(1, 6):  # Objects that are gone leave their identity to the next.
            assert total(1.0, [tf.data.Dataset.range(size).map(lambda v: tf.cast(v, tf.float32))]) == sum(range(size))


def test_old_datasets_are_freed_at_the_worker_and_here(freed):
    with local_workers(max_concurrent_calls=1):
        first = client_data(2)
        old = weakref.ref(first[1])
        total(1.0, first)
        before = len(freed)
        total(1.0, first)
        del first
        same = len(freed) - before
        total(1.0, client_data(2))
        assert len(freed) - before - same == same + 1  # the datasets of before, too
        gc.collect()
        assert old() is None


def test_nothing_is_kept_beyond_the_block():
    data = client_data(2)
    kept = weakref.ref(data[0])
    with local_workers(max_concurrent_calls=1):
        total(1.0, data)
    del data
    gc.collect()
    assert kept() is None


def test_a_failed_call_forgets_what_it_sent():
    data = client_data(2)
    broken = [d.map(lambda v: tf.debugging.check_numerics(v / 0.0, "x")) for d in client_data(2)]
    with local_workers(max_concurrent_calls=1):
        assert total(1.0, data) == 1
        with pytest.raises(Exception, match="x"):
            total(1.0, broken)
        assert total(1.0, data) == 1


def test_no_thread_tunes_a_clients_dataset():
    """TensorFlow's ends in steps of 10, 30, 70, 150, ... ms, for which each call to a client would wait."""
    with tf.Graph().as_default() as graph:
        dataset = tf.data.Dataset.range(3).map(lambda v: {"x": tf.cast(v, tf.float32)})
        train = lambda sent, element: Contribution(element["x"] + sent, (), element["x"][tf.newaxis])
        add = lambda a, b: Contribution(a.statistics + b.statistics, (), tf.concat([a.report, b.report], 0))
        result = summed(train, add, dataset.element_spec)(tf.constant(2.0), dataset)
    functions = graph.as_graph_def().library.function
    options = [node for f in functions for node in f.node_def if node.op == "OptionsDataset"]
    assert options
    for node in options:
        parsed = dataset_options_pb2.Options.FromString(node.attr["serialized_options"].s)
        assert not parsed.autotune_options.enabled and parsed.autotune_options.HasField("enabled")
    with tf.compat.v1.Session(graph=graph) as session:
        statistics, report = session.run((result.statistics, result.report))
    assert statistics == 9.0 and report.tolist() == [0, 1, 2]
