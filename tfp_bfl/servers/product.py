"""The server keeps every client's posterior, and pools them by their product when the model is asked for."""

from __future__ import annotations

import tensorflow as tf

from tfp_bfl.contracts import CLIENT_POSTERIOR, ServerStep, Stack, stack_of
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior import LowRank, MeanField
from tfp_bfl.posterior.products import check_prior
from tfp_bfl.servers import online
from tfp_bfl.servers.rows import growing, keep_newest
from tfp_bfl.weights import ClientPosterior, ModelWeights


def online_product(
    num_weights: int,
    max_columns: int,
    prior: MeanField | None = None,
    diagonal_only: bool = True,
    between_clients: bool = True,
    frozen_moments: bool = False,
) -> ServerStep[Stack[ClientPosterior]]:
    """Compute the product of all clients' posteriors so far, q(w) ~ prod_k q_k(w) / prior(w)^(K - 1), by
    `posterior.pooled`.

    Every client starts from the same weights, those of the server before the first round; it may come in any round, and
    one that comes again has its posterior replaced. The product is therefore that of one round with all of them (up to
    the noise of the clients' training).

    Args:
      num_weights: how many of the model's last point weights the posteriors are over.
      max_columns: R, rows of each client's deviations.
      prior: of `posterior.gaussian_product`.
      diagonal_only, between_clients: of `posterior.pooled`; both False for the exact product, as published.
      frozen_moments: clients send no statistics of BatchNorm, and the server's stay.

    Returns:
      A step over what `tfp_bfl.rules.stacked` gives of `ClientPosterior`s. Its state is the stack, leaves [K, ...] in
      the order of the clients' numbers. Memory: K R D.

    Raises:
      InvalidArgument: a prior that is none; of `initialize`, one over other weights.

    Source: Makni 2022, FL-SWAG.
    """

    if prior is not None:
        check_prior(prior, None)

    def initialize(weights: ModelWeights) -> ClientPosterior:
        point = weights.point[len(weights.point) - num_weights :]
        if prior is not None:
            _check_fits(prior, point)
        rows = lambda *shape: lambda x: growing([*shape, *x.shape], x.dtype)
        each = lambda make, structure: tf.nest.map_structure(make, structure)
        q = LowRank(each(rows(), point), each(rows(), point), each(rows(max_columns), point))
        number = growing([], tf.int32)
        moments = MeanField((), ()) if frozen_moments else each(rows(), weights.moments)
        return ClientPosterior(number, number, q, moments)

    def predictive(state: ClientPosterior, weights: ModelWeights) -> ModelWeights:
        if not len(state.client):
            return weights
        return online.pool(online.from_stack(state, weights, prior), diagonal_only, between_clients)

    return ServerStep(initialize, keep_newest, predictive, takes=stack_of(CLIENT_POSTERIOR), name="online_product")


def _check_fits(prior: MeanField, point: tuple[tf.Tensor, ...]) -> None:
    forms = lambda leaves: ", ".join(f"{tf.as_dtype(x.dtype).name} {list(x.shape)}" for x in leaves)
    if not isinstance(prior.mean, tuple) or forms(prior.mean) != forms(point):
        raise InvalidArgument(
            f"prior must be over a tuple of the weights of the clients' posteriors, {forms(point)}, but is over "
            f"{forms(tf.nest.flatten(prior.mean))}."
        )
