import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.kit import assert_same, refuses
from tfp_bfl import rules
from tfp_bfl.named import WithArgument
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights import ModelWeights

from .forms import CONTRACT, every_rule, with_sums

SIZES = (30, 50, 120)


def constants(structure):
    return tf.nest.map_structure(lambda x: tf.constant(x, tf.float32), structure)


@pytest.fixture(scope="module")
def raw():
    """The features that each client's BatchNorm saw, [N_k, 4], with other means and scales for each client."""
    rng = np.random.default_rng(0)
    return [rng.normal(rng.normal(size=4), rng.uniform(0.5, 2, 4), (n, 4)) for n in SIZES]


@pytest.fixture(scope="module")
def locals_and_anchor(raw):
    rng = np.random.default_rng(1)

    def posterior():
        shapes = [(3, 2), (2,)]
        variance = lambda s: rng.uniform(0.3, 0.6, s)
        return MeanField(tuple(rng.normal(size=s) for s in shapes), tuple(variance(s) for s in shapes))

    def client(features):
        point = (rng.normal(size=(2, 2)), rng.normal(size=3))
        return ModelWeights(posterior(), point, MeanField((features.mean(0),), (features.var(0),)))

    anchor = client(np.zeros((1, 4)))
    anchor = anchor._replace(posterior=anchor.posterior._replace(variance=(np.ones((3, 2)), np.ones(2))))
    return [constants(client(x)) for x in raw], constants(anchor)


def pool(rule, clients, anchor):
    parts = [rule.summarise(local, anchor, tf.constant(float(n))) for local, n in zip(clients, SIZES)]
    return rule.pool(functools.reduce(rule.merge, parts), anchor)


@every_rule
def test_each_part_has_its_rule(name, locals_and_anchor, raw):
    clients, anchor = locals_and_anchor
    rule = rules.parse_rule(name)
    lifted = rules.whole_model(rule)
    assert (lifted.name, lifted.traits) == (rule.name, rule.traits)
    pooled, metrics = pool(lifted, clients, anchor)
    tf.nest.assert_same_structure(pooled, clients[0])

    stacked = tf.nest.map_structure(lambda *leaves: tf.stack(leaves), *(c.posterior for c in clients))
    alone = rules.aggregate(rule, stacked, SIZES, anchor.posterior)
    assert_same(pooled.posterior, alone, rtol=2e-5, atol=1e-6)
    for i, actual in enumerate(pooled.point):
        wanted = np.average([c.point[i] for c in clients], axis=0, weights=SIZES)
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-6)
    together = np.concatenate(raw)
    np.testing.assert_allclose(pooled.moments.mean[0], together.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(pooled.moments.variance[0], together.var(0), rtol=1e-5)
    assert metrics.keys() == set(CONTRACT[name].reports)


@every_rule
def test_zeros_are_neutral_and_merge_is_commutative(name, locals_and_anchor):
    clients, anchor = locals_and_anchor
    rule = rules.whole_model(rules.parse_rule(name))
    a, b = (rule.summarise(c, anchor, tf.constant(2.0 + k)) for k, c in enumerate(clients[:2]))
    zeros = tf.nest.map_structure(tf.zeros_like, a)
    for left, right in ((rule.merge(a, zeros), a), (rule.merge(zeros, a), a), (rule.merge(a, b), rule.merge(b, a))):
        assert_same(left, right)


@every_rule
def test_deterministic_model_is_federated_averaging(name, locals_and_anchor):
    clients, anchor = locals_and_anchor
    none = MeanField((), ())
    strip = lambda w: ModelWeights(none, w.point, none)
    pooled, metrics = pool(rules.whole_model(rules.parse_rule(name)), [strip(c) for c in clients], strip(anchor))
    assert pooled.posterior == none and pooled.moments == none
    wanted = np.average([c.point[1] for c in clients], axis=0, weights=SIZES)
    np.testing.assert_allclose(pooled.point[1], wanted, rtol=1e-5, atol=1e-6)
    assert int(metrics.get("kept_weights", 0)) == 0


@every_rule
def test_posteriors_alone_are_pooled_as_by_the_rule(name, locals_and_anchor):
    clients, anchor = locals_and_anchor
    wanted = pool(with_sums(name), [c.posterior for c in clients], anchor.posterior)
    actual = pool(rules.whole_model(name), [c.posterior for c in clients], anchor.posterior)
    assert isinstance(actual[0], MeanField) and actual[1] == wanted[1]
    assert_same(actual[0], wanted[0])


@pytest.mark.parametrize(
    "rule", [rules.conflation(), rules.client_gaussian(), rules.stacked(), rules.median("conflation")]
)
def test_what_is_over_the_whole_model_stays(rule):
    whole = rules.whole_model(rule)
    assert isinstance(whole, rules.ModelRule) and rules.whole_model(whole) is whole
    assert (whole is rule) == isinstance(rule, rules.ModelRule)


def median(stacked, importance, anchor):
    middle = lambda x: tf.sort(x, 0)[1]
    return rules.Pooled(MeanField(*(tf.nest.map_structure(middle, part) for part in (stacked.mean, stacked.variance))))


def test_a_rule_over_the_stack_of_posteriors(locals_and_anchor):
    """The rest is averaged as with any rule; without a posterior the rule is not asked."""
    clients, anchor = locals_and_anchor
    rule = rules.whole_model(rules.GatherRule(median))
    pooled, _ = pool(rule, clients, anchor)
    plain, _ = pool(rules.whole_model("conflation"), clients, anchor)
    for i in range(2):
        wanted = np.median([c.posterior.mean[i] for c in clients], 0)
        np.testing.assert_array_equal(pooled.posterior.mean[i], wanted)
        np.testing.assert_allclose(pooled.point[i], plain.point[i], rtol=1e-6)
    np.testing.assert_allclose(pooled.moments.variance[0], plain.moments.variance[0], rtol=1e-5)
    alone, _ = pool(rule, [c.posterior for c in clients], anchor.posterior)
    np.testing.assert_array_equal(alone.mean[0], pooled.posterior.mean[0])
    none = MeanField((), ())
    strip = lambda w: ModelWeights(none, w.point, none)
    bare, metrics = pool(rule, [strip(c) for c in clients], strip(anchor))
    np.testing.assert_array_equal(bare.point[0], pooled.point[0])
    assert metrics == {} and bare.posterior == none


def test_a_rule_with_a_parameter_is_named_with_it(monkeypatch, locals_and_anchor):
    """A function and an entry: every door takes its name."""

    def tempered(exponent):
        return rules.conflation()._replace(name=f"tempered {exponent}")

    monkeypatch.setitem(rules.RULES, "tempered", WithArgument(tempered, "exponent"))
    assert rules.whole_model("tempered:0.5").name == "tempered 0.5"
    assert rules.trimmed("tempered:2").name == "trimmed tempered 2.0"
    for text, message in (
        ("tempered", "The rule 'tempered' lacks its exponent: write tempered:EXPONENT"),
        ("tempered:hot", "has the exponent 'hot', but must be tempered:EXPONENT with a number"),
        ("conflation:2", "The rule 'conflation:2' has an argument, but conflation takes none"),
    ):
        refuses(message, rules.whole_model, text)
