"""Defences around rules of every type, on posteriors and on whole models."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import flat, refuses
from tfp_bfl import rules, weighting
from tfp_bfl.algorithms.kernel import kernel_posterior
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights import ModelWeights

from .forms import every_rule
from .reference import random_case
from .test_contract import assert_same
from .test_robust import ATTACKS, DEFENCES, attacked, defended, every_defence, pool, whole_models


@pytest.mark.parametrize("defence", DEFENCES)
def test_a_rule_that_takes_something_else_is_refused(defence):
    rule = rules.client_gaussian()._replace(takes="bits")
    refuses("takes a bits, but a robust aggregator needs the clients' weights", defence, rule)


@pytest.mark.parametrize("defence", [rules.trimmed, rules.median])
def test_what_is_left_of_a_stack_is_no_client(defence):
    refuses("'stacked' has none to give: use the robust aggregator clip", defence, rules.stacked())


@every_defence
@pytest.mark.parametrize("rule", ["linear_pool", kernel_posterior("clients"), kernel_posterior()])
def test_a_defence_is_the_same_on_a_posterior_and_on_a_whole_model(text, rule):
    """Of models that are a posterior and nothing else."""
    clients, anchor = whole_models(5)
    bare = lambda q: ModelWeights(q, (), MeanField((), ()))
    posteriors = [c.posterior for c in clients]
    alone, own = pool(defended(text, rule), posteriors, anchor.posterior)
    whole, metrics = pool(defended(text, rule), [bare(q) for q in posteriors], bare(anchor.posterior))
    assert_same(whole, bare(alone), rtol=0, atol=0)
    assert own == metrics


@every_rule
def test_one_client_of_any_size_is_trimmed(name):
    """Also where sums are centred on the mean of all, the hostile one included: nothing of the others is lost to it."""
    means = np.float32([[0.1], [0.2], [0.3], [0.4], [1e30]])
    five = MeanField(means, np.ones_like(means))
    anchor = MeanField(np.float32([0.0]), np.float32([2.0]))
    pooled = rules.aggregate(rules.trimmed(name, 0.4), five, anchor=anchor)
    np.testing.assert_allclose(pooled.mean, [0.3], rtol=1e-6)
    np.testing.assert_allclose(pooled.variance, [1.0], rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "fewest"),
    [("clip:0.5", 5), ("centered_clip", 5), ("trimmed:0.2", 7), ("trimmed:0.3", 11), ("trimmed:0.49", 201)],
)
def test_fields_of_the_rule_stay(text, fewest):
    """Trimming leaves five values of so many clients or more: 7 - 2, 11 - 6, 201 - 196, and of none below."""
    rule = kernel_posterior(bandwidth="adaptive")
    assert defended(text, rule).traits.min_clients == fewest
    assert defended(text, rules.naive_weighted_average()).traits.min_clients == 1
    assert rules.trimmed(rules.linear_pool(), 0.49999999999).traits.min_clients == 1  # At once.
    assert rules.reweighted(rule, weighting.max_discrepancy_weights).traits.min_clients == 5
    assert rules.whole_model(rule).traits.min_clients == 5


@every_defence
def test_around_a_rule_that_shares_its_work_it_is_done_once(text):
    calls = []

    def pool(total, anchor):
        calls.append(1)
        return rules.Pooled(anchor, {"once": len(calls)})

    plain = rules.naive_weighted_average()
    counted = rules.Rule(plain.summarise, plain.merge, pool, name="counted")
    clients, anchor = whole_models(3)
    rule = defended(text, counted)
    parts = [rule.summarise(c, anchor, tf.constant(1.0)) for c in clients]
    rule.pool(functools.reduce(rule.merge, parts), anchor)
    assert len(calls) == 1


median_of = lambda points: rules.geometric_median(tf.constant(points, tf.float64)).numpy()


def test_the_geometric_median_by_hand():
    """On a line the median; of a square its centre; of a triangle, its Fermat point, where each pair is seen at 120
    degrees; of four points one of which lies in the triangle of the others, that one."""
    np.testing.assert_allclose(median_of([[0.0], [1.0], [2.0], [7.0], [1e9]]), [2.0], atol=1e-5)
    np.testing.assert_allclose(median_of([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 2.0]]), [1.0, 1.0], atol=1e-5)
    triangle = np.array([[0.0, 0.0], [4.0, 0.0], [1.0, 3.0]])
    rays = triangle - median_of(triangle)
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    np.testing.assert_allclose([rays[0] @ rays[1], rays[1] @ rays[2], rays[0] @ rays[2]], -0.5, atol=1e-4)
    np.testing.assert_allclose(median_of([*triangle, [1.5, 1.0]]), [1.5, 1.0], atol=1e-3)


@pytest.mark.parametrize("outlier", [1e3, 1e20, 3e38])
def test_outliers_of_any_size_move_the_geometric_median_alike(outlier):
    points = np.random.default_rng(0).normal(size=(10, 5))
    far = lambda size: np.concatenate([points, [[size] * 5] * 3])
    np.testing.assert_allclose(median_of(far(outlier)), median_of(far(1e9)), atol=2e-3)
    assert np.linalg.norm(median_of(far(outlier))) < 2


def test_clipping_by_hand():
    """Means 0, 0, 3, 4 and 100 lie 3, 3, 0, 1 and 97 from their median: clipped to 3, they are 0, 0, 3, 4 and 6. Of the
    variances two are dropped at each end: all are 2."""
    five = MeanField(np.array([[0.0], [0.0], [3.0], [4.0], [100.0]]), np.array([[1.0], [2.0], [3.0], [1e-9], [1e9]]))
    rule = rules.centered_clip(rules.naive_weighted_average())
    assert_same(rules.aggregate(rule, five, [1, 2, 3, 4, 500]), MeanField(np.array([2.6]), np.array([2.0])), rtol=1e-5)
    parts = [tf.nest.map_structure(tf.constant, part) for part in (five, np.ones(5), MeanField([0.0], [1.0]))]
    assert rule.pool(*parts).metrics == {"clipped_clients": 1}


@pytest.mark.parametrize("name", ["log_linear_pool", "linear_pool"])
@pytest.mark.parametrize("num_clients", [1, 2])
def test_one_or_two_clients_are_as_they_were(name, num_clients):
    stacked, _, anchor = random_case(num_clients)
    pooled = rules.aggregate(rules.centered_clip(rules.parse_rule(name)), stacked, None, anchor)
    wanted = rules.aggregate(rules.parse_rule(name), stacked, None, anchor)
    assert_same(pooled, wanted, rtol=1e-6)


@pytest.mark.parametrize("name", ["linear_pool", "conflation", "log_linear_pool"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_two_of_ten_clients_move_the_mean_by_less_than_honest_ones_differ(name, attack):
    clients, spoiled, anchor = attacked(attack)
    rule = functools.partial(defended, "centered_clip")
    pooled, metrics = pool(rule(rules.whole_model(rules.parse_rule(name))), spoiled, anchor)
    means = lambda w: flat((w.posterior.mean, w.point))
    honest = np.stack([means(c) for c in clients[2:]])
    center = honest.mean(0)
    assert np.linalg.norm(means(pooled) - center) < np.linalg.norm(honest - center, axis=1).max()
    undefended, _ = pool(rules.whole_model(rules.parse_rule(name)), spoiled, anchor)
    if attack != "sure":  # whose point weights alone are averaged
        assert not np.linalg.norm(means(undefended) - center) < np.linalg.norm(honest - center, axis=1).max()
    widest = tf.nest.map_structure(lambda *x: tf.reduce_max(tf.stack(x), 0), *clients[2:])
    for v, most in zip(pooled.posterior.variance, widest.posterior.variance):
        assert (v <= 2 * most).numpy().all()
    assert int(metrics["clipped_clients"]) >= 2
