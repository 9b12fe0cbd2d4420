"""A rule with weights that only all clients together tell."""

from __future__ import annotations

from typing import Any, Callable, Union

import tensorflow as tf

from tfp_bfl.contracts import GatherRule, ModelGatherRule, Pooled, Rule
from tfp_bfl.rules.gather import summarise_stack
from tfp_bfl.rules.rule import KEPT, with_metrics
from tfp_bfl.rules.whole_model import whole_model


def reweighted(rule: Union[Rule, GatherRule, str], weigh: Callable[[Any], tf.Tensor]) -> ModelGatherRule:
    """`rule` with weights that depend on all clients' posteriors, such as those by maximum discrepancy.

    Memory clients x weights. Reports the largest client's share of the weights.

    Args:
      rule: of `tfp_bfl.rules`, or its name.
      weigh: stacked -> the clients' weights [K], positive.
    """
    inner = whole_model(rule)

    def pool(stacked: Any, importance: tf.Tensor, anchor: Any) -> Pooled:
        new = tf.cast(weigh(stacked), importance.dtype)
        pooled = inner.pool(summarise_stack(inner, stacked, new, anchor), anchor)
        return with_metrics(pooled, largest_share=tf.cast(tf.reduce_max(new) / tf.reduce_sum(new), tf.float32))

    fields = {name: getattr(inner, name) for name in KEPT}
    return ModelGatherRule(pool, **fields)
