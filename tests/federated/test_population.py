"""Rounds cost time in proportion to their cohort: what a round touches of a population is counted, not timed."""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.federated import toys
from tfp_bfl import federated
from tfp_bfl.contracts import Memory
from tfp_bfl.data import ClientData, ClientExamples, Clients, Source, write_clients
from tfp_bfl.federated import memory
from tfp_bfl.weights import ClientResult

COHORT, ROUNDS = 20, 3
touched = collections.Counter()


class Counted(tuple):
    """Rows of clients that count how many of them are looked at."""

    def __getitem__(self, k):
        touched["clients"] += 1
        return super().__getitem__(k)

    def __iter__(self):
        touched["clients"] += len(self)
        return super().__iter__()


class Made(ClientData):
    """Clients of a user's own class, with examples and sizes that are made at each access."""

    def __init__(self, source, number):
        self.source, self._number = source, number

    @property
    def sizes(self):
        touched["clients"] += self._number
        return np.ones(self._number, np.int64)

    @property
    def description(self):
        return "made"

    def examples(self, k):
        self._checked(k)
        touched["clients"] += 1
        return ClientExamples(np.int32([k]), self.source.features[k : k + 1], self.source.labels[k : k + 1])


def population(kind, number, folder):
    source = Source("made", "train", np.zeros([number, 2], np.float32), np.arange(number, dtype=np.int32) % 2)
    if kind == "made":
        return Made(source, number)
    clients = Clients(source, [np.array([k]) for k in range(number)])
    if kind == "files":
        return write_clients(clients, folder)
    object.__setattr__(clients, "indices", Counted(clients.indices))
    return clients


@pytest.mark.parametrize("kind", ["rows", "made", "files"])
@pytest.mark.parametrize("options", [{}, {"popularity": 0.5, "dropout": 0.1}, {"keeps": True}], ids=str)
def test_a_round_touches_its_cohort_and_not_the_population(kind, options, tmp_path):
    number = 50 if kind == "files" else 5_000
    keeps = options.pop("keeps", False)
    process = toys.process(toys.counting, memory=lambda weights, share: tf.constant(0.0)) if keeps else toys.process()
    clients, seen = population(kind, number, tmp_path / "files"), []
    touched.clear()
    note = lambda row: seen.append(touched["clients"])
    run = {"checkpoint_dir": tmp_path / "run", "evaluate_cohort": lambda model, x, y: {"n": len(x)}}
    federated.simulate(
        process, clients, ROUNDS, cohort_size=COHORT, seed=1, engine="local", on_round=note, **run, **options
    )
    # Each client is read twice: to train, and to score it. The sizes of a user's class are asked for once a core.
    most = 3 * COHORT + (number * process.local.concurrent_calls + number if kind == "made" else 0)
    assert all(np.diff(seen) <= most) and (kind == "files" or all(np.diff(seen) > 0))


def test_first_memories_are_computed_once_for_each_size():
    sizes = np.arange(2_000) % 3 + 1
    asked = []
    process = toys.process(toys.counting, memory=lambda weights, share: asked.append(share) or tf.constant(share))
    state = process.local.initialize()
    del asked[:]
    state = process.with_clients(state, range(2_000), sizes)
    assert len(asked) == 3
    np.testing.assert_allclose(state.memory.rows, sizes / sizes.sum(), rtol=1e-6)
    assert state.memory.client.tolist() == list(range(2_000))


def test_memories_of_a_round_need_no_table_of_all_clients_by_its_cohort():
    held, cohort, width = 1_000, 30, 2
    spec = Memory(tf.TensorSpec([held], tf.int32), tf.TensorSpec([held, width]))
    number = tf.TensorSpec([cohort], tf.int32)
    given = spec, number, tf.TensorSpec([cohort, width]), tf.TensorSpec([cohort], tf.bool)
    replaced = tf.function(memory.replace_rows).get_concrete_function(*given)
    found = tf.function(memory.find_row).get_concrete_function(spec, tf.TensorSpec([], tf.int32))
    for function, most in ((replaced, held * width), (found, held * width)):
        outputs = [x for op in function.graph.get_operations() for x in op.outputs]
        assert max(x.shape.num_elements() or 0 for x in outputs) <= most


def test_rows_are_replaced_of_sound_clients_who_have_one():
    numbers = tf.constant([2, 3, 5, 9])
    kept = Memory(numbers, tf.constant([[2.0], [3.0], [5.0], [9.0]]))
    new = tf.constant([[90.0], [10.0], [20.0], [30.0], [99.0]])
    sound = tf.constant([True, True, True, False, True])
    after = memory.replace_rows(kept, tf.constant([9, 1, 2, 3, 11]), new, sound)
    assert after.rows[:, 0].numpy().tolist() == [20, 3, 5, 90]
    found = [memory.find_row(kept, tf.constant(k)) for k in (1, 2, 9, 10)]
    assert [(float(row[0]), bool(known)) for row, known in found] == [(0, False), (2, True), (9, True), (0, False)]
    empty = Memory(numbers[:0], kept.rows[:0])
    row, known = memory.find_row(empty, tf.constant(3))
    assert not known and row.shape == [1]
    assert memory.replace_rows(empty, tf.constant([1]), new[:1], sound[:1]).rows.shape == [0, 1]


def saying_rounds(message, examples, seed):
    """Sends the number of rounds that the message says."""
    weights = message.weights
    fill = lambda x: tf.fill(x.shape, tf.cast(message.federation.rounds, tf.float32))
    point = tuple(map(fill, weights.point))
    return ClientResult(weights._replace(point=point), tf.shape(examples.labels)[0], toys.no_metrics())


@pytest.mark.parametrize("engine", ["local", pytest.param("tff", marks=pytest.mark.tff)])
def test_clients_are_told_how_many_rounds_the_run_has(engine, tmp_path):
    """A run that is continued says the new number; one by hand says none, unless `with_clients` has it."""
    process = toys.process(saying_rounds)
    rounds = lambda state: {float(x) for leaf in state.weights.point for x in np.ravel(leaf)}
    for number in (2, 5):
        result = federated.simulate(process, toys.CLIENTS, number, checkpoints=tmp_path, engine=engine)
        assert rounds(result.state) == {number}
    if engine == "local":
        begin = functools.partial(process.with_clients, process.local.initialize(), range(4), toys.CLIENTS.sizes)
        for given, wanted in (((), 0), ((7,), 7)):
            assert rounds(process.local.next(begin(*given), toys.CLIENTS.shards(range(4), 1)).state) == {wanted}
