"""What aggregate refuses, rules of a stack, and the contract for rules of the user."""

import functools
import inspect
import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import refuses
from tfp_bfl import rules, weighting
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.named import WithArgument
from tfp_bfl.posterior import MeanField
from tfp_bfl.rules import GatherRule

from . import test_contract
from .forms import CONTRACT, Contract, every_rule
from .reference import REFERENCE, expected, random_case
from .test_contract import assert_same, summaries

NAN, INF = float("nan"), float("inf")


def stack(mean=0.0, variance=1.0):
    """Three clients with a leaf [3, 2] each; the arguments are the last client's last value."""
    means, variances = np.zeros((3, 2), np.float32), np.ones((3, 2), np.float32)
    means[2, 1], variances[2, 1] = mean, variance
    return MeanField({"w": means}, {"w": variances})


@every_rule
def test_every_rule_takes_the_sound_stack(name):
    anchor = MeanField({"w": np.zeros(2, np.float32)}, {"w": np.ones(2, np.float32)})
    pooled = rules.aggregate(rules.parse_rule(name), stack(), [1, 2, 3], anchor)
    assert np.isfinite(pooled.mean["w"]).all() and (pooled.variance["w"].numpy() > 0).all()


NOT_A_WEIGHT = [[1, 0, 1], [1, -1, 1], [1, NAN, 1], [1, INF, 1], [0, 0, 0], [-1, -1, -1]]
NO_STACKS = [
    *(
        (np.zeros(shape), np.ones(other))
        for shape, other in [((0, 2), (0, 2)), ((), ()), ((3, 2), (3, 1)), ((3, 2), (2, 2))]
    ),
    ((np.zeros((3, 2)), np.zeros((2, 2))), (np.ones((3, 2)), np.ones((2, 2)))),
    ((np.zeros((3, 2)), np.zeros((3, 2))), (np.ones((3, 2)),)),
]
CONSOLIDATION = "distributed_weight_consolidation"
# The rule, the stack, the weights and the anchor.
REFUSED = [
    *(("linear_pool", stack(), x, None, "weights must be finite and above zero, but are") for x in NOT_A_WEIGHT),
    *(
        ("linear_pool", stack(), x, None, r"weights must be \[3\], one a client, but have shape")
        for x in ([1, 1], [1, 1, 1, 1], 1.0, [[1, 1, 1]], [])
    ),
    *(("linear_pool", stack(mean=x), None, None, r"mean must be finite.* clients at \[2\]") for x in (NAN, INF, -INF)),
    *(("conflation", MeanField(x, x), None, None, "stack holds no weights") for x in ((), {}, [])),
    *(("linear_pool", MeanField(*x), None, None, r"means and variances of the same shapes \[K,") for x in NO_STACKS),
    (CONSOLIDATION, stack(), None, None, r"distributed_weight_consolidation subtracts .*: pass it as anchor"),
    (CONSOLIDATION, stack(), None, MeanField({"w": np.zeros(2)}, {"w": np.ones(2)}), "have the type of the posteriors"),
    (rules.client_gaussian(), stack(), None, None, r"gives a .*, but aggregate pools to one posterior"),
    (rules.stacked(), stack(), None, None, r"gives a .*, but aggregate pools to one posterior"),
]


@pytest.mark.parametrize(("rule", "stacked", "weights", "anchor", "message"), REFUSED)
def test_refused(rule, stacked, weights, anchor, message):
    refuses(message, rules.aggregate, rule, stacked, weights, anchor)


@every_rule
@pytest.mark.parametrize("variance", [0.0, -1.0, NAN, INF])
def test_bad_variance(name, variance):
    anchor = MeanField({"w": np.zeros(2, np.float32)}, {"w": np.ones(2, np.float32)})
    with pytest.raises(InvalidArgument, match=r"variance must be finite and above zero.* clients at \[2\]"):
        rules.aggregate(rules.parse_rule(name), stack(variance=variance), anchor=anchor)


def test_weights_may_be_integers_or_of_another_float_type():
    stacked = MeanField(np.float32([[0.0], [4.0]]), np.float32([[1.0], [1.0]]))
    for weights in ([1, 3], np.array([1.0, 3.0]), tf.constant([1, 3], tf.int64)):
        pooled = rules.aggregate(rules.naive_weighted_average(), stacked, weights)
        assert pooled.mean.dtype == tf.float32
        np.testing.assert_array_equal(pooled.mean, [3.0])


@pytest.mark.parametrize("rule", ["linear_pool", rules.linear_pool(), rules.whole_model("linear_pool")])
def test_a_rule_by_its_name_or_lifted_is_the_rule(rule):
    wanted = rules.aggregate(rules.linear_pool(), stack(0.5, 2.0))
    np.testing.assert_array_equal(rules.aggregate(rule, stack(0.5, 2.0)).mean["w"], wanted.mean["w"])


MIXED = {
    "whole numbers": (np.zeros((3, 2), int), np.ones((3, 2), int), "type int64, but"),
    "means of one type": (np.zeros((3, 2), np.float32), np.ones((3, 2)), "types float32 and float64, but"),
    "leaves of two types": ((np.zeros((3, 1), np.float32), np.zeros((3, 1))), None, "types float32 and float64, but"),
}


@every_rule
@pytest.mark.parametrize("case", MIXED)
def test_posteriors_that_are_no_floats_of_one_type(name, case):
    mean, variance, message = MIXED[case]
    variance = tf.nest.map_structure(np.ones_like, mean) if variance is None else variance
    refuses(message, rules.aggregate, rules.parse_rule(name), MeanField(mean, variance))


def test_a_result_that_is_not_finite():
    """The variance of means 1e20 and -1e20 is 1e40, which float32 lacks."""
    mean, variance = np.float32([[1e20], [-1e20]]), np.ones((2, 1), np.float32)
    refuses("'linear_pool' overflows float32", rules.aggregate, "linear_pool", MeanField(mean, variance))
    pooled = rules.aggregate("linear_pool", MeanField(mean.astype(np.float64), variance.astype(np.float64)))
    np.testing.assert_allclose(pooled.variance, [1e40])


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
    """Hold what a client might send: any structure, with numbers that are no floats."""
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


def powered(exponent=0.5):
    """The average by powers of the clients' weights."""
    average = rules.naive_weighted_average()
    summarise = lambda local, anchor, weight: average.summarise(local, anchor, weight**exponent)
    return average._replace(summarise=summarise, name="powered", units=None)


def krum(hostile=1):
    """The client whose nearest neighbours are nearest (Blanchard et al. 2017): K - hostile - 2 of them."""

    def pool(stacked, importance, anchor):
        rows = tf.concat([tf.reshape(x, [tf.shape(x)[0], -1]) for x in tf.nest.flatten(stacked.mean)], 1)
        squares = tf.sort(tf.reduce_sum((rows[:, tf.newaxis] - rows) ** 2, -1), 1)
        scores = tf.reduce_sum(squares[:, 1 : 1 + tf.maximum(tf.shape(rows)[0] - hostile - 2, 1)], 1)
        return rules.Pooled(tf.nest.map_structure(lambda x: x[tf.argmin(scores)], stacked))

    return rules.GatherRule(pool, "krum")


def powered_by_hand(m, v, w, m0, v0, exponent=0.5):
    return REFERENCE["naive_weighted_average"](m, v, w**exponent, m0, v0)


def krum_by_hand(m, v, w, m0, v0, hostile=1):
    squares = np.sort(((m[:, None] - m) ** 2).sum(-1), 1)
    best = squares[:, 1 : 1 + max(len(m) - int(hostile) - 2, 1)].sum(1).argmin()
    return m[best], v[best]


RULES = {"powered": (powered, powered_by_hand, Contract()), "krum": (krum, krum_by_hand, Contract(False, linear=False))}
FORMS = {"powered": "powered:0.3", "krum": "krum:2"}
PARAMETERS = {"powered": ("exponent", float), "krum": ("hostile", int)}


def cases(test):
    """Return the arguments of each run of a parametrised test, besides its rule."""
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize" and mark.args[0] != "name"]
    parts = []
    for mark in marks:
        names = [mark.args[0]] if isinstance(mark.args[0], str) else list(mark.args[0])
        parts.append([dict(zip(names, x if len(names) > 1 else [x])) for x in mark.args[1]])
    return [{name: x for part in chosen for name, x in part.items()} for chosen in itertools.product(*parts)]


@pytest.mark.parametrize("with_number", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_the_contract_holds_for_a_new_rule(monkeypatch, name, with_number):
    make, by_hand, contract = RULES[name]
    form = FORMS[name] if with_number else name
    monkeypatch.setitem(rules.RULES, name, WithArgument(make, *PARAMETERS[name]) if with_number else make)
    monkeypatch.setitem(CONTRACT, form, contract)
    monkeypatch.setitem(REFERENCE, name, by_hand)
    monkeypatch.setattr(rules, name, make, raising=False)
    tests = [x for key, x in vars(test_contract).items() if key.startswith("test_")]
    of_rules = [test for test in tests if "name" in inspect.signature(test).parameters]
    for test in of_rules:
        for given in cases(test):
            test(form, **given)
    test_contract.test_every_rule_is_in_the_tables()
    assert len(of_rules) > 15


def test_the_contract_fails_for_a_rule_that_breaks_it(monkeypatch):
    """Krum that follows the order of the clients: another one is chosen where they come in another order."""
    first = rules.GatherRule(lambda stacked, importance, anchor: rules.Pooled(MeanField(*(x[0] for x in stacked))))
    monkeypatch.setitem(rules.RULES, "first", lambda: first)
    with pytest.raises(AssertionError):
        test_contract.test_order_of_clients_does_not_matter("first")
