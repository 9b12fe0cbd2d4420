"""Rules that must see every client's posterior at once."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

import tensorflow as tf

from tfp_bfl.contracts import GatherRule, ModelRule, Rule
from tfp_bfl.rules.rule import each, sharing


class _Gathered(NamedTuple):
    locals: Any
    weights: tf.Tensor


def stacked() -> ModelRule:
    """The stack itself: leaves [K, ...], for a server step that keeps each client's posterior apart.

    Memory clients x what each sends. Clients may send any structure of tensors.
    """
    return gathered(GatherRule(lambda stacked, weights, anchor: stacked, "stacked"))


def gathered(rule: GatherRule) -> ModelRule:
    """The `Rule` whose statistics are the clients' posteriors themselves: to merge is to join the stacks.

    Clients of weight zero, whom the round has found faulty, are left out. If none is left, zeros stand for one client,
    so that no rule meets an empty stack: what it makes of them is not used.
    """

    def summarise(local: Any, anchor: Any, weight: tf.Tensor) -> _Gathered:
        del anchor
        return _Gathered(each(lambda x: x[tf.newaxis], local), tf.reshape(weight, [1]))

    def merge(a: _Gathered, b: _Gathered) -> _Gathered:
        return each(lambda x, y: tf.concat([x, y], 0), a, b)

    def sound(total: _Gathered) -> _Gathered:
        keep = total.weights > 0
        return tf.cond(
            tf.reduce_any(keep),
            lambda: each(lambda x: tf.boolean_mask(x, keep), total),
            lambda: each(lambda x: tf.zeros(tf.concat([[1], tf.shape(x)[1:]], 0), x.dtype), total),
        )

    return ModelRule(
        summarise,
        merge,
        lambda total, anchor: rule.pool(*sound(total), anchor),
        rule.name,
        rule.uses_anchor,
        lambda total, anchor: rule.metrics(*sound(total), anchor),
        rule.min_clients,
        lambda total, anchor: rule.pool_with_metrics(*sound(total), anchor),
    )


def summarise_stack(rule: Rule, stacked: Any, weights: tf.Tensor, anchor: Any) -> Any:
    """The merged statistics of a stack (leaves [K, ...], weights [K]); K may be unknown in a graph."""
    like = rule.summarise(anchor, anchor, tf.ones([], weights.dtype))
    return tf.foldl(
        lambda sums, client: rule.merge(sums, rule.summarise(client[0], anchor, client[1])),
        (stacked, weights),
        initializer=each(tf.zeros_like, like),
    )


def reweighted(rule: Rule, weigh: Callable[[Any], tf.Tensor]) -> GatherRule:
    """`rule` with weights that depend on all clients' posteriors, such as those by maximum discrepancy.

    Memory clients x weights. Reports the largest client's share of the weights.

    Args:
      rule: of `tfp_bfl.rules`, or of `whole_model`.
      weigh: stacked -> weights [K], positive.
    """

    def together(stacked: Any, weights: tf.Tensor, anchor: Any) -> tuple[Any, dict[str, tf.Tensor]]:
        new = tf.cast(weigh(stacked), weights.dtype)
        pooled, own = rule.pool_with_metrics(summarise_stack(rule, stacked, new, anchor), anchor)
        return pooled, {"largest_share": tf.cast(tf.reduce_max(new) / tf.reduce_sum(new), tf.float32), **own}

    return GatherRule(name=rule.name, uses_anchor=rule.uses_anchor, **sharing(together))
