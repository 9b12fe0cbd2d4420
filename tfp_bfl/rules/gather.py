"""Rules that give all that clients send, as a stack or as its sum, and rules over a stack."""

from typing import Any, Generic, NamedTuple

import tensorflow as tf

from tfp_bfl.contracts import (
    STACK,
    TOTAL,
    GatherRule,
    ModelGatherRule,
    ModelRule,
    Pooled,
    Stack,
    as_stack,
)
from tfp_bfl.rules.rule import add, checked_pool, each, kept
from tfp_bfl.tensors import Scalar
from tfp_bfl.weights import ModelWeights
from tfp_bfl.weights.kinds import Given, Sent, Statistics


class _Gathered(NamedTuple, Generic[Sent]):
    locals: Sent
    importance: tf.Tensor


def stacked() -> ModelRule[Any, Stack[Any]]:
    """Build the rule that gives the stack itself, leaves [K, ...], to a server step that keeps posteriors apart.

    Memory clients x what each sends. Clients may send any structure of tensors.
    """
    pool = lambda stacked, importance, anchor: Pooled(as_stack(stacked))
    return gathered(ModelGatherRule(pool, "stacked", takes=None, gives=STACK))


def gathered(rule: GatherRule[Sent, Given, ModelWeights]) -> ModelRule[Sent, Given, _Gathered[Sent]]:
    """Return the rule with the clients' messages as statistics: merging concatenates the stacks.

    Clients of weight zero, whom the round has found faulty, are left out. If none is left, zeros stand for one client,
    so that no rule meets an empty stack: what it makes of them is not used.
    """

    def summarise(local: Sent, anchor: ModelWeights, weight: tf.Tensor) -> _Gathered[Sent]:
        del anchor
        return _Gathered(each(lambda x: x[tf.newaxis], local), tf.reshape(weight, [1]))

    def merge(a: _Gathered[Sent], b: _Gathered[Sent]) -> _Gathered[Sent]:
        return each(lambda x, y: tf.concat([x, y], 0), a, b)

    def pool(total: _Gathered[Sent], anchor: ModelWeights) -> Pooled[Given]:
        sound = total.importance > 0
        left = tf.cond(
            tf.reduce_any(sound),
            lambda: each(lambda x: tf.boolean_mask(x, sound), total),
            lambda: each(lambda x: tf.zeros(tf.concat([[1], tf.shape(x)[1:]], 0), x.dtype), total),
        )
        return checked_pool(rule.name, rule.pool(left.locals, left.importance, anchor))

    return ModelRule(summarise, merge, pool, **kept(rule))


def summarise_stack(
    rule: ModelRule[Sent, Given, Statistics], stacked: Sent, importance: tf.Tensor, anchor: ModelWeights
) -> Statistics:
    """Return the merged statistics of a stack (leaves [K, ...], importance [K]); K may be unknown in a graph."""

    def of(k: Scalar) -> Statistics:
        return rule.summarise(each(lambda x: x[k], stacked), anchor, importance[k])

    first = of(0)
    # Statistics that are a stack themselves grow.
    size = lambda x, y: tf.TensorShape([m if m == n else None for m, n in zip(x.shape, y.shape)])
    shapes = each(size, first, rule.merge(first, first))
    number = tf.shape(importance)[0]
    one_more = lambda k, total: (k + 1, rule.merge(total, of(k)))
    start = tf.constant(1), first
    invariants = tf.TensorShape([]), shapes
    return tf.while_loop(lambda k, total: k < number, one_more, start, invariants, parallel_iterations=1)[1]


def total() -> ModelRule[Any, Any]:
    """Build the rule sum_k x_k over any structure of tensors: each client counts once, whatever its weight.

    Each client sends floats, and the server sees their sum alone.
    """
    return ModelRule(
        lambda local, anchor, weight: local,
        add,
        lambda sums, anchor: Pooled(sums),
        name="total",
        takes=None,
        gives=TOTAL,
    )
