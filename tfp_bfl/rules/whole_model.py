"""A rule for posteriors, lifted to all the weights of a model: the one door from any rule to a round."""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, cast

import tensorflow as tf

from tfp_bfl.contracts import AnyRule, GatherRule, ModelGatherRule, ModelRule, Pooled, Rule
from tfp_bfl.posterior import MeanField, mixtures
from tfp_bfl.rules.gather import gathered, summarise_stack
from tfp_bfl.rules.means import MixturePart, linear_pool, naive_weighted_average
from tfp_bfl.rules.rule import check_rule, checked_pool, each, kept, parse_rule, with_metrics, without_noise_of_server
from tfp_bfl.weights import ModelWeights
from tfp_bfl.weights.change import AnyWeights
from tfp_bfl.weights.kinds import Given, Sent, Statistics

NONE = MeanField((), ())


class Parts(NamedTuple, Generic[Statistics]):
    """Hold the statistics of a model's weights."""

    posterior: Statistics
    point: MixturePart
    moments: mixtures.MixtureSums


def whole_model(rule: AnyRule[Sent, Given]) -> ModelRule[Sent, Given]:
    """Return `rule` for the variational weights, with the fitting rules for the rest of a model's weights.

    Point weights are averaged by weight: mean = sum_k b_k m_k. BatchNorm's moving statistics are moments of the mixture
    of the clients' data, so that the linear pool is their law of total variance:
    variance = sum_k b_k (v_k + m_k^2) - mean^2.

    A rule that is over all weights already, such as this function's result, stays as it is.

    Args:
      rule: of `tfp_bfl.rules`, or its name, such as "conflation".

    Returns:
      A rule with `local`, `anchor` and pooled result of `ModelWeights`, or a `MeanField` each.
    """
    if isinstance(rule, str):
        rule = parse_rule(rule)
    check_rule(rule)
    if isinstance(rule, ModelRule):
        return rule
    if isinstance(rule, ModelGatherRule):
        return gathered(rule)
    return cast(Any, gathered(_whole_stack(rule)) if isinstance(rule, GatherRule) else _whole(rule))


def _whole(rule: Rule[Statistics]) -> ModelRule[ModelWeights, ModelWeights, Parts[Statistics]]:
    average, mixture = naive_weighted_average(), linear_pool()
    of_rule, of_average, of_mixture = (cast(Any, x.units) for x in (rule, average, mixture))

    def summarise(local: AnyWeights, anchor: AnyWeights, weight: tf.Tensor) -> Parts[Statistics]:
        local, anchor = _as_model(local), _as_model(anchor)
        return Parts(
            rule.summarise(local.posterior, anchor.posterior, weight),
            average.summarise(_certain(local.point), _certain(anchor.point), weight),
            mixture.summarise(local.moments, anchor.moments, weight),
        )

    def merge(a: Parts[Statistics], b: Parts[Statistics]) -> Parts[Statistics]:
        return Parts(
            rule.merge(a.posterior, b.posterior),
            average.merge(a.point, b.point),
            mixture.merge(a.moments, b.moments),
        )

    def pool(total: Parts[Statistics], anchor: AnyWeights) -> Pooled[ModelWeights]:
        model = _as_model(anchor)
        posterior, metrics = checked_pool(rule.name, rule.pool(total.posterior, model.posterior))
        point = average.pool(total.point, _certain(model.point)).weights.mean
        pooled = ModelWeights(posterior, point, mixture.pool(total.moments, model.moments).weights)
        return Pooled(_like(anchor, pooled), metrics)

    def units(anchor: AnyWeights) -> Parts[Statistics]:
        model = _as_model(anchor)
        return Parts(of_rule(model.posterior), of_average(_of_one_scale(model)), of_mixture(model.moments))

    return ModelRule(summarise, merge, pool, **kept(rule), units=of_rule and units)


def _whole_stack(rule: GatherRule) -> ModelGatherRule[ModelWeights, ModelWeights]:
    others = _whole(naive_weighted_average())

    def pool(stacked: AnyWeights, importance: tf.Tensor, anchor: AnyWeights) -> Pooled[ModelWeights]:
        clients, model = _as_model(stacked), _as_model(anchor)
        rest = [weights._replace(posterior=NONE) for weights in (clients, model)]
        pooled = others.pool(summarise_stack(others, rest[0], importance, rest[1]), rest[1]).weights
        if not tf.nest.flatten(clients.posterior):
            return Pooled(_like(anchor, pooled))
        given = clients.posterior, importance, model.posterior
        posterior, metrics = checked_pool(rule.name, rule.pool(*given))
        return Pooled(_like(anchor, pooled._replace(posterior=posterior)), metrics)

    return ModelGatherRule(pool, **kept(rule))


def _as_model(weights: AnyWeights) -> ModelWeights:
    return weights if isinstance(weights, ModelWeights) else ModelWeights(weights, (), NONE)


def _like(anchor: AnyWeights, pooled: ModelWeights) -> Any:
    return pooled if isinstance(anchor, ModelWeights) else pooled.posterior


def _of_one_scale(model: ModelWeights) -> MeanField:
    """Return point weights with the mean variance of the posterior, as a measure of how far they move; 1
    without any.
    """
    variances = [tf.reshape(stddev, [-1]) for stddev in tf.nest.flatten(model.posterior.variance)]
    mean = tf.reduce_mean(tf.concat(variances, 0)) if variances else tf.ones([])
    return MeanField(model.point, each(lambda x: tf.cast(mean, x.dtype), model.point))


def _certain(point: tuple[tf.Tensor, ...]) -> MeanField:
    """Return point weights as a posterior without variance."""
    return MeanField(point, each(lambda x: tf.zeros([], x.dtype), point))


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

    return ModelGatherRule(pool, **kept(inner))
