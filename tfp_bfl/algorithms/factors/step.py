"""Bayesian ADMM's server: between the mean of the clients' posteriors and the product of their sites."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.algorithms.factors.factor import check_damping, damping_of
from tfp_bfl.contracts import ServerStep
from tfp_bfl.errors import InvalidArgument, check_number
from tfp_bfl.posterior import MeanField
from tfp_bfl.weights import ModelWeights, RoundSize


class Dual(NamedTuple):
    """The state.

    Fields:
      precision, shift: natural parameters of prior prod_k t_k, like the posterior's means each.
      num_clients: K, of the federation.
      num_present: sound clients of the round.
    """

    precision: Any
    shift: Any
    num_clients: Any
    num_present: tf.Tensor


def dual(
    step_size: float = 1.0,
    damping: float | None = None,
    product: MeanField | None = None,
    server_step_size: float | None = None,
) -> ServerStep:
    """q <- (1 - a) mean_k q_k + a prior prod_k t_k in natural parameters, a = 1 / (1 + K rho).

    t_k <- t_k + damping rho (natural(q_k) - natural(q))

    The mean is over all K clients: those that are not in the round count with q_k = q. What the rule pools must be the
    mean of natural parameters, as the log-linear pool of equal weights is.

    Args:
      step_size: rho.
      damping: of the sites, above 0 and at most 1, None for 1 / K; both as the clients have them.
      product: what prior and sites are at first: None for the first posterior, as with `factors.work.factors`; the
        model's prior where those are empty.
      server_step_size: a, above 0 and at most 1; None for 1 / (1 + K rho).

    Raises:
      InvalidArgument: a number outside its range.

    Source: Möllenhoff et al. 2026 (arXiv:2506.13150), IVON-ADMM; its v_k is -t_k.
    """
    check_number(step_size, "step_size")
    check_damping(damping)
    if server_step_size is not None and check_number(server_step_size, "server_step_size") > 1:
        raise InvalidArgument(f"server_step_size is {server_step_size}, but must be above 0 and at most 1.")
    each = tf.nest.map_structure
    # Arrays: a graph of TensorFlow 1, as TFF traces them, takes no tensor from outside.
    product = None if product is None else each(np.asarray, product)

    def initialize(weights: ModelWeights) -> Dual:
        mean, variance = weights.posterior if product is None else product
        precision = each(tf.math.reciprocal, variance)
        return Dual(precision, each(tf.multiply, precision, mean), tf.constant(0), tf.constant(0))

    def meet(state: Dual, federation: RoundSize, num_present: tf.Tensor) -> Dual:
        return state._replace(num_clients=federation.num_clients, num_present=num_present)

    def advance(state: Dual, weights: ModelWeights, pooled: ModelWeights, seed: tf.Tensor) -> tuple[Dual, ModelWeights]:
        del seed
        (mean, variance), (pooled_mean, pooled_variance) = weights.posterior, pooled.posterior
        clients, present = (tf.cast(n, tf.float32) for n in (state.num_clients, state.num_present))
        gain = each(lambda v, u: 1 / v - 1 / u, pooled_variance, variance)
        moved = each(lambda m, v, n, u: m / v - n / u, pooled_mean, pooled_variance, mean, variance)
        scale = damping_of(damping, state.num_clients) * step_size * present
        precision, shift = (
            each(lambda t, g: t + scale * g, *pair) for pair in ((state.precision, gain), (state.shift, moved))
        )
        share = 1 / (1 + clients * step_size) if server_step_size is None else server_step_size

        def between(own: tf.Tensor, change: tf.Tensor, product: tf.Tensor) -> tf.Tensor:
            return (1 - share) * (own + present / clients * change) + share * product

        new = each(lambda u, g, t: between(1 / u, g, t), variance, gain, precision)
        towards = each(lambda n, u, g, t: between(n / u, g, t), mean, variance, moved, shift)
        posterior = MeanField(each(tf.divide, towards, new), each(tf.math.reciprocal, new))
        return state._replace(precision=precision, shift=shift), pooled._replace(posterior=posterior)

    return ServerStep(initialize, advance, meet=meet, name=f"dual (step size {step_size:g})")
