"""The server takes the pooled weights as they are."""

from __future__ import annotations

import tensorflow as tf

from tfp_bfl.contracts import ServerStep
from tfp_bfl.weights import ModelWeights


def replace() -> ServerStep:
    """w <- pooled: federated averaging's step (McMahan et al. 2017), for any rule."""

    def step(state: tuple, weights: ModelWeights, pooled: ModelWeights, seed: tf.Tensor) -> tuple[tuple, ModelWeights]:
        del weights, seed
        return state, pooled

    return ServerStep(lambda weights: (), step, name="replace")
