"""Federated SGLD: noise after the server's step, by which its rounds make a chain."""

from __future__ import annotations

import math

import tensorflow as tf

from tfp_bfl.contracts import ServerStep
from tfp_bfl.errors import check_number
from tfp_bfl.servers.checks import after, check_point_weights, check_step
from tfp_bfl.tensors import TensorTree
from tfp_bfl.weights import ModelWeights
from tfp_bfl.weights.kinds import Given


def langevin(step: ServerStep[Given], step_size: float) -> ServerStep[Given]:
    """w <- step(w) + sqrt(2 eta) e,   e ~ N(0, I): the rounds' weights are samples.

    A `federated.Thinning` of the driver selects the samples to store.

    Args:
      step: `replace()` or `optimize(...)`.
      step_size: eta; the noise has variance 2 eta. A posterior needs about eta = rate J / ((1 - momentum) N), for J
        local steps at this rate and momentum and N examples of all clients; larger ones are hotter.

    Returns:
      A step for models without variational layers.

    Raises:
      InvalidArgument: no server step; step_size not above 0, or a model with variational layers.

    Source: Welling & Teh 2011, eq. 4; Johansson & Gullbrandson 2022, federated SGLD.
    """
    check_step(step, "step", any_rule=True)
    check_number(step_size, "step_size")

    def initialize(weights: ModelWeights) -> TensorTree:
        check_point_weights(weights, "SGLD")
        return step.initialize(weights)

    def advance(
        state: TensorTree, weights: ModelWeights, pooled: Given, seed: tf.Tensor
    ) -> tuple[TensorTree, ModelWeights]:
        seeds = tf.random.experimental.stateless_split(seed, 1 + len(weights.point))
        state, moved = step.next(state, weights, pooled, seeds[0])
        scale = math.sqrt(2 * step_size)
        noisy = [w + scale * tf.random.stateless_normal(w.shape, seeds[i + 1]) for i, w in enumerate(moved.point)]
        return state, moved._replace(point=tuple(noisy))

    name = after(f"langevin (step size {step_size:g})", step)
    return step._replace(initialize=initialize, next=advance, name=name, is_chain=True)
