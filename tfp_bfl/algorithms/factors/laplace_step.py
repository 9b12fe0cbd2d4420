"""FedLap's server: Bayesian ADMM's, over point weights with a precision beside them."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl.algorithms.factors.factor import Factor
from tfp_bfl.algorithms.factors.step import Dual, dual
from tfp_bfl.contracts import SITE_CHANGE, ServerStep, total_of
from tfp_bfl.errors import check_number
from tfp_bfl.posterior import MeanField, flatten, unflatten
from tfp_bfl.servers.checks import check_point_weights
from tfp_bfl.weights import ModelWeights, RoundSize


class PointDual(NamedTuple):
    """The state.

    Fields:
      precision: of the server's posterior [D].
      dual: the state of `factors.step.dual`, of vectors [D].
    """

    precision: Any
    dual: Dual


def laplace_dual(
    prior_stddev: float = 1.0, step_size: float = 1.0, damping: float | None = None, covariance: bool = False
) -> ServerStep[Factor]:
    """Average the clients' Gaussians with the product of the prior and their sites, in natural parameters.

    (S, S w) <- (1 - a) mean_k (P_k, P_k w_k) + a (1 / t^2 + sum_k S_t, sum_k shift_t),   a = 1 / (1 + K rho)

    Clients that are not in the round count with the server's (S, S w) (`factors.step.dual`). It begins with the first
    weights, the precision of the prior and empty sites.

    Args:
      prior_stddev: t of the prior N(0, t^2 I).
      step_size: rho.
      damping: of the sites; both as the clients have them.
      covariance: the posterior N(w, 1 / S) predicts; False: the weights alone.

    Returns:
      A step over what `tfp_bfl.rules.total` gives of `factors.laplace_work.laplace_factors`. It sends S to the clients.

    Raises:
      InvalidArgument: a number outside its range; of `initialize`, a model with variational layers.

    Source: Swaroop, Khan and Doshi-Velez 2025 (arXiv:2501.17325); derived as `factors.laplace_work.laplace_factors`.
    """
    prior_precision = 1 / check_number(prior_stddev, "prior_stddev") ** 2
    inner = dual(step_size, damping)
    vector = lambda mean, variance: ModelWeights(MeanField(mean, variance), (), MeanField((), ()))

    def initialize(weights: ModelWeights) -> PointDual:
        check_point_weights(weights, "FedLap")
        zeros = tf.zeros_like(flatten(weights.point))
        return PointDual(zeros + prior_precision, Dual(zeros + prior_precision, zeros, tf.constant(0), tf.constant(0)))

    def meet(state: PointDual, federation: RoundSize, num_present: tf.Tensor) -> PointDual:
        return state._replace(dual=inner.meet(state.dual, federation, num_present))

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

    tell = lambda state, weights: state.precision
    takes, name = total_of(SITE_CHANGE), f"laplace_dual (step size {step_size:g})"
    return ServerStep(initialize, advance, predictive, tell, meet=meet, takes=takes, name=name)
