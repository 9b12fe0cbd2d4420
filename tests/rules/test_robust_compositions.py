"""Defences around rules of every type, on posteriors and on whole models."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tfp_bfl import rules, weighting
from tfp_bfl.contrib.kernel import kernel_posterior
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights import ModelWeights

from .forms import every_rule
from .test_contract import assert_same
from .test_robust import DEFENCES, defended, every_defence, pool, whole_models


@pytest.mark.parametrize("defence", DEFENCES)
def test_a_rule_that_takes_something_else_is_refused(defence):
    rule = rules.client_gaussian()._replace(takes="bits")
    with pytest.raises(InvalidArgument, match="takes a bits, but a robust aggregator needs the clients' weights"):
        defence(rule)


@pytest.mark.parametrize("defence", [rules.trimmed, rules.median])
def test_what_is_left_of_a_stack_is_no_client(defence):
    with pytest.raises(InvalidArgument, match="'stacked' has none to give: use the robust aggregator clip"):
        defence(rules.stacked())


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
    assert defended(text, rule).min_clients == fewest
    assert defended(text, rules.naive_weighted_average()).min_clients == 1
    assert rules.trimmed(rules.linear_pool(), 0.49999999999).min_clients == 1  # At once.
    assert rules.reweighted(rule, weighting.max_discrepancy_weights).min_clients == 5
    assert rules.whole_model(rule).min_clients == 5


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
