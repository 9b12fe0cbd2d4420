"""The server's part where clients move weights themselves and send how far: DG-SGLD's and FSGLD's."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl.contracts import CHANGE, ServerStep, total_of
from tfp_bfl.errors import check_number
from tfp_bfl.posterior import flatten, unflatten
from tfp_bfl.servers.checks import check_point_weights
from tfp_bfl.weights import ModelWeights, RoundSize


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


def couple(coupling: float, prior_stddev: float | None = None) -> ServerStep[tf.Tensor]:
    """w ~ p(w | z) for p(z_i | w) = N(w, rho): DG-SGLD's server.

    w ~ N(sum_i z_i / rho / lambda, 1 / lambda),   lambda = b / rho + 1 / t^2

    Clients that are away keep their z_i, which the sum holds. The chain's law is not the posterior: each client's
    factor is smoothed by N(0, rho).

    Args:
      coupling: rho.
      prior_stddev: t, of the prior N(0, t^2 I) over w; None for a flat one.

    Source: Plassier et al. 2021 (arXiv:2106.06300), DG-LMC.
    """
    check_number(coupling, "coupling")
    precision = 0.0 if prior_stddev is None else 1 / check_number(prior_stddev, "prior_stddev") ** 2

    def initialize(weights: ModelWeights) -> Coupled:
        check_point_weights(weights, "A Langevin chain")
        return Coupled(weights.point, tf.zeros_like(flatten(weights.point)), tf.constant(0))

    def meet(state: Coupled, federation: RoundSize, num_present: tf.Tensor) -> Coupled:
        del num_present
        return state._replace(num_clients=federation.num_clients)

    def advance(
        state: Coupled, weights: ModelWeights, total: tf.Tensor, seed: tf.Tensor
    ) -> tuple[Coupled, ModelWeights]:
        state = state._replace(moved=state.moved + total)
        clients = tf.cast(state.num_clients, tf.float32)
        held = clients / coupling + precision
        mean = (clients * flatten(state.start) + state.moved) / coupling / held
        drawn = mean + tf.math.rsqrt(held) * tf.random.stateless_normal(tf.shape(mean), seed)
        return state, weights._replace(point=unflatten(drawn, weights.point))

    return ServerStep(
        initialize,
        advance,
        tell=lambda state, weights: state.start,
        meet=meet,
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
        meet=lambda present, federation, number: number,
        takes=total_of(CHANGE),
        name="follow",
        most_clients=num_clients,
        most_in_round=1,
        is_chain=True,
    )
