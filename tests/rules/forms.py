"""List the rules of `bfl.rules.RULES` as text names them, and what each promises: a new rule is a line more."""

from typing import NamedTuple

import pytest

from tfp_bfl import rules


class Contract(NamedTuple):
    uses_weights: bool = True
    uses_anchor: bool = False
    shrinks: bool = False  # K equal clients give 1 / K of their variance
    linear: bool = True
    reports: tuple = ()  # names of the rule's metrics


# A rule with a parameter stands here with a number for it, such as "krum:1"; each number is tested.
CONTRACT = {
    "naive_weighted_average": Contract(),
    "weighted_sum": Contract(shrinks=True),
    "linear_pool": Contract(linear=False),
    "conflation": Contract(uses_weights=False, shrinks=True),
    "weighted_conflation": Contract(shrinks=True),
    "distributed_weight_consolidation": Contract(uses_weights=False, uses_anchor=True, reports=("kept_weights",)),
    "log_linear_pool": Contract(),
    "mean_precision_average": Contract(),
}
every_rule = pytest.mark.parametrize("name", CONTRACT)


def plain(form):
    return form.partition(":")[0]


def is_over_stack(form):
    return isinstance(rules.parse_rule(form), rules.GatherRule)


def with_sums(form):
    """Return the rule of a form; one over the stack of all posteriors with the statistics that join the stack."""
    rule = rules.parse_rule(form)
    return rules.gathered(rule) if isinstance(rule, rules.GatherRule) else rule
