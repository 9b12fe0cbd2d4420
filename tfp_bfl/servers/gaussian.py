"""FedAG's server: training continues from the mean of the clients' weights; predictions sample their Gaussian."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl.contracts import GAUSSIAN, ServerStep
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior import MeanField
from tfp_bfl.servers.checks import after, check_point_weights, check_step
from tfp_bfl.servers.replace import replace
from tfp_bfl.weights import ModelWeights
from tfp_bfl.weights.kinds import ClientGaussian


class SpreadState(NamedTuple):
    """The state: that of the step, and the variance over the clients of each point weight."""

    step: Any
    variance: Any


def keep_gaussian(step: ServerStep | None = None) -> ServerStep[ClientGaussian]:
    """w <- step(w) with the pooled mean; predictions draw from N(w, variance over the clients).

    Args:
      step: `replace()`, the default, or `optimize(...)`.

    Returns:
      A step over what `tfp_bfl.rules.client_gaussian` gives. Before the first round the weights themselves predict.

    Raises:
      InvalidArgument: with another rule, or a model with variational layers, when the process is built.

    Source: Thorgeirsson & Gauterin 2020 (FedAG).
    """
    inner = check_step(replace() if step is None else step, "step")

    def initialize(weights: ModelWeights) -> SpreadState:
        check_point_weights(weights, "FedAG")
        return SpreadState(inner.initialize(weights), tf.nest.map_structure(tf.zeros_like, weights.point))

    def advance(
        state: SpreadState, weights: ModelWeights, pooled: ClientGaussian, seed: tf.Tensor
    ) -> tuple[SpreadState, ModelWeights]:
        if len(pooled.posterior.mean) != len(weights.point):
            raise InvalidArgument("FedAG's server takes what rules.client_gaussian() gives: use it with that rule.")
        points = weights._replace(point=pooled.posterior.mean, moments=pooled.moments)
        own, moved = inner.next(state.step, weights, points, seed)
        return SpreadState(own, pooled.posterior.variance), moved

    def predictive(state: SpreadState, weights: ModelWeights) -> ModelWeights:
        return weights._replace(posterior=MeanField(weights.point, state.variance), point=())

    tell = lambda state, weights: inner.tell(state.step, weights)
    return ServerStep(initialize, advance, predictive, tell, takes=GAUSSIAN, name=after("keep_gaussian", inner))
