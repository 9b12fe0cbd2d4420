"""The server's own optimizer on the pooled change (FedOpt)."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfp_bfl.contracts import ServerStep
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.models import ModelWeights


def optimize(optimizer: Any) -> ServerStep:
    """w <- optimizer(w, w - pooled): the pooled change, negated, as a gradient of means and point weights.

    Plain SGD of rate 1 is `replace`. Variances and BatchNorm's statistics are taken as they were pooled.

    Args:
      optimizer: with `initialize(specs)` and `next(state, weights, gradients)`, such as those of
        `tff.learning.optimizers` (`tfp_bfl.federated.server_optimizer` makes them by name).

    Raises:
      InvalidArgument: it has no such functions.

    Source: Reddi et al. 2021 (arXiv:2003.00295), algorithm 1 (FedOpt).
    """
    if not (hasattr(optimizer, "initialize") and hasattr(optimizer, "next")):
        raise InvalidArgument(
            f"optimizer must have initialize and next, as those of tff.learning.optimizers, but is {optimizer!r}."
        )

    def initialize(weights: ModelWeights) -> Any:
        state = optimizer.initialize(tf.nest.map_structure(tf.TensorSpec.from_tensor, _trained(weights)))
        return tf.nest.map_structure(tf.convert_to_tensor, state)

    def step(state: Any, weights: ModelWeights, pooled: ModelWeights, seed: Any) -> tuple[Any, ModelWeights]:
        del seed
        gradient = tf.nest.map_structure(tf.subtract, _trained(weights), _trained(pooled))
        state, (means, point) = optimizer.next(state, _trained(weights), gradient)
        return state, pooled._replace(posterior=pooled.posterior._replace(mean=means), point=point)

    return ServerStep(initialize, step)


def _trained(weights: ModelWeights) -> tuple[Any, Any]:
    return weights.posterior.mean, weights.point
