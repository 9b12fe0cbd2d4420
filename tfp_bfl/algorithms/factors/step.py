"""The servers of Bayesian ADMM and of FedLap: an average, and the product of prior and factors."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.algorithms.factors.factor import Factor, check_damping, damping_of
from tfp_bfl.contracts import SITE_CHANGE, ServerStep, total_of
from tfp_bfl.errors import InvalidArgument, check_number
from tfp_bfl.posterior import MeanField, flatten, unflatten
from tfp_bfl.servers.pooled import check_point_weights
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

    def meet(state: Dual, size: RoundSize) -> Dual:
        return state._replace(num_clients=size.num_clients, num_present=size.present.num_clients)

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


class PointDual(NamedTuple):
    """The state.

    Fields:
      precision: of the server's posterior [D].
      dual: the state of `factors.step.dual`, of vectors [D].
    """

    precision: Any
    dual: Dual


def laplace_dual(
    prior_precision: float = 1.0, step_size: float = 1.0, damping: float | None = None, covariance: bool = False
) -> ServerStep[Factor]:
    """Average the clients' Gaussians with the product of the prior and their sites, in natural parameters.

    (S, S w) <- (1 - a) mean_k (P_k, P_k w_k) + a (1 / t^2 + sum_k S_t, sum_k shift_t),   a = 1 / (1 + K rho)

    Clients that are not in the round count with the server's (S, S w) (`factors.step.dual`). It begins with the first
    weights, the precision of the prior and empty sites.

    Args:
      prior_precision: 1 / t^2 of the prior N(0, t^2 I).
      step_size: rho.
      damping: of the sites; both as the clients have them.
      covariance: the posterior N(w, 1 / S) predicts; False: the weights alone.

    Returns:
      A step over what `rules.total` gives of `factors.laplace_work.laplace_factors`. It sends S to clients.

    Source: Swaroop, Khan and Doshi-Velez 2025 (arXiv:2501.17325); derived as `factors.laplace_work.laplace_factors`.
    """
    inner = dual(step_size, damping)
    vector = lambda mean, variance: ModelWeights(MeanField(mean, variance), (), MeanField((), ()))

    def initialize(weights: ModelWeights) -> PointDual:
        check_point_weights(weights, "FedLap")
        zeros = tf.zeros_like(flatten(weights.point))
        return PointDual(zeros + prior_precision, Dual(zeros + prior_precision, zeros, tf.constant(0), tf.constant(0)))

    def advance(
        state: PointDual, weights: ModelWeights, total: Factor, seed: tf.Tensor
    ) -> tuple[PointDual, ModelWeights]:
        present = tf.maximum(tf.cast(state.dual.num_present, tf.float32), 1.0)
        mean, precision = flatten(weights.point), state.precision
        pooled = precision + total.precision / present
        moved = (precision * mean + total.shift / present) / pooled
        dual_state, new = inner.next(state.dual, vector(mean, 1 / precision), vector(moved, 1 / pooled), seed)
        point = unflatten(new.posterior.mean, tuple(weights.point))
        return PointDual(1 / new.posterior.variance, dual_state), weights._replace(point=point)

    def predictive(state: PointDual, weights: ModelWeights) -> ModelWeights:
        if not covariance:
            return weights
        variance = unflatten(1 / tf.convert_to_tensor(state.precision), tuple(weights.point))
        return weights._replace(posterior=MeanField(weights.point, variance), point=())

    send = lambda state, weights: state.precision
    takes, name = total_of(SITE_CHANGE), f"laplace_dual (step size {step_size:g})"
    meet = lambda state, size: state._replace(dual=inner.meet(state.dual, size))
    return ServerStep(initialize, advance, predictive, send, meet=meet, takes=takes, name=name)
