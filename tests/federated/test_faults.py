"""Clients that send what can't be pooled are left out, counted and named, by every rule."""

import functools
import logging

import numpy as np
import pytest
import tensorflow as tf

from tests import kit
from tests.federated.toys import spoilt
from tests.rules.forms import CONTRACT
from tfp_bfl import federated, models, rules, servers
from tfp_bfl.data import ClientExamples, Clients, Source, answering, cohort
from tfp_bfl.errors import ComputationError, Error
from tfp_bfl.federated.faults import FAULTS, Limits, find_fault, is_sound
from tfp_bfl.posterior import LowRank, MeanField
from tfp_bfl.weights import ClientResult, ModelWeights, TrainingMetrics

assert_same = functools.partial(kit.assert_same, rtol=1e-06)

NUM_CLIENTS = 10
FEATURES = np.arange(4 * NUM_CLIENTS, dtype=np.float32).reshape(-1, 2) / 40
SOURCE = Source("made", "train", FEATURES, np.arange(2 * NUM_CLIENTS, dtype=np.int32) % 2, ("no", "yes"))
CLIENTS = Clients(SOURCE, [np.array([2 * k, 2 * k + 1]) for k in range(NUM_CLIENTS)])
SOUND = (0, 8, 9)
FLOOR = 1e-5
POISON = {
    1: (np.nan, "not finite"),
    2: (np.inf, "not finite"),
    3: (0.0, "variance zero or below"),
    4: (-1.0, "variance zero or below"),
    5: (1e4, "change beyond max_change_norm"),
    6: (None, "no examples"),
    7: (None, "client raises on purpose"),
}


def model_fn():
    return models.mlp("flipout", input_shape=(2,), hidden=(), initial_stddev=0.1)


def poisoned(raising, bad=(1, 2, 3, 4, 5)):
    """Arithmetic client work; some clients send something bad, those of `raising` raise."""

    def work(message, examples, seed):
        client = tf.reduce_max(examples.client)
        q, amount = message.weights.posterior, tf.reduce_sum(examples.features)
        value = lambda k: tf.cast(POISON[k][0], tf.float32)
        mean_factor, variance_factor = tf.constant(1.0), 1 / (1 + tf.cast(client, tf.float32))
        for k in {1, 2, 5} & {*bad}:
            mean_factor = tf.where(tf.equal(client, k), value(k), mean_factor)
        for k in {3, 4} & {*bad}:
            variance_factor = tf.where(tf.equal(client, k), value(k), variance_factor)
        raises = tf.reduce_any([tf.equal(client, k) for k in raising]) if raising else tf.constant(False)
        with tf.control_dependencies([tf.debugging.assert_equal(raises, False, "client raises on purpose")]):
            amount = tf.identity(amount)
        mean = tf.nest.map_structure(lambda m: (m + amount) * mean_factor, q.mean)
        variance = tf.nest.map_structure(lambda v: v * variance_factor, q.variance)
        point = tf.nest.map_structure(lambda p: p + amount, message.weights.point)
        weights = ModelWeights(MeanField(mean, variance), point, message.weights.moments)
        return ClientResult(weights, tf.shape(examples.labels)[0], TrainingMetrics(amount, amount, -amount))

    return work


@functools.cache
def build(rule="naive_weighted_average", raising=(7,), **options):
    return federated.build_process(
        model_fn,
        client_work=lambda: poisoned(raising, **options),
        weigh=lambda local, anchor, num_examples: tf.constant(1.0),
        rule=rules.whole_model(rules.parse_rule(rule)),
        server_step=servers.replace(),
        limits=Limits(max_change_norm=100.0),
    )


def empty_client(number):
    spec = CLIENTS.element_spec
    numbers = tf.data.Dataset.from_tensors(tf.constant([number], tf.int32))
    ends = lambda x, n: tf.zeros([n, *x.shape[1:]], x.dtype)
    return numbers.map(lambda n: ClientExamples(n[: n[0] + 1], *(ends(x, 0 * n[0]) for x in spec[1:])))


pytestmark = pytest.mark.usefixtures("runtime")


@pytest.mark.deep(after="tests/federated/test_faults.py")
@pytest.mark.parametrize("rule", CONTRACT)
def test_each_poison_is_left_out_and_named(rule):
    """What is pooled is what the sound clients alone would give; one bad client at a time, and all at once."""
    process = build(rule)
    state = process.initialize()
    data = {k: CLIENTS.dataset(k) for k in range(NUM_CLIENTS)} | {6: empty_client(6)}
    wanted = process.next(state, [data[k] for k in SOUND])
    quiet = [k for k in POISON if k != 7]
    for bad in (*[(k,) for k in quiet], tuple(quiet)):
        output = process.next(state, [data[k] for k in sorted((*SOUND, *bad))])
        report = output.metrics["clients"]
        named = {k: FAULTS[code] for k, code in zip(report["client"], report["fault"]) if code}
        assert named == {k: POISON[k][1] for k in bad}
        assert output.metrics["num_faulty"] == len(bad)
        assert_same(output.state.weights, wanted.state.weights)
        assert_same([output.metrics[name] for name in ("nll", "kl", "num_examples")],
                    [wanted.metrics[name] for name in ("nll", "kl", "num_examples")])  # fmt: skip


@pytest.mark.parametrize("rule", ["naive_weighted_average", "conflation"])
@pytest.mark.deep(after="tests/federated/test_faults.py")
def test_clients_that_raise_are_found_and_left_out(rule, runtime, caplog):
    process = build(rule)
    with pytest.raises(ComputationError, match=r"A computation failed: .*client raises on purpose"):
        process.next(process.initialize(), [CLIENTS.dataset(k) for k in range(NUM_CLIENTS)])
    with caplog.at_level(logging.WARNING, logger="tfp_bfl"):
        result = federated.simulate(process, CLIENTS, 1, runtime=runtime)
    (row,) = result.rounds
    assert list(row["faulty_clients"]) == ["1", "2", "3", "4", "5", "7"]
    assert all(POISON[k][1] in row["faulty_clients"][str(k)] for k in (1, 2, 3, 4, 5, 7))
    assert (row["num_clients"], row["num_faulty"]) == (10, 6)
    assert "Round 1 continues without faulty clients: client 1: not finite; client 2: not finite" in caplog.text
    wanted = process.next(process.initialize(), [CLIENTS.dataset(k) for k in (*SOUND, 6)])
    assert_same(result.state.weights, wanted.state.weights)


def first(number):
    return Clients(SOURCE, CLIENTS.indices[:number])


def test_a_round_without_a_sound_client_is_tried_again_with_another_cohort(runtime, caplog):
    """Only client 0 is sound, and a cohort without it is drawn anew."""
    seeds = [s for s in range(40) if set(cohort(3, 2, 1, s)) == {1, 2} and 0 in cohort(3, 2, 1, s, 1)]
    result = federated.simulate(build(), first(3), 1, cohort_size=2, seed=seeds[0], runtime=runtime)
    (row,) = result.rounds
    assert row["retries"] == 1 and row["num_faulty"] < row["num_clients"] == 2
    assert "Attempt 1 at round 1 failed: every client was faulty: client 1: not finite" in caplog.text


@pytest.mark.parametrize(
    ("options", "attempts"),
    [({}, 1), ({"cohort_size": 2}, 4), ({"cohort_size": 2, "max_retries": 1}, 2), ({"max_retries": 0}, 1)],
)
def test_the_run_stops_where_nobody_is_ever_sound(runtime, tmp_path, monkeypatch, options, attempts):
    """Three rounds are sound, the fourth is not: the state of the third is on the disk, whatever is saved when."""
    monkeypatch.setattr(Clients, "description", "the same clients")  # Else a resumed run refuses other features.
    clients, process = first(3), build(raising=(), bad=())
    federated.simulate(process, clients, 3, runtime=runtime, checkpoint_dir=tmp_path, checkpoint_every=2, **options)
    features = np.full_like(FEATURES, np.nan)
    spoiled = Clients(spoilt(SOURCE, features), clients.indices)
    with pytest.raises(Error, match=f"succeeded in round 4, in {attempts} attempt.*: every client was faulty"):
        federated.simulate(process, spoiled, 5, runtime=runtime, checkpoint_dir=tmp_path, **options)
    assert (tmp_path / "round_3.sha256").exists() and not (tmp_path / "round_4.sha256").exists()


def test_the_last_round_is_saved_when_the_next_one_fails(runtime, tmp_path):
    rows = []

    def evaluate(model):
        if len(rows) == 3:
            raise RuntimeError("this is expected")
        return {}

    with pytest.raises(RuntimeError, match="this is expected"):
        federated.simulate(build(), CLIENTS, 9, runtime=runtime, checkpoint_dir=tmp_path, checkpoint_every=5,
                           evaluate=evaluate, on_round=rows.append)  # fmt: skip
    assert [path.name for path in tmp_path.glob("*.sha256")] == ["round_3.sha256"]


def test_clients_that_do_not_answer_count_for_nothing(runtime):
    clients, process = CLIENTS, build(raising=(), bad=())
    result = federated.simulate(process, clients, 3, seed=5, dropout=0.4, runtime=runtime)
    begun = process.with_clients(process.initialize(), range(10), clients.sizes, 3)
    state = begun._replace(seed=np.int32(5))
    for number, row in enumerate(result.rounds, 1):
        present = answering(np.arange(10), 0.4, number, 5)
        assert (row["num_clients"], row["num_dropped"]) == (len(present), 10 - len(present))
        state = process.next(state, [clients.dataset(k) for k in present]).state
    assert_same(result.state, state, rtol=1e-5)
    assert len({row["num_clients"] for row in result.rounds}) > 1


def test_dropout_is_a_seeded_share_of_the_clients():
    """Of 100,000 draws: the share lies within 5 standard errors, 0.0073 (error rate 6e-7)."""
    chosen = np.arange(100_000)
    answer = answering(chosen, 0.3, 1, seed=0)
    assert abs(len(answer) / 1e5 - 0.7) < 0.0073
    np.testing.assert_array_equal(answer, answering(chosen, 0.3, 1, seed=0))
    assert set(answer) != set(answering(chosen, 0.3, 2, seed=0)) != set(answering(chosen, 0.3, 2, seed=1))
    some = chosen[::7]
    assert set(answering(some, 0.3, 1, seed=0)) == set(answer) & set(some)
    np.testing.assert_array_equal(answering(chosen, 0.0, 1, seed=0), chosen)


def result(mean=(0.0,), variance=(1.0,), point=(0.0,), moment=(0.0,), moving=(1.0,), count=1):
    leaf = lambda values: (tf.constant(values),)
    weights = ModelWeights(MeanField(leaf(mean), leaf(variance)), leaf(point), MeanField(leaf(moment), leaf(moving)))
    return ClientResult(weights, tf.constant(count), None)


@pytest.mark.parametrize(
    ("local", "weight", "fault"),
    [
        (result(), 1.0, ""),
        (result(mean=(np.nan,)), 1.0, "not finite"),
        (result(variance=(np.inf,)), 1.0, "not finite"),
        (result(point=(-np.inf,)), 1.0, "not finite"),
        (result(moment=(np.nan,)), 1.0, "not finite"),
        (result(variance=(0.0,)), 1.0, "variance zero or below"),
        (result(variance=(-1e-9,)), 1.0, "variance zero or below"),
        (result(), 0.0, "weight not above zero"),
        (result(), np.nan, "weight not above zero"),
        (result(mean=(np.nan,), variance=(0.0,)), -1.0, "not finite"),
        (result(mean=(np.nan,), count=0), 1.0, "no examples"),
        (result(mean=(1e20,)), 1.0, "a number beyond max_magnitude"),
        (result(mean=(-1.1e6,)), 1.0, "a number beyond max_magnitude"),
        (result(point=(3e38,)), 1.0, "a number beyond max_magnitude"),
        (result(variance=(1.1e12,)), 1.0, "a number beyond max_magnitude"),
        (result(variance=(9e11,)), 1.0, "change beyond max_change_norm"),
        (result(moment=(5.0,), moving=(1e-30,)), 1.0, "change beyond max_change_norm"),
        (result(moment=(1.1e9,)), 1.0, "a number beyond max_magnitude"),
        (result(variance=(1e-37,)), 1.0, "a standard deviation below min_stddev"),
        (result(variance=(0.24 * FLOOR**2,)), 1.0, "a standard deviation below min_stddev"),
        (result(variance=(0.26 * FLOOR**2,)), 1.0, "change beyond max_change_norm"),
        (result(count=8), 1.0, "more examples than it was given"),
        (result(count=7), 1.0, ""),
        (result(mean=(3.0,), point=(4.0,)), 1.0, ""),
        (result(mean=(3.0,), point=(4.1,)), 1.0, "change beyond max_change_norm"),
    ],
)
@pytest.mark.parametrize("how", ["eager", "function", "graph"])
def test_faults(local, weight, fault, how):
    limits = Limits(max_change_norm=5.0, min_stddev=FLOOR)

    def check():
        code = find_fault(local, result().weights, tf.constant(weight), limits, tf.constant(7))
        return code, is_sound(code)

    if how == "graph":  # As TFF traces: `==` on tensors is Python's identity here.
        values = [tf.nest.map_structure(lambda x: x.numpy(), (local.weights, local.num_examples)), result().weights]
        values[1] = tf.nest.map_structure(lambda x: x.numpy(), values[1])
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            (weights, count), anchor = tf.nest.map_structure(tf.constant, values)
            code = find_fault(ClientResult(weights, count, None), anchor, tf.constant(weight), limits, tf.constant(7))
            code, sound = session.run([code, is_sound(code)])
    else:
        code, sound = (tf.function(check) if how == "function" else check)()
    assert FAULTS[int(code)] == fault and bool(sound) is (fault == "")


def test_a_model_without_a_posterior_has_no_variance_to_check():
    none = MeanField((), ())
    weights = ModelWeights(none, (tf.constant([1.0]),), none)
    assert find_fault(ClientResult(weights, tf.constant(1), None), weights, tf.constant(1.0)) == 0


@pytest.mark.parametrize(
    ("diagonal", "deviation", "fault"),
    [
        *((0.1, 1.0, ""), (0.0, 1.0, "variance zero or below"), (-1e-9, 1.0, "variance zero or below")),
        *((0.1, np.inf, "not finite"), (0.1, 2e6, "a number beyond max_magnitude")),
    ],
)
def test_low_rank_posteriors(diagonal, deviation, fault):
    parts = (tf.zeros([2]),), (tf.fill([2], diagonal),), (tf.fill([3, 2], deviation),)
    weights = ModelWeights(LowRank(*parts), (), MeanField((), ()))
    code = find_fault(ClientResult(weights, tf.constant(1), None), weights, tf.constant(1.0))
    assert FAULTS[int(code)] == fault
