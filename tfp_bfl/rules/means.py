"""Rules with the weighted mean as their mean: naive average, weighted sum, linear pool, mean and precision average.

Equations of Fischer et al. 2024 (arXiv:2403.15263), with b_k = w_k / sum_j w_j the normalised weights, m_k and s_k^2
the clients' means and variances. d_k = m_k - anchor's mean centres the sums.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl.contracts import GAUSSIAN, ModelRule, Pooled, Rule, Traits
from tfp_bfl.posterior import MeanField, mixtures
from tfp_bfl.rules.rule import add, each, stddevs, typed_as
from tfp_bfl.weights import ModelWeights
from tfp_bfl.weights.kinds import ClientGaussian


class MixturePart(NamedTuple):
    """Hold a client's statistics, or their sum over clients."""

    weight: tf.Tensor  # sum_k w_k
    first: Any  # sum_k w_k d_k
    second: Any  # the rule's sum for the variance


def _units(anchor: MeanField) -> MixturePart:
    stddev = stddevs(anchor)
    return MixturePart(tf.ones([]), stddev, each(tf.square, stddev))


def _with_weighted_mean(
    name: str,
    second: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    variance: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    averages: str = "variance",
    one_shot: bool = False,
    units: Callable[[MeanField], MixturePart] = _units,
) -> Rule[MixturePart]:
    """Build the rule with mean = sum_k b_k m_k and variance = variance(sum_k second(w_k, s_k^2), sum_k w_k)."""

    def summarise(local: MeanField, anchor: MeanField, weight: tf.Tensor) -> MixturePart:
        first = each(lambda m, a: typed_as(weight, m) * (m - a), local.mean, anchor.mean)
        return MixturePart(weight, first, each(lambda v: second(typed_as(weight, v), v), local.variance))

    def pool(total: MixturePart, anchor: MeanField) -> Pooled[MeanField]:
        mean = each(lambda m, first: m + first / typed_as(total.weight, first), anchor.mean, total.first)
        return Pooled(MeanField(mean, each(lambda x: variance(x, typed_as(total.weight, x)), total.second)))

    traits = Traits(one_shot=one_shot, linear=True, averages=averages)
    return Rule(summarise, add, pool, name, traits, units=units)


@functools.cache
def naive_weighted_average() -> Rule[MixturePart]:
    """Build the naive weighted average (NWA; equation 10): the parameters are averaged.

    mean = sum_k b_k m_k,   variance = sum_k b_k s_k^2

    The variance is that of an average client, whether or not the clients agree.

    Example:
      >>> clients = bfl.posterior.MeanField(np.array([[0.0], [3.0]]), np.array([[1.0], [2.0]]))
      >>> pooled = bfl.rules.aggregate(bfl.rules.naive_weighted_average(), clients)
      >>> print(np.round(pooled.mean, 3), np.round(pooled.variance, 3))
      [1.5] [1.5]
    """
    return _with_weighted_mean("naive_weighted_average", tf.multiply, tf.divide)


@functools.cache
def mean_precision_average() -> Rule[MixturePart]:
    """Build the mean and precision average: means and precisions are averaged, each by themselves.

    mean = sum_k b_k m_k,   1 / variance = sum_k b_k / s_k^2

    Clients that move their means by SGD on the mean loss of n examples, and have precisions 1 / t^2 + n h_k, are
    then stationary at the posterior of all data: sum_k b_k (gradient of client k) = 0 and 1 / variance = 1 / t^2 +
    n sum_k b_k h_k. The log-linear pool has the same variance, but weights the means by precision, for which a client's
    displacement must be a natural gradient.

    Source: ours; the variance is that of the log-linear pool (Genest & Zidek 1986).

    Example:
      >>> clients = bfl.posterior.MeanField(np.array([[0.0], [3.0]]), np.array([[1.0], [2.0]]))
      >>> pooled = bfl.rules.aggregate(bfl.rules.mean_precision_average(), clients)
      >>> print(np.round(pooled.mean, 3), np.round(pooled.variance, 3))
      [1.5] [1.333]
    """

    def units(anchor: MeanField) -> MixturePart:
        stddev = stddevs(anchor)
        return MixturePart(tf.ones([]), stddev, each(lambda s: 1 / tf.square(s), stddev))

    precision, variance = lambda w, v: w * tf.math.reciprocal(v), lambda second, w: w / second
    return _with_weighted_mean("mean_precision_average", precision, variance, "precision", units=units)


@functools.cache
def weighted_sum() -> Rule[MixturePart]:
    """Build the weighted sum (WS; equation 11): the distribution of sum_k b_k W_k for independent W_k ~ N(m_k, s_k^2).

    mean = sum_k b_k m_k,   variance = sum_k b_k^2 s_k^2

    With equal weights the variance is 1 / K of an average client's: K rounds of agreement shrink it geometrically.

    Example:
      >>> clients = bfl.posterior.MeanField(np.array([[0.0], [3.0]]), np.array([[1.0], [2.0]]))
      >>> pooled = bfl.rules.aggregate(bfl.rules.weighted_sum(), clients)
      >>> print(np.round(pooled.mean, 3), np.round(pooled.variance, 3))
      [1.5] [0.75]
    """
    second, variance = lambda w, v: tf.square(w) * v, lambda second, w: second / tf.square(w)
    return _with_weighted_mean("weighted_sum", second, variance, one_shot=True)


@functools.cache
def linear_pool() -> Rule[mixtures.MixtureSums]:
    """Build the linear pool (LP; equations 12-14): a Gaussian with the moments of the mixture sum_k b_k N(m_k, s_k^2).

    mean = sum_k b_k m_k,   variance = sum_k b_k (s_k^2 + m_k^2) - mean^2

    Disagreement between the clients' means widens the result. Where all clients move alike, by more than their standard
    deviations, the subtraction cancels: the sums are float64, twice the bytes of the other rules.

    Example:
      >>> clients = bfl.posterior.MeanField(np.array([[0.0], [3.0]]), np.array([[1.0], [2.0]]))
      >>> pooled = bfl.rules.aggregate(bfl.rules.linear_pool(), clients)
      >>> print(np.round(pooled.mean, 3), np.round(pooled.variance, 3))
      [1.5] [3.75]
    """

    def units(anchor: MeanField) -> mixtures.MixtureSums:
        return mixtures.MixtureSums(*each(lambda x: tf.cast(x, tf.float64), _units(anchor)))._replace(
            weight=tf.ones([])
        )

    def pool(total: mixtures.MixtureSums, anchor: MeanField) -> Pooled[MeanField]:
        return Pooled(mixtures.moments(total, anchor))

    return Rule(mixtures.summarise, add, pool, "linear_pool", Traits(averages="variance"), units=units)


def client_gaussian() -> ModelRule[ModelWeights, ClientGaussian]:
    """Build the rule that pools mean and variance over the clients of each point weight, for models without
    variational layers (FedAG).

    mean = sum_k b_k w_k,   variance = sum_k b_k (w_k - mean)^2     (ddof 0)

    The linear pool of the clients' weights as points without spread; BatchNorm's statistics likewise.

    Returns:
      A rule over `ModelWeights`, of two clients at least: one alone has no spread. Its pooled result has the posterior
      over all point weights in the place of these.

    Source: Thorgeirsson & Gauterin 2020, algorithm 3 (FedAG).
    """
    pool_moments = linear_pool()
    units: Any = pool_moments.units

    def as_moments(weights: ModelWeights) -> MeanField:
        point = (*weights.posterior.mean, *weights.point)
        spread = (*weights.posterior.variance, *each(tf.zeros_like, tuple(weights.point)))
        return MeanField((point, weights.moments.mean), (spread, weights.moments.variance))

    def pool(total: mixtures.MixtureSums, anchor: ModelWeights) -> Pooled[ClientGaussian]:
        moments = pool_moments.pool(total, as_moments(anchor)).weights
        (means, moving_means), (variances, moving_variances) = moments
        pooled = ModelWeights(MeanField(means, variances), (), MeanField(moving_means, moving_variances))
        return Pooled(ClientGaussian(pooled))

    return ModelRule(
        lambda local, anchor, weight: pool_moments.summarise(as_moments(local), as_moments(anchor), weight),
        pool_moments.merge,
        pool,
        "client_gaussian",
        Traits(min_clients=2),
        gives=GAUSSIAN,
        units=lambda anchor: units(as_moments(anchor)),
    )
