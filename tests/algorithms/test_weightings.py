"""Every weighting with every rule: the round is client work, the weights, and the rule."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.federated.toys import spoilt
from tests.rules.forms import CONTRACT
from tfp_bfl import algorithms, rules, weighting
from tfp_bfl.data import Clients
from tfp_bfl.posterior import stack
from tfp_bfl.weights import get_weights

from .method import CLIENTS, SEED, SOURCE, mlp
from .methods import ADAM, assert_same, variational_result

make = mlp("flipout")


@functools.cache
def build(rule, name):
    return algorithms.variational(make, rules.parse_rule(rule), name, seed=SEED, **ADAM)


def weights_by_hand(name, results, anchor):
    if name in weighting.STACKED_WEIGHTINGS:
        return weighting.STACKED_WEIGHTINGS[name](stack([r.weights.posterior for r in results]))
    weigh = weighting.WEIGHTINGS[name]
    return [weigh(r.weights.posterior, anchor.posterior, r.num_examples) for r in results]


def pool_by_hand(rule, name, results):
    whole, anchor = rules.whole_model(rules.parse_rule(rule)), get_weights(make())
    weights = weights_by_hand(name, results, anchor)
    parts = [whole.summarise(r.weights, anchor, tf.cast(w, tf.float32)) for r, w in zip(results, weights)]
    return whole.pool(functools.reduce(whole.merge, parts), anchor).weights


# Each rule with a weighting, each weighting with one rule or two; tests/algorithms/test_pairs.py has every pair.
PAIRS = [*zip(CONTRACT, itertools.cycle(weighting.ALL_WEIGHTINGS))]


@pytest.mark.deep(after="tests/algorithms/test_pairs.py")
@pytest.mark.parametrize(("rule", "name"), PAIRS)
def test_round_is_client_work_the_weights_and_the_rule(rule, name):
    process = build(rule, name)
    state = process.initialize()
    wanted = pool_by_hand(rule, name, [variational_result("flipout", k) for k in range(3)])
    for most in (1, 3):
        output = process.next(state, CLIENTS.shards(range(3), most))
        assert_same(output.state.weights, wanted, rtol=1e-4)
    if name in weighting.STACKED_WEIGHTINGS:
        assert 1 / 3 < output.metrics["largest_share"] < 1


@pytest.mark.deep(after="tests/federated/test_local.py")
@pytest.mark.parametrize(("rule", "name"), [pair for pair in PAIRS if pair[1] in weighting.STACKED_WEIGHTINGS])
def test_a_faulty_client_is_left_out(rule, name):
    features = SOURCE.features.copy()
    features[CLIENTS.indices[1][0]] = np.nan
    spoiled = Clients(spoilt(SOURCE, features), CLIENTS.indices)
    process = build(rule, name)
    output = process.next(process.initialize(), spoiled.shards(range(3), 2))
    assert output.metrics["num_faulty"] == 1
    wanted = pool_by_hand(rule, name, [variational_result("flipout", k) for k in (0, 2)])
    assert_same(output.state.weights, wanted, rtol=1e-4)


@pytest.mark.deep(after="tests/federated/test_faults.py")
@pytest.mark.parametrize("name", weighting.STACKED_WEIGHTINGS)
def test_all_clients_faulty_changes_nothing(name):
    features = np.full_like(SOURCE.features, np.nan)
    spoiled = Clients(spoilt(SOURCE, features), CLIENTS.indices)
    process = build("conflation", name)
    state = process.initialize()
    output = process.next(state, spoiled.shards(range(3), 2))
    assert output.metrics["num_faulty"] == 3
    assert_same(output.state.weights, state.weights, rtol=0, atol=0)


@pytest.mark.deep(after="tests/rules/test_equations.py")
def test_conflation_with_equal_weights_is_conflation_bit_for_bit():
    states = []
    for rule in ("conflation", "weighted_conflation"):
        process = build(rule, "equal")
        state = process.initialize()
        for _ in range(3):
            state = process.next(state, CLIENTS.shards(range(3), 2)).state
        states.append(state.weights)
    assert_same(*states, rtol=0, atol=0)
