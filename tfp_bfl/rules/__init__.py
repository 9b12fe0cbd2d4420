"""Aggregation rules: how K clients' posteriors over the same weights become one.

A rule is three pure functions. `summarise(local, anchor, weight)` runs on a client and gives its statistics;
`merge(a, b)` adds two clients' statistics (a commutative monoid with all zeros as its neutral element);
`pool(total, anchor)` runs on the server. Statistics are centred on the anchor, the posterior that the server
broadcast, so that float32 keeps its digits where clients lie close together.

What a rule is over is its type: a `Rule` is over a posterior, a `ModelRule` over all that clients send, as a round
takes it; a `GatherRule` and a `ModelGatherRule`, such as `algorithms.kernel.kernel_posterior`, see the stack of all
clients at once. `whole_model` makes a `ModelRule` of any of them. `clipped`, `trimmed`, `median` and `centered_clip`
make a rule withstand adversarial clients, `quantised` and `private` make one of sums that hide the clients.

A new rule is one function in a file of this folder and one entry in `RULES`: the function, or, if it has a parameter,
`WithArgument(function, "parameter")`, which text names "function:NUMBER".
"""

from tfp_bfl.contracts import GatherRule, ModelGatherRule, ModelRule, Pooled, Rule, Traits
from tfp_bfl.named import WithArgument
from tfp_bfl.rules.aggregate import aggregate
from tfp_bfl.rules.gather import gathered, stacked, total
from tfp_bfl.rules.means import (
    client_gaussian,
    linear_pool,
    mean_precision_average,
    naive_weighted_average,
    weighted_sum,
)
from tfp_bfl.rules.products import (
    conflation,
    distributed_weight_consolidation,
    log_linear_pool,
    weighted_conflation,
)
from tfp_bfl.rules.robust import ROBUST, centered_clip, clipped, geometric_median, median, parse_robust, trimmed
from tfp_bfl.rules.rule import RULES, check_rule, parse_rule
from tfp_bfl.rules.sums import private, quantised
from tfp_bfl.rules.whole_model import reweighted, whole_model

RULES.update(
    naive_weighted_average=naive_weighted_average,
    weighted_sum=weighted_sum,
    linear_pool=linear_pool,
    conflation=conflation,
    weighted_conflation=weighted_conflation,
    distributed_weight_consolidation=distributed_weight_consolidation,
    log_linear_pool=log_linear_pool,
    mean_precision_average=mean_precision_average,
)

__all__ = [
    "ROBUST",
    "RULES",
    "GatherRule",
    "ModelGatherRule",
    "ModelRule",
    "Pooled",
    "Rule",
    "Traits",
    "WithArgument",
    "aggregate",
    "centered_clip",
    "check_rule",
    "client_gaussian",
    "clipped",
    "gathered",
    "geometric_median",
    "median",
    "parse_robust",
    "parse_rule",
    "private",
    "quantised",
    "reweighted",
    "stacked",
    "total",
    "trimmed",
    "whole_model",
    *RULES,
]
