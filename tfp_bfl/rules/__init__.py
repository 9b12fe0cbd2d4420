"""Aggregation rules: how K clients' posteriors over the same weights become one.

A rule is three pure functions. `summarise(local, anchor, weight)` runs on a client and gives its statistics;
`merge(a, b)` adds two clients' statistics (a commutative monoid whose neutral element is all zeros);
`pool(total, anchor)` runs on the server. Statistics are centred on the anchor, the posterior that the server
broadcast, so that float32 keeps its digits where clients lie close together.

A new rule is one function in a file of this folder and one entry in `RULES`. A rule that must see every client's
posterior at once is a `GatherRule`, such as `kernel_posterior`. `clipped`, `trimmed` and `median` make a rule withstand
adversarial clients.
"""

from tfp_bfl.contracts import GatherRule, Rule
from tfp_bfl.rules.aggregate import aggregate
from tfp_bfl.rules.gather import gathered, reweighted, stacked
from tfp_bfl.rules.gaussian import client_gaussian
from tfp_bfl.rules.kernel import KernelModes, kernel_mode, kernel_modes, kernel_posterior
from tfp_bfl.rules.mixtures import linear_pool, naive_weighted_average, weighted_sum
from tfp_bfl.rules.products import (
    conflation,
    distributed_weight_consolidation,
    log_linear_pool,
    weighted_conflation,
)
from tfp_bfl.rules.robust import ROBUST, clipped, median, parse_robust, trimmed
from tfp_bfl.rules.rule import check_rule
from tfp_bfl.rules.whole_model import whole_model

RULES = {
    rule.__name__: rule
    for rule in (
        naive_weighted_average,
        weighted_sum,
        linear_pool,
        conflation,
        weighted_conflation,
        distributed_weight_consolidation,
        log_linear_pool,
    )
}

__all__ = [
    "ROBUST",
    "RULES",
    "GatherRule",
    "KernelModes",
    "Rule",
    "aggregate",
    "check_rule",
    "client_gaussian",
    "clipped",
    "gathered",
    "kernel_mode",
    "kernel_modes",
    "kernel_posterior",
    "median",
    "parse_robust",
    "reweighted",
    "stacked",
    "trimmed",
    "whole_model",
    *RULES,
]
