"""Rounds that XLA compiled are those of this process, but for draws of batches and noise."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tfp_bfl as bfl
from tests.algorithms.method import CLIENTS, begin, mlp
from tests.algorithms.methods import METHODS, assert_same
from tests.algorithms.test_contract import ALIKE, TRIED
from tests.kit import refuses, summary_of
from tfp_bfl.app.cli import run_command_line
from tfp_bfl.federated.compiled import MOST_SIZES
from tfp_bfl.tensors import traced_for_xla
from tfp_bfl.training.batches import over_batches, over_present

from . import toys

deep = pytest.mark.deep(after="tests/federated/test_local.py")
ADAM = bfl.servers.server_optimizer("adam", bfl.training.cosine_decay(0.01, 3, last=0))
# All examples are one batch and no weights are sampled, so that nothing is drawn.
DRAWLESS = {
    "fed_opt": functools.partial(bfl.algorithms.fed_opt, local_epochs=3, batch_size=32),
    "scaffold": functools.partial(bfl.algorithms.scaffold, local_epochs=2, batch_size=32),
    "fed_dyn": functools.partial(bfl.algorithms.fed_dyn, local_epochs=2, batch_size=32),
    "fed_nova": functools.partial(bfl.algorithms.fed_nova, local_epochs=2, batch_size=32, server_optimizer=ADAM),
}


def run(process, rounds=3, engine="compiled", clients=CLIENTS, **options):
    return bfl.simulate(process, clients, rounds, engine=engine, **options)


@pytest.mark.parametrize(
    "name", ["fed_opt", *(pytest.param(name, marks=deep) for name in DRAWLESS if name != "fed_opt")]
)
@pytest.mark.parametrize("cohort_size", [None, pytest.param(2, marks=deep)])
def test_rounds_are_those_of_this_process(name, cohort_size):
    """Clients of 9, 21 and 15 examples; what they keep between rounds among the state."""
    process = DRAWLESS[name](mlp("deterministic"))
    compiled, here = (run(process, engine=engine, cohort_size=cohort_size) for engine in ("compiled", "local"))
    assert_same(compiled.state, here.state, rtol=1e-4, atol=1e-6)
    for found, wanted in zip(compiled.rounds, here.rounds):
        assert found["num_examples"] == wanted["num_examples"] and found["faulty_clients"] == {}
        np.testing.assert_allclose(found["nll"], wanted["nll"], rtol=1e-4)


TELLING = "curvature, flipout"
# One of those that differ in one part alone: each compiles a round.
OTHERS = [name for name in TRIED if name not in ALIKE or name == "private, flipout"]
REFUSED = {
    "compressed, flipout": "XLA must know all shapes beforehand",
    "private examples, flipout": "batches of examples in private",
    "fed_be": r"XLA can't compile a round of this process \(No registered 'StatelessShuffle'\): use the engine local\.",
    "fed_kp, mean": r"XLA can't compile a round of this process \(must be a compile-time constant\)",
}


@pytest.mark.parametrize("name", [TELLING, *(pytest.param(name, marks=deep) for name in OTHERS)])
def test_a_round_of_every_method(name):
    """The same clients count with the same weights, and the server's weights move about as far."""
    process = METHODS[name]().build()
    first = begin(process)
    wanted = process.local.next(first, CLIENTS.shards(range(3), 2))
    found = process.compiled.next(first, CLIENTS.examples_by_part(range(3), 1))
    for field in ("client", "fault", "num_examples", "weight"):
        np.testing.assert_allclose(found.metrics["clients"][field], wanted.metrics["clients"][field], rtol=1e-5)
    assert sorted(found.metrics) == sorted(wanted.metrics) and found.state.round == 1
    moved = lambda state: np.sqrt(sum(np.sum((a - b) ** 2) for a, b in zip(*map(means, (state, first)))))
    far, near = moved(found.state), moved(wanted.state)
    assert far == near == 0 or 0.3 < far / near < 3


@pytest.mark.parametrize("name", [*(pytest.param(name, marks=deep) for name in REFUSED)])
def test_what_xla_can_not_compile_is_refused(name):
    process = METHODS[name]().build()
    refuses(REFUSED[name], lambda: process.compiled.next(begin(process), CLIENTS.examples_by_part(range(3), 1)))


def test_rounds_computed_ahead_are_those_computed_one_by_one(monkeypatch):
    """Run 5 rounds in calls that compute 1, 2 and 4; a state of another object makes the engine start again."""
    monkeypatch.setattr("tfp_bfl.federated.compiled.MOST_SECONDS", np.inf)
    process = bfl.algorithms.variational(mlp("flipout"), local_epochs=1, batch_size=16)
    process.compiled.expect(CLIENTS.sizes)
    datasets, on_one_core = (CLIENTS.examples_by_part(range(3), most) for most in (2, 1))
    one_by_one, in_a_row = begin(process), begin(process)
    for _ in range(5):
        one_by_one = process.compiled.next(tf.nest.map_structure(np.copy, one_by_one), on_one_core).state
    assert process.compiled._in_a_row == 1
    for _ in range(5):
        in_a_row = process.compiled.next(in_a_row, datasets).state
    assert process.compiled._in_a_row == 4
    assert_same(in_a_row, one_by_one, rtol=0, atol=0)


@deep
def test_long_calls_compute_no_more_rounds_than_before(monkeypatch):
    monkeypatch.setattr("tfp_bfl.federated.compiled.MOST_SECONDS", 0)
    process = DRAWLESS["fed_opt"](mlp("deterministic"))
    run(process, 4)
    assert process.compiled._in_a_row == 1


@deep
def test_a_run_is_resumed_to_the_bit(tmp_path):
    process = bfl.algorithms.variational(mlp("flipout"), local_epochs=1, batch_size=16)
    whole = run(process, 5)
    for rounds in (2, 5):
        resumed = run(process, rounds, checkpoint_dir=tmp_path)
    assert_same(resumed.state, whole.state, rtol=0, atol=0)


@deep
def test_rounds_computed_ahead_are_discarded_for_other_clients():
    """Give other clients of the same sizes in the third round: their rows count, and what was ready does not."""
    process = DRAWLESS["fed_opt"](mlp("deterministic"))
    source = bfl.data.load("breast_cancer")
    clients = bfl.data.Clients(source, np.split(np.arange(40), 4))
    wanted = found = begin(process)
    for chosen in ([0, 1], [0, 1], [2, 3], [0, 1]):
        found = process.compiled.next(found, clients.examples_by_part(chosen, 2)).state
        wanted = process.local.next(wanted, clients.shards(chosen, 2)).state
    assert_same(found, wanted, rtol=1e-4, atol=1e-6)


def large(monkeypatch):
    monkeypatch.setattr("tfp_bfl.federated.compiled.MOST_ALONE", 0)


@deep
@pytest.mark.parametrize(
    "make", [DRAWLESS["fed_opt"], DRAWLESS["scaffold"], functools.partial(bfl.algorithms.partitioned_vi, batch_size=32)]
)
def test_cores_share_the_clients_of_a_large_round(make, monkeypatch):
    """Compare the sum of cores, each with variables of its own, with that of one core, to its rounding."""
    process, again = (make(mlp("deterministic" if make in DRAWLESS.values() else "flipout")) for _ in range(2))
    alone = run(process, 3)
    large(monkeypatch)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(3))
    shared = run(again, 3)
    assert again.compiled.concurrent_calls == 3 and len(again.compiled._lanes) == 3
    assert_same(shared.state, alone.state, rtol=1e-4, atol=1e-6)
    assert [row["num_examples"] for row in shared.rounds] == [row["num_examples"] for row in alone.rounds]


SIZES = range(1, MOST_SIZES + 2)
MANY = bfl.data.Clients(bfl.data.load("breast_cancer"), [np.arange(e - n, e) for n, e in zip(SIZES, np.cumsum(SIZES))])
EQUAL = bfl.data.Clients(MANY.source, np.split(np.arange(70), 14))


@pytest.mark.parametrize(
    ("make", "clients"),
    [
        (DRAWLESS["fed_opt"], EQUAL),
        (DRAWLESS["fed_opt"], MANY),
        pytest.param(functools.partial(bfl.algorithms.partitioned_vi, batch_size=32), CLIENTS, marks=deep),
    ],
    ids=["one size", "filled up", "three sizes"],
)
def test_examples_of_a_large_round_are_read_in_blocks(make, clients, monkeypatch):
    """The sum of blocks, each of as many rows as the largest client has, is that of all at once, to its rounding."""
    large(monkeypatch)
    process, again = (make(mlp("deterministic" if make in DRAWLESS.values() else "flipout")) for _ in range(2))
    at_once = run(process, 2, clients=clients)
    row_bytes = 4 * (30 + 2)
    monkeypatch.setattr("tfp_bfl.federated.compiled.MOST_BYTES", row_bytes * int(clients.sizes.max()))
    found = run(again, 2, clients=clients)
    assert {len(blocks) for blocks in process.compiled._parts} == {1}
    assert max(len(blocks) for blocks in again.compiled._parts) > 1
    assert_same(found.state, at_once.state, rtol=1e-4, atol=1e-6)
    assert [row["num_examples"] for row in found.rounds] == [row["num_examples"] for row in at_once.rounds]


@deep
def test_one_client_on_several_cores(monkeypatch):
    large(monkeypatch)
    process = DRAWLESS["fed_opt"](mlp("deterministic"))
    found, wanted = (run(process, 2, engine, cohort_size=1) for engine in ("compiled", "local"))
    assert_same(found.state, wanted.state, rtol=1e-4, atol=1e-6)


def means(state):
    return [np.asarray(x, np.float64) for x in (*tf.nest.flatten(state.weights.posterior.mean), *state.weights.point)]


@pytest.mark.parametrize(("num_examples", "batch_size"), [(7, 3), (6, 3), (2, 3), (1, 1)])
def test_an_epoch_has_each_example_once_in_batches_of_that_size(num_examples, batch_size):
    numbers = tf.range(num_examples)
    examples = bfl.data.ClientExamples(0 * numbers, tf.cast(numbers, tf.float32)[:, tf.newaxis], numbers)

    @tf.function(autograph=False, jit_compile=True)
    def epochs(seed):
        """The epoch's rows in their order, and the size of each one's batch."""

        def step(state, features, labels, step_seed):
            rows, sizes, number = state
            places = number + tf.range(labels.shape[0])
            write = lambda x, values: tf.tensor_scatter_nd_update(x, places[:, tf.newaxis], values)
            size = labels.shape[0]
            return write(rows, labels), write(sizes, tf.fill([size], size)), number + size

        nothing = tf.fill([2 * num_examples], -1)
        with traced_for_xla():
            return over_batches(examples, seed, 2, batch_size, step, (nothing, nothing, tf.constant(0)))

    found = [epochs(tf.constant([1, k])) for k in range(200)]
    rows = np.array([x[0] for x in found]).reshape(400, num_examples)
    whole, rest = divmod(num_examples, batch_size)
    assert np.all(np.sort(rows, 1) == np.arange(num_examples))
    sizes = [batch_size] * (whole * batch_size) + [rest] * rest
    assert np.all(np.array([x[1] for x in found]).reshape(400, num_examples) == sizes)
    # Each example comes first about as often: 400 epochs, a chance of 1e-6 to be outside.
    share = np.bincount(rows[:, 0], minlength=num_examples) / 400
    assert np.all(np.abs(share - 1 / num_examples) < 5 * np.sqrt(1 / num_examples / 400))


def test_faulty_clients_are_left_out_with_the_reason():
    spoilt = toys.SOURCE.features.copy()
    spoilt[3:6] = np.nan
    clients = bfl.data.Clients(toys.spoilt(toys.SOURCE, spoilt), toys.CLIENTS.indices)
    found, wanted = (run(toys.process(), 2, engine, clients) for engine in ("compiled", "local"))
    assert [row["faulty_clients"] for row in found.rounds] == [row["faulty_clients"] for row in wanted.rounds]
    assert list(found.rounds[0]["faulty_clients"]) == ["1"]
    np.testing.assert_allclose(found.state.weights.point[1], wanted.state.weights.point[1], rtol=1e-5)


def test_clients_may_be_absent_and_what_they_keep_stays():
    counting = toys.process(toys.counting, memory=lambda weights, share: tf.zeros([]))
    found, wanted = (run(counting, 4, engine, toys.UNEQUAL, dropout=0.5) for engine in ("compiled", "local"))
    assert_same(found.state, wanted.state, rtol=1e-6, atol=1e-6)
    assert sum(row["num_dropped"] for row in found.rounds) > 0


@pytest.mark.parametrize("engines", [("local", "compiled"), ("compiled", "local")])
def test_a_run_is_resumed_by_the_other_engine(engines, tmp_path):
    process = DRAWLESS["fed_opt"](mlp("deterministic"))
    whole = run(process, 3, "local")
    for rounds, engine in zip((2, 3), engines):
        resumed = run(process, rounds, engine, checkpoint_dir=tmp_path)
    assert_same(resumed.state, whole.state, rtol=1e-4, atol=1e-6)


@deep
def test_the_posterior_is_that_of_the_engine_local():
    """Ten seeds each: the means of both engines agree within five standard errors of their difference."""
    clients = bfl.data.load("breast_cancer").partition(bfl.data.iid(3), seed=0).limit(40, seed=0)
    process = bfl.algorithms.variational(mlp("flipout"), local_epochs=1, batch_size=32)
    of = {
        engine: np.array([run(process, 4, engine, clients, seed=k).rounds[-1]["nll"] for k in range(10)])
        for engine in ("compiled", "local")
    }
    error = np.sqrt(sum(np.var(x, ddof=1) / 10 for x in of.values()))
    assert error > 0 and abs(of["compiled"].mean() - of["local"].mean()) < 5 * error


@pytest.mark.parametrize("batch_size", [16, 4])
def test_clients_of_many_sizes_are_filled_up(batch_size):
    """In batches of 4 it is drawn which row is in the last, smaller one."""
    process = bfl.algorithms.fed_opt(mlp("deterministic"), batch_size=batch_size, learning_rate=0.001, local_epochs=2)
    found, wanted = (run(process, 3, engine, MANY, cohort_size=5) for engine in ("compiled", "local"))
    drawless = batch_size == 16
    assert_same(found.state.weights, wanted.state.weights, rtol=1e-4, atol=1e-6 if drawless else 5e-3)
    for a, b in zip(found.rounds, wanted.rounds):
        assert a["num_examples"] == b["num_examples"] and a["num_faulty"] == 0
        np.testing.assert_allclose(a["nll"], b["nll"], rtol=1e-4 if drawless else 5e-3)


def test_rows_that_fill_clients_up_are_rows_of_theirs():
    """At zero the model has no derivative, and no example is there."""
    features = np.abs(MANY.source.features) + 1
    clients = bfl.data.Clients(bfl.data.Source("made", "train", features, MANY.source.labels), MANY.indices)

    def model_fn():
        inputs = tf.keras.Input((30,))
        return tf.keras.Model(inputs, tf.keras.layers.Dense(2)(tf.math.log(inputs)), name="logs")

    process = bfl.algorithms.fed_opt(model_fn, batch_size=16)
    found, wanted = (run(process, 2, engine, clients) for engine in ("compiled", "local"))
    assert [row["num_faulty"] for row in found.rounds] == [0, 0]
    assert_same(found.state.weights, wanted.state.weights, rtol=1e-4, atol=1e-6)


def test_rows_that_fill_clients_up_do_not_count():
    """An epoch of padded examples has each of the client's rows once, and in each batch only these."""
    size, number, batch_size = 11, 7, 3
    client = tf.constant([5] * number + [-1] * (size - number))
    examples = bfl.data.ClientExamples(client, tf.zeros([size, 1]), tf.range(size))

    @tf.function(autograph=False, jit_compile=True)
    def epochs(seed):
        def step(state, features, labels, step_seed, present):
            counts, sizes, i = state
            counts += tf.reduce_sum(tf.one_hot(labels, size) * tf.cast(present, tf.float32)[:, tf.newaxis], 0)
            taken = tf.math.count_nonzero(present, dtype=tf.int32)
            return counts, tf.tensor_scatter_nd_update(sizes, [[i]], [taken]), i + 1

        with traced_for_xla(padded=True):
            start = tf.zeros([size]), tf.zeros([8], tf.int32), tf.constant(0)
            return over_present(examples, seed, 2, batch_size, step, start)

    counts, sizes, steps = epochs(tf.constant([3, 4]))
    assert counts.numpy().tolist() == [2] * number + [0] * (size - number)
    assert sizes.numpy().tolist() == [3, 3, 1, 3, 3, 1, 0, 0] and steps == 6


@deep
def test_the_posterior_of_clients_of_many_sizes_is_that_of_the_engine_local():
    """As above for one size: five standard errors over ten seeds."""
    process = bfl.algorithms.variational(mlp("flipout"), local_epochs=1, batch_size=4)
    nll = lambda engine: np.array([run(process, 4, engine, MANY, seed=k).rounds[-1]["nll"] for k in range(10)])
    found, wanted = nll("compiled"), nll("local")
    assert abs(found.mean() - wanted.mean()) < 5 * np.sqrt((np.var(found, ddof=1) + np.var(wanted, ddof=1)) / 10)


def test_clients_of_many_sizes_are_refused_where_work_does_not_let_them_be_filled_up():
    message = r"at most 8 sizes for this algorithm and model, and these have 9, from 1 to 9 examples: use "
    refuses(message, run, bfl.algorithms.partitioned_vi(mlp("flipout")), 1, clients=MANY)


def test_batch_norm_takes_no_rows_that_fill_clients_up():
    def model_fn():
        return tf.keras.Sequential(
            [tf.keras.Input((30,)), tf.keras.layers.BatchNormalization(), tf.keras.layers.Dense(2)], name="normed"
        )

    process = bfl.algorithms.fed_opt(model_fn, batch_size=32)
    refuses("at most 8 sizes for this algorithm and model, and these have 9", run, process, 1, clients=MANY)
    found, wanted = (run(process, 2, engine) for engine in ("compiled", "local"))
    assert_same(found.state.weights, wanted.state.weights, rtol=1e-4, atol=1e-5)


def test_an_operation_without_a_kernel_of_xla_is_one_sentence():
    def work(message, examples, seed):
        order = tf.random.experimental.stateless_shuffle(tf.range(3), seed)
        result = toys.towards(message, examples, seed)
        return result._replace(num_examples=result.num_examples + 0 * order[0])

    message = r"XLA can't compile a round of this process \(No registered 'StatelessShuffle'\): use the engine local\."
    refuses(message, run, toys.process(work), 1, clients=toys.CLIENTS)


@deep
def test_the_command_line_has_it(tmp_path):
    arguments = ["run", "--engine", "compiled", "--dataset", "heart_disease", "--model", "mlp", "--rounds", "2"]
    assert run_command_line([*arguments, "--output", str(tmp_path / "run")]) == 0
    summary = summary_of(tmp_path / "run")
    assert summary["accuracy"] > 0.5 and "engine: compiled" in (tmp_path / "run" / "config.yaml").read_text()
