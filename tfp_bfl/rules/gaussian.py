"""The Gaussian of the clients' point weights."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfp_bfl.contracts import GAUSSIAN, ModelRule, Pooled
from tfp_bfl.posterior import MeanField, mixtures
from tfp_bfl.rules.mixtures import linear_pool
from tfp_bfl.rules.rule import each
from tfp_bfl.weights import ModelWeights
from tfp_bfl.weights.kinds import ClientGaussian


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
        min_clients=2,
        gives=GAUSSIAN,
        units=lambda anchor: units(as_moments(anchor)),
    )
