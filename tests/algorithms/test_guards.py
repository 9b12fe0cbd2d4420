"""Rules with every weighting and with robust aggregation in whole rounds: client work, the weights, and the rule."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.federated.toys import spoilt
from tests.rules.forms import CONTRACT
from tfp_bfl import algorithms, rules, weighting
from tfp_bfl.data import Clients
from tfp_bfl.federated import simulate
from tfp_bfl.posterior import stack
from tfp_bfl.weights import get_weights

from .method import CLIENTS, SEED, SOURCE, mlp
from .methods import ADAM, METRICS, assert_same, variational_result

# Each rule with a weighting, each weighting with one rule or two; tests/algorithms/test_pairs.py has every pair.
PAIRS = [(rule, name, None, "flipout") for rule, name in zip(CONTRACT, itertools.cycle(weighting.ALL_WEIGHTINGS))]
# Of three clients trimmed keeps one and median the same; clip's bound is between their norms.
DEFENCES = ("clip:1.0", "trimmed:0.34", "median")
DEFENDED = [
    ("naive_weighted_average", "train_size", "clip:1.0", "flipout"),
    ("conflation", "train_size", "trimmed:0.34", "flipout"),
    ("distributed_weight_consolidation", "train_size", "clip:1.0", "flipout"),
    ("distributed_weight_consolidation", "train_size", "median", "flipout"),
    ("conflation", "train_size", "clip:1.0", "deterministic"),
    ("conflation", "train_size", "trimmed:0.34", "mc_dropout"),
    ("conflation", "train_size", "median", "deterministic"),
]
FAULTY = [pair for pair in PAIRS if pair[1] in weighting.STACKED_WEIGHTINGS]
FAULTY += [("naive_weighted_average", "train_size", defence, "flipout") for defence in DEFENCES]


@functools.cache
def build(rule, name, defence=None, kind="flipout"):
    return algorithms.variational(mlp(kind), rules.parse_rule(rule), name, robust=defence, seed=SEED, **ADAM)


def weights_by_hand(name, results, anchor):
    if name in weighting.STACKED_WEIGHTINGS:
        return weighting.STACKED_WEIGHTINGS[name](stack([r.weights.posterior for r in results]))
    weigh = weighting.WEIGHTINGS[name]
    return [weigh(r.weights.posterior, anchor.posterior, r.num_examples) for r in results]


def pool_by_hand(rule, name, defence=None, kind="flipout", cohort=(0, 1, 2)):
    whole, anchor = rules.whole_model(rules.parse_rule(rule)), get_weights(mlp(kind)())
    whole = rules.parse_robust(defence)(whole) if defence else whole
    whole = rules.gathered(whole) if isinstance(whole, rules.GatherRule) else whole
    results = [variational_result(kind, k) for k in cohort]
    weights = weights_by_hand(name, results, anchor)
    parts = [whole.summarise(r.weights, anchor, tf.cast(w, tf.float32)) for r, w in zip(results, weights)]
    return whole.pool(functools.reduce(whole.merge, parts), anchor)


def spoil(*clients):
    features = SOURCE.features.copy()
    for client in clients:
        features[CLIENTS.indices[client][0]] = np.nan
    return Clients(spoilt(SOURCE, features), CLIENTS.indices)


@pytest.mark.deep(after="tests/algorithms/test_pairs.py")
@pytest.mark.parametrize("given", [*PAIRS, *DEFENDED], ids=str)
def test_round_is_client_work_the_weights_and_the_rule(given):
    process = build(*given)
    state = process.initialize()
    wanted, metrics = pool_by_hand(*given)
    for most in (1, 3):
        output = process.next(state, CLIENTS.shards(range(3), most))
        assert_same(output.state.weights, wanted, rtol=1e-4)
        for name, value in metrics.items():
            assert output.metrics[name] == value
    if given[2]:
        assert set(output.metrics) == METRICS | set(metrics)
    if given[3] == "flipout":
        assert 0 < metrics.get("clipped_clients", 1) < 3
    if given[1] in weighting.STACKED_WEIGHTINGS:
        assert 1 / 3 < output.metrics["largest_share"] < 1


@pytest.mark.deep(after="tests/federated/test_faults.py")
@pytest.mark.parametrize("given", FAULTY, ids=str)
def test_faulty_clients_are_left_out_and_of_nobody_else_nothing_changes(given):
    process = build(*given)
    state = process.initialize()
    output = process.next(state, spoil(1).shards(range(3), 2))
    wanted, metrics = pool_by_hand(*given, cohort=(0, 2))
    assert_same(output.state.weights, wanted, rtol=1e-4)
    for name, value in {**metrics, "num_faulty": 1}.items():
        assert output.metrics[name] == value
    output = process.next(state, spoil(0, 1, 2).shards(range(3), 2))
    assert output.metrics["num_faulty"] == 3
    assert_same(output.state.weights, state.weights, rtol=0, atol=0)


def test_clients_that_count_the_same_have_the_target_of_equal_weights():
    """n = N_k / b_k: for the KL too, b_k is 1 / K where the aggregator lets all clients count the same."""
    make, options = mlp("flipout"), {**ADAM, "kl": "total", "robust": "median", "seed": SEED}
    # By `simulate`, which gives clients the size of the federation.
    run = lambda process: simulate(process, CLIENTS, rounds=1, engine="local").state.weights
    average = functools.partial(algorithms.variational, make, "naive_weighted_average")
    wanted = run(average("equal", **options))
    assert_same(run(average("train_size", **options)), wanted, rtol=1e-6)
    for name in ("train_size", "equal"):
        assert_same(run(algorithms.fed_opt(make, weighting=name, **options)), wanted, rtol=1e-6)
