"""Servers of Langevin chains: noise after any step, gradient steps, and clients that move weights themselves."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl.contracts import CHANGE, GRADIENT, SCALED_GRADIENT, Needs, ServerStep, total_of
from tfp_bfl.errors import check_count, check_number, check_probabilities, is_by_client
from tfp_bfl.posterior import flatten, unflatten
from tfp_bfl.servers.pooled import after, check_point_weights, check_step
from tfp_bfl.tensors import Array, TensorTree
from tfp_bfl.weights import Anchor, ModelWeights, RoundSize, ScaledGradient
from tfp_bfl.weights.kinds import Given


def langevin(step: ServerStep[Given], step_size: float) -> ServerStep[Given]:
    """w <- step(w) + sqrt(2 eta) e,   e ~ N(0, I): the rounds' weights are samples.

    A `federated.Thinning` of the driver selects the samples to store. For models without variational layers.

    Args:
      step: `replace()` or `optimize(...)`.
      step_size: eta; the noise has variance 2 eta. A posterior needs about eta = rate J / ((1 - momentum) N), for J
        local steps at this rate and momentum and N examples of all clients; larger ones are hotter.

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
    return step._replace(initialize=initialize, next=advance, name=name, needs=step.needs._replace(is_chain=True))


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
    prior_precision: float = 0.0,
    participation: float | Sequence[float] = 1.0,
    memory_rate: float | Sequence[float] | None = None,
    refresh_every: int | None = None,
    fixed_point: Sequence[Array] | None = None,
) -> ServerStep[Any]:
    """w <- w - gamma G,   G = c sum_(i in A) g_i + sum_i eta_i + w / t^2

    with the clients' gradients g_i, their memories eta_i <- eta_i + rate g_i, of which the server holds the sum, and
    the gradient of the prior. c is b / (a p) for b clients of whom a are in the round, each of
    whom then takes part with the probability p. With `langevin` around it the rounds' weights are a chain.

    Where clients differ in p_i or in the rate alpha_i, they send `ScaledGradient`s, and

    G = (b / a) sum_(i in A) g_i / p_i + sum_i eta_i + w / t^2,   eta_i <- eta_i + alpha_i g_i

    A round in which no client's coin says yes is a step by the memories and the prior alone: G is then unbiased over
    all rounds, empty ones included.

    Args:
      step_size: gamma, of the gradient of the *sum* over all examples: about 1 / L, where L grows with their number. A
        mean over N examples at the rate r is gamma = r / N.
      prior_precision: 1 / t^2 of the prior N(0, t^2 I); 0 for a flat one.
      participation: p, as the clients have it, or one for each client.
      memory_rate: of the clients' memories, or one for each client; None where they have none.
      refresh_every: rounds between updates of the anchor zeta, which is sent to clients; None for no anchor.
      fixed_point: w*, leaves: the prior's gradient is then less that at w*, since the clients' are too.

    Returns:
      A step that takes the total of the clients' gradients, or of their scaled gradients.

    Source: Vono et al. 2022 (arXiv:2106.00797), algorithms 1 and 2, and supplement S1.1 for clients that differ.
    """
    check_number(step_size, "step_size")
    is_scaled, remembers = is_by_client(participation) or is_by_client(memory_rate), memory_rate is not None
    for rate in memory_rate if is_by_client(memory_rate) else [memory_rate] if remembers else []:
        check_number(rate, "memory_rate")
    check_probabilities(participation, "participation")
    if refresh_every is not None:
        check_count(refresh_every, "refresh_every")
    each, nothing = tf.nest.map_structure, ()

    def initialize(weights: ModelWeights) -> Descent:
        check_point_weights(weights, "A Langevin chain")
        anchor, rounds = (nothing, nothing) if refresh_every is None else (weights.point, tf.constant(0))
        memory = tf.zeros_like(flatten(weights.point)) if remembers else nothing
        return Descent(anchor, rounds, memory, tf.constant(0), tf.constant(0))

    def send(state: Descent, weights: ModelWeights) -> Any:
        if refresh_every is None:
            return ()
        due = tf.equal(state.rounds % refresh_every, 0)
        zeta = each(lambda w, z: tf.where(due, w, z), weights.point, state.anchor)
        return Anchor(zeta, state.rounds // refresh_every)

    def meet(state: Descent, size: RoundSize) -> Descent:
        return state._replace(num_clients=size.num_clients, num_present=size.present.num_clients)

    def advance(
        state: Descent, weights: ModelWeights, total: tf.Tensor | ScaledGradient, seed: tf.Tensor
    ) -> tuple[Descent, ModelWeights]:
        del seed
        clients, present = (tf.cast(n, tf.float32) for n in (state.num_clients, state.num_present))
        scale = clients / (tf.maximum(present, 1.0) * (1.0 if is_scaled else participation))
        w = flatten(weights.point)
        from_mode = w if fixed_point is None else w - tf.concat([tf.reshape(x, [-1]) for x in fixed_point], 0)
        of_clients = total.gradient if isinstance(total, ScaledGradient) else total
        gradient = scale * of_clients + prior_precision * from_mode
        if remembers:
            gradient += state.memory
            change = total.memory if isinstance(total, ScaledGradient) else memory_rate * of_clients
            state = state._replace(memory=state.memory + change)
        if refresh_every is not None:
            state = state._replace(anchor=send(state, weights).point, rounds=state.rounds + 1)
        return state, weights._replace(point=unflatten(w - step_size * gradient, weights.point))

    return ServerStep(
        initialize,
        advance,
        send=send,
        meet=meet,
        takes=total_of(SCALED_GRADIENT if is_scaled else GRADIENT),
        name=f"descend (step size {step_size:g})",
        needs=Needs(is_chain=True),
    )


class Coupled(NamedTuple):
    """The state.

    Fields:
      start: the first weights, leaves, where all clients' own began.
      moved: the sum of how far these have moved since [D].
      num_clients: b, of the federation.
    """

    start: Any
    moved: Any
    num_clients: Any


def couple(coupling: float, prior_precision: float = 0.0) -> ServerStep[tf.Tensor]:
    """w ~ p(w | z) for p(z_i | w) = N(w, rho): DG-SGLD's server.

    w ~ N(sum_i z_i / rho / lambda, 1 / lambda),   lambda = b / rho + 1 / t^2

    Clients that are away keep their z_i, which the sum holds. The chain's law is not the posterior: each client's
    factor is smoothed by N(0, rho).

    Args:
      coupling: rho.
      prior_precision: 1 / t^2 of the prior N(0, t^2 I) over w; 0 for a flat one.

    Source: Plassier et al. 2021 (arXiv:2106.06300), DG-LMC.
    """
    check_number(coupling, "coupling")

    def initialize(weights: ModelWeights) -> Coupled:
        check_point_weights(weights, "A Langevin chain")
        return Coupled(weights.point, tf.zeros_like(flatten(weights.point)), tf.constant(0))

    def advance(
        state: Coupled, weights: ModelWeights, total: tf.Tensor, seed: tf.Tensor
    ) -> tuple[Coupled, ModelWeights]:
        state = state._replace(moved=state.moved + total)
        clients = tf.cast(state.num_clients, tf.float32)
        held = clients / coupling + prior_precision
        mean = (clients * flatten(state.start) + state.moved) / coupling / held
        drawn = mean + tf.math.rsqrt(held) * tf.random.stateless_normal(tf.shape(mean), seed)
        return state, weights._replace(point=unflatten(drawn, weights.point))

    return ServerStep(
        initialize,
        advance,
        send=lambda state, weights: state.start,
        meet=lambda state, size: state._replace(num_clients=size.num_clients),
        takes=total_of(CHANGE),
        name=f"couple (coupling {coupling:g})",
    )


def follow(num_clients: int | None = None) -> ServerStep[tf.Tensor]:
    """w <- w + the change of the one client of the round: its weights, as in FSGLD.

    A mean of several chains is none: with all clients its variance is that of one over their number. Drivers refuse it.

    Args:
      num_clients: of the federation at most; None for any number.
    """

    def initialize(weights: ModelWeights) -> tf.Tensor:
        check_point_weights(weights, "A Langevin chain")
        return tf.constant(0)

    def advance(
        present: tf.Tensor, weights: ModelWeights, total: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, ModelWeights]:
        del seed
        mean = total / tf.maximum(tf.cast(present, tf.float32), 1.0)
        return present, weights._replace(point=unflatten(flatten(weights.point) + mean, weights.point))

    return ServerStep(
        initialize,
        advance,
        meet=lambda present, size: size.present.num_clients,
        takes=total_of(CHANGE),
        name="follow",
        needs=Needs(most_clients=num_clients, most_in_round=1, is_chain=True),
    )
