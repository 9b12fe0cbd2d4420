"""The server keeps every client's sums at its weights, and makes Laplace's approximation of them."""

from __future__ import annotations

import tensorflow as tf

from tfp_bfl.algorithms.laplace.pool import Curvatures
from tfp_bfl.algorithms.rows import by_client, growing, keep_newest
from tfp_bfl.contracts import CURVATURE, ServerStep, Stack, stack_of
from tfp_bfl.errors import check_number
from tfp_bfl.servers.checks import check_point_weights
from tfp_bfl.weights import ClientCurvature, ModelWeights

# In posterior standard deviations, root mean square over the weights.
LARGEST_DISTANCE = 0.5


def laplace(
    num_weights: int,
    full: bool = False,
    *,
    prior_stddev: float | None = None,
    groups: tuple[int, ...] = (),
    temperature: float = 1.0,
) -> ServerStep[Stack[ClientCurvature]]:
    """Make the posterior N(w*, (1 / t^2 + sum_k H_k / T)^-1) at the server's weights w*, which stay as they are.

    A client may come in any round, and one that comes again replaces its sums: the posterior is that of one round with
    all clients. After the last round a warning is issued if w* is no mode (`laplace.posterior.Laplace.distance`).

    Args:
      num_weights: how many of the model's last weight tensors the posterior is over.
      full: clients send the matrix H_k, not its diagonal.
      prior_stddev: t; None for the maximum of the marginal likelihood.
      groups: the group of each weight tensor, for a prior each; () for one prior.
      temperature: T.

    Returns:
      A step over what `tfp_bfl.rules.stacked` gives of `ClientCurvature`s. Its state is the stack, leaves [K, ...] in
      the order of the clients' numbers. Memory: K x (2 D), or K x D_last^2.

    Raises:
      InvalidArgument: a prior_stddev or a temperature not above 0.
    """
    check_number(temperature, "temperature")
    if prior_stddev is not None:
        check_number(prior_stddev, "prior_stddev")
    settings = Curvatures(prior_stddev, temperature, tuple(groups))

    def initialize(weights: ModelWeights) -> ClientCurvature:
        check_point_weights(weights, "Laplace's approximation")
        point = tuple(weights.point[len(weights.point) - num_weights :])
        size = sum(x.shape.num_elements() for x in point)
        rows = tuple(growing([*x.shape], x.dtype) for x in point)
        matrix = growing([size, size], tf.float32) if full else tf.nest.map_structure(tf.identity, rows)
        return ClientCurvature(growing([], tf.int32), growing([], tf.int32), matrix, rows, growing([], tf.float32))

    def predictive(state: ClientCurvature, weights: ModelWeights) -> ModelWeights:
        return settings.pool(by_client(state), weights) if len(state.client) else weights

    def notice(state: ClientCurvature, weights: ModelWeights) -> str | None:
        if not len(state.client):
            return None
        distance = settings.approximate(by_client(state), weights).distance
        return None if distance <= LARGEST_DISTANCE else mode_warning(distance)

    takes = stack_of(CURVATURE)
    return ServerStep(initialize, keep_newest, predictive, takes=takes, name="laplace", notice=notice)


def mode_warning(distance: float) -> str:
    """Return the warning about weights that are no mode."""
    return (
        f"The weights are no mode of the likelihood: by its gradient they lie {distance:.2g} posterior standard "
        f"deviations off (root mean square over the weights; at most {LARGEST_DISTANCE:g} serve): train for more "
        "rounds or at a lower learning rate before the Laplace round."
    )
