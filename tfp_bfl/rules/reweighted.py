"""A rule with weights that depend on all clients together."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tfp_bfl.contracts import AnyRule, ModelGatherRule, Pooled
from tfp_bfl.rules.gather import summarise_stack
from tfp_bfl.rules.rule import KEPT, with_metrics, without_noise_of_server
from tfp_bfl.rules.whole_model import whole_model
from tfp_bfl.weights import ModelWeights
from tfp_bfl.weights.kinds import Given, Sent


def reweighted(rule: AnyRule[Sent, Given], weigh: Callable[[Sent], tf.Tensor]) -> ModelGatherRule[Sent, Given]:
    """Return `rule` with weights that depend on all clients' posteriors, such as those by maximum discrepancy.

    Memory clients x weights. Reports the largest client's share of the weights.

    Args:
      rule: of `tfp_bfl.rules`, or its name.
      weigh: stacked -> the clients' weights [K], positive.
    """
    inner = without_noise_of_server(whole_model(rule))

    def pool(stacked: Sent, importance: tf.Tensor, anchor: ModelWeights) -> Pooled[Given]:
        new = tf.cast(weigh(stacked), importance.dtype)
        pooled = inner.pool(summarise_stack(inner, stacked, new, anchor), anchor)
        return with_metrics(pooled, largest_share=tf.cast(tf.reduce_max(new) / tf.reduce_sum(new), tf.float32))

    fields = {name: getattr(inner, name) for name in KEPT}
    return ModelGatherRule(pool, **fields)
