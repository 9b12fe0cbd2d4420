"""Rules over the stack of all posteriors: joined by merging, weighted by what only all of them together tell."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl import rules, weighting
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior import MeanField
from tfp_bfl.rules import GatherRule

from .forms import every_rule
from .reference import expected, random_case
from .test_contract import assert_same, summaries

every_weighting = pytest.mark.parametrize("weigh", weighting.STACKED_WEIGHTINGS.values(), ids=lambda f: f.__name__)


def first(stacked, weights, anchor):
    """A rule whose result tells what it was given: the first posterior that is left, and the weights' sum."""
    return rules.Pooled(MeanField(stacked.mean[0], tf.ones_like(stacked.variance[0]) * tf.reduce_sum(weights)))


@every_rule
@every_weighting
def test_reweighted_is_the_rule_with_these_weights(name, weigh):
    stacked, _, anchor = random_case(5)
    wanted = expected(name, stacked, weigh(stacked).numpy(), anchor)
    rule = rules.reweighted(rules.parse_rule(name), weigh)
    assert_same(rules.aggregate(rule, stacked, anchor=anchor), MeanField(*wanted), rtol=1e-9)
    # Whatever weights come with the clients.
    assert_same(rules.aggregate(rule, stacked, np.arange(1.0, 6), anchor), MeanField(*wanted), rtol=1e-9)


def sent(client):
    """What a client might send: any structure, with numbers that are no floats among it."""
    return {"client": tf.constant(client), "weights": (tf.fill([2, 3], 1.0 + client), tf.fill([], client > 2))}


def merged(rule, clients, weights):
    parts = [rule.summarise(sent(k), None, tf.constant(w)) for k, w in zip(clients, weights)]
    return functools.reduce(rule.merge, parts)


@pytest.mark.parametrize("compiled", [False, True])
def test_stacked_is_the_clients_themselves_without_those_of_weight_zero(compiled):
    rule = rules.stacked()
    assert rule.name == "stacked"
    pool = lambda: rule.pool(merged(rule, (4, 1, 3, 2), (1.0, 0.0, 0.5, 2.0)), None).weights
    result = tf.function(pool)() if compiled else pool()
    wanted = tf.nest.map_structure(lambda *x: tf.stack(x), *map(sent, (4, 3, 2)))
    tf.nest.assert_same_structure(result, wanted)
    for actual, value in zip(tf.nest.flatten(result), tf.nest.flatten(wanted), strict=True):
        assert actual.dtype == value.dtype
        np.testing.assert_array_equal(actual, value)


@pytest.mark.parametrize("compiled", [False, True])
def test_where_no_client_is_left_zeros_stand_for_one(compiled):
    rule = rules.stacked()
    pool = lambda: rule.pool(merged(rule, (4, 3), (0.0, 0.0)), None).weights
    result = tf.function(pool)() if compiled else pool()
    for actual, value in zip(tf.nest.flatten(result), tf.nest.flatten(sent(4)), strict=True):
        assert (actual.dtype, actual.shape) == (value.dtype, [1, *value.shape])
        assert not np.any(actual)


@every_rule
def test_order_and_pairing_do_not_matter(name):
    stacked, _, anchor = random_case(6)
    rule = rules.gathered(rules.reweighted(rules.parse_rule(name), weighting.max_discrepancy_weights))
    anchor = tf.nest.map_structure(tf.constant, anchor)
    clients = [MeanField(*(tf.constant(part[k]) for part in stacked)) for k in range(6)]
    parts = [rule.summarise(q, anchor, tf.constant(1.0)) for q in clients]
    whole = rule.pool(functools.reduce(rule.merge, parts), anchor).weights
    pairs = [rule.merge(parts[i], parts[j]) for i, j in ((5, 2), (0, 4), (3, 1))]
    assert_same(rule.pool(functools.reduce(rule.merge, pairs), anchor).weights, whole, rtol=1e-9)


def test_clients_of_weight_zero_are_left_out_and_none_add_nothing():
    rule = rules.gathered(GatherRule(first))
    stacked, _, anchor = random_case(3, dtype=np.float32)
    clients = [MeanField(*(tf.constant(part[k]) for part in stacked)) for k in range(3)]
    zero = tf.nest.map_structure(tf.zeros_like, rule.summarise(clients[0], anchor, tf.constant(1.0)))
    parts = [rule.summarise(q, anchor, tf.constant(w)) for q, w in zip(clients[1:], (2.0, 3.0))]
    nobody = tf.nest.map_structure(lambda x: x[:0], zero)
    total = functools.reduce(rule.merge, [nobody, zero, *parts, nobody])
    pooled = rule.pool(total, anchor).weights
    np.testing.assert_array_equal(pooled.mean, clients[1].mean)
    np.testing.assert_array_equal(pooled.variance, np.full(50, 5.0))


def test_number_of_clients_need_not_be_known():
    rule = rules.gathered(rules.reweighted(rules.conflation(), weighting.max_discrepancy_weights))
    _, anchor, parts = summaries("conflation", *random_case(4, dtype=np.float32))
    del parts
    spec = MeanField(*(tf.TensorSpec([None, 50], tf.float32) for _ in range(2)))

    @tf.function(input_signature=[spec, tf.TensorSpec([None])])
    def pool(stacked, weights):
        total = rule.summarise(anchor, anchor, tf.constant(1.0))
        return rule.pool(type(total)(stacked, weights), anchor).weights

    for num_clients in (1, 2, 4):
        stacked, _, _ = random_case(num_clients, dtype=np.float32)
        wanted = expected("conflation", stacked, np.ones(num_clients), anchor)
        assert_same(pool(stacked, np.ones(num_clients, np.float32)), MeanField(*wanted), rtol=1e-4, atol=1e-6)


def test_metrics_tell_the_largest_share_and_the_rules_own():
    stacked, _, anchor = random_case(4)
    for name in ("naive_weighted_average", "distributed_weight_consolidation"):
        rule = rules.reweighted(rules.parse_rule(name), weighting.max_discrepancy_weights)
        metrics = rule.pool(tf.nest.map_structure(tf.constant, stacked), tf.ones([4]), anchor).metrics
        share = weighting.max_discrepancy_weights(stacked).numpy().max()
        np.testing.assert_allclose(metrics.pop("largest_share"), share, rtol=1e-6)
        assert list(metrics) == ["kept_weights"] * (name != "naive_weighted_average")


def test_a_rule_that_returns_no_pooled_value_is_refused_in_a_sentence():
    """Try a rule of the stack, and one of sums."""
    plain = rules.naive_weighted_average()
    of_stack = rules.gathered(GatherRule(lambda stacked, weights, anchor: stacked, "bare"))
    of_sums = rules.whole_model(plain._replace(pool=lambda total, anchor: anchor, name="bare"))
    q = MeanField(tf.zeros([2]), tf.ones([2]))
    for rule in (of_stack, of_sums):
        with pytest.raises(InvalidArgument, match=r"rule 'bare' pools a MeanField, but must return rules\.Pooled"):
            rule.pool(rule.summarise(q, q, tf.constant(1.0)), q)
