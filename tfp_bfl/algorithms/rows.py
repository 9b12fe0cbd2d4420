"""A server's rows, one for each client that has been in a round, in the order of the clients' numbers."""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tfp_bfl.contracts import Stack, rows_of
from tfp_bfl.tensors import TensorTree
from tfp_bfl.weights import ClientCurvature, ClientPosterior, ModelWeights

Clients = TypeVar("Clients", ClientCurvature, ClientPosterior)


def growing(shape: Sequence[int], dtype: tf.DType) -> tf.Tensor:
    """Return a tensor without rows, of a type in which there may be any number: [0, *shape]."""
    return tf.raw_ops.PlaceholderWithDefault(input=tf.zeros([0, *shape], dtype), shape=[None, *shape])


def by_client(stack: TensorTree) -> dict[str, Any]:
    """Return the row of each client of a stack, leaves [K, ...], by its number in words."""
    rows: Any = tf.nest.map_structure(np.asarray, stack)
    pick = lambda k: tf.nest.map_structure(lambda x: x[k], rows)
    return {str(number): pick(k) for k, number in enumerate(rows.client.tolist())}


def keep_newest(
    state: Clients, weights: ModelWeights, new: Stack[Clients], seed: tf.Tensor
) -> tuple[Clients, ModelWeights]:
    """Take the rows of a round into the state, as a `ServerStep.next`; the server's weights stay.

    A client's new row replaces its former one.

    Args:
      state, new: structures with leaves [K, ...]; the field `client` holds the numbers [K].
    """
    del seed
    rows = rows_of(new)
    stays = ~tf.reduce_any(tf.equal(state.client[:, tf.newaxis], rows.client), 1)
    joined = tf.nest.map_structure(lambda x, y: tf.concat([tf.boolean_mask(x, stays), y], 0), state, rows)
    order = tf.argsort(joined.client)
    return tf.nest.map_structure(lambda x: tf.gather(x, order), joined), weights
