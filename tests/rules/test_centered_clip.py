"""Clients drawn towards their geometric median: worked by hand, and what a hostile quarter cannot do."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl import rules
from tfp_bfl.posterior import MeanField

from .reference import random_case
from .test_contract import assert_same
from .test_robust import ATTACKS, defended, hostile, pool, whole_models

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


def test_clients_at_one_point_stay_there():
    four = MeanField(np.full([4, 3], 0.25), np.full([4, 3], 0.5))
    pooled = rules.aggregate(rules.centered_clip(rules.log_linear_pool()), four)
    assert_same(pooled, MeanField(np.full(3, 0.25), np.full(3, 0.5)), rtol=1e-6)


@pytest.mark.parametrize("name", ["linear_pool", "conflation", "log_linear_pool"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_two_of_ten_clients_move_the_mean_by_less_than_honest_ones_differ(name, attack):
    clients, anchor = whole_models(10)
    spoiled = [hostile(c, anchor, *ATTACKS[attack]) for c in clients[:2]] + clients[2:]
    rule = functools.partial(defended, "centered_clip")
    pooled, metrics = pool(rule(rules.whole_model(rules.parse_rule(name))), spoiled, anchor)
    flat = lambda w: np.concatenate([np.ravel(x) for x in tf.nest.flatten((w.posterior.mean, w.point))])
    honest = np.stack([flat(c) for c in clients[2:]])
    center = honest.mean(0)
    assert np.linalg.norm(flat(pooled) - center) < np.linalg.norm(honest - center, axis=1).max()
    undefended, _ = pool(rules.whole_model(rules.parse_rule(name)), spoiled, anchor)
    if attack != "sure":  # whose point weights alone are averaged
        assert not np.linalg.norm(flat(undefended) - center) < np.linalg.norm(honest - center, axis=1).max()
    widest = tf.nest.map_structure(lambda *x: tf.reduce_max(tf.stack(x), 0), *clients[2:])
    for v, most in zip(pooled.posterior.variance, widest.posterior.variance):
        assert (v <= 2 * most).numpy().all()
    assert int(metrics["clipped_clients"]) >= 2
