"""The memory of simulated clients between rounds: a row for each, found by the client's number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf

from tfp_bfl.contracts import Memory, ServerState
from tfp_bfl.tensors import TensorTree


def no_rows(row: TensorTree) -> Any:
    """Return a `Memory` of nobody, of a type in which there may be any number of clients; () for work that
    keeps nothing.
    """
    if not tf.nest.flatten(row):
        return ()
    return Memory(_growing([], tf.int32), tf.nest.map_structure(lambda x: _growing(x.shape, x.dtype), row))


def with_clients(
    state: ServerState, clients: Sequence[int], shares: Any, first: Optional[Callable[..., Any]]
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
    there = np.asarray(state.memory.client)
    share_of = dict(zip(map(int, clients), shares))
    new = [client for client in sorted(share_of) if client not in there]
    rows = [tf.nest.map_structure(np.asarray, first(state.weights, np.float32(share_of[client]))) for client in new]
    joined = np.concatenate([there, np.asarray(new, np.int32)])
    order = np.argsort(joined)
    join = lambda old, *others: np.concatenate([np.asarray(old), *(x[np.newaxis] for x in others)])[order]
    return state._replace(memory=Memory(joined[order], tf.nest.map_structure(join, state.memory.rows, *rows)))


def find_row(memory: Any, client: tf.Tensor) -> tuple[Any, Any]:
    """Return a client's row, and whether there is one: zeros if there is none. Of clients that keep
    nothing, () and True.
    """
    if memory == ():
        return (), True
    here = tf.equal(memory.client, client)
    known, place = tf.reduce_any(here), tf.argmax(tf.cast(here, tf.int32), output_type=tf.int32)
    row = lambda rows: tf.cond(known, lambda: tf.gather(rows, place), lambda: tf.zeros(rows.shape[1:], rows.dtype))
    return tf.nest.map_structure(row, memory.rows), known


def replace_rows(memory: Any, client: tf.Tensor, rows: Any, sound: tf.Tensor) -> Any:
    """Return the memory after a round: of sound clients the new rows, of all others those that were there.

    Args:
      memory: in which every sound client has a row.
      client: numbers [K].
      rows: what they sent back, leaves [K, ...].
      sound: [K].
    """
    if memory == ():
        return ()
    # For each row the client that replaces it, if there is one: [M, K].
    replaces = tf.equal(memory.client[:, tf.newaxis], client) & sound
    changed, place = tf.reduce_any(replaces, 1), tf.argmax(tf.cast(replaces, tf.int32), 1, output_type=tf.int32)

    def chosen(old: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        shape = tf.concat([tf.shape(changed), tf.ones([tf.rank(old) - 1], tf.int32)], 0)
        return tf.where(tf.reshape(changed, shape), tf.gather(new, place), old)

    return memory._replace(rows=tf.nest.map_structure(chosen, memory.rows, rows))


def _growing(shape: tf.TensorShape, dtype: tf.DType) -> tf.Tensor:
    return tf.raw_ops.PlaceholderWithDefault(input=tf.zeros([0, *shape], dtype), shape=[None, *shape])
