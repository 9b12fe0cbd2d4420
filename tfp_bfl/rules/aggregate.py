"""A rule as a plain op on a stack of posteriors."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior import MeanField
from tfp_bfl.rules.rule import Rule, check_rule


def aggregate(rule: Rule, stacked: MeanField, weights: Any = None, anchor: MeanField | None = None) -> MeanField:
    """Pools K posteriors by `rule`.

    Args:
      rule: of `tfp_bfl.rules`.
      stacked: leaves [K, ...].
      weights: [K], positive, not necessarily normalised; equal if None.
      anchor: the posterior that the clients started from, leaves [...]; only distributed weight consolidation needs it.

    In a graph only shapes are checked, not values.

    Returns:
      The pooled posterior, leaves [...].

    Raises:
      InvalidArgument: not a rule; weights zero, negative or not finite, or not K of them; variances zero, negative or
        not finite; means not finite; leaves that do not share K; no anchor for a rule that needs one.
    """
    check_rule(rule)
    stacked = MeanField(*stacked)
    means, variances = ([tf.convert_to_tensor(x) for x in tf.nest.flatten(part)] for part in stacked)
    num_clients = _num_clients(means, variances)
    dtype = means[0].dtype
    stacked = MeanField(
        tf.nest.pack_sequence_as(stacked.mean, means), tf.nest.pack_sequence_as(stacked.variance, variances)
    )
    weights = tf.ones([num_clients], dtype) if weights is None else tf.cast(tf.convert_to_tensor(weights), dtype)
    if weights.shape.rank != 1 or weights.shape[0] != num_clients:
        raise InvalidArgument(f"weights must be [{num_clients}], one a client, but have shape {weights.shape}.")
    if rule.uses_anchor and anchor is None:
        raise InvalidArgument(f"{rule.name} subtracts the posterior that the clients started from: pass it as anchor.")
    if tf.executing_eagerly():
        _check_values(means, variances, weights)
    # Every rule is the same for weights of any scale; at this one, squares neither overflow nor lose equal weights.
    weights = weights / tf.reduce_max(weights)
    anchor = _checked_anchor(anchor, stacked) if rule.uses_anchor and anchor else _centre(stacked, weights)

    total = rule.summarise(tf.nest.map_structure(lambda x: x[0], stacked), anchor, weights[0])
    for k in range(1, num_clients):
        local = tf.nest.map_structure(lambda x, k=k: x[k], stacked)
        total = rule.merge(total, rule.summarise(local, anchor, weights[k]))
    return rule.pool(total, anchor)


def _centre(stacked: MeanField, weights: tf.Tensor) -> MeanField:
    """Where the sums are centred for rules whose equation has no anchor: at the weighted mean."""
    shares = weights / tf.reduce_sum(weights)
    mean = tf.nest.map_structure(lambda m: tf.tensordot(tf.cast(shares, m.dtype), m, 1), stacked.mean)
    return MeanField(mean, tf.nest.map_structure(lambda v: v[0], stacked.variance))


def _checked_anchor(anchor: MeanField, stacked: MeanField) -> MeanField:
    anchor = tf.nest.map_structure(tf.convert_to_tensor, MeanField(*anchor))
    want, have = (tf.nest.flatten(x) for x in (stacked, anchor))
    if len(want) != len(have) or any(w.shape[1:] != h.shape for w, h in zip(want, have)):
        raise InvalidArgument("The anchor must have the shapes [...] of one posterior of the stack.")
    if tf.executing_eagerly():
        variances = tf.nest.flatten(anchor.variance)
        finite = all(bool(tf.reduce_all(tf.math.is_finite(x))) for x in have)
        if not (finite and all(bool(tf.reduce_all(v > 0)) for v in variances)):
            raise InvalidArgument("The anchor's means must be finite and its variances finite and above zero.")
    return anchor


def _num_clients(means: list[tf.Tensor], variances: list[tf.Tensor]) -> int:
    if not means:
        raise InvalidArgument("The stack holds no weights: a deterministic model has no posterior to pool.")
    sizes = {x.shape[0] if x.shape.rank else None for x in means + variances}
    same = len(means) == len(variances) and all(m.shape == v.shape for m, v in zip(means, variances))
    if len(sizes) != 1 or not same or None in sizes or 0 in sizes:
        raise InvalidArgument("A stack needs means and variances of the same shapes [K, ...] with one K of at least 1.")
    return int(sizes.pop() or 0)


def _check_values(means: list[tf.Tensor], variances: list[tf.Tensor], weights: tf.Tensor) -> None:
    finite = lambda x: bool(tf.reduce_all(tf.math.is_finite(x)))
    if not (finite(weights) and bool(tf.reduce_all(weights > 0))):
        raise InvalidArgument(f"weights must be finite and above zero, but are {weights.numpy().tolist()}.")
    for m, v in zip(means, variances):
        for what, bad in (
            ("mean must be finite", ~tf.math.is_finite(m)),
            ("variance must be finite and above zero", ~(tf.math.is_finite(v) & (v > 0))),
        ):
            if bool(tf.reduce_any(bad)):
                clients = tf.where(tf.reduce_any(tf.reshape(bad, [bad.shape[0], -1]), 1))[:, 0].numpy().tolist()
                raise InvalidArgument(f"Every {what}; it is not so for the clients at {clients} of the stack.")
