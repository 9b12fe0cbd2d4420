"""The server keeps every client's sums: Laplace's approximation at its weights, or Newton steps of the last layer."""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import tensorflow as tf

from tfp_bfl import rules
from tfp_bfl.algorithms.held import Held
from tfp_bfl.algorithms.laplace.pool import NUM_HEAD_WEIGHTS, Curvatures, expanded_at
from tfp_bfl.algorithms.laplace.posterior import Expansion, Head, active, solve, whole
from tfp_bfl.algorithms.laplace.shared import SharedCurvature
from tfp_bfl.algorithms.rows import by_client, growing, keep_newest
from tfp_bfl.contracts import CURVATURE, ModelRule, Needs, ServerStep, Stack, as_stack, stack_of, total_of
from tfp_bfl.posterior import flatten, unflatten
from tfp_bfl.servers.pooled import check_point_weights
from tfp_bfl.weights import ClientCurvature, ModelWeights

# In posterior standard deviations, root mean square over the weights.
LARGEST_DISTANCE = 0.5


def no_rows(layers: Sequence[tf.Tensor], structure: str, dtype: tf.DType) -> ClientCurvature:
    """Return a stack of no clients' sums, of a structure of `laplace.work.STRUCTURES` over some weights."""
    leaves = lambda: tuple(growing([*x.shape], dtype) for x in layers)
    if structure == "diagonal":
        curvature: Any = leaves()
    elif structure == "kronecker":
        width, classes = layers[0].shape[0] + 1, layers[0].shape[1]
        curvature = SharedCurvature(growing([width * (width + 1) // 2], dtype), growing([classes, classes], dtype))
    else:
        curvature = growing([sum(x.shape.num_elements() for x in layers)] * 2, dtype)
    return ClientCurvature(growing([], tf.int32), growing([], tf.int32), curvature, leaves(), growing([], dtype))


def laplace(num_weights: int, structure: str, settings: Curvatures) -> ServerStep[Stack[ClientCurvature]]:
    """Make the posterior N(w*, T (1 / t^2 + sum_k H_k)^-1) at the server's weights w*, which stay as they are.

    A client may come in any round, and one that comes again replaces its sums: the posterior is that of one round with
    all clients. After the last round a warning is issued if w* is no mode (`laplace.posterior.Laplace.distance`).

    Args:
      num_weights: how many of the model's last weight tensors the posterior is over.
      structure: of H_k, of `laplace.work.STRUCTURES`.
      settings: t, T and the groups of weights with a prior each.

    Returns:
      A step over what `tfp_bfl.rules.stacked` gives of `ClientCurvature`s. Its state is the stack, leaves [K, ...] in
      the order of the clients' numbers. Memory: K times the message of a client.
    """

    def initialize(weights: ModelWeights) -> ClientCurvature:
        check_point_weights(weights, "Laplace's approximation")
        return no_rows(weights.point[len(weights.point) - num_weights :], structure, tf.float32)

    def predictive(state: ClientCurvature, weights: ModelWeights) -> ModelWeights:
        return settings.pool(by_client(state), weights) if len(state.client) else weights

    def notice(state: ClientCurvature, weights: ModelWeights) -> str | None:
        if not len(state.client):
            return None
        distance = settings.approximate(by_client(state), weights).distance
        if distance <= LARGEST_DISTANCE:
            return None
        return (
            f"The weights are no mode of the likelihood: by its gradient they lie {distance:.2g} posterior standard "
            f"deviations off (root mean square over the weights; at most {LARGEST_DISTANCE:g} serve): train for more "
            "rounds or at a lower learning rate before the Laplace round."
        )

    takes = stack_of(CURVATURE)
    return ServerStep(initialize, keep_newest, predictive, takes=takes, name="laplace", needs=Needs(notice=notice))


# In posterior standard deviations, root mean square over the weights.
LARGEST_STEP = 0.1
# A change of the objective that rounding explains.
_ROUNDING = 1e-10


class LastLayer(NamedTuple):
    """The state.

    Fields:
      rows: the clients' sums, expanded at the weights of the last round, leaves [K, ...].
      at: these weights of the last layer [D].
      previous: the weights from which the last step began [D].
      value: nll + ||w||^2 / (2 t^2) at `previous`; infinite before the first round.
      prior_precision: 1 / t^2.
    """

    rows: ClientCurvature
    at: Any
    previous: Any
    value: Any
    prior_precision: Any


def last_layer(head: Head, structure: str = "last_layer") -> ServerStep[Stack[ClientCurvature]]:
    """Set the last layer to the mean of its posterior, computed from the clients' sums (`posterior.linear_head`).

    w <- P^-1 sum_k (H_k w - g_k),   P = 1 / t^2 + sum_k H_k

    This is a Newton step. A step that raised the negative log posterior is halved in the next round. The sums of a
    client that is not in the round are its quadratic expansion of an earlier round: exact for Gaussian labels, of which
    clients send the sums with noise 1. The posterior around w is N(w, T P^-1).

    Returns:
      A step over what `tfp_bfl.rules.stacked` gives of `laplace.work.laplace`, with the structure of H_k.
      Memory: K times the message of a client. After the last round a warning is issued if the remaining Newton step is
      long.
    """

    settings = Curvatures(head, exact=True)

    def initialize(weights: ModelWeights) -> LastLayer:
        check_point_weights(weights, "The posterior of a last layer")
        layer = weights.point[-NUM_HEAD_WEIGHTS:]
        at = tf.cast(flatten(layer), tf.float64)
        rows = no_rows(layer, structure, tf.float64)
        constants = tf.constant(np.inf, tf.float64), tf.ones([], tf.float64)
        return LastLayer(rows, at, at, *constants)

    def advance(
        state: LastLayer, weights: ModelWeights, new: Stack[ClientCurvature], seed: tf.Tensor
    ) -> tuple[LastLayer, ModelWeights]:
        layer = tuple(weights.point[-NUM_HEAD_WEIGHTS:])
        at = tf.cast(flatten(layer), tf.float64)
        rows, _ = keep_newest(expanded_at(state.rows, state.at, at), weights, new, seed)
        total = _total(rows, at)
        square = tf.reduce_sum(tf.square(at))
        value = total.nll + 0.5 * state.prior_precision * square
        solution = solve(active(total, layer[1].shape[0], head), head)
        mean = whole(solution.mean, solution.noise_precision, layer[1].shape[0], head)
        grown = tf.shape(rows.client)[0] > tf.shape(state.rows.client)[0]  # The value is of more clients then.
        accepted = head.gaussian | grown | (value <= state.value + _ROUNDING * tf.abs(value))
        prior = solution.prior_precision
        value = value + 0.5 * (prior - state.prior_precision) * square
        pick = lambda x, y: tf.where(accepted, x, y)
        kept = LastLayer(
            rows, at, pick(at, state.previous), pick(value, state.value), pick(prior, state.prior_precision)
        )
        moved_to = unflatten(tf.cast(pick(mean, (at + state.previous) / 2), tf.float32), layer)
        return kept, weights._replace(point=(*weights.point[:-NUM_HEAD_WEIGHTS], *moved_to))

    def predictive(state: LastLayer, weights: ModelWeights) -> ModelWeights:
        return held_sums(state, weights, settings).pool() if len(state.rows.client) else weights

    def notice(state: LastLayer, weights: ModelWeights) -> str | None:
        if not len(state.rows.client):
            return None
        held = held_sums(state, weights, settings)
        step = held.settings.approximate(held.rows, held.weights).distance
        if step <= LARGEST_STEP:
            return None
        return (
            f"The last Newton step of the head has {step:.2g} posterior standard deviations (root mean square over the "
            f"weights; at most {LARGEST_STEP:g} serve): run more rounds, each with all clients."
        )

    takes = stack_of(CURVATURE)
    return ServerStep(initialize, advance, predictive, takes=takes, name="last_layer", needs=Needs(notice=notice))


def held_sums(state: LastLayer | ClientCurvature, weights: ModelWeights, settings: Curvatures) -> Held[ClientCurvature]:
    """Return the clients' sums by name in a state of `last_layer` or `laplace`, with the weights at which they are."""
    if isinstance(state, LastLayer):
        layer = tuple(np.asarray(x) for x in weights.point[-NUM_HEAD_WEIGHTS:])
        at = tuple(np.float32(x) for x in unflatten(tf.convert_to_tensor(state.at), layer))
        weights = weights._replace(point=(*weights.point[:-NUM_HEAD_WEIGHTS], *at))
    return Held.of_stack(_rows(state), weights, settings)


def _total(rows: ClientCurvature, at: tf.Tensor) -> Expansion:
    total = tf.nest.map_structure(lambda x: tf.reduce_sum(x, 0), rows)
    return Expansion(total.curvature, flatten(total.gradient), total.nll, at, total.num_examples)


def _rows(state: LastLayer | ClientCurvature) -> ClientCurvature:
    return state.rows if isinstance(state, LastLayer) else state


def summed(step: ServerStep[Stack[ClientCurvature]], most: float) -> tuple[ModelRule[Any, Any], ServerStep[Any]]:
    """Return the rule of the sum over a round's clients, for secure sums by the largest number of examples `most`, and
    `laplace` or `last_layer` as a step that takes it as the row of one client that comes again.
    """

    def advance(state: Any, weights: ModelWeights, pooled: ClientCurvature, seed: tf.Tensor) -> Any:
        whole = lambda x, dtype: tf.cast(tf.round(x) if dtype.is_integer else x, dtype)[tf.newaxis]
        pooled = pooled._replace(client=tf.zeros_like(pooled.client))
        rows = tf.nest.map_structure(lambda x, y: whole(x, y.dtype), pooled, _rows(state))
        return step.next(state, weights, as_stack(rows), seed)

    unit = tf.constant(most, tf.float64)
    units = lambda weights: tf.nest.map_structure(lambda _: unit, _rows(step.initialize(weights)))
    return rules.total()._replace(units=units), cast(Any, step)._replace(next=advance, takes=total_of(CURVATURE))
