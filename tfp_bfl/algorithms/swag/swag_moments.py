"""The moments of SGD's iterates that make a SWAG posterior, in constant memory: pure functions of a state of tensors.

    state = swag_moments.start(weights, max_columns=20)
    state = swag_moments.collect(state, weights)  # every c steps
    q = swag_moments.posterior_of(state)

With theta_0 the weights at the start and theta_n those of the n-th collection:

mean_n = (n mean_(n-1) + theta_n) / (n + 1),   mean_sq_n likewise of theta^2,   mean_0 = theta_0, mean_sq_0 = theta_0^2
variance = mean_sq - mean^2
columns: theta_n - mean_n, with the mean that theta_n has moved; the last K are kept

In float32 the difference of the squares cancels. Welford (1962) sums theta - mean instead, and here means are kept as
differences from theta_0, so that neither they nor the columns lose digits to the size of the weights.

Source: Maddox et al. 2019 (arXiv:1902.02476), algorithm 1; Makni 2022, Train-SWAG.
"""

from typing import NamedTuple

import tensorflow as tf

from tfp_bfl.errors import InvalidArgument, check_count, check_number
from tfp_bfl.posterior.low_rank import LowRank
from tfp_bfl.posterior.mean_field import MeanField
from tfp_bfl.tensors import TensorTree


class SwagMoments(NamedTuple):
    """The moments after n collections. Structures are like the weights; shapes never change.

    Fields:
      num_collected: n, a scalar, int32.
      reference: theta_0 [...].
      shift: mean_n - theta_0 [...].
      sum_squares: (n + 1) variance [...].
      columns: the last K columns [K, ...], the n-th in row (n - 1) mod K; zero before they are collected.
    """

    num_collected: tf.Tensor
    reference: tf.Tensor
    shift: tf.Tensor
    sum_squares: tf.Tensor
    columns: tf.Tensor


def start(weights: TensorTree, max_columns: int) -> SwagMoments:
    """Return the moments before any collection.

    Args:
      weights: theta_0, a structure of float tensors or variables.
      max_columns: K, at least 2.
    """
    check_count(max_columns, "max_columns", 2)
    # A copy, for a variable's tensor may follow it.
    reference = tf.nest.map_structure(tf.identity, weights)
    zeros = tf.nest.map_structure(tf.zeros_like, reference)
    columns = tf.nest.map_structure(lambda x: tf.zeros([max_columns, *x.shape], x.dtype), reference)
    return SwagMoments(tf.constant(0), reference, zeros, zeros, columns)


def collect(state: SwagMoments, weights: TensorTree) -> SwagMoments:
    """Return the moments with one more iterate.

    shift' = shift + (x - shift) / (n + 1),   column = x - shift',   sum_squares' = sum_squares + (x - shift) column
    for x = theta_n - theta_0.
    """
    try:
        tf.nest.assert_same_structure(state.reference, weights)
    except (ValueError, TypeError) as error:
        raise InvalidArgument("collect needs weights of the structure that start was given.") from error
    number = state.num_collected + 1
    row = state.num_collected % tf.nest.flatten(state.columns)[0].shape[0]

    def of_leaf(
        reference: tf.Tensor, shift: tf.Tensor, squares: tf.Tensor, columns: tf.Tensor, value: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        value = tf.convert_to_tensor(value)
        if value.shape != reference.shape or value.dtype != reference.dtype:
            raise InvalidArgument(
                f"collect needs weights as start was given, {reference.dtype.name} {reference.shape}, but one is "
                f"{value.dtype.name} {value.shape}."
            )
        x = value - reference
        moved = shift + (x - shift) / tf.cast(number + 1, x.dtype)
        column = x - moved
        columns = tf.tensor_scatter_nd_update(columns, [[row]], column[tf.newaxis])
        return moved, squares + (x - shift) * column, columns

    leaves = zip(*(tf.nest.flatten(part) for part in (*state[1:], weights)))
    shift, squares, columns = (
        tf.nest.pack_sequence_as(state.reference, part) for part in zip(*(of_leaf(*leaf) for leaf in leaves))
    )
    return SwagMoments(number, state.reference, shift, squares, columns)


def posterior_of(state: SwagMoments, min_variance: float = 1e-6) -> LowRank:
    """Return the SWAG posterior N(mean, Sigma_diag / 2 + D D^T / (2 (K - 1))), K the columns held.

    Sigma_diag = max(variance, min_variance). The deviations have as many rows as the state may hold columns; rows that
    are not collected yet are zero.

    Source: Maddox et al. 2019 (arXiv:1902.02476), eq. 1; Makni 2022.
    """
    state = _checked(state, 2, "a covariance needs at least two columns")
    q = mean_field_of(state, min_variance)
    held = tf.minimum(state.num_collected, tf.nest.flatten(state.columns)[0].shape[0])
    scale = lambda x: x / tf.sqrt(tf.cast(2 * (held - 1), x.dtype))
    halved = tf.nest.map_structure(lambda v: v / 2, q.variance)
    return LowRank(q.mean, halved, tf.nest.map_structure(scale, state.columns))


def mean_field_of(state: SwagMoments, min_variance: float = 1e-6) -> MeanField:
    """Return the SWAG-Diagonal posterior N(mean, Sigma_diag), Sigma_diag = max(variance, min_variance), without the
    half.

    Source: Maddox et al. 2019 (arXiv:1902.02476), section 3.1.
    """
    check_number(min_variance, "min_variance")
    state = _checked(state, 1, "a variance needs at least one")
    count = state.num_collected + 1
    variance = lambda s: tf.maximum(s / tf.cast(count, s.dtype), tf.cast(min_variance, s.dtype))
    mean = tf.nest.map_structure(tf.add, state.reference, state.shift)
    return MeanField(mean, tf.nest.map_structure(variance, state.sum_squares))


def _checked(state: SwagMoments, least: int, needs: str) -> SwagMoments:
    number = tf.get_static_value(state.num_collected)
    message = f"SWAG has collected {{}} iterates, but {needs}."
    if number is not None:
        if number < least:
            raise InvalidArgument(message.format(number))
        return state
    check = tf.debugging.assert_greater_equal(state.num_collected, least, message.format("too few"))
    with tf.control_dependencies([check]):
        return state._replace(num_collected=tf.identity(state.num_collected))
