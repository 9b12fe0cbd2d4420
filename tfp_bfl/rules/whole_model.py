"""A rule for posteriors, lifted to all the weights of a model."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tfp_bfl.contracts import ModelRule, Rule
from tfp_bfl.models import ModelWeights
from tfp_bfl.posterior import MeanField
from tfp_bfl.rules.mixtures import linear_pool, naive_weighted_average
from tfp_bfl.rules.rule import check_rule, each


class _Parts(NamedTuple):
    posterior: object
    point: object
    moments: object


def whole_model(rule: Rule) -> Rule:
    """`rule` for the variational weights, with the fitting rules for the rest of a model's weights.

    Point weights are averaged by weight: mean = sum_k b_k m_k. BatchNorm's moving statistics are moments of the mixture
    of the clients' data, so that the linear pool is their law of total variance:
    variance = sum_k b_k (v_k + m_k^2) - mean^2.

    Returns:
      A `Rule` whose `local`, `anchor` and pooled result are `ModelWeights`.
    """
    check_rule(rule)
    average, mixture = naive_weighted_average(), linear_pool()

    def summarise(local: ModelWeights, anchor: ModelWeights, weight: tf.Tensor) -> _Parts:
        return _Parts(
            rule.summarise(local.posterior, anchor.posterior, weight),
            average.summarise(_certain(local.point), _certain(anchor.point), weight),
            mixture.summarise(local.moments, anchor.moments, weight),
        )

    def merge(a: _Parts, b: _Parts) -> _Parts:
        return _Parts(
            rule.merge(a.posterior, b.posterior),
            average.merge(a.point, b.point),
            mixture.merge(a.moments, b.moments),
        )

    def pool(total: _Parts, anchor: ModelWeights) -> ModelWeights:
        return ModelWeights(
            rule.pool(total.posterior, anchor.posterior),
            average.pool(total.point, _certain(anchor.point)).mean,
            mixture.pool(total.moments, anchor.moments),
        )

    metrics = lambda total, anchor: rule.metrics(total.posterior, anchor.posterior)
    return ModelRule(summarise, merge, pool, rule.name, rule.uses_anchor, metrics, rule.min_clients)


def _certain(point: object) -> MeanField:
    """Point weights as a posterior without variance."""
    return MeanField(point, each(lambda x: tf.zeros([], x.dtype), point))
