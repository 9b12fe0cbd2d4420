"""The server's own optimizer on the pooled change (FedOpt)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfp_bfl.contracts import ServerStep
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.servers.optimizers import Optimizer, ServerOptimizer
from tfp_bfl.tensors import TensorTree
from tfp_bfl.weights import ModelWeights


def optimize(optimizer: ServerOptimizer) -> ServerStep:
    """w <- optimizer(w, w - pooled): the pooled change, negated, as a gradient of means and point weights.

    Plain SGD of rate 1 is `replace`. Variances and BatchNorm's statistics are taken as they were pooled.

    Args:
      optimizer: with `initialize(specs)` and `next(state, weights, gradients)`: of `servers.server_optimizer`, or of
        `tff.learning.optimizers`.

    Raises:
      InvalidArgument: it has no such functions.

    Source: Reddi et al. 2021 (arXiv:2003.00295), algorithm 1 (FedOpt).
    """
    if not (hasattr(optimizer, "initialize") and hasattr(optimizer, "next")):
        raise InvalidArgument(
            "optimizer must have initialize and next, as servers.server_optimizer('adam') has, but is "
            f"{shown(optimizer)}."
        )

    def initialize(weights: ModelWeights) -> TensorTree:
        state = optimizer.initialize(tf.nest.map_structure(tf.TensorSpec.from_tensor, _trained(weights)))
        return tf.nest.map_structure(tf.convert_to_tensor, state)

    def step(
        state: TensorTree, weights: ModelWeights, pooled: ModelWeights, seed: tf.Tensor
    ) -> tuple[TensorTree, ModelWeights]:
        del seed
        gradient = tf.nest.map_structure(tf.subtract, _trained(weights), _trained(pooled))
        state, (means, point) = optimizer.next(state, _trained(weights), gradient)
        return state, pooled._replace(posterior=pooled.posterior._replace(mean=means), point=point)

    return ServerStep(initialize, step, name=f"optimize ({_in_words(optimizer)})")


def _trained(weights: ModelWeights) -> tuple[Any, Any]:
    return weights.posterior.mean, weights.point


def _in_words(optimizer: ServerOptimizer) -> str:
    """Return the optimizer's name and learning rate; those of TensorFlow Federated store it in their first state."""
    if isinstance(optimizer, Optimizer):
        return f"{optimizer.name}, learning rate {optimizer.learning_rate:g}"
    name = type(optimizer).__name__.strip("_").lower()
    state = optimizer.initialize(tf.TensorSpec([]))
    rate = state.get("learning_rate") if isinstance(state, Mapping) else None
    return name if rate is None else f"{name}, learning rate {float(rate):g}"
