"""Robust aggregation in the whole round: client work, the weights, and the robust rule."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.federated.toys import spoilt
from tfp_bfl import algorithms, rules
from tfp_bfl.data import Clients
from tfp_bfl.federated import simulate
from tfp_bfl.weights import get_weights

from .method import CLIENTS, SEED, SOURCE, mlp
from .methods import ADAM, METRICS, assert_same, variational_result

# Of three clients trimmed keeps one and median the same; clip's bound is between their norms.
DEFENCES = ("clip:1.0", "trimmed:0.34", "median")
every_defence = pytest.mark.parametrize("defence", DEFENCES)


@functools.cache
def build(rule, defence, kind="flipout", weights="train_size"):
    make = mlp(kind)
    return algorithms.variational(make, rules.parse_rule(rule), weights, robust=defence, seed=SEED, **ADAM)


def pool_by_hand(rule, defence, kind="flipout", cohort=(0, 1, 2)):
    whole = rules.parse_robust(defence)(rules.whole_model(rules.parse_rule(rule)))
    whole = rules.gathered(whole) if isinstance(whole, rules.GatherRule) else whole
    anchor = get_weights(mlp(kind)())
    results = [variational_result(kind, k) for k in cohort]
    parts = [whole.summarise(r.weights, anchor, tf.cast(r.num_examples, tf.float32)) for r in results]
    total = functools.reduce(whole.merge, parts)
    return whole.pool(total, anchor)


def spoil(*clients):
    features = SOURCE.features.copy()
    for client in clients:
        features[CLIENTS.indices[client][0]] = np.nan
    return Clients(spoilt(SOURCE, features), CLIENTS.indices)


@pytest.mark.deep(after="tests/algorithms/test_pairs.py")
@pytest.mark.parametrize(
    ("rule", "defence", "kind"),
    [
        ("naive_weighted_average", "clip:1.0", "flipout"),
        ("conflation", "trimmed:0.34", "flipout"),
        ("distributed_weight_consolidation", "clip:1.0", "flipout"),
        ("distributed_weight_consolidation", "median", "flipout"),
        ("conflation", "clip:1.0", "deterministic"),
        ("conflation", "trimmed:0.34", "mc_dropout"),
        ("conflation", "median", "deterministic"),
    ],
)
def test_round_is_client_work_and_the_robust_rule(rule, defence, kind):
    process = build(rule, defence, kind)
    state = process.initialize()
    wanted, metrics = pool_by_hand(rule, defence, kind)
    for most in (1, 3):
        output = process.next(state, CLIENTS.shards(range(3), most))
        assert_same(output.state.weights, wanted, rtol=1e-4)
        assert set(output.metrics) == METRICS | set(metrics)
        for name, value in metrics.items():
            assert output.metrics[name] == value
    if kind == "flipout":
        assert 0 < metrics.get("clipped_clients", 1) < 3


@pytest.mark.deep(after="tests/federated/test_faults.py")
@every_defence
def test_a_faulty_client_is_left_out(defence):
    process = build("naive_weighted_average", defence)
    output = process.next(process.initialize(), spoil(1).shards(range(3), 2))
    assert output.metrics["num_faulty"] == 1
    wanted, metrics = pool_by_hand("naive_weighted_average", defence, cohort=(0, 2))
    assert_same(output.state.weights, wanted, rtol=1e-4)
    for name, value in metrics.items():
        assert output.metrics[name] == value


@pytest.mark.deep(after="tests/federated/test_local.py")
@every_defence
def test_all_clients_faulty_changes_nothing(defence):
    process = build("naive_weighted_average", defence)
    state = process.initialize()
    output = process.next(state, spoil(0, 1, 2).shards(range(3), 2))
    assert output.metrics["num_faulty"] == 3
    assert_same(output.state.weights, state.weights, rtol=0, atol=0)


@pytest.mark.deep(after="tests/algorithms/test_pairs.py")
def test_clients_that_count_the_same_count_the_prior_as_with_equal_weights():
    """n = N_k / b_k: for the KL too, b_k is 1 / K where the aggregator lets all clients count the same."""
    make, options = mlp("flipout"), {**ADAM, "kl": "total", "robust": "median", "seed": SEED}
    by_size, equal = (
        algorithms.variational(make, "naive_weighted_average", weights, **options)
        for weights in ("train_size", "equal")
    )
    # By `simulate`, which tells clients the size of the federation.
    run = lambda process: simulate(process, CLIENTS, rounds=1, engine="local").state.weights
    assert_same(run(by_size), run(equal), rtol=1e-6)


def test_point_recipes_with_gaussian_weights_have_the_size_of_their_weighting():
    """A median counts all clients alike: the target of its clients is that of equal weights."""
    make, options = mlp("flipout"), {**ADAM, "kl": "total", "seed": SEED}
    run = lambda **more: simulate(algorithms.fed_opt(make, **options, **more), CLIENTS, 1, engine="local").state.weights
    by_size, equal = (run(robust="median", weighting=name) for name in ("train_size", "equal"))
    assert_same(by_size, equal, rtol=1e-6)
    wanted = algorithms.variational(make, "naive_weighted_average", "equal", robust="median", **options)
    assert_same(by_size, simulate(wanted, CLIENTS, rounds=1, engine="local").state.weights, rtol=1e-6)


@pytest.mark.deep(after="tests/algorithms/test_pairs.py")
def test_a_stacked_weighting_of_clipped_clients():
    process = build("naive_weighted_average", "clip:1.0", weights="max_discrepancy")
    metrics = process.next(process.initialize(), CLIENTS.shards(range(3), 2)).metrics
    assert {"largest_share", "clipped_clients"} <= set(metrics) and metrics["num_faulty"] == 0
