"""A posterior as draws from it, and the functions of every family of posteriors.

`Samples` are such as Markov chains give: q(w) = (1 / L) sum_l delta(w - values_l).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl.errors import InvalidArgument, check_count
from tfp_bfl.posterior import kronecker, low_rank, mean_field
from tfp_bfl.posterior.kronecker import Kronecker
from tfp_bfl.posterior.low_rank import LowRank
from tfp_bfl.posterior.mean_field import MeanField


class Samples(NamedTuple):
    """L draws, all as probable: a structure (as `tf.nest` knows it) of tensors with leaves [L, ...]."""

    values: Any


def num_draws(q: Samples) -> int:
    """Return L."""
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


class FamilyFunctions(NamedTuple):
    """The functions of a family.

    Fields:
      sample: (q, seed, number of draws or None) -> draws.
      marginals: q -> `MeanField`.
      positive: the field with leaves that must be above zero; None for none.
    """

    sample: Callable[[Any, Any, int | None], Any]
    marginals: Callable[[Any], MeanField]
    positive: str | None


# A new family is one more line here.
FAMILIES: dict[type, FamilyFunctions] = {
    MeanField: FamilyFunctions(mean_field.sample, lambda q: q, "variance"),
    LowRank: FamilyFunctions(low_rank.sample, low_rank.marginals, "diagonal"),
    Kronecker: FamilyFunctions(kronecker.sample, kronecker.marginals, "stddev"),
    Samples: FamilyFunctions(choose, lambda q: MeanField(*moments(q)), None),
}


def _family(q: Any) -> FamilyFunctions:
    if type(q) not in FAMILIES:
        low_rank.as_low_rank(q)  # which says what it must be
    return FAMILIES[type(q)]


def marginals(q: LowRank | MeanField | Kronecker | Samples) -> MeanField:
    """Return the mean-field Gaussian with the means and variances of q: variance = diagonal + sum_r deviations_r^2.

    Of all mean-field p it is the one of the smallest KL[q || p]. Of `Samples` it has mean and variance of the draws.

    Example:
      >>> q = bfl.posterior.MeanField([np.array([0.0, 2.0])], [np.array([1.0, 4.0])])
      >>> bfl.posterior.marginals(q).variance[0].tolist()
      [1.0, 4.0]
    """
    return _family(q).marginals(q)


def positive_leaves(q: LowRank | MeanField | Kronecker | Samples) -> list[tf.Tensor]:
    """Return the leaves of q that must be above zero: variances or the diagonal; none of `Samples`."""
    field = _family(q).positive
    return tf.nest.flatten(getattr(q, field)) if field else []


def map_positive(function: Callable[[tf.Tensor], tf.Tensor], q: Any) -> Any:
    """Return q with `function` of each of its `positive_leaves` in their place."""
    field = _family(q).positive
    return q._replace(**{field: tf.nest.map_structure(function, getattr(q, field))}) if field else q


def floor_variance(q: Any, min_stddev: float) -> Any:
    """Return q with no standard deviation (of a `LowRank`: none of the independent parts) below `min_stddev`."""
    return map_positive(lambda v: tf.maximum(v, min_stddev**2), q)


def sample(q: LowRank | MeanField | Kronecker | Samples, seed: tf.Tensor, num_samples: int | None = None) -> Any:
    """Draw w ~ q; the same `seed` gives the same draws.

    w = mean + sqrt(diagonal) e + deviations^T z,   e ~ N(0, I_D), z ~ N(0, I_R)

    Of `Samples`, one of the draws, with replacement.

    Args:
      q: a posterior.
      seed: [2], integers.
      num_samples: S; None for one draw without a leading axis.

    Returns:
      A structure like `q.mean` with leaves [S, ...]; [...] if `num_samples` is None.

    Source: Maddox et al. 2019 (arXiv:1902.02476), eq. 1.

    Example:
      >>> q = bfl.posterior.MeanField(np.array([0.0, 1.0], np.float32), np.array([1.0, 4.0], np.float32))
      >>> bfl.posterior.sample(q, seed=(0, 1), num_samples=5).shape
      TensorShape([5, 2])
    """
    return _family(q).sample(q, seed, num_samples)
