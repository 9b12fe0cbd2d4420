"""What every rule of `bfl.rules.RULES` must do: each form of `tests/rules/forms.py`, with its number if it has one."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests import kit
from tfp_bfl import rules
from tfp_bfl.posterior import MeanField

from .forms import CONTRACT, every_rule, is_over_stack, plain, with_sums
from .reference import REFERENCE, expected, random_case

assert_same = functools.partial(kit.assert_same, rtol=1e-10, atol=1e-12)

NUM_CLIENTS = 6


def case(**options):
    return random_case(NUM_CLIENTS, **options)


def aggregate(name, stacked, weights, anchor):
    return rules.aggregate(rules.parse_rule(name), stacked, weights, anchor)


def summaries(name, stacked, weights, anchor):
    rule, anchor = with_sums(name), tf.nest.map_structure(tf.constant, anchor)
    clients = [MeanField(*(tf.constant(part[k]) for part in stacked)) for k in range(len(weights))]
    return rule, anchor, [rule.summarise(q, anchor, tf.constant(w)) for q, w in zip(clients, weights)]


def fold(rule, parts):
    return functools.reduce(rule.merge, parts)


def test_every_rule_is_in_the_tables():
    assert set(rules.RULES) == set(map(plain, CONTRACT)) == set(REFERENCE)


@every_rule
def test_fields(name):
    rule, entry = rules.parse_rule(name), rules.RULES[plain(name)]
    assert rule.name.partition(":")[0] == plain(name) and rule.traits.uses_anchor == CONTRACT[name].uses_anchor
    assert getattr(rules, plain(name)) is getattr(entry, "make", entry)


@every_rule
def test_metrics(name):
    rule, anchor, parts = summaries(name, *case())
    assert set(rule.pool(fold(rule, parts), anchor).metrics) == set(CONTRACT[name].reports)


@every_rule
def test_linear_is_who_pools_noise_without_bias(name):
    """Means at three points of a line through the clients' have no second difference, and variances no difference."""
    stacked, weights, anchor = case()
    direction = np.random.default_rng(2).standard_normal(stacked.mean.shape)
    pools = [aggregate(name, stacked._replace(mean=stacked.mean + t * direction), weights, anchor) for t in range(3)]
    means, variances = (np.stack([p[i] for p in pools]) for i in range(2))
    straight = np.abs(np.diff(means, 2, axis=0)).max() < 1e-10 and np.abs(np.diff(variances, axis=0)).max() < 1e-10
    linear = rules.parse_rule(name).traits.linear
    assert linear == CONTRACT[name].linear and (straight or not linear)


@every_rule
def test_what_a_rule_averages_it_is_linear_in(name):
    """Precisions, or variances, at three points of a line through the clients' have no second difference."""
    stacked, weights, anchor = case()
    averages, change = rules.parse_rule(name).traits.averages, np.random.default_rng(2).random(stacked.mean.shape)
    if not averages:
        assert not CONTRACT[name].linear
        return
    power = {"precision": -1, "variance": 1}[averages]
    moved = [stacked._replace(variance=(stacked.variance**power * (1 + t * change)) ** power) for t in range(3)]
    pooled = np.stack([aggregate(name, q, weights, anchor).variance for q in moved]) ** power
    assert np.abs(np.diff(pooled, 2, axis=0)).max() < 1e-10 < np.abs(np.diff(pooled, axis=0)).max()


@every_rule
@pytest.mark.parametrize("num_clients", [2, 10, 100])
@pytest.mark.parametrize(
    ("where", "tolerance"),
    [({}, 1e-5), ({"centre": 0.5, "spread": 3e-4, "stddev": 1e-4}, 1e-7)],
    ids=["wide", "clients lie close"],
)
def test_float32_against_the_equations(name, num_clients, where, tolerance):
    inputs = random_case(num_clients, dtype=np.float32, **where)
    mean, variance = expected(name, *inputs)
    pooled = aggregate(name, *inputs)
    assert (pooled.mean.dtype, pooled.variance.dtype) == (tf.float32, tf.float32)
    np.testing.assert_allclose(pooled.variance, variance, rtol=1e-5)
    np.testing.assert_allclose(pooled.mean, mean, rtol=0, atol=tolerance * np.abs(inputs[0].mean).max())


@every_rule
@pytest.mark.parametrize("num_clients", [2, 10, 100])
def test_float32_as_a_sum_centred_on_the_anchor(name, num_clients):
    """As in a federated round: the sums are centred on what the server sent, not on the clients' mean."""
    inputs = random_case(num_clients, centre=0.5, spread=3e-4, stddev=1e-4, dtype=np.float32)
    rule, anchor, parts = summaries(name, *inputs)
    mean, variance = expected(name, *inputs)
    pooled = rule.pool(fold(rule, parts), anchor).weights
    np.testing.assert_allclose(pooled.variance, variance, rtol=1e-5)
    np.testing.assert_allclose(pooled.mean, mean, rtol=2e-7)


@every_rule
def test_float64_stays_float64(name):
    inputs = case()
    pooled = aggregate(name, *inputs)
    assert (pooled.mean.dtype, pooled.variance.dtype) == (tf.float64, tf.float64)
    assert_same(pooled, expected(name, *inputs))


@every_rule
def test_order_of_clients_does_not_matter(name):
    stacked, weights, anchor = case()
    order = np.random.default_rng(1).permutation(NUM_CLIENTS)
    shuffled = MeanField(stacked.mean[order], stacked.variance[order])
    assert_same(aggregate(name, shuffled, weights[order], anchor), aggregate(name, stacked, weights, anchor))


@every_rule
@pytest.mark.parametrize("split", [1, 3])
def test_summaries_of_two_groups_merge_to_that_of_all(name, split):
    inputs = case()
    rule, anchor, parts = summaries(name, *inputs)
    halves = rule.merge(fold(rule, parts[:split]), fold(rule, parts[split:]))
    assert_same(rule.pool(halves, anchor).weights, expected(name, *inputs))


@every_rule
def test_merge_is_associative_and_commutative_with_zeros_as_neutral_element(name):
    """Compare pooled results; a stack may have its rows in another order, or a client of weight zero."""
    rule, anchor, (a, b, c, *rest) = summaries(name, *case())
    pooled = lambda total: rule.pool(fold(rule, [total, *rest]), anchor).weights
    outcome = pooled if is_over_stack(name) else (lambda total: total)
    same = lambda x, y, **options: assert_same(outcome(x), outcome(y), **options)
    same(rule.merge(rule.merge(a, b), c), rule.merge(a, rule.merge(b, c)))
    same(rule.merge(a, b), rule.merge(b, a), rtol=0)
    zeros = tf.nest.map_structure(tf.zeros_like, a)
    same(rule.merge(a, zeros), a, rtol=0)
    same(rule.merge(zeros, a), a, rtol=0)
    tf.nest.assert_same_structure(rule.merge(a, b), a)


@every_rule
def test_statistics_have_the_same_size_for_any_number_of_clients(name):
    """Statistics of a stack have one row for each client."""
    rule, _, parts = summaries(name, *case())
    total, first = ([list(x.shape) for x in tf.nest.flatten(part)] for part in (fold(rule, parts), parts[0]))
    assert total == ([[NUM_CLIENTS, *shape[1:]] for shape in first] if is_over_stack(name) else first)


@every_rule
@pytest.mark.parametrize("factor", [1e-3, 1e3, 1e25, 1e-25])
def test_scale_of_the_weights_does_not_matter(name, factor):
    stacked, weights, anchor = case(dtype=np.float32)
    pooled = aggregate(name, stacked, weights, anchor)
    scaled = aggregate(name, stacked, (factor * weights.astype(np.float64)).astype(np.float32), anchor)
    assert_same(scaled, pooled, rtol=1e-5, atol=1e-6)


@every_rule
def test_weights_count_where_the_equation_has_them(name):
    stacked, weights, anchor = case()
    weighted, equal = aggregate(name, stacked, weights, anchor), aggregate(name, stacked, None, anchor)
    differ = (np.abs(weighted.mean - equal.mean).max() > 1e-3, np.abs(weighted.variance - equal.variance).max() > 1e-3)
    assert differ == (CONTRACT[name].uses_weights,) * 2
    assert_same(aggregate(name, stacked, np.ones(NUM_CLIENTS), anchor), equal, rtol=0)


@every_rule
def test_anchor_counts_only_where_the_equation_has_it(name):
    stacked, weights, anchor = case()
    other = MeanField(anchor.mean + 1, 1.5 * anchor.variance)
    rule, _, _ = summaries(name, stacked, weights, anchor)
    pooled = []
    for q in (anchor, other):
        rule, q, parts = summaries(name, stacked, weights, q)
        pooled.append(rule.pool(fold(rule, parts), q).weights)
    same = np.allclose(pooled[0].mean, pooled[1].mean) and np.allclose(pooled[0].variance, pooled[1].variance)
    assert same is not CONTRACT[name].uses_anchor


@every_rule
def test_shifting_all_means_shifts_the_pooled_mean_only(name):
    stacked, weights, anchor = case()
    pooled = aggregate(name, stacked, weights, anchor)
    move = lambda q: q._replace(mean=q.mean + 3.0)
    shifted = aggregate(name, move(stacked), weights, move(anchor))
    assert_same(shifted, move(pooled))


@every_rule
@pytest.mark.parametrize("weight", [1.0, 0.3, 40.0])
def test_one_client_is_the_result(name, weight):
    stacked, _, anchor = random_case(1)
    pooled = aggregate(name, stacked, np.array([weight]), anchor)
    assert_same(pooled, MeanField(stacked.mean[0], stacked.variance[0]))


@every_rule
def test_like_minded_clients(name):
    """K equal clients keep their mean; the variance stays or is divided by K, and DWC subtracts the anchor."""
    stacked, weights, anchor = case()
    same = MeanField(*(np.repeat(x[:1], NUM_CLIENTS, 0) for x in stacked))
    pooled = aggregate(name, same, None, anchor)
    if CONTRACT[name].uses_anchor:
        assert_same(pooled, expected(name, same, weights, anchor))
        return
    shrinkage = NUM_CLIENTS if CONTRACT[name].shrinks else 1
    assert_same(pooled, MeanField(same.mean[0], same.variance[0] / shrinkage))


@every_rule
def test_structures_are_pooled_leaf_by_leaf(name):
    stacked, weights, anchor = case()
    split = lambda x: {"a": x[..., :20], "b": (x[..., 20:21], [x[..., 21:].reshape(*x.shape[:-1], 1, 29)])}
    nested = aggregate(name, MeanField(*map(split, stacked)), weights, MeanField(*map(split, anchor)))
    flat = MeanField(*(x.numpy() for x in aggregate(name, stacked, weights, anchor)))
    assert_same(nested, MeanField(*map(split, flat)), rtol=1e-14)
    tf.nest.assert_same_structure(nested.mean, split(flat.mean))


@pytest.mark.deep(after="tests/rules/test_compiled.py")
@every_rule
def test_works_inside_a_function(name):
    stacked, weights, anchor = case(dtype=np.float32)

    @tf.function
    def pool(stacked, weights, anchor):
        return aggregate(name, stacked, weights, anchor)

    graph = pool(*tf.nest.map_structure(tf.constant, (stacked, weights, anchor)))
    assert isinstance(graph, MeanField)
    assert_same(graph, aggregate(name, stacked, weights, anchor), atol=1e-6)


@every_rule
def test_variance_is_positive_however_far_apart_the_clients_and_the_weights_are(name):
    """The heavy client's variance is 1e-10, and the light one adds nothing that float32 shows."""
    stacked = MeanField(np.float32([[0.0], [1.0]]), np.float32([[1e-10], [1e-10]]))
    anchor = MeanField(np.float32([0.0]), np.float32([3e-10]))
    weights = np.float32([1e12, 1e-3])
    pooled = aggregate(name, stacked, weights, anchor)
    np.testing.assert_allclose(pooled.variance, expected(name, stacked, weights, anchor)[1], rtol=1e-5)
