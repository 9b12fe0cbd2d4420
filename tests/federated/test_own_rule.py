"""Variances that are none, given by a user's rule."""

import pytest
import tensorflow as tf

from tests.kit import fails, refuses
from tfp_bfl import algorithms, federated, interop, posterior, rules, servers
from tfp_bfl.errors import Diverged

from . import toys
from .test_poison import hostile, model_fn

each = tf.nest.map_structure


def scaled(factor, name="mine"):
    """The naive weighted average with variances by a factor."""
    average = rules.naive_weighted_average()

    def pool(total, anchor):
        q, metrics = average.pool(total, anchor)
        return rules.Pooled(q._replace(variance=each(lambda v: factor * v, q.variance)), metrics)

    return average._replace(pool=pool, name=name, traits=rules.Traits())


def run(rule, engine="local", **options):
    process = algorithms.compose(model_fn, hostile(9), rule, servers.replace(), weighting="equal", **options)
    return federated.simulate(process, toys.CLIENTS, 2, engine=engine)


@pytest.mark.parametrize("engine", ["local", "compiled"])
@pytest.mark.parametrize("factor", [-1.0, 0.0, float("nan"), float("inf")])
def test_variances_that_are_none_are_refused_by_the_name_of_the_rule(factor, engine):
    """A floor of standard deviations would otherwise make a small number of a negative variance."""
    with pytest.raises(
        Diverged, match=r"^The rule 'mine' gives variances in round 1 that are not finite numbers above"
    ):
        run(scaled(factor), engine)


def test_a_server_of_other_frameworks_refuses_them_too():
    server = interop.Server({"w": [0.0]}, 1.0, rule=scaled(-1.0))
    answers = [interop.Answer("a", 3, {"mean/w": tf.ones(1).numpy(), "variance/w": tf.ones(1).numpy()})]
    fails(r"The rule 'mine' gives variances in round 1 .*; the state is unchanged", server.next, answers)


def test_and_so_does_the_rule_as_an_operation():
    two = posterior.MeanField(tf.constant([[0.0], [1.0]]), tf.ones([2, 1]))
    refuses("The rule 'mine' gives variances below 0", rules.aggregate, scaled(-1.0), two)
