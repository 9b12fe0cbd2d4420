"""A rule as a plain op on a stack of posteriors."""

import functools
from collections.abc import Callable
from typing import TypeVar, cast

import numpy as np
import tensorflow as tf

from tfp_bfl.contracts import WEIGHTS, AnyRule, GatherRule, ModelGatherRule, Rule
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.posterior import MeanField
from tfp_bfl.rules.gather import gathered
from tfp_bfl.rules.rule import check_rule, checked_pool, parse_rule
from tfp_bfl.tensors import Array
from tfp_bfl.weights.kinds import Statistics

# Stacks of so many numbers are pooled in one compiled pass over memory: it pays for the 0.3 s of compilation.
COMPILED_FROM = 2**25
# A compiled pass names each client; more of them would take long to compile.
COMPILED_CLIENTS = 32
_Result = TypeVar("_Result")
_Unsound = Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


def aggregate(
    rule: AnyRule, stacked: MeanField, weights: Array | None = None, anchor: MeanField | None = None
) -> MeanField:
    """Pool K posteriors by `rule`.

    Args:
      rule: of `tfp_bfl.rules`, or its name.
      stacked: leaves [K, ...].
      weights: [K], positive, not necessarily normalised; equal if None.
      anchor: the posterior that the clients started from, leaves [...]; only distributed weight consolidation needs it.

    In a graph only shapes are checked, not values.

    Returns:
      The pooled posterior, leaves [...].

    Raises:
      InvalidArgument: not a rule; leaves that are no floats or of several types; a result that is not finite;
        weights zero, negative or not finite, or not K of them; variances zero, negative or not finite; means not
        finite; leaves that do not share K; no anchor for a rule that needs one.

    Example:
      >>> clients = bfl.posterior.MeanField(np.array([[0.0], [3.0]]), np.array([[1.0], [2.0]]))
      >>> pooled = bfl.rules.aggregate("linear_pool", clients, weights=[3, 1])
      >>> print(np.round(pooled.mean, 3), np.round(pooled.variance, 3))
      [0.75] [2.938]
    """
    rule = parse_rule(rule) if isinstance(rule, str) else rule
    check_rule(rule)
    if rule.gives != WEIGHTS:
        raise InvalidArgument(f"The rule {rule.name!r} gives a {rule.gives}, but aggregate pools to one posterior.")
    plain = type(rule) is Rule
    # Those over a model's weights take a posterior alone too.
    rule = cast(Rule, gathered(cast("ModelGatherRule", rule)) if isinstance(rule, GatherRule) else rule)
    stacked = MeanField(*stacked)
    means, variances = ([tf.convert_to_tensor(x) for x in tf.nest.flatten(part)] for part in stacked)
    num_clients = _num_clients(means, variances)
    dtype = _dtype(means + variances)
    stacked = MeanField(
        tf.nest.pack_sequence_as(stacked.mean, means), tf.nest.pack_sequence_as(stacked.variance, variances)
    )
    shares = tf.ones([num_clients], dtype) if weights is None else checked_weights(weights, num_clients, dtype)
    if rule.traits.uses_anchor and anchor is None:
        raise InvalidArgument(f"{rule.name} subtracts the posterior that the clients started from: pass it as anchor.")
    compiled = (
        tf.executing_eagerly()
        and plain  # XLA can't leave clients out, as stacks do.
        and num_clients <= COMPILED_CLIENTS
        and sum(x.shape.num_elements() for x in means + variances) >= COMPILED_FROM
    )
    unsound = _compile(_unsound) if compiled else _unsound
    if tf.executing_eagerly():
        _check_values(means, variances, unsound)
    # Every rule is the same for weights of any scale; at this one, squares neither overflow nor lose equal weights.
    shares = shares / tf.reduce_max(shares)
    anchor = _checked_anchor(anchor, stacked, unsound) if rule.traits.uses_anchor and anchor else None
    pool = _compile(_pool) if compiled else _pool
    pooled = pool(rule, stacked, shares, anchor)
    if tf.executing_eagerly() and not all(bool(tf.reduce_all(tf.math.is_finite(x))) for x in tf.nest.flatten(pooled)):
        raise InvalidArgument(
            f"The rule {rule.name!r} overflows {dtype.name} for these posteriors: their means or variances are too "
            "large, too small or too far apart for it."
        )
    if tf.executing_eagerly() and any(bool(tf.reduce_any(v < 0)) for v in tf.nest.flatten(pooled.variance)):
        raise InvalidArgument(f"The rule {rule.name!r} gives variances below 0: correct its function pool.")
    return pooled


def checked_weights(weights: Array, num_clients: int | None, dtype: tf.DType) -> tf.Tensor:
    """Return the weights [K] of K clients, finite and above zero; in a graph only their shape is checked."""
    weights = tf.cast(tf.convert_to_tensor(weights), dtype)
    if weights.shape.rank != 1 or not weights.shape.is_compatible_with([num_clients]):
        raise InvalidArgument(f"weights must be [{num_clients}], one a client, but have shape {weights.shape}.")
    if tf.executing_eagerly() and not bool(tf.reduce_all(tf.math.is_finite(weights) & (weights > 0))):
        raise InvalidArgument(f"weights must be finite and above zero, but are {shown(weights.numpy().tolist())}.")
    return weights


def _dtype(leaves: list[tf.Tensor]) -> tf.DType:
    """Return the type that all leaves share."""
    types = sorted({x.dtype.name for x in leaves})
    if len(types) > 1 or not leaves[0].dtype.is_floating:
        raise InvalidArgument(
            f"The posteriors have the type{'s' if len(types) > 1 else ''} {' and '.join(types)}, but must be floats of "
            "one type: cast them, such as to float32."
        )
    return leaves[0].dtype


@functools.cache
def _compile(function: Callable[..., _Result]) -> Callable[..., _Result]:
    return tf.function(function, jit_compile=True)


def _pool(rule: Rule[Statistics], stacked: MeanField, weights: tf.Tensor, anchor: MeanField | None) -> MeanField:
    anchor = anchor or _centre(stacked, weights)
    of = lambda k: rule.summarise(tf.nest.map_structure(lambda x: x[k], stacked), anchor, weights[k])
    total = of(0)
    for k in range(1, weights.shape[0]):
        total = rule.merge(total, of(k))
    return checked_pool(rule.name, rule.pool(total, anchor)).weights


def _centre(stacked: MeanField, weights: tf.Tensor) -> MeanField:
    """Return the weighted mean, where sums are centred for rules without an anchor in their equation."""
    shares = weights / tf.reduce_sum(weights)

    def mean(m: tf.Tensor) -> tf.Tensor:
        return tf.add_n([tf.cast(shares[k], m.dtype) * m[k] for k in range(m.shape[0])])

    return MeanField(tf.nest.map_structure(mean, stacked.mean), tf.nest.map_structure(lambda v: v[0], stacked.variance))


def _checked_anchor(anchor: MeanField, stacked: MeanField, unsound: _Unsound) -> MeanField:
    anchor = tf.nest.map_structure(tf.convert_to_tensor, MeanField(*anchor))
    want, have = (tf.nest.flatten(x) for x in (stacked, anchor))
    if len(want) != len(have) or any(w.shape[1:] != h.shape for w, h in zip(want, have)):
        raise InvalidArgument("The anchor must have the shapes [...] of one posterior of the stack.")
    if any(w.dtype != h.dtype for w, h in zip(want, have)):
        raise InvalidArgument(f"The anchor must have the type of the posteriors, {want[0].dtype.name}.")
    if tf.executing_eagerly():
        for m, v in zip(tf.nest.flatten(anchor.mean), tf.nest.flatten(anchor.variance)):
            if any(bool(bad[0]) for bad in unsound(m[tf.newaxis], v[tf.newaxis])):
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


def _check_values(means: list[tf.Tensor], variances: list[tf.Tensor], unsound: _Unsound) -> None:
    for m, v in zip(means, variances):
        for what, bad in zip(("mean must be finite", "variance must be finite and above zero"), unsound(m, v)):
            clients = np.flatnonzero(bad.numpy()).tolist()
            if clients:
                raise InvalidArgument(f"Every {what}; it is not so for the clients at {clients} of the stack.")


def _unsound(mean: tf.Tensor, variance: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return which clients have a mean, and which a variance, that cannot be pooled: [K] each."""
    rows = lambda bad: tf.reduce_any(tf.reshape(bad, [bad.shape[0], -1]), 1)
    return rows(~tf.math.is_finite(mean)), rows(~(tf.math.is_finite(variance) & (variance > 0)))
