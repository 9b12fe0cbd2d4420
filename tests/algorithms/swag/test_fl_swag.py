"""Rounds that keep each client's posterior: checkpoints that grow, faulty clients, and what clients are sent."""

import functools
import logging

import numpy as np
import pytest
import tensorflow as tf

from tests import kit
from tests.federated.test_checkpoints import assert_identical, names
from tfp_bfl import algorithms, federated, models, posterior, rules
from tfp_bfl.algorithms.swag.product import gaussian_product
from tfp_bfl.algorithms.swag.step import online_product
from tfp_bfl.data import Clients, Source, cohort
from tfp_bfl.errors import Error, InvalidArgument
from tfp_bfl.federated.checkpoints import Checkpoints
from tfp_bfl.federated.faults import FAULTS
from tfp_bfl.posterior import LowRank, MeanField, Spread
from tfp_bfl.weights import ClientPosterior, ClientResult, TrainingMetrics

assert_same = functools.partial(kit.assert_same, rtol=1e-06)

SIZES = (12, 15, 10, 5, 11, 14)
ENDS = np.cumsum(SIZES)
RNG = np.random.default_rng(0)
LABELS = RNG.integers(2, size=sum(SIZES)).astype(np.int32)
FEATURES = (RNG.normal(size=[sum(SIZES), 2]) + 2 * LABELS[:, None]).astype(np.float32)
SOURCE = Source("made", "train", FEATURES, LABELS, ("no", "yes"))
CLIENTS = Clients(SOURCE, [np.arange(end - size, end) for size, end in zip(SIZES, ENDS)])
SMALL = 3  # The client with five examples.
LARGE = Clients(SOURCE, [part for k, part in enumerate(CLIENTS.indices) if k != SMALL])
ROWS = 3


def model_fn():
    return models.mlp("deterministic", input_shape=(2,), hidden=())


@functools.cache
def build(max_columns=ROWS, **options):
    options = {"local_epochs": 4, "batch_size": 4, "learning_rate": 0.3, **options}
    return algorithms.fl_swag(model_fn, max_columns=max_columns, **options)


pytestmark = pytest.mark.usefixtures("runtime")


@pytest.fixture
def simulate(runtime):
    return functools.partial(federated.simulate, build(), LARGE, cohort_size=2, seed=3, runtime=runtime)


def run_round(process, cohort, state=None):
    return process.next(process.initialize() if state is None else state, [CLIENTS.dataset(k) for k in cohort])


@pytest.mark.deep(after="tests/algorithms/swag/test_fl_swag.py")
def test_a_run_whose_state_grows_goes_on_as_if_it_had_never_stopped(simulate, tmp_path):
    """Two clients a round: each round may bring new ones, and old ones again."""
    cohorts = [set(cohort(5, 2, number, 3).tolist()) for number in (1, 2, 3)]
    present = [sorted(set().union(*cohorts[:number])) for number in (1, 2, 3)]
    assert len({len(clients) for clients in present}) > 1 and len(present[2]) < 6
    whole = simulate(3)
    for number in (1, 2, 3):
        result = simulate(number, checkpoint_dir=tmp_path)
        assert result.state.step.client.tolist() == present[number - 1]
        assert len(result.rounds) == number
    assert_identical(result.state, whole.state)
    # Standard deviations are reported after the last of the three rounds.
    told = lambda rows: [{name: x for name, x in row.items() if name not in Spread._fields} for row in rows]
    assert told(kit.without_times(result.rounds)) == told(kit.without_times(whole.rounds))
    assert kit.without_times(result.rounds)[-1] == kit.without_times(whole.rounds)[-1]
    assert_identical(build().predictive_weights(result.state), build().predictive_weights(whole.state))
    again = simulate(3, checkpoint_dir=tmp_path, on_round=lambda row: pytest.fail("a round"))
    assert_identical(again.state, whole.state)


def test_grown_states_are_read_where_their_axes_may_grow(simulate, tmp_path):
    state = simulate(1, checkpoint_dir=tmp_path).state
    process = build()
    first = process.initialize()._replace(seed=np.int32(3))
    checkpoints = Checkpoints(tmp_path, {})
    found = checkpoints.latest(first, process.state_spec).state
    assert type(found) is type(first) and type(found.step) is type(first.step)
    assert_identical(found, state)
    with pytest.raises(InvalidArgument, match=r"Every checkpoint in .* is damaged"):
        checkpoints.latest(first)


@pytest.mark.parametrize(
    "part", [".data-00000-of-00001", pytest.param(".index", marks=pytest.mark.deep(after="test_checkpoints.py"))]
)
def test_a_damaged_checkpoint_of_a_grown_state_is_named_and_the_one_before_it_is_used(simulate, tmp_path, part, caplog):
    wanted = simulate(3, checkpoint_dir=tmp_path).state
    path = tmp_path / f"round_3{part}"
    path.write_bytes(path.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING, logger="tfp_bfl"):
        assert_identical(simulate(3, checkpoint_dir=tmp_path).state, wanted)
    assert len([r for r in caplog.records if "round_3 is damaged (" in r.getMessage()]) == 1


def test_checkpoints_with_posteriors_of_other_shapes_are_of_another_run(simulate, runtime, tmp_path):
    simulate(1, checkpoint_dir=tmp_path)
    before = names(tmp_path)
    with pytest.raises(
        InvalidArgument, match=r"are of a run that differs in server state, '8 tensors .*; this run has 8 tensors"
    ):
        federated.simulate(build(ROWS + 1), LARGE, 2, 2, seed=3, runtime=runtime, checkpoint_dir=tmp_path)
    assert names(tmp_path) == before


def test_small_clients_are_refused_by_number_before_any_work(runtime, tmp_path):
    with pytest.raises(InvalidArgument, match=r"Client 3 has 5 examples, but each must have at least 10 here \(too few "
                                              r"have 1 of 6\): give it more, or leave it out\."):  # fmt: skip
        federated.simulate(build(), CLIENTS, 1, runtime=runtime, checkpoint_dir=tmp_path / "states")
    assert not (tmp_path / "states").exists()


def test_the_fewest_examples_are_those_that_give_two_columns():
    assert build().min_examples == 10
    assert build(min_examples=11).min_examples == 11
    # Of 2 steps an epoch, 2 epochs after the burn-in collect one each.
    assert build(min_examples=1, collect_every=4).min_examples == 4 * 3 + 1


@pytest.mark.parametrize("min_examples", [0, 2.5, True])
def test_min_examples_must_be_a_number_of_them(min_examples):
    with pytest.raises(InvalidArgument, match=f"min_examples is {min_examples}, but must be an integer of at least 1"):
        algorithms.fl_swag(model_fn, min_examples=min_examples)


def test_a_client_with_too_few_examples_is_left_out_and_named_by_the_round():
    output, without = (run_round(build(), clients) for clients in ((0, 2, SMALL), (0, 2)))
    report = output.metrics["clients"]
    assert [FAULTS[code] for code in report["fault"]] == ["", "", "fewer examples than min_examples"]
    assert report["num_examples"].tolist() == [12, 10, 5] and output.metrics["num_examples"] == 22
    assert_identical(output.state, without.state)


def gaussian(*shapes, dtype=np.float32):
    return MeanField(*(tuple(np.full(shape, x, dtype) for shape in shapes) for x in (0, 1)))


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        (gaussian([2, 2]), r"prior must be over .*, float32 \[2, 2\], float32 \[2\], but is over float32 \[2, 2\]\."),
        (gaussian([2, 3], [2]), r"but is over float32 \[2, 3\], float32 \[2\]\."),
        (gaussian([2, 2], [2], dtype=np.float64), r"but is over float64 \[2, 2\], float64 \[2\]\."),
        (MeanField(*map(list, gaussian([2, 2], [2]))), "must be over a tuple of the weights"),
        (gaussian([2, 2], [2])._replace(variance=(np.zeros([2, 2], np.float32),) * 2), "prior needs mean"),
        (LowRank(*[(np.ones([2, 2], np.float32),)] * 3), "prior must be a MeanField, not LowRank"),
    ],
)
def test_a_prior_over_other_weights_is_refused_when_the_process_is_built(prior, message):
    for given in (prior, tf.nest.map_structure(tf.constant, prior)):
        with pytest.raises(InvalidArgument, match=message):
            algorithms.fl_swag(model_fn, prior=given)


POISON = {
    "sound": "",
    "NaN mean": "not finite",
    "infinite deviations": "not finite",
    "NaN moments": "not finite",
    "zero diagonal": "variance zero or below",
    "negative diagonal": "variance zero or below",
    "few examples": "fewer examples than min_examples",
    "raises": "client raises on purpose",
}
BAD = [what for what in POISON if what not in ("sound", "raises")]
CODES = {what: code for code, what in enumerate(POISON)}


def normalized_fn():
    inputs = tf.keras.Input((2,))
    return tf.keras.Model(inputs, tf.keras.layers.Dense(2)(tf.keras.layers.BatchNormalization()(inputs)))


def arithmetic_work(message, examples, seed):
    """Narrow posteriors about the weights plus the client's number; the first feature says what is wrong with it."""
    code, number = tf.cast(examples.features[0, 0], tf.int32), examples.client[0]
    fine = tf.debugging.assert_none_equal(code, CODES["raises"], message="client raises on purpose")
    with tf.control_dependencies([fine]):
        scale = 1 + tf.cast(number, tf.float32)
    each = tf.nest.map_structure
    parts = {
        "mean": each(lambda x: x + scale, message.weights.point),
        "diagonal": each(lambda x: tf.fill(x.shape, 0.01 * scale), message.weights.point),
        "deviations": each(lambda x: tf.stack([0 * x + 0.1, 0 * x - 0.2 * scale, 0 * x]), message.weights.point),
        "moments": each(lambda x: (x + 1) * scale, message.weights.moments),
    }
    count = tf.where(tf.equal(code, CODES["few examples"]), 4, tf.shape(examples.labels)[0])
    for what in BAD:
        amount, part = what.split()
        value = {"NaN": np.nan, "infinite": np.inf, "zero": 0.0, "negative": -1e-9}.get(amount)
        if value is not None:
            hit = tf.equal(code, CODES[what])
            parts[part] = each(lambda x, hit=hit, value=value: tf.where(hit, np.float32(value), x), parts[part])
    moments = parts.pop("moments")
    local = ClientPosterior(number, count, LowRank(**parts), moments)
    return ClientResult(local, count, TrainingMetrics(scale, 0 * scale, -scale))


@functools.cache
def arithmetic():
    return federated.build_process(
        normalized_fn,
        client_work=lambda: arithmetic_work,
        weigh=lambda local, anchor, num_examples: tf.constant(1.0),
        rule=rules.stacked(),
        server_step=online_product(4, ROWS),
        min_examples=5,
    )


def clients_with(bad=None):
    """The clients, some of them with what is wrong with them."""
    features = np.zeros_like(FEATURES)
    for k, what in (bad or {}).items():
        features[CLIENTS.indices[k]] = CODES[what]
    return Clients(Source("made", "train", features, LABELS, SOURCE.class_names), CLIENTS.indices)


def round_of(shares, bad=None, state=None):
    """A round of arithmetic clients, each in a dataset of its own unless some are given together."""
    process, clients = arithmetic(), clients_with(bad)
    data = [clients.dataset(*np.atleast_1d(k)) for k in shares]
    return process.next(process.initialize() if state is None else state, data)


def product(step, *options):
    sent = [tf.nest.map_structure(lambda x, k=k: x[k], step.posterior) for k in range(len(step.client))]
    return gaussian_product(sent, None, *options)


@pytest.mark.parametrize("options, diagonal_only, between_clients", [
    ({}, True, True),
    ({"between_clients": False}, True, False),
    ({"diagonal_only": False}, False, True),
    ({"diagonal_only": False, "between_clients": False}, False, False),
])  # fmt: skip
def test_the_default_prediction_is_the_product_of_the_marginals_with_random_effects(
    options, diagonal_only, between_clients
):
    process = build(curvature=False, **options)  # With it these few examples leave clients nothing to differ by.
    state = run_round(process, (0, 2, 5)).state
    pooled = process.predictive_weights(state).posterior
    assert_same(pooled, product(state.step, diagonal_only, between_clients))
    exact = posterior.marginals(product(state.step))
    assert options == {"diagonal_only": False, "between_clients": False} or not all(
        np.allclose(a, b, rtol=1e-3) for a, b in zip(posterior.marginals(pooled).variance, exact.variance)
    )


def named(metrics):
    report = metrics["clients"]
    return {k: FAULTS[code] for k, code in zip(report["client"].tolist(), report["fault"].tolist()) if code}


@pytest.mark.deep(after="tests/federated/test_faults.py")
@pytest.mark.parametrize("what", BAD)
def test_a_faulty_client_is_left_out_and_named_and_the_product_is_that_of_the_others(what):
    """Between two that are sound, in one dataset with them, and alone after them."""
    without = round_of((0, 5))
    for shares in ((0, 2, 5), ((0, 2, 5),), ((2, 0), 5)):
        output = round_of(shares, {2: what})
        assert named(output.metrics) == {2: POISON[what]}
        assert (output.metrics["num_faulty"], output.metrics["num_examples"]) == (1, SIZES[0] + SIZES[5])
        assert_identical(output.state, without.state)
        wanted = product(without.state.step, True, True)
        assert_identical(arithmetic().predictive_weights(output.state).posterior, wanted)
    alone = round_of((2,), {2: what}, without.state)
    assert named(alone.metrics) == {2: POISON[what]}
    assert_identical(alone.state._replace(round=without.state.round), without.state)
    assert round_of((0, 2, 5)).state.step.client.tolist() == [0, 2, 5]


@pytest.mark.deep(after="tests/algorithms/swag/test_fl_swag.py")
def test_a_client_that_comes_again_and_is_faulty_keeps_its_old_posterior():
    state = round_of((1, 2, 4)).state
    output = round_of((2, 5), {2: "NaN mean"}, state)
    assert output.state.step.client.tolist() == [1, 2, 4, 5]
    assert_identical(tf.nest.map_structure(lambda x: x[:3], output.state.step), state.step)


def test_where_nobody_is_sound_the_state_stays_as_it_was(runtime, tmp_path):
    process, bad = arithmetic(), {0: "NaN mean", 1: "zero diagonal"}
    first = process.initialize()
    empty = round_of((0, 1), bad).state
    assert_identical(empty._replace(round=first.round), first)
    assert_identical(process.predictive_weights(empty), first.weights)
    clients = clients_with(bad)
    two = Clients(clients.source, clients.indices[:2])
    with pytest.raises(
        Error, match="No training succeeded in round 1, in 1 attempt: every client was faulty: client 0: n"
    ):
        federated.simulate(process, two, 1, runtime=runtime, checkpoint_dir=tmp_path / "states")
    assert not (tmp_path / "states").exists()


def blocks_of(block):
    yield block
    for child in block.children():
        yield from blocks_of(child)


def test_clients_are_sent_nothing_of_the_other_clients_posteriors():
    """What is broadcast is the weights, which round of which run it is, and how large the federation."""
    process = build()
    state = run_round(process, (0, 1)).state
    assert state.step.client.tolist() == [0, 1]
    sent = process.round.broadcast(tf.nest.map_structure(tf.constant, state))
    told = [state.seed, *tf.nest.flatten(state.weights), state.round, *state.federation]
    assert_identical(tf.nest.flatten(sent), told)


@pytest.mark.deep(after="tests/algorithms/swag/test_fl_swag.py")
def test_tff_sends_the_broadcast_and_nothing_else():
    tff = pytest.importorskip("tensorflow_federated")
    blocks = blocks_of(build().learning_process.next.to_building_block())
    intrinsics = [b for b in blocks if isinstance(b, tff.framework.Intrinsic)]
    (broadcast,) = [b for b in intrinsics if b.uri == tff.framework.FEDERATED_BROADCAST.uri]
    open_ended = lambda t: isinstance(t, tff.types.TensorType) and not tff.types.is_shape_fully_defined(t.shape)
    assert tff.types.count(broadcast.type_signature.parameter.member, open_ended) == 0
    uris = {b.uri for b in intrinsics if "clients" in b.uri or "broadcast" in b.uri}
    assert uris == {"federated_broadcast", "federated_zip_at_clients"}


def test_what_a_client_sends_does_not_depend_on_those_who_came_before():
    alone = run_round(build(), (2,)).state.step
    state = run_round(build(), (0, 1)).state._replace(round=np.int32(0))
    later = run_round(build(), (2,), state).state.step
    assert_identical(tf.nest.map_structure(lambda x: x[2:], later), alone)
