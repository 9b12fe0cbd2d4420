"""Rounds that keep each client's posterior: checkpoints that grow, faulty clients, and what clients are sent."""

import functools
import logging

import numpy as np
import pytest
import tensorflow as tf

from tests import kit
from tests.federated.test_checkpoints import assert_identical, names
from tfp_bfl import algorithms, federated, models, posterior
from tfp_bfl.algorithms.swag.product import gaussian_product
from tfp_bfl.data import Clients, Source
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.federated.checkpoints import Checkpoints
from tfp_bfl.federated.faults import FAULTS
from tfp_bfl.posterior import LowRank, MeanField

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


def test_grown_states_are_read_where_their_axes_may_grow(simulate, tmp_path):
    state = simulate(1, checkpoint_dir=tmp_path).state
    process = build()
    first = process.initialize()._replace(seed=np.int32(3))
    checkpoints = Checkpoints(tmp_path, {})
    found = checkpoints.latest(first, process.state_spec).state
    assert type(found) is type(first) and type(found.step) is type(first.step)
    assert_identical(found, state)
    kit.refuses(r"Every checkpoint in .* is damaged", checkpoints.latest, first)


@pytest.mark.parametrize(
    "part",
    [
        ".data-00000-of-00001",
        pytest.param(".index", marks=pytest.mark.deep(after="tests/federated/test_checkpoints.py")),
    ],
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
    with pytest.raises(InvalidArgument, match="are of a run that differs in max_columns, '3'; this run has 4: "):
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
        kit.refuses(message, algorithms.fl_swag, model_fn, prior=given)


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
