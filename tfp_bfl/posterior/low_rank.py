"""The Gaussian with a diagonal plus low-rank covariance: q(w) = N(mean, diag(diagonal) + U^T U)."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior import mean_field
from tfp_bfl.posterior.kronecker import Kronecker, factor
from tfp_bfl.posterior.mean_field import MeanField
from tfp_bfl.tensors import TensorTree

# The dense covariance of so many weights takes 200 MB in float64.
LARGEST_DENSE = 5000


class LowRank(NamedTuple):
    """A Gaussian posterior with the covariance diag(diagonal) + deviations^T deviations.

    Three structures (as `tf.nest` knows them) of tensors, all float32 or all float64. The rows of `deviations` run
    through all leaves: weights of two leaves are correlated as weights of one leaf are.

    Fields:
      mean: leaves [...].
      diagonal: leaves [...], above zero: the part of the variances that is independent.
      deviations: leaves [R, ...], one R for all leaves; 0 for a mean-field posterior.
    """

    mean: Any
    diagonal: Any
    deviations: Any


class NotPositiveDefinite(InvalidArgument):
    """A matrix that is not positive definite in float64, and so not the covariance or precision of a Gaussian."""


def as_low_rank(q: LowRank | MeanField, name: str = "q") -> LowRank:
    """Return q as a `LowRank` of tensors, checked; a `MeanField` gets deviations of R = 0 rows.

    In a graph only shapes are checked, not values.

    Raises:
      InvalidArgument: neither of the two; no weights; structures, shapes or types that do not fit; means or deviations
        that are not finite, diagonals that are not finite and above zero. The message calls q by `name`.
    """
    if isinstance(q, MeanField):
        rows = lambda m: tf.zeros([0, *m.shape], m.dtype)
        means = _tensors(q.mean)
        q = LowRank(means, q.variance, tf.nest.map_structure(rows, means))
    if not isinstance(q, LowRank):
        raise InvalidArgument(f"{name} must be a LowRank or a MeanField, not {type(q).__name__}.")
    try:
        for structure in (q.diagonal, q.deviations):
            tf.nest.assert_same_structure(q.mean, structure)
    except (ValueError, TypeError) as error:
        raise InvalidArgument(
            f"{name} needs mean, diagonal and deviations of the same structure, one tensor a weight in each."
        ) from error
    q = LowRank(*map(_tensors, q))
    _check_shapes(q, name)
    if tf.executing_eagerly():
        _check_values(q, name)
    return q


def num_weights(q: LowRank) -> int:
    """Return D, over all leaves."""
    return sum(m.shape.num_elements() for m in tf.nest.flatten(q.mean))


def rank(q: LowRank) -> int:
    """Return R, the rows of the deviations."""
    return tf.nest.flatten(q.deviations)[0].shape[0]


def check_same_weights(q: LowRank, like: LowRank, name: str) -> None:
    """Raise InvalidArgument unless both are over weights of the same structure, shapes and type."""
    try:
        tf.nest.assert_same_structure(q.mean, like.mean)
    except (ValueError, TypeError) as error:
        raise InvalidArgument(f"{name} must have the structure of the other posteriors.") from error
    for leaf, other in zip(tf.nest.flatten(q.mean), tf.nest.flatten(like.mean)):
        if leaf.shape != other.shape or leaf.dtype != other.dtype:
            raise InvalidArgument(
                f"{name} must have the shapes and the type of the other posteriors, but has a weight "
                f"{leaf.dtype.name} {leaf.shape} where they have {other.dtype.name} {other.shape}."
            )


def marginals(q: LowRank) -> MeanField:
    """Return the mean-field Gaussian of its means and variances (`posterior.marginals`)."""
    q = as_low_rank(q)
    variance = lambda a, u: a + tf.reduce_sum(tf.square(u), 0)
    return MeanField(q.mean, tf.nest.map_structure(variance, q.diagonal, q.deviations))


def sample(q: LowRank, seed: tf.Tensor, num_samples: int | None = None) -> Any:
    """Draw from it (`posterior.sample`)."""
    q = as_low_rank(q)
    seeds = tf.random.experimental.stateless_split(seed, 2)
    independent = mean_field.sample(MeanField(q.mean, q.diagonal), seeds[0], num_samples)
    shape = [rank(q)] if num_samples is None else [num_samples, rank(q)]
    noise = tf.random.stateless_normal(shape, seeds[1], dtype=tf.nest.flatten(q.mean)[0].dtype)
    return tf.nest.map_structure(lambda w, u: w + tf.tensordot(noise, u, 1), independent, q.deviations)


def log_prob(q: LowRank | MeanField, weights: TensorTree) -> tf.Tensor:
    """Return log q(w) in nats, in time D R^2 and without any D x D array.

    With x = w - mean, A = diag(diagonal), U = deviations, M = I + U A^-1 U^T and z = M^-1 U A^-1 x:

    log q(w) = -1 / 2 (D log(2 pi) + log det A + log det M + (x - U^T z)^T A^-1 (x - U^T z) + z^T z)

    The quadratic form is Woodbury's, x^T (A + U^T U)^-1 x = x^T A^-1 x - x^T A^-1 U^T M^-1 U A^-1 x, written as a sum
    of squares: where A is small, the difference cancels.

    Args:
      q: a posterior.
      weights: a structure like `q.mean` with leaves [...], or S of them: [S, ...].

    Returns:
      A scalar, or [S]; float64, in which it is computed.

    Example:
      >>> q = bfl.posterior.MeanField(np.array([0.0, 1.0], np.float32), np.array([1.0, 4.0], np.float32))
      >>> print(round(float(bfl.posterior.log_prob(q, np.zeros(2, np.float32))), 3))
      -2.656
    """
    q = as_low_rank(q)
    weights, many = _as_rows(weights, q)
    rows, num_columns = rank(q), width(rank(q))
    parts = lambda: zip(
        blocks(q.mean, 0, num_columns),
        blocks(q.diagonal, 0, num_columns),
        blocks(q.deviations, 1, num_columns),
        blocks(weights, 1, num_columns),
    )
    matrix = tf.eye(rows, dtype=tf.float64)
    projected: Any = 0.0
    log_det: Any = tf.constant(num_weights(q) * math.log(2 * math.pi), tf.float64)
    for mean, diagonal, deviations, w in parts():
        scaled = deviations / diagonal
        matrix += tf.matmul(scaled, deviations, transpose_b=True)
        projected += tf.matmul(scaled, w - mean, transpose_b=True)
        log_det += tf.reduce_sum(tf.math.log(diagonal))
    factor = cholesky(matrix, "q's diagonal is too small beside its deviations for float64: raise it.")
    log_det += 2 * tf.reduce_sum(tf.math.log(tf.linalg.diag_part(factor)))
    latent = tf.transpose(tf.linalg.cholesky_solve(factor, projected))
    distance = tf.reduce_sum(tf.square(latent), 1)
    for mean, diagonal, deviations, w in parts():
        distance += tf.reduce_sum(tf.square(w - mean - tf.matmul(latent, deviations)) / diagonal, 1)
    result = -0.5 * (log_det + distance)
    return result if many else result[0]


def covariance(q: LowRank | MeanField | Kronecker) -> tf.Tensor:
    """Return the dense covariance [D, D], the leaves' weights one after another.

    It is diag(diagonal) + deviations^T deviations, and of a `Kronecker` (L (x) R) diag(S)^2 (L (x) R)^T.

    Example:
      >>> q = bfl.posterior.MeanField([np.array([0.0, 2.0])], [np.array([1.0, 4.0])])
      >>> bfl.posterior.covariance(q).numpy().tolist()
      [[1.0, 0.0], [0.0, 4.0]]
    """
    q = q if isinstance(q, Kronecker) else as_low_rank(q)
    size = sum(math.prod(m.shape) for m in tf.nest.flatten(q.mean))
    if size > LARGEST_DENSE:
        raise InvalidArgument(
            f"covariance is dense and takes at most {LARGEST_DENSE} weights, but q has {size}: use marginals, sample "
            "or log_prob."
        )
    if isinstance(q, Kronecker):
        return factor(q).matmul(factor(q).to_dense(), adjoint_arg=True)
    flat = lambda structure, leading: tf.concat(list(blocks(structure, leading, size)), -1)
    deviations = flat(q.deviations, 1)
    dense = tf.linalg.diag(flat(q.diagonal, 0)) + tf.matmul(deviations, deviations, transpose_a=True)
    return tf.cast(dense, tf.nest.flatten(q.mean)[0].dtype)


def cholesky(matrix: tf.Tensor, message: str) -> tf.Tensor:
    """Return the lower Cholesky factor of a matrix, of which only the lower triangle is read.

    In a graph it is NaN for a matrix that is not positive definite.

    Raises:
      NotPositiveDefinite: with this message, if the matrix is not positive definite in float64.
    """
    factor = tf.linalg.cholesky(matrix)
    if tf.executing_eagerly():
        # A pivot of a few roundings of what it was left over from has no digit that is right.
        least = 2.0**-52 * matrix.shape[0] * tf.linalg.diag_part(matrix)
        if not bool(tf.reduce_all(tf.square(tf.linalg.diag_part(factor)) > least)):
            raise NotPositiveDefinite(message)
    return factor


def _tensors(structure: TensorTree) -> Any:
    return tf.nest.map_structure(tf.convert_to_tensor, structure)


def _check_shapes(q: LowRank, name: str) -> None:
    leaves = [tf.nest.flatten(part) for part in q]
    if not any(m.shape.num_elements() != 0 for m in leaves[0]):
        raise InvalidArgument(f"{name} holds no weights: a posterior needs at least one.")
    types = {x.dtype for part in leaves for x in part}
    if len(types) > 1 or not types <= {tf.float32, tf.float64}:
        found = ", ".join(sorted(t.name for t in types))
        raise InvalidArgument(f"{name} must be all float32 or all float64, but has {found}.")
    rows = {u.shape[0] if u.shape.rank else None for u in leaves[2]}
    for m, a, u in zip(*leaves):
        known = m.shape.is_fully_defined() and u.shape.is_fully_defined()
        if not known or a.shape != m.shape or u.shape.rank != m.shape.rank + 1 or u.shape[1:] != m.shape:
            raise InvalidArgument(
                f"{name} needs mean [...], diagonal [...] and deviations [R, ...] of known shapes, but has {m.shape}, "
                f"{a.shape} and {u.shape}."
            )
    if len(rows) > 1:
        raise InvalidArgument(
            f"{name} needs deviations with one R for all leaves, but has {[u.shape[0] for u in leaves[2]]}."
        )


def _check_values(q: LowRank, name: str) -> None:
    finite = lambda structure: all(bool(tf.reduce_all(tf.math.is_finite(x))) for x in tf.nest.flatten(structure))
    if not finite(q.mean) or not finite(q.deviations):
        raise InvalidArgument(f"{name}'s mean and deviations must be finite.")
    if not finite(q.diagonal) or not all(bool(tf.reduce_all(a > 0)) for a in tf.nest.flatten(q.diagonal)):
        raise InvalidArgument(f"{name}'s diagonal (a MeanField's variance) must be finite and above zero.")


def _as_rows(weights: TensorTree, q: LowRank) -> tuple[Any, bool]:
    """Return weights as leaves [S, ...], and whether they were S of them."""
    try:
        tf.nest.assert_same_structure(q.mean, weights)
    except (ValueError, TypeError) as error:
        raise InvalidArgument("weights must have the structure of q's mean.") from error
    weights = _tensors(weights)
    pairs = list(zip(tf.nest.flatten(weights), tf.nest.flatten(q.mean)))
    if all(w.shape == m.shape and w.dtype == m.dtype for w, m in pairs):
        return tf.nest.map_structure(lambda w: w[tf.newaxis], weights), False
    samples = {w.shape[0] if w.shape.rank else None for w, _ in pairs}
    if len(samples) > 1 or not all(w.shape.rank and w.shape[1:] == m.shape and w.dtype == m.dtype for w, m in pairs):
        raise InvalidArgument("weights must have the shapes and the type of q's mean, or those with one leading axis.")
    return weights, True


# Numbers in one block: 32 MB of float64.
BLOCK = 2**22


def width(num_rows: int) -> int:
    """Return the number of weights in a block of matrices with so many rows."""
    return max(1, BLOCK // max(1, num_rows))


def blocks(structure: TensorTree, leading: int, width: int) -> Iterator[tf.Tensor]:
    """Return the leaves, one after another, in blocks of at most `width` weights: [*leading axes, width], float64."""
    for leaf in tf.nest.flatten(structure):
        size = leaf.shape[leading:].num_elements()
        flat = tf.reshape(leaf, [*leaf.shape[:leading], size])
        for start in range(0, size, width):
            yield tf.cast(flat[..., start : start + width], tf.float64)


def join(parts: Sequence[tf.Tensor], like: TensorTree, width: int) -> Any:
    """Return a structure of the shapes of `like`, after the leading axes of the blocks: the inverse of `blocks`."""
    remaining = iter(parts)
    leaves = []
    for leaf in tf.nest.flatten(like):
        size = leaf.shape.num_elements()
        part = [next(remaining) for _ in range(0, size, width)]
        leading = parts[0].shape[:-1]
        flat = tf.concat(part, -1) if part else tf.zeros([*leading, 0], parts[0].dtype)
        leaves.append(tf.reshape(flat, [*leading, *leaf.shape]))
    return tf.nest.pack_sequence_as(like, leaves)
