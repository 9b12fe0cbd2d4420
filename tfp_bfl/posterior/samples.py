"""A posterior as draws from it, such as Markov chains give: q(w) = (1 / L) sum_l delta(w - values_l)."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl.errors import InvalidArgument, check_count


class Samples(NamedTuple):
    """L draws, all as probable: a structure (as `tf.nest` knows it) of tensors with leaves [L, ...]."""

    values: Any


def num_draws(q: Samples) -> int:
    """Return L.

    Raises:
      InvalidArgument: leaves that do not share one L of at least 1.
    """
    shapes = [tf.TensorShape(x.shape) for x in tf.nest.flatten(q.values)]
    sizes: set[Any] = {shape[0] if shape.rank else None for shape in shapes}
    if len(sizes) != 1 or None in sizes or 0 in sizes:
        raise InvalidArgument("Samples need leaves [L, ...] with one L of at least 1.")
    (size,) = sizes
    return size


def choose(q: Samples, seed: tf.Tensor, num_samples: int | None = None) -> Any:
    """Draw with replacement: leaves [...], or [S, ...] for `num_samples` = S; the same seed, the same draws."""
    shape = [] if num_samples is None else [check_count(num_samples, "num_samples")]
    rows = tf.random.stateless_uniform(shape, seed, maxval=num_draws(q), dtype=tf.int32)
    return tf.nest.map_structure(lambda x: tf.gather(x, rows), q.values)


def moments(q: Samples) -> tuple[Any, Any]:
    """Return mean and variance of the draws, leaves [...] each: variance = mean_l (values_l - mean)^2."""
    num_draws(q)
    means = tf.nest.map_structure(lambda x: tf.reduce_mean(x, 0), q.values)
    return means, tf.nest.map_structure(lambda x: tf.math.reduce_variance(x, 0), q.values)
