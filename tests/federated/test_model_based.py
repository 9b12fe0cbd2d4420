"""Random sequences of rounds, kills, resumes, damage, and faulty and hostile clients, against a reference in NumPy.

A client's work is arithmetic: half way from the server's vector to a number of its own, and one more on what it keeps.
The reference does the same over the clients that the rules of the round leave: everything else is the library's.
"""

import json
import logging
import tempfile
from typing import NamedTuple

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import stateful
from hypothesis import strategies as st

from tfp_bfl import federated
from tfp_bfl.data import Clients, Source, answering, cohort
from tfp_bfl.errors import Error, InvalidArgument
from tfp_bfl.federated.checkpoints import Checkpoints, Record
from tfp_bfl.weights import ClientResult

from . import toys

NUM_CLIENTS, MOST_ROUNDS, SEED, DROPOUT = 5, 40, 3, 0.25
HONEST, NAN, HUGE, FAR, RAISES = range(5)
REASONS = {
    NAN: "not finite",
    HUGE: "a number beyond max_magnitude",
    FAR: "its weights moved more than 1000 times as far as the median client's",
    RAISES: "on purpose",
}


def work(message, examples, seed):
    """What the client is in this round stands in the row of its features for the round."""
    row = examples.features[message.round]
    behaviour, goal = tf.cast(row[0], tf.int32), row[1]
    with tf.control_dependencies([tf.debugging.assert_none_equal(behaviour, RAISES, message="on purpose")]):
        kernel, bias = message.weights.point
    bias = bias + 0.5 * (goal - bias)
    bad = tf.stack([0.0, np.nan, 1e20, 5e5, 0.0])[behaviour]
    point = (kernel, bias + bad)
    count = tf.shape(examples.labels)[0]
    return ClientResult(message.weights._replace(point=point), count, toys.no_metrics(), memory=message.memory + 1.0)


def process():
    return toys.process(work, memory=lambda weights, share: tf.zeros([]), seed=SEED)


def federation(table):
    """Clients whose features are their behaviour in each round and their goal."""
    goals = np.broadcast_to(np.arange(NUM_CLIENTS)[:, None] / 4.0, table.shape)
    features = np.stack([table, goals], -1).reshape(-1, 2).astype(np.float32)
    source = Source("made", "train", features, np.arange(len(features), dtype=np.int32) % 2, ("no", "yes"))
    return Clients(source, np.split(np.arange(len(features)), NUM_CLIENTS))


class Expected(NamedTuple):
    """Of a round: the server's number, how often each client has come, and who was faulty in it."""

    bias: float
    times: dict
    faulty: dict


def reference(table, rounds, cohort_size):
    """Each round's `Expected`; it ends before a round in which nobody is ever sound."""
    found = [Expected(0.0, {}, {})]
    for number in range(1, rounds + 1):
        attempts = 1 + 3  # With dropout there is somebody else to try.
        for attempt in range(attempts):
            chosen = cohort(NUM_CLIENTS, cohort_size, number, SEED, attempt)
            present = answering(chosen, DROPOUT, number, SEED, attempt).tolist()
            kinds = {k: int(table[k, number - 1]) for k in present}
            faulty = {k: REASONS[kind] for k, kind in kinds.items() if kind in (NAN, HUGE, RAISES)}
            left = [k for k in present if k not in faulty]
            before, times, _ = found[-1]
            changes = {k: 0.5 * (k / 4.0 - before) + (5e5 if kinds[k] == FAR else 0.0) for k in left}
            bound = 1000 * np.median([abs(x) for x in changes.values()]) if len(left) >= 3 else np.inf
            far = [k for k in left if abs(changes[k]) > max(bound, 1.0)]
            faulty.update(dict.fromkeys(far, REASONS[FAR]))
            left = [k for k in left if k not in far]
            if left:
                break
        else:
            return found
        bias = before + float(np.mean([changes[k] for k in left]))
        found.append(Expected(bias, {**times, **{k: times.get(k, 0) + 1 for k in left}}, faulty))
    return found


def test_a_client_that_moves_too_far_is_left_out_beside_one_that_raises():
    """One trial finds who raises, the next one who moves too far."""
    table = np.zeros((NUM_CLIENTS, MOST_ROUNDS), int)
    table[0, 0], table[1, 0] = RAISES, FAR
    result = federated.simulate(process(), federation(table), 1, engine="local")
    assert result.rounds[0]["faulty_clients"].keys() == {"0", "1"}
    assert REASONS[FAR] in result.rounds[0]["faulty_clients"]["1"]
    np.testing.assert_allclose(result.state.weights.point[1], [0.5 * np.mean([2, 3, 4]) / 4] * 2, rtol=1e-6)


class Killed(BaseException):
    """As a signal: nothing catches it."""


class Run(stateful.RuleBasedStateMachine):
    """One run on disk, which is resumed, killed, damaged and called with wrong arguments."""

    @stateful.initialize(
        table=st.integers(0, 2**16),
        wrong=st.sampled_from([0.0, 0.2, 0.4, 0.8]),
        cohort_size=st.sampled_from([None, 3, 4]),
        every=st.sampled_from([1, 2]),
    )
    def begin(self, table, wrong, cohort_size, every):
        self.folder = tempfile.TemporaryDirectory()
        shares = [1 - wrong, *[wrong / 4] * 4]
        self.table = np.random.default_rng(table).choice(5, (NUM_CLIENTS, MOST_ROUNDS), p=shares)
        self.clients, self.cohort_size, self.every = federation(self.table), cohort_size, every
        self.expected = reference(self.table, MOST_ROUNDS, cohort_size)
        self.saved, self.damaged = 0, set()

    def simulate(self, rounds, **options):
        return federated.simulate(
            process(), self.clients, rounds, self.cohort_size, dropout=DROPOUT, checkpoint_dir=self.folder.name,
            checkpoint_every=self.every, engine="local", **options,
        )  # fmt: skip

    def checkpoints(self):
        rounds = Checkpoints(self.folder.name, {}).rounds()
        return [f"{self.folder.name}/round_{number}" for number in rounds if number not in self.damaged]

    def went_on(self, rounds):
        """A checkpoint that was written again is no longer damaged."""
        self.damaged -= {n for n in range(self.saved + 1, rounds + 1) if n % self.every == 0 or n == rounds}
        self.saved = rounds

    @stateful.rule(more=st.integers(1, 4))
    def go_on(self, more):
        rounds = min(self.saved + more, MOST_ROUNDS)
        if rounds >= len(self.expected):
            with pytest.raises(Error, match=f"No training succeeded in round {len(self.expected)}, in 4 attempts"):
                self.simulate(rounds)
            self.went_on(len(self.expected) - 1)
            return
        result = self.simulate(rounds)
        self.went_on(rounds)
        self.agrees(result.state, rounds)
        assert [row["round"] for row in result.rounds] == list(range(1, rounds + 1))
        for row, wanted in zip(result.rounds, self.expected[1:]):
            told = {int(k): reason for k, reason in row["faulty_clients"].items()}
            assert told.keys() == wanted.faulty.keys()
            assert all(reason in told[k] for k, reason in wanted.faulty.items())

    def agrees(self, state, rounds):
        wanted = self.expected[rounds]
        np.testing.assert_allclose(state.weights.point[1], [wanted.bias] * 2, rtol=1e-4, atol=1e-5)
        # Each client of the federation has a row with its number of rounds.
        assert times_of(state) == {k: wanted.times.get(k, 0) for k in range(NUM_CLIENTS)}

    @stateful.rule(more=st.integers(2, 4), later=st.integers(1, 3))
    def is_killed(self, more, later):
        rounds = min(self.saved + more, MOST_ROUNDS)
        if self.saved + later >= min(rounds + 1, len(self.expected)):
            return

        def kill(row):
            if row["round"] == self.saved + later:
                raise Killed

        with pytest.raises(Killed):
            self.simulate(rounds, on_round=kill)
        self.went_on(self.saved + later)

    @stateful.precondition(lambda self: len(self.checkpoints()) > 1)
    @stateful.rule(what=st.sampled_from([".index", ".json", ".sha256", ".data-00000-of-00001"]), cut=st.booleans())
    def newest_is_damaged(self, what, cut):
        path = self.checkpoints()[-1] + what
        self.damaged.add(self.saved)
        with open(path, "r+b") as file:
            content = file.read()
            file.seek(0)
            file.write(content[: len(content) // 2] if cut else content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
            file.truncate()
        self.saved = int(self.checkpoints()[-1].rsplit("_", 1)[1])

    @stateful.precondition(lambda self: self.saved and self.checkpoints())
    @stateful.rule()
    def newest_is_poisoned(self):
        """A sound file of a state that is not."""
        with open(self.checkpoints()[-1] + ".json") as file:
            description = json.load(file)["description"]
        store = Checkpoints(self.folder.name, description)
        first = process().local.initialize()._replace(seed=np.int32(SEED))
        state, record = store.latest(first, process().state_spec)
        kernel, bias = state.weights.point
        poisoned = state.weights._replace(point=(kernel, bias * np.nan))
        store.save(state._replace(round=np.int32(self.saved + 1), weights=poisoned), record)
        self.damaged.add(self.saved + 1)

    @stateful.precondition(lambda self: self.checkpoints())
    @stateful.rule(wrong=st.sampled_from(["seed", "clients", "cohort"]))
    def is_asked_for_another_run(self, wrong):
        clients = self.clients.split(NUM_CLIENTS - 1)[0] if wrong == "clients" else self.clients
        size = 2 if wrong == "cohort" else self.cohort_size
        with pytest.raises(InvalidArgument, match="choose another folder"):
            federated.simulate(
                process(), clients, MOST_ROUNDS, size, dropout=DROPOUT, checkpoint_dir=self.folder.name,
                seed=7 if wrong == "seed" else None, engine="local",
            )  # fmt: skip

    @stateful.invariant()
    def what_is_saved_is_sound_and_is_of_a_round_that_was(self):
        if not getattr(self, "folder", None) or not self.checkpoints():
            return
        with open(self.checkpoints()[0] + ".json") as file:
            description = json.load(file)["description"]
        first = process().local.initialize()._replace(seed=np.int32(SEED))
        found = Checkpoints(self.folder.name, description).latest(first, process().state_spec)
        assert int(found.state.round) == self.saved == len(found.record.rows)
        self.agrees(found.state, self.saved)

    def teardown(self):
        if getattr(self, "folder", None):
            self.folder.cleanup()


class Membership(stateful.RuleBasedStateMachine):
    """A loop by hand over whoever is there: clients join, leave and come again, some uninvited, some not finite."""

    members = st.sets(st.integers(0, NUM_CLIENTS - 1), min_size=1)

    @stateful.initialize(table=st.integers(0, 2**16), first=members)
    def begin(self, table, first):
        self.table = np.random.default_rng(table).choice([HONEST, NAN], (NUM_CLIENTS, MOST_ROUNDS), p=[0.8, 0.2])
        self.clients = federation(self.table)
        self.state, self.bias, self.times, self.done = process().local.initialize(), 0.0, {}, 0
        self.join(first)

    @stateful.rule(who=members)
    def join(self, who):
        """Who was there before keeps the row that it had."""
        self.state = process().with_clients(self.state, sorted(who), self.clients.sizes[sorted(who)])
        self.times = {**dict.fromkeys(who, 0), **self.times}

    @stateful.rule(present=members)
    def meet(self, present):
        kinds = {k: int(self.table[k, self.done]) for k in present}
        sound = [k for k in present if k in self.times and kinds[k] == HONEST]
        if not sound:
            return
        outcome = process().local.next(self.state, [self.clients.dataset(k) for k in sorted(present)])
        self.state, self.done = outcome.state, self.done + 1
        self.bias += float(np.mean([0.5 * (k / 4.0 - self.bias) for k in sound]))
        self.times.update({k: self.times[k] + 1 for k in sound})
        assert outcome.metrics["num_clients"] == len(present)
        assert outcome.metrics["num_faulty"] == len(present) - len(sound)

    @stateful.rule()
    def stop_and_go_on(self):
        with tempfile.TemporaryDirectory() as folder:
            store = Checkpoints(folder, {"library": "made"})
            store.save(self.state, Record())
            first = process().local.initialize()._replace(seed=self.state.seed)
            self.state = Checkpoints(folder, {"library": "made"}).latest(first, process().state_spec).state

    @stateful.invariant()
    def the_server_and_each_row_are_as_they_must_be(self):
        if not hasattr(self, "state"):
            return
        np.testing.assert_allclose(self.state.weights.point[1], [self.bias] * 2, rtol=1e-5, atol=1e-6)
        assert times_of(self.state) == self.times


def times_of(state):
    """How often each client that has a row has come, as its row says."""
    return dict(zip(np.asarray(state.memory.client).tolist(), np.asarray(state.memory.rows).tolist()))


def check(examples, machine=Run):
    logging.getLogger("tfp_bfl").setLevel(logging.CRITICAL)
    settings = hypothesis.settings(
        max_examples=examples,
        stateful_step_count=10,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(hypothesis.Phase.generate,),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    try:
        stateful.run_state_machine_as_test(machine, settings=settings)
    finally:
        logging.getLogger("tfp_bfl").setLevel(logging.NOTSET)


def test_some_sequences():
    check(3)


def test_clients_join_and_leave():
    check(8, Membership)


@pytest.mark.deep(after="tests/federated/test_model_based.py")
@pytest.mark.long
def test_many_sequences():
    check(20)
    check(60, Membership)
