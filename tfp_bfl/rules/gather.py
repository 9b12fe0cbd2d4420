"""Rules that must see every client's posterior at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl.contracts import STACK, GatherRule, ModelGatherRule, ModelRule, Pooled, Rule
from tfp_bfl.rules.rule import KEPT, each, pooled_by


class _Gathered(NamedTuple):
    locals: Any
    importance: tf.Tensor


def stacked() -> ModelRule:
    """The stack itself: leaves [K, ...], for a server step that keeps each client's posterior apart.

    Memory clients x what each sends. Clients may send any structure of tensors.
    """
    pool = lambda stacked, importance, anchor: Pooled(stacked)
    return gathered(ModelGatherRule(pool, "stacked", takes=None, gives=STACK))


def gathered(rule: GatherRule) -> ModelRule:
    """The rule whose statistics are what the clients send: to merge is to join the stacks.

    Clients of weight zero, whom the round has found faulty, are left out. If none is left, zeros stand for one client,
    so that no rule meets an empty stack: what it makes of them is not used.
    """

    def summarise(local: Any, anchor: Any, weight: tf.Tensor) -> _Gathered:
        del anchor
        return _Gathered(each(lambda x: x[tf.newaxis], local), tf.reshape(weight, [1]))

    def merge(a: _Gathered, b: _Gathered) -> _Gathered:
        return each(lambda x, y: tf.concat([x, y], 0), a, b)

    def sound(total: _Gathered) -> _Gathered:
        keep = total.importance > 0
        return tf.cond(
            tf.reduce_any(keep),
            lambda: each(lambda x: tf.boolean_mask(x, keep), total),
            lambda: each(lambda x: tf.zeros(tf.concat([[1], tf.shape(x)[1:]], 0), x.dtype), total),
        )

    pool = lambda total, anchor: pooled_by(rule, *sound(total), anchor)
    return ModelRule(summarise, merge, pool, **{name: getattr(rule, name) for name in KEPT})


def summarise_stack(rule: Rule, stacked: Any, importance: tf.Tensor, anchor: Any) -> Any:
    """The merged statistics of a stack (leaves [K, ...], importance [K]); K may be unknown in a graph."""

    def of(k: Any) -> Any:
        return rule.summarise(each(lambda x: x[k], stacked), anchor, importance[k])

    first = of(0)
    # Statistics that are a stack themselves grow.
    size = lambda x, y: tf.TensorShape([m if m == n else None for m, n in zip(x.shape, y.shape)])
    shapes = each(size, first, rule.merge(first, first))
    number = tf.shape(importance)[0]
    add = lambda k, total: (k + 1, rule.merge(total, of(k)))
    start = tf.constant(1), first
    invariants = tf.TensorShape([]), shapes
    return tf.while_loop(lambda k, total: k < number, add, start, invariants, parallel_iterations=1)[1]
