"""Federated SGLD: noise after the server's step, and the chain that the rounds make."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl.contracts import ServerStep
from tfp_bfl.errors import check_count, check_number
from tfp_bfl.models import ModelWeights
from tfp_bfl.posterior import Samples
from tfp_bfl.servers.checks import after, check_point_weights, check_step


class Chain(NamedTuple):
    """The state.

    Fields:
      step: of the step that the noise is added to.
      num_rounds: done so far.
      draws: the last weights after burn-in, leaves [L, ...]; unused rows are zero.
    """

    step: Any
    num_rounds: Any
    draws: Any


def langevin(step: ServerStep, step_size: float, burn_in_rounds: int = 0, max_samples: int = 20) -> ServerStep:
    """w <- step(w) + sqrt(2 eta) e,   e ~ N(0, I); after burn-in the rounds' weights are samples of the posterior.

    Predictions are averaged over the last `max_samples` of them, and their mean is the estimate; during burn-in the
    present weights predict alone.

    Args:
      step: `replace()` or `optimize(...)`.
      step_size: eta; the noise has variance 2 eta. (That of a posterior needs eta = learning rate / number of all
        examples; larger ones are hotter.)
      burn_in_rounds: rounds that are not kept.
      max_samples: L.

    Returns:
      A step for models without variational layers.

    Raises:
      InvalidArgument: no server step; step_size not above 0, counts out of range, or a model with variational layers.

    Source: Welling & Teh 2011, eq. 4; Johansson & Gullbrandson 2022, federated SGLD.
    """
    check_step(step, "step", any_rule=True)
    check_number(step_size, "step_size")
    check_count(burn_in_rounds, "burn_in_rounds", 0)
    check_count(max_samples, "max_samples")

    def initialize(weights: ModelWeights) -> Chain:
        check_point_weights(weights, "SGLD")
        draws = tf.nest.map_structure(lambda x: tf.zeros([max_samples, *x.shape], x.dtype), weights.point)
        return Chain(step.initialize(weights), tf.constant(0), draws)

    def advance(state: Chain, weights: ModelWeights, pooled: ModelWeights, seed: Any) -> tuple[Chain, ModelWeights]:
        seeds = tf.random.experimental.stateless_split(seed, 1 + len(weights.point))
        own, moved = step.next(state.step, weights, pooled, seeds[0])
        scale = math.sqrt(2 * step_size)
        noisy = [w + scale * tf.random.stateless_normal(w.shape, seeds[i + 1]) for i, w in enumerate(moved.point)]
        row = tf.math.floormod(state.num_rounds - burn_in_rounds, max_samples)
        keep = state.num_rounds >= burn_in_rounds
        put = lambda rows, w: tf.where(keep, tf.tensor_scatter_nd_update(rows, [[row]], w[tf.newaxis]), rows)
        draws = tuple(put(rows, w) for rows, w in zip(state.draws, noisy))
        return Chain(own, state.num_rounds + 1, draws), moved._replace(point=tuple(noisy))

    def predictive(state: Chain, weights: ModelWeights) -> ModelWeights:
        held = min(int(state.num_rounds) - burn_in_rounds, max_samples)
        if held < 1:
            return weights
        return weights._replace(posterior=Samples(tuple(x[:held] for x in state.draws)), point=())

    return ServerStep(
        initialize,
        advance,
        predictive,
        lambda state, weights: step.tell(state.step, weights),
        takes=step.takes,
        name=after(f"langevin (step size {step_size:g})", step),
    )
