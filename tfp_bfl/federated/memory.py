"""Values that clients keep over rounds, and statistics beside their weights, pooled as point weights are.

A rule sees extra statistics as more point weights, around an anchor of zeros. Its mean is their mean by weight, and
whatever guards point weights guards them: robust aggregation, clipping, privacy, whole numbers for secure sums.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import tensorflow as tf

from tfp_bfl.contracts import ClientWork, Memory, ServerState
from tfp_bfl.tensors import TensorTree
from tfp_bfl.weights import ModelWeights
from tfp_bfl.weights.kinds import Given, Sent


def no_rows(row: TensorTree) -> Any:
    """Return a `Memory` of nobody, of a type in which there may be any number of clients; () for work that
    keeps nothing.
    """
    if not tf.nest.flatten(row):
        return ()
    return Memory(_growing([], tf.int32), tf.nest.map_structure(lambda x: _growing(x.shape, x.dtype), row))


def with_clients(
    state: ServerState, clients: Sequence[int], shares: object, first: Callable[..., Any] | None
) -> ServerState:
    """Return the state with a first row for each of the clients that has none; arrays.

    Args:
      state: of which clients that are there keep their rows.
      clients: their numbers.
      shares: of each, of all examples.
      first: (weights, share) -> what a client that comes for the first time has kept; None where it is nothing.
    """
    if first is None:
        return state
    there, numbers, shares = np.asarray(state.memory.client), np.asarray(clients, np.int32), np.asarray(shares)
    is_new = ~np.isin(numbers, there)
    # Clients of one size begin alike: one computation for each size, not for each client.
    sizes, which = np.unique(shares[is_new].astype(np.float32), return_inverse=True)
    rows = [tf.nest.map_structure(np.asarray, first(state.weights, share)) for share in sizes]
    joined = np.concatenate([there, numbers[is_new]])
    order = np.argsort(joined)
    join = lambda old, *others: np.concatenate([np.asarray(old), np.stack(others)[which]] if others else [old])[order]
    return state._replace(memory=Memory(joined[order], tf.nest.map_structure(join, state.memory.rows, *rows)))


def _places(memory: Any, client: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the places [K] of clients [K] among the rows, which are in the order of their numbers, and whether each
    has a row.
    """
    given = {"sorted_inputs": memory.client[tf.newaxis], "values": client[tf.newaxis]}
    place = tf.raw_ops.LowerBound(**given)[0]
    return place, tf.raw_ops.UpperBound(**given)[0] > place


def find_row(memory: Any, client: tf.Tensor) -> tuple[Any, Any]:
    """Return a client's row, and whether there is one: zeros if there is none. Of clients that keep
    nothing, () and True.
    """
    if memory == ():
        return (), True
    (place,), (known,) = map(tf.unstack, _places(memory, tf.reshape(client, [1])))
    row = lambda rows: tf.cond(known, lambda: tf.gather(rows, place), lambda: tf.zeros(rows.shape[1:], rows.dtype))
    return tf.nest.map_structure(row, memory.rows), known


def replace_rows(memory: Any, client: tf.Tensor, rows: Any, sound: tf.Tensor) -> Any:
    """Return the memory after a round: of sound clients [K] the new rows, of all others those that were there."""
    if memory == ():
        return ()
    place, known = _places(memory, client)
    number = tf.where(known & sound, tf.range(tf.size(client)), -1)
    # For each row the client that replaces it, or -1: [M]. Unknown clients may have the place after the last row.
    nobody = tf.fill([tf.size(memory.client) + 1], -1)
    by = tf.tensor_scatter_nd_max(nobody, place[:, tf.newaxis], number)[:-1]

    def chosen(old: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        shape = tf.concat([tf.shape(by), tf.ones([tf.rank(old) - 1], tf.int32)], 0)
        return tf.where(tf.reshape(by >= 0, shape), tf.gather(new, tf.maximum(by, 0)), old)

    return memory._replace(rows=tf.nest.map_structure(chosen, memory.rows, rows))


def _growing(shape: tf.TensorShape, dtype: tf.DType) -> tf.Tensor:
    return tf.raw_ops.PlaceholderWithDefault(input=tf.zeros([0, *shape], dtype), shape=[None, *shape])


def joined(work: ClientWork[Sent], weights: Sent, extra: TensorTree) -> Sent:
    """Return a client's weights with its extra statistics among the point weights."""
    if work.extra is None:
        return weights
    own = cast(Any, weights)  # `ModelWeights`: others have no extra statistics.
    return own._replace(point=(own.point, extra))


def anchored(work: ClientWork[Sent], weights: ModelWeights) -> ModelWeights:
    """Return the server's weights with zeros in the place of extra statistics."""
    if work.extra is None:
        return weights
    return weights._replace(point=(weights.point, tf.nest.map_structure(tf.zeros_like, work.extra(weights))))


def parted(work: ClientWork[Sent], pooled: Given) -> tuple[Given, TensorTree]:
    """Return what a rule pooled as the weights and the extra statistics, () where clients send none."""
    if work.extra is None:
        return pooled, ()
    weights = cast(Any, pooled)
    point, extra = weights.point
    return weights._replace(point=point), extra


def root_mean_square(extra: TensorTree) -> tf.Tensor:
    """Return sqrt(mean_i x_i^2) over all numbers of a structure: a scalar float32, 0 for none."""
    leaves = [tf.reshape(tf.cast(x, tf.float32), [-1]) for x in tf.nest.flatten(extra)]
    if not leaves:
        return tf.zeros([])
    return tf.sqrt(tf.reduce_mean(tf.square(tf.concat(leaves, 0))))
