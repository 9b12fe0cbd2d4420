"""Rules for rounds are idempotent: where all clients send what they were given, nothing changes. Products are not."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import assert_same, refuses
from tfp_bfl import algorithms, models, rules
from tfp_bfl.algorithms.kernel import kernel_posterior
from tfp_bfl.contracts import GatherRule
from tfp_bfl.options.choices import ONE_SHOT
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights import ModelWeights

from .forms import CONTRACT, every_rule, plain

WEIGHTS = ([1.0, 1.0, 1.0, 1.0], [7.0, 30.0, 12.0, 1.0], [1e-12, 3e-12, 2e-12, 2e-12])
shares = lambda stacked: tf.constant([0.4, 0.3, 0.2, 0.1])
LIFTS = {
    "whole_model": rules.whole_model,
    "clipped": lambda rule: rules.clipped(rule, 0.5),
    "trimmed": lambda rule: rules.trimmed(rule, 0.25),
    "median": rules.median,
    "reweighted": lambda rule: rules.reweighted(rule, shares),
}


@functools.cache
def anchor():
    rng = np.random.default_rng(0)
    leaves = lambda draw, *shapes: tuple(np.float32(draw(shape)) for shape in shapes)
    variances = lambda shape: rng.uniform(1e-8, 1e-2, shape)
    q = MeanField(leaves(rng.standard_normal, (5, 3), (3,)), leaves(variances, (5, 3), (3,)))
    moments = MeanField(leaves(rng.standard_normal, (3,)), leaves(variances, (3,)))
    return tf.nest.map_structure(tf.constant, ModelWeights(q, leaves(rng.standard_normal, (3, 2)), moments))


def nobody_moved(rule, weights):
    """What the rule makes of clients who all send the anchor."""
    whole = rules.whole_model(rule)
    parts = [whole.summarise(anchor(), anchor(), tf.constant(w)) for w in weights]
    return whole.pool(functools.reduce(whole.merge, parts), anchor()).weights


def assert_unmoved(pooled):
    tf.nest.assert_same_structure(pooled, anchor())
    assert_same(pooled, anchor(), rtol=1e-6)


def assert_narrower(pooled):
    """Variances by a quarter at least; means, point weights and moments stay."""
    for a, b in zip(pooled.posterior.variance, anchor().posterior.variance):
        assert np.all(a < 0.75 * b)
    assert_unmoved(pooled._replace(posterior=pooled.posterior._replace(variance=anchor().posterior.variance)))


def test_which_rules_are_for_one_round():
    assert {plain(form) for form in CONTRACT if rules.parse_rule(form).traits.one_shot} == set(ONE_SHOT.entries)


@every_rule
@pytest.mark.parametrize("weights", WEIGHTS, ids=["equal", "unequal", "tiny"])
def test_nobody_moved(name, weights):
    check = assert_narrower if plain(name) in ONE_SHOT.entries else assert_unmoved
    check(nobody_moved(rules.parse_rule(name), weights))


@every_rule
@pytest.mark.parametrize("lift", LIFTS)
def test_lifted_rules_keep_what_they_are(name, lift):
    """Of four clients trimmed and median leave two."""
    lifted = LIFTS[lift](rules.parse_rule(name))
    assert lifted.traits.one_shot is (plain(name) in ONE_SHOT.entries)
    assert rules.whole_model(lifted).traits.one_shot is (plain(name) in ONE_SHOT.entries)
    check = assert_narrower if plain(name) in ONE_SHOT.entries else assert_unmoved
    check(nobody_moved(lifted, WEIGHTS[1]))


@pytest.mark.parametrize("one_shot", [False, True])
def test_rules_over_the_stack_keep_what_they_are(one_shot):
    rule = GatherRule(lambda stacked, importance, anchor: rules.Pooled(anchor), "own", rules.Traits(one_shot=one_shot))
    assert rules.whole_model(rule).traits.one_shot is one_shot


@pytest.mark.parametrize("start", ["mean", "clients"])
def test_modes_of_clients_that_agree(start):
    rule = kernel_posterior(start)
    assert not rule.traits.one_shot
    assert_unmoved(nobody_moved(rule, WEIGHTS[1]))


@pytest.mark.parametrize("defence", [None, "clip:0.5", "trimmed:0.25", "median"])
@pytest.mark.parametrize("name", ["conflation", "log_linear_pool"])
def test_processes_know(name, defence):
    make = functools.partial(models.mlp, input_shape=(2,), hidden=())
    process = algorithms.variational(make, name, robust=defence)
    assert process.one_shot is (name == "conflation")
    of_points = algorithms.variational(functools.partial(make, "deterministic"), name, robust=defence)
    assert not of_points.one_shot


@pytest.mark.parametrize("stddev", [1e-3, 1e-4, 1e-5])
def test_linear_pool_keeps_its_digits_where_the_drift_dwarfs_the_stddev(stddev):
    rng = np.random.default_rng(0)
    anchor = rng.normal(0.5, 0.1, 2000).astype(np.float32)
    means = (anchor + rng.normal(0, 0.02, 2000) + stddev * rng.normal(size=(3, 2000))).astype(np.float32)
    variances = (stddev**2 * rng.uniform(0.5, 2, (3, 2000))).astype(np.float32)
    weights = np.array([1.0, 2.0, 3.0])
    rule = rules.linear_pool()
    start = MeanField(tf.constant(anchor), tf.fill([2000], np.float32(stddev**2)))
    parts = [
        rule.summarise(MeanField(m, v), start, tf.constant(w, tf.float32)) for m, v, w in zip(means, variances, weights)
    ]
    pooled = rule.pool(functools.reduce(rule.merge, parts), start).weights
    share = weights / weights.sum()
    mean = share @ means.astype(np.float64)
    variance = share @ (variances + (means - mean) ** 2)
    np.testing.assert_allclose(pooled.variance, variance, rtol=1e-5)
    np.testing.assert_allclose(pooled.mean, mean, rtol=1e-6)


@pytest.mark.parametrize("wrong", [rules.conflation, 3, None])
def test_what_is_not_a_rule_is_refused(wrong):
    stacked = MeanField(tf.zeros([2, 3]), tf.ones([2, 3]))
    for use in (lambda: rules.aggregate(wrong, stacked), lambda: rules.whole_model(wrong)):
        refuses("rule must be a Rule", use)
