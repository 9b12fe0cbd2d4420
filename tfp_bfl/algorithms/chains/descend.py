"""Gradient steps on the clients' potentials: with noise around them, a Langevin chain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl.contracts import GRADIENT, SCALED_GRADIENT, ServerStep, total_of
from tfp_bfl.errors import check_count, check_number, check_probabilities, is_by_client
from tfp_bfl.posterior import flatten, unflatten
from tfp_bfl.servers.checks import check_point_weights
from tfp_bfl.tensors import Array
from tfp_bfl.weights import Anchor, ModelWeights, RoundSize, ScaledGradient


class Descent(NamedTuple):
    """The state; () for what is not needed.

    Fields:
      anchor: zeta, the weights at the last refresh, leaves.
      rounds: done so far, int32.
      memory: the sum of all clients' memories [D].
      num_clients: b, of the federation.
      num_present: sound clients of the round.
    """

    anchor: Any
    rounds: Any
    memory: Any
    num_clients: Any
    num_present: tf.Tensor


def descend(
    step_size: float,
    *,
    prior_stddev: float | None = None,
    participation: float | Sequence[float] = 1.0,
    memory_rate: float | Sequence[float] | None = None,
    refresh_every: int | None = None,
    fixed_point: Sequence[Array] | None = None,
) -> ServerStep[Any]:
    """w <- w - gamma G,   G = c sum_(i in A) g_i + sum_i eta_i + w / t^2

    with the clients' gradients g_i, their memories eta_i <- eta_i + rate g_i, of which the server holds the sum, and
    the gradient of the prior N(0, t^2 I). c is b / (a p) for b clients of whom a are in the round, each of
    whom then takes part with the probability p. With `langevin` around it the rounds' weights are a chain.

    Where clients differ in p_i or in the rate alpha_i, they send `ScaledGradient`s, and

    G = (b / a) sum_(i in A) g_i / p_i + sum_i eta_i + w / t^2,   eta_i <- eta_i + alpha_i g_i

    A round in which no client's coin says yes is a step by the memories and the prior alone: G is then unbiased over
    all rounds, empty ones included.

    Args:
      step_size: gamma, of the gradient of the *sum* over all examples: about 1 / L, where L grows with their number. A
        mean over N examples at the rate r is gamma = r / N.
      prior_stddev: t; None for a flat prior.
      participation: p, as the clients have it, or one for each client.
      memory_rate: of the clients' memories, or one for each client; None where they have none.
      refresh_every: rounds between updates of the anchor zeta, which is sent to clients; None for no anchor.
      fixed_point: w*, leaves: the prior's gradient is then less that at w*, since the clients' are too.

    Returns:
      A step that takes the total of the clients' gradients, or of their scaled gradients.

    Raises:
      InvalidArgument: a number outside its range; a model with variational layers.

    Source: Vono et al. 2022 (arXiv:2106.00797), algorithms 1 and 2, and supplement S1.1 for clients that differ.
    """
    check_number(step_size, "step_size")
    is_scaled, remembers = is_by_client(participation) or is_by_client(memory_rate), memory_rate is not None
    rates = [*memory_rate] if is_by_client(memory_rate) else [memory_rate]
    for name, value in (("prior_stddev", prior_stddev), *(("memory_rate", rate) for rate in rates)):
        if value is not None:
            check_number(value, name)
    check_probabilities(participation, "participation")
    if refresh_every is not None:
        check_count(refresh_every, "refresh_every")
    precision = 0.0 if prior_stddev is None else 1 / prior_stddev**2
    each, nothing = tf.nest.map_structure, ()

    def initialize(weights: ModelWeights) -> Descent:
        check_point_weights(weights, "A Langevin chain")
        zero = lambda: tf.constant(0)
        return Descent(
            nothing if refresh_every is None else weights.point,
            nothing if refresh_every is None else zero(),
            tf.zeros_like(flatten(weights.point)) if remembers else nothing,
            zero(),
            zero(),
        )

    def tell(state: Descent, weights: ModelWeights) -> Any:
        if refresh_every is None:
            return ()
        due = tf.equal(state.rounds % refresh_every, 0)
        return Anchor(
            each(lambda w, z: tf.where(due, w, z), weights.point, state.anchor), state.rounds // refresh_every
        )

    def meet(state: Descent, federation: RoundSize, num_present: tf.Tensor) -> Descent:
        return state._replace(num_clients=federation.num_clients, num_present=num_present)

    def advance(
        state: Descent, weights: ModelWeights, total: tf.Tensor | ScaledGradient, seed: tf.Tensor
    ) -> tuple[Descent, ModelWeights]:
        del seed
        clients, present = (tf.cast(n, tf.float32) for n in (state.num_clients, state.num_present))
        scale = clients / (tf.maximum(present, 1.0) * (1.0 if is_scaled else participation))
        w = flatten(weights.point)
        from_mode = w if fixed_point is None else w - tf.concat([tf.reshape(x, [-1]) for x in fixed_point], 0)
        of_clients = total.gradient if isinstance(total, ScaledGradient) else total
        gradient = scale * of_clients + precision * from_mode
        if remembers:
            gradient += state.memory
            change = total.memory if isinstance(total, ScaledGradient) else memory_rate * of_clients
            state = state._replace(memory=state.memory + change)
        if refresh_every is not None:
            state = state._replace(anchor=tell(state, weights).point, rounds=state.rounds + 1)
        return state, weights._replace(point=unflatten(w - step_size * gradient, weights.point))

    return ServerStep(
        initialize,
        advance,
        tell=tell,
        meet=meet,
        takes=total_of(SCALED_GRADIENT if is_scaled else GRADIENT),
        name=f"descend (step size {step_size:g})",
        is_chain=True,
    )
