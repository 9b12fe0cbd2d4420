"""The mean-field Gaussian: every weight independent, q(w) = prod_d N(w_d; mean_d, variance_d)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl.display import shows
from tfp_bfl.errors import InvalidArgument, check_count
from tfp_bfl.tensors import Scalar, is_traced_for_xla, size_of


def _facts(q: "MeanField") -> dict[str, object]:
    size = size_of(q.mean)
    if not tf.executing_eagerly() or not size or not size_of(q.variance):
        return {"weights": size}
    named = zip(("5 %", "50 %", "95 %"), spread(q)[:3])
    return {"weights": size, "standard deviations": {name: float(x) for name, x in named}}


@shows(_facts)
class MeanField(NamedTuple):
    """A mean-field Gaussian posterior.

    `mean` and `variance` are two structures (as `tf.nest` knows them) of float tensors of the same shapes. In a
    *stack* of K posteriors every leaf has a leading axis [K, ...].
    """

    mean: Any
    variance: Any


class Spread(NamedTuple):
    """Quantiles of the weights' posterior standard deviations, and the share of weights at the floor.

    `stddev_log_ratio` is log(q95 / q05): 0 where all standard deviations are the same number.
    """

    stddev_q05: tf.Tensor
    stddev_median: tf.Tensor
    stddev_q95: tf.Tensor
    stddev_log_ratio: tf.Tensor
    share_at_floor: tf.Tensor


def gaussian_kl(mean: tf.Tensor, log_stddev: tf.Tensor, prior_mean: Scalar, prior_log_stddev: Scalar) -> tf.Tensor:
    """Return KL[N(mean, s^2) || N(m, t^2)] of each weight, in nats, elementwise.

    KL = log(t / s) + (s^2 + (mean - m)^2) / (2 t^2) - 1 / 2

    Example:
      >>> bfl.posterior.gaussian_kl(np.ones(1, np.float32), np.zeros(1, np.float32), 0.0, 0.0).numpy().tolist()
      [0.5]
    """
    prior_log_stddev = tf.convert_to_tensor(prior_log_stddev, log_stddev.dtype)
    ratio = log_stddev - prior_log_stddev
    shift = (mean - prior_mean) * tf.exp(-prior_log_stddev)
    return 0.5 * (tf.math.expm1(2.0 * ratio) + tf.square(shift)) - ratio


def kl_divergence(q: MeanField, p: MeanField) -> tf.Tensor:
    """Return KL[q || p] in nats, summed over all weights.

    KL[q || p] = sum_d log(t_d / s_d) + (s_d^2 + (m_d - n_d)^2) / (2 t_d^2) - 1 / 2 for q = N(m, s^2), p = N(n, t^2).

    Args:
      q: a posterior, or a stack of K (leaves [K, ...]).
      p: a posterior of the same structure, or a stack of K where q is none. (Two stacks are not
        recognised as stacks: their KL is summed over the clients too.)

    Returns:
      A scalar; [K] if just one of the two is a stack.

    Example:
      >>> q = bfl.posterior.MeanField(np.array([0.0, 1.0], np.float32), np.array([1.0, 4.0], np.float32))
      >>> p = bfl.posterior.MeanField(np.zeros(2, np.float32), np.ones(2, np.float32))
      >>> print(round(float(bfl.posterior.kl_divergence(q, p)), 3))
      1.307
    """
    try:
        for structure in (q.variance, p.mean, p.variance):
            tf.nest.assert_same_structure(q.mean, structure)
    except (ValueError, TypeError) as error:
        raise InvalidArgument(
            "kl_divergence needs q and p of the same structure, one tensor a weight in each."
        ) from error
    total: Any = 0.0
    leaves = zip(*(tf.nest.flatten(part) for part in (q.mean, q.variance, p.mean, p.variance)))
    for leaf in leaves:
        m, v, n, u = (tf.convert_to_tensor(x) for x in leaf)
        ranks = len(m.shape), len(n.shape)
        shortest = min(ranks)
        if max(ranks) - shortest > 1 or m.shape[ranks[0] - shortest :] != n.shape[ranks[1] - shortest :]:
            raise InvalidArgument(f"kl_divergence needs q and p of the same shapes, but got {m.shape} and {n.shape}.")
        kl = gaussian_kl(m, 0.5 * tf.math.log(v), n, 0.5 * tf.math.log(u))
        stacked = ranks[0] != ranks[1]
        total += tf.reduce_sum(kl, axis=list(range(1, len(kl.shape))) if stacked else None)
    return tf.convert_to_tensor(total)


def sample(q: MeanField, seed: tf.Tensor, num_samples: int | None = None) -> Any:
    """Draw w ~ q: a structure like `q.mean`, one draw, or S = `num_samples` of them with leaves [S, ...].

    The same `seed` ([2], integer) gives the same draws.
    """
    lead = tf.constant([] if num_samples is None else [check_count(num_samples, "num_samples")], tf.int32)
    leaves = tf.nest.flatten(q.mean)
    seeds = tf.random.experimental.stateless_split(seed, max(len(leaves), 1))
    draws = [
        m + tf.sqrt(v) * tf.random.stateless_normal(tf.concat([lead, tf.shape(m)], 0), seeds[i], dtype=m.dtype)
        for i, (m, v) in enumerate(zip(leaves, tf.nest.flatten(q.variance)))
    ]
    return tf.nest.pack_sequence_as(q.mean, draws)


def stack(posteriors: Sequence[MeanField]) -> MeanField:
    """Stack K posteriors of one structure: leaves [...] become [K, ...].

    Example:
      >>> q = bfl.posterior.MeanField(np.array([0.0, 1.0], np.float32), np.array([1.0, 4.0], np.float32))
      >>> bfl.posterior.stack([q, q]).mean.shape
      TensorShape([2, 2])
    """
    if not posteriors:
        raise InvalidArgument("stack needs at least one posterior.")
    try:
        return tf.nest.map_structure(lambda *leaves: tf.stack(leaves), *posteriors)
    except (ValueError, TypeError, tf.errors.InvalidArgumentError) as error:
        raise InvalidArgument("stack needs posteriors of one structure and one shape a weight.") from error


def _at_ranks(numbers: tf.Tensor, ranks: tf.Tensor) -> tf.Tensor:
    """Return the numbers [N] at ranks [R] of their order, all at least 0: XLA takes ten times as long to sort them.

    As integers, the bits of such floats have the same order. Their first bits are found one after another.
    """
    if numbers.dtype != tf.float32:
        return tf.gather(tf.sort(numbers), ranks)
    bits = tf.bitcast(numbers, tf.int32)

    def next_bit(i: tf.Tensor, found: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        tried = tf.bitwise.bitwise_or(found, tf.bitwise.left_shift(1, 30 - i))
        below = tf.reduce_sum(tf.cast(bits < tried[:, tf.newaxis], tf.int32), 1)
        return i + 1, tf.where(below <= ranks, tried, found)

    found = tf.while_loop(lambda i, _: i < 31, next_bit, (tf.constant(0), tf.zeros_like(ranks)))[1]
    return tf.bitcast(found, tf.float32)


def spread(q: MeanField, min_stddev: float = 0.0) -> Spread:
    """Return the spread of q over all its weights; NaN for a model without variational weights.

    A weight counts as at the floor if its standard deviation is within 1 % of `min_stddev` or below it. Quantiles are
    nearest ranks.

    Example:
      >>> q = bfl.posterior.MeanField([np.zeros(3, np.float32)], [np.array([1.0, 4.0, 9.0], np.float32)])
      >>> float(bfl.posterior.spread(q).stddev_median)
      2.0
    """
    leaves = tf.nest.flatten(q.variance)
    if not leaves:
        return Spread(*(tf.constant(float("nan")) for _ in Spread._fields))
    stddev = tf.sqrt(tf.concat([tf.reshape(v, [-1]) for v in leaves], 0))
    last = tf.cast(tf.size(stddev) - 1, stddev.dtype)
    ranks = [tf.cast(tf.round(tf.constant(q, stddev.dtype) * last), tf.int32) for q in (0.05, 0.5, 0.95)]
    if is_traced_for_xla():
        low, median, high = tf.unstack(_at_ranks(stddev, tf.stack(ranks)))
    else:  # Selecting three ranks takes a tenth of the time of sorting, and XLA has no kernel for it.
        low, median, high = (tf.raw_ops.NthElement(input=stddev, n=rank) for rank in ranks)
    at_floor = tf.reduce_mean(tf.cast(stddev <= 1.01 * min_stddev, stddev.dtype))
    return Spread(low, median, high, tf.math.log(high / low), at_floor)
