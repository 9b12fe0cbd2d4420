"""The sum of clients' contributions in one graph with fixed shapes, as XLA must have it."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_bfl.contracts import DYNAMIC, Metrics, ServerState
from tfp_bfl.data import ClientExamples
from tfp_bfl.data.clients import Share
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.federated.round import Broadcast, Contribute, Contribution, Round, summed_spec, types_of

Work = Callable[[tf.Tensor], Contribution]
# The clients of each size, leaves [K, n, ...].
Groups = tuple[ClientExamples, ...]
# Rounds that one call computes, and the numbers that their states and metrics may have together.
MOST_AHEAD, _MOST_NUMBERS = 16, 4_000_000


def check_shapes(shapes: str) -> None:
    """Raise InvalidArgument for client work (`ClientWork.shapes`) that XLA can't compile."""
    if shapes == DYNAMIC:
        raise InvalidArgument(
            "XLA must know all shapes beforehand, and some here follow from values (bits of a code, or batches of "
            "examples in private): use count_bits=False where there is that option, or do without XLA."
        )


def stacked(share: Share, most: int) -> ClientExamples:
    """Return the clients' examples as leaves [K, n, ...], n = `most`.

    Clients with fewer end in their last row again, of client -1: at zeros a model may have no derivative.
    """
    sizes, examples, places = share.sizes[:, np.newaxis], share.clients.arrays(share.numbers), np.arange(most)
    rows = np.cumsum(sizes, 0) - sizes + np.minimum(places, sizes - 1)
    full = (sizes == most).all()
    client, features, labels = (x.reshape(*rows.shape, *x.shape[1:]) if full else x[rows] for x in examples)
    return ClientExamples(*map(tf.constant, (np.where(places < sizes, client, -1), features, labels)))


def sum_over(round: Round, work: Work, chosen: tf.Tensor) -> Contribution:
    """Return the sum of what clients of these numbers [C], C known, contribute by `work`, one after another."""
    one, size = types_of(work, chosen[0]), chosen.shape[0]
    if any(None in x.shape for x in tf.nest.flatten(summed_spec(one.statistics, round.merge))):  # It grows.
        return functools.reduce(lambda total, i: round.add(total, work(chosen[i])), range(1, size), work(chosen[0]))
    outputs = one.memory, one.report
    arrays = [tf.TensorArray(x.dtype, size, element_shape=x.shape[1:]) for x in tf.nest.flatten(outputs)]

    def body(i: tf.Tensor, statistics: Any, arrays: Any) -> Any:
        new = work(chosen[i])
        leaves = tf.nest.flatten((new.memory, new.report))
        arrays = [array.write(i, x[0]) for array, x in zip(arrays, leaves)]
        return i + 1, round.merge(statistics, new.statistics), arrays

    start = tf.nest.map_structure(lambda x: tf.zeros(x.shape, x.dtype), one.statistics)
    _, statistics, arrays = tf.while_loop(
        lambda i, *_: i < size, body, (tf.constant(0), start, arrays), parallel_iterations=1
    )
    return Contribution(statistics, *tf.nest.pack_sequence_as(outputs, [array.stack() for array in arrays]))


def sum_of_groups(round: Round, contribute: Contribute, sent: Broadcast, groups: Groups) -> Contribution:
    """Return the sum of what clients of several sizes contribute."""

    def of_one_size(rows: ClientExamples) -> Contribution:
        row = lambda k: tf.nest.map_structure(lambda x: tf.gather(x, k), rows)
        return sum_over(round, lambda k: contribute(sent, row(k)), tf.range(rows.labels.shape[0]))

    return functools.reduce(round.add, map(of_one_size, groups))


def rounds_in_a_row(
    round: Round, contribute: Contribute, state: ServerState, groups: Groups, number: tf.Tensor
) -> tuple[ServerState, Metrics]:
    """Return the states and metrics of several rounds over the same clients, stacked, in a loop of fixed shapes.

    There are `number` [] rounds, at most `MOST_AHEAD`, fewer where a state is large and 1 where it grows. The other
    entries of the stacks have no meaning.
    """
    of_one = lambda state: round.conclude(state, sum_of_groups(round, contribute, round.broadcast(state), groups))
    spec = types_of(of_one, state)
    leaves = tf.nest.flatten(spec)
    if any(x.shape != y.shape for x, y in zip(leaves, tf.nest.flatten(state))):
        return tf.nest.map_structure(lambda x: x[tf.newaxis], of_one(state))
    most = min(MOST_AHEAD, max(1, _MOST_NUMBERS // sum(x.shape.num_elements() for x in leaves)))
    outputs = [tf.TensorArray(x.dtype, most, element_shape=x.shape) for x in leaves]

    def body(i: tf.Tensor, state: ServerState, outputs: Any) -> Any:
        new = of_one(state)
        return i + 1, new[0], [each.write(i, x) for each, x in zip(outputs, tf.nest.flatten(new))]

    more = lambda i, *_: i < tf.minimum(number, most)
    _, _, outputs = tf.while_loop(more, body, (tf.constant(0), state, outputs), parallel_iterations=1)
    return tf.nest.pack_sequence_as(spec, [each.stack() for each in outputs])
