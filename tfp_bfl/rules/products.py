"""Rules that multiply densities: conflation, weighted conflation, log-linear pool, distributed weight consolidation.

Equations of Fischer et al. 2024 (arXiv:2403.15263), with b_k = w_k / sum_j w_j the normalised weights, m_k and s_k^2
the clients' means and variances. d_k = m_k - anchor's mean centres the sums.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl.contracts import Pooled, Rule, Traits
from tfp_bfl.errors import check_number
from tfp_bfl.posterior import MeanField
from tfp_bfl.rules.rule import add, each, stddevs, typed_as


class _Precisions(NamedTuple):
    weight: tf.Tensor  # the sum or the largest of the w_k, as the rule needs
    precision: Any  # sum_k w_k / s_k^2
    shift: Any  # sum_k w_k d_k / s_k^2


def _weighted_precisions(local: MeanField, anchor: MeanField, weight: tf.Tensor) -> _Precisions:
    # Times the reciprocal, so that a weight of one changes no bit.
    precision = each(lambda v: typed_as(weight, v) * tf.math.reciprocal(v), local.variance)
    shift = each(lambda p, m, a: p * (m - a), precision, local.mean, anchor.mean)
    return _Precisions(weight, precision, shift)


def _units(anchor: MeanField) -> _Precisions:
    stddev = stddevs(anchor)
    return _Precisions(tf.ones([]), each(lambda s: 1 / tf.square(s), stddev), each(tf.math.reciprocal, stddev))


def _product(numerator: Callable[[_Precisions], tf.Tensor]) -> Callable[[_Precisions, MeanField], Pooled[MeanField]]:
    """mean = sum_k w_k m_k / s_k^2 / sum_k w_k / s_k^2,   variance = numerator / sum_k w_k / s_k^2."""

    def pool(total: _Precisions, anchor: MeanField) -> Pooled[MeanField]:
        mean = each(lambda m, shift, p: m + shift / p, anchor.mean, total.shift, total.precision)
        variance = each(lambda p: typed_as(numerator(total), p) * tf.math.reciprocal(p), total.precision)
        return Pooled(MeanField(mean, variance))

    return pool


@functools.cache
def conflation() -> Rule[_Precisions]:
    """Build the conflation (equation 15; Hill 2011): the normalised product of the clients' densities, without weights.

    variance = 1 / sum_k 1 / s_k^2,   mean = variance sum_k m_k / s_k^2

    K like-minded clients give 1 / K of their variance each round.

    Example:
      >>> clients = bfl.posterior.MeanField(np.array([[0.0], [3.0]]), np.array([[1.0], [2.0]]))
      >>> pooled = bfl.rules.aggregate(bfl.rules.conflation(), clients)
      >>> print(np.round(pooled.mean, 3), np.round(pooled.variance, 3))
      [1.] [0.667]
    """

    def summarise(local: MeanField, anchor: MeanField, weight: tf.Tensor) -> _Precisions:
        return _weighted_precisions(local, anchor, tf.ones_like(weight))

    pool = _product(lambda total: tf.ones_like(total.weight))
    return Rule(
        summarise, add, pool, "conflation", Traits(one_shot=True, linear=True, averages="precision"), units=_units
    )


@functools.cache
def weighted_conflation(largest_weight: float | None = None) -> Rule[_Precisions]:
    """Build the weighted conflation (WC; equation 16; Hill & Miller 2011): larger clients count more.

    With w_max = max_k w_k,

    variance = w_max / sum_k w_k / s_k^2,   mean = sum_k w_k m_k / s_k^2 / sum_k w_k / s_k^2

    Equal weights give conflation exactly.

    Args:
      largest_weight: a public bound in the place of w_max, by which the statistics are a plain sum; None for the
        largest weight itself. Secure sums and differential privacy divide weights by a bound of their own, and take 1.

    Example:
      >>> clients = bfl.posterior.MeanField(np.array([[0.0], [3.0]]), np.array([[1.0], [2.0]]))
      >>> pooled = bfl.rules.aggregate(bfl.rules.weighted_conflation(), clients)
      >>> print(np.round(pooled.mean, 3), np.round(pooled.variance, 3))
      [1.] [0.667]
    """
    traits = Traits(one_shot=True, linear=True, averages="precision")
    if largest_weight is not None:
        most = check_number(largest_weight, "largest_weight")
        pool = _product(lambda total: tf.constant(most))
        units = _units if most == 1 else None
        return Rule(_weighted_precisions, add, pool, "weighted_conflation", traits, units=units)
    pool = _product(lambda total: total.weight)
    merge = lambda a, b: add(a, b)._replace(weight=tf.maximum(a.weight, b.weight))
    return Rule(_weighted_precisions, merge, pool, "weighted_conflation", traits)


@functools.cache
def log_linear_pool() -> Rule[_Precisions]:
    """Build the log-linear pool (Genest & Zidek 1986): the normalised geometric mean of the clients' densities.

    variance = 1 / sum_k b_k / s_k^2,   mean = variance sum_k b_k m_k / s_k^2

    It is weighted conflation with numerator 1 for normalised weights: like-minded clients keep their variance, so the
    posterior does not shrink by 1 / K each round.

    Example:
      >>> clients = bfl.posterior.MeanField(np.array([[0.0], [3.0]]), np.array([[1.0], [2.0]]))
      >>> pooled = bfl.rules.aggregate(bfl.rules.log_linear_pool(), clients)
      >>> print(np.round(pooled.mean, 3), np.round(pooled.variance, 3))
      [1.] [1.333]
    """
    pool = _product(lambda total: total.weight)
    return Rule(
        _weighted_precisions, add, pool, "log_linear_pool", Traits(linear=True, averages="precision"), units=_units
    )


class _Consolidation(NamedTuple):
    precision: Any  # sum_k 1 / s_k^2 - 1 / s_0^2, float64
    shift: Any  # sum_k d_k / s_k^2, float64


@functools.cache
def distributed_weight_consolidation() -> Rule[_Consolidation]:
    """Build distributed weight consolidation (DWC; equation 17; McClure et al. 2018): the anchor is counted once.

    With (m_0, s_0^2) the anchor and K clients,

    1 / variance = sum_k 1 / s_k^2 - (K - 1) / s_0^2
    mean = variance (sum_k m_k / s_k^2 - (K - 1) m_0 / s_0^2)

    Weights play no part. The precision can come out zero or negative (clients less sure than the anchor): those weights
    keep the anchor's mean and variance, and their number is the metric `kept_weights`. The subtraction cancels, so the
    statistics are float64: twice the bytes of the other rules.

    Example:
      >>> clients = bfl.posterior.MeanField(np.array([[0.0], [3.0]]), np.array([[1.0], [2.0]]))
      >>> anchor = bfl.posterior.MeanField(np.zeros(1), np.full(1, 4.0))
      >>> pooled = bfl.rules.aggregate(bfl.rules.distributed_weight_consolidation(), clients, anchor=anchor)
      >>> print(np.round(pooled.mean, 3), np.round(pooled.variance, 3))
      [1.2] [0.8]
    """
    double = lambda x: tf.cast(x, tf.float64)

    def summarise(local: MeanField, anchor: MeanField, weight: tf.Tensor) -> _Consolidation:
        del weight
        # Differences first, so that float32 keeps their digits: (u - v) / v / u is 1 / v - 1 / u without cancellation.
        gain = each(lambda v, u: double((u - v) / v / u), local.variance, anchor.variance)
        shift = each(lambda m, a, v: double((m - a) / v), local.mean, anchor.mean, local.variance)
        return _Consolidation(gain, shift)

    def pool(total: _Consolidation, anchor: MeanField) -> Pooled[MeanField]:
        precision = each(lambda gain, u: 1 / double(u) + gain, total.precision, anchor.variance)
        sound = each(lambda p: p > 0, precision)

        def mean(a: tf.Tensor, shift: tf.Tensor, p: tf.Tensor, ok: tf.Tensor) -> tf.Tensor:
            moved = double(a) + shift / tf.where(ok, p, 1)
            return tf.where(ok, tf.cast(moved, a.dtype), a)

        def variance(u: tf.Tensor, p: tf.Tensor, ok: tf.Tensor) -> tf.Tensor:
            return tf.where(ok, tf.cast(1 / tf.where(ok, p, 1), u.dtype), u)

        pooled = MeanField(
            each(mean, anchor.mean, total.shift, precision, sound),
            each(variance, anchor.variance, precision, sound),
        )
        kept = [tf.math.count_nonzero(~ok) for ok in tf.nest.flatten(sound)]
        return Pooled(pooled, {"kept_weights": tf.cast(tf.add_n(kept) if kept else 0, tf.int64)})

    def units(anchor: MeanField) -> _Consolidation:
        return _Consolidation(*each(double, _units(anchor)[1:]))

    name = "distributed_weight_consolidation"
    return Rule(summarise, add, pool, name, Traits(uses_anchor=True, linear=True, averages="precision"), units=units)
