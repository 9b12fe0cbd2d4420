"""The normalised product of Gaussians with diagonal plus low-rank covariances.

The factors are N(m_i, Sigma_i) with Sigma_i = A_i + U_i^T U_i, A_i diagonal, U_i [R_i, D]. The prior N(m_0, A_0) was
counted b times and b - 1 copies are divided out (without a prior: 1 / A_0 = 0). Then

P = sum_i Sigma_i^-1 - (b - 1) A_0^-1,   mean = P^-1 (sum_i Sigma_i^-1 m_i - (b - 1) A_0^-1 m_0).

Each factor is what is left of w | z_i ~ N(m_i + U_i^T z_i, A_i) when z_i ~ N(0, I) is integrated out. Of the product of
these, w is integrated out first: with a_i = 1 / A_i and

L = sum_i a_i - (b - 1) a_0                         the precision of w given z, diagonal
c = L^-1 (sum_i a_i m_i - (b - 1) a_0 m_0)          the mean of w at z = 0
J = [U_1 a_1; ...; U_b a_b] L^-1                    [R_1 + ... + R_b, D]
H_ii = I + U_i a_i (1 - a_i / L) U_i^T              the precision of z, and
H_ij = -U_i (a_i a_j / L) U_j^T                     H E[z] = h with h_i = U_i a_i (c - m_i)

the product is again of the form of its factors:

P^-1 = L^-1 + J^T H^-1 J,   mean = c + J^T H^-1 h.

Woodbury's identity on each Sigma_i and on P gives the same as P^-1 = L^-1 + L^-1 V^T (I - V L^-1 V^T)^-1 V L^-1 with
V_i = C_i^-1 U_i a_i and C_i C_i^T = I + U_i a_i U_i^T: H = C (I - V L^-1 V^T) C^T. But where A_i is small,
I - V L^-1 V^T is the difference of nearly equal numbers; in H, L - a_i = sum_(j != i) a_j is summed, not subtracted.

Source: Makni 2022, FL-SWAG.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.posterior.families import marginals
from tfp_bfl.posterior.low_rank import (
    LowRank,
    NotPositiveDefinite,
    as_low_rank,
    blocks,
    check_same_weights,
    cholesky,
    join,
    rank,
    width,
)
from tfp_bfl.posterior.mean_field import MeanField


def gaussian_product(
    posteriors: Sequence[LowRank | MeanField],
    prior: MeanField | None = None,
    diagonal_only: bool = False,
    between_clients: bool = False,
) -> LowRank:
    """Return the normalised product of b Gaussian posteriors over the same weights, q(w) ~ prod_i q_i(w) / prior(w)^(b
    - 1).

    precision = sum_i Sigma_i^-1 - (b - 1) A_0^-1,   precision mean = sum_i Sigma_i^-1 m_i - (b - 1) A_0^-1 m_0

    for posteriors N(m_i, Sigma_i) and the prior N(m_0, A_0). It is computed in float64 and in blocks of weights, in
    time (sum_i R_i)^2 D and without any D x D array. The relative error is about 1e-15, however small the diagonals
    are; only where deviations of several clients span nearly the same directions (as when sum_i R_i > D) it is up to
    1e-16 times the ratio of squared deviations to diagonals.

    How often the prior is counted:
      - Each client's posterior used the whole prior: pass it as `prior`.
      - Each used prior^(1 / b): nothing to pass, the product holds one.
      - None used it: add it to `posteriors`.

    Args:
      posteriors: `LowRank`s and `MeanField`s of one structure and type; R may differ.
      prior: the prior that each of them holds. Where posteriors are wider than it there may be no product.
      diagonal_only: of every posterior only the variances count, not the correlations: `marginals` of each.
      between_clients: each is as much wider as the clients lie apart (`with_random_effects`).

    Returns:
      A `LowRank` of R = sum_i R_i.

    Source: Makni 2022, FL-SWAG.

    Example:
      >>> q = bfl.posterior.MeanField(np.array([0.0, 1.0], np.float32), np.array([1.0, 4.0], np.float32))
      >>> product = bfl.algorithms.swag.product.gaussian_product([q, q])
      >>> print(np.array(product.mean), np.array(product.diagonal))
      [0. 1.] [0.5 2. ]
    """
    if not posteriors:
        raise InvalidArgument("gaussian_product needs at least one posterior.")
    if diagonal_only:
        posteriors = [marginals(q) for q in posteriors]
    checked = [as_low_rank(q, f"posteriors[{i}]") for i, q in enumerate(posteriors)]
    for i, q in enumerate(checked):
        check_same_weights(q, checked[0], f"posteriors[{i}]")
    if between_clients:
        checked = list(with_random_effects(checked))
    return pool(checked, None if prior is None else check_prior(prior, checked[0]))


def check_prior(prior: object, like: LowRank | None) -> LowRank:
    """Return the prior as tensors."""
    if not isinstance(prior, MeanField):
        raise InvalidArgument(f"prior must be a MeanField, not {type(prior).__name__}.")
    checked = as_low_rank(prior, "prior")
    if like is not None:
        check_same_weights(checked, like, "prior")
    return checked


def pool(posteriors: Sequence[LowRank], prior: LowRank | None) -> LowRank:
    """Return `gaussian_product` of posteriors and a prior that have been checked."""
    factor, projected = latent_precision(posteriors, prior)
    root = tf.linalg.triangular_solve(factor, tf.eye(factor.shape[0], dtype=tf.float64))  # root^T root = H^-1
    latent_mean = tf.linalg.cholesky_solve(factor, projected)
    like = posteriors[0].mean
    dtype = tf.nest.flatten(like)[0].dtype
    means, diagonals, deviations = [], [], []
    for block in _factors(posteriors, prior):
        jacobian = _jacobian(block)
        shift = tf.matmul(latent_mean, jacobian, transpose_a=True)[0]
        means.append(tf.cast(block.centre + shift, dtype))
        diagonals.append(tf.cast(1 / block.total, dtype))
        deviations.append(tf.cast(_lower_product(root, jacobian, block), dtype))
    size = width(factor.shape[0])
    return LowRank(*(join(parts, like, size) for parts in (means, diagonals, deviations)))


def latent_precision(posteriors: Sequence[LowRank], prior: LowRank | None) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the Cholesky factor of H [R, R], and h [R, 1], with R = sum_i R_i.

    Raises:
      NotPositiveDefinite: L or H is not, and with them P.
    """
    message = (
        "The diagonals are too small beside the deviations for a product in float64: raise them."
        if prior is None
        else "The product's precision is not positive definite: the posteriors must be no wider than the prior that is "
        "divided out."
    )
    num_rows = sum(map(rank, posteriors))
    precision, projected = tf.eye(num_rows, dtype=tf.float64), tf.zeros([num_rows, 1], tf.float64)
    for block in _factors(posteriors, prior):
        if tf.executing_eagerly() and not bool(tf.reduce_all(block.total > 0)):
            raise NotPositiveDefinite(message)
        precision += _precision_of(block, _jacobian(block))
        residuals = tf.unstack(block.precisions * (block.centre - block.means))
        parts = [tf.linalg.matvec(u, r) for u, r in zip(block.deviations, residuals)]
        projected += tf.concat(parts, 0)[:, tf.newaxis]
    return cholesky(precision, message), projected


class _Factors(NamedTuple):
    """A block of B weights of b Gaussians, all float64.

    Fields:
      means: m_i [b, B].
      precisions: a_i [b, B].
      others: L - a_i [b, B].
      total: L [B].
      centre: c [B].
      deviations: U_i, b of [R_i, B].
    """

    means: tf.Tensor
    precisions: tf.Tensor
    others: tf.Tensor
    total: tf.Tensor
    centre: tf.Tensor
    deviations: tuple[tf.Tensor, ...]


def _factors(posteriors: Sequence[LowRank], prior: LowRank | None) -> Iterator[_Factors]:
    size, number = width(sum(map(rank, posteriors))), len(posteriors)
    columns = [
        zip(blocks(q.mean, 0, size), blocks(q.diagonal, 0, size), blocks(q.deviations, 1, size))
        for q in [*posteriors, *([] if prior is None else [prior])]
    ]
    for parts in zip(*columns):
        all_means, diagonals, deviations = zip(*parts)
        start, means, precisions = all_means[0], tf.stack(all_means[:number]), 1 / tf.stack(diagonals[:number])
        prior_precision = tf.zeros_like(start) if prior is None else 1 / diagonals[-1]
        # What each client learnt: without a prior, or where all learnt something, sums of positive numbers.
        gains = precisions - prior_precision
        others = tf.cumsum(gains, exclusive=True) + tf.cumsum(gains, exclusive=True, reverse=True)
        total = prior_precision + tf.reduce_sum(gains, 0)
        pull = tf.reduce_sum(precisions * (means - start), 0)
        if prior is not None:
            pull -= (number - 1) * prior_precision * (all_means[-1] - start)
        yield _Factors(means, precisions, others, total, start + pull / total, deviations[:number])


def _jacobian(block: _Factors) -> tf.Tensor:
    """Return J [R, B]."""
    shares = tf.unstack(block.precisions / block.total)
    return tf.concat([u * share for u, share in zip(block.deviations, shares)], 0)


def _precision_of(block: _Factors, jacobian: tf.Tensor) -> tf.Tensor:
    """Return the block's part of H - I [R, R]; of what is above the diagonal, only that within one Gaussian."""
    own_weights = tf.unstack(block.precisions * (block.others / block.total))
    strips, start = [], 0
    for deviations, weights, precision in zip(block.deviations, own_weights, tf.unstack(block.precisions)):
        cross = -tf.matmul(deviations * precision, jacobian[:start], transpose_b=True)
        diagonal = tf.matmul(deviations * weights, deviations, transpose_b=True)
        start += deviations.shape[0]
        strips.append(tf.pad(tf.concat([cross, diagonal], 1), [[0, 0], [0, jacobian.shape[0] - start]]))
    return tf.concat(strips, 0)


def _lower_product(root: tf.Tensor, jacobian: tf.Tensor, block: _Factors) -> tf.Tensor:
    """Return root J for a lower triangular root: half the work of a full product."""
    strips, start = [], 0
    for deviations in block.deviations:
        stop = start + deviations.shape[0]
        strips.append(tf.matmul(root[start:stop, :stop], jacobian[:stop]))
        start = stop
    return tf.concat(strips, 0)


def between_clients_variance(posteriors: Sequence[LowRank | MeanField]) -> Any:
    """Return the variance between K clients of each weight, estimated by moments from what they sent.

        tau_d^2 = max(0, 1/(K - 1) sum_k (m_kd - mean_d)^2 - 1/K sum_k v_kd)

    The first term is the clients' means' own variance, the second what it would be if all had one posterior mean. No
    data are needed. Each weight has its own: pooled over a tensor, the weights that clients know nothing of would hide
    how far they are apart in those that they know. One client has no variance: 0.

    Args:
      posteriors: with means m_k and marginal variances v_k, of one structure.

    Returns:
      A structure of that form and those shapes.

    Source: Hedges and Olkin 1985; DerSimonian and Laird 1986, with equal weights of the clients.
    """
    if not posteriors:
        raise InvalidArgument("A variance between clients needs the posterior of one at least.")
    every = [as_low_rank(q) for q in posteriors]
    for other in every[1:]:
        check_same_weights(other, every[0], "a posterior")
    number = len(every)
    if number == 1:
        return tf.nest.map_structure(tf.zeros_like, every[0].mean)

    def of_weights(*parts: tf.Tensor) -> tf.Tensor:
        means, variances = (tf.cast(tf.stack(x), tf.float64) for x in (parts[:number], parts[number:]))
        apart = tf.reduce_sum(tf.square(means - tf.reduce_mean(means, 0)), 0) / (number - 1)
        return tf.cast(tf.maximum(apart - tf.reduce_mean(variances, 0), 0), parts[0].dtype)

    return tf.nest.map_structure(of_weights, *(q.mean for q in every), *(marginals(q).variance for q in every))


def with_random_effects(posteriors: Sequence[LowRank | MeanField]) -> tuple[LowRank, ...]:
    """Return the posteriors, each with `between_clients_variance` added to the independent part of its variances."""
    tau = between_clients_variance(posteriors)
    every = [as_low_rank(q) for q in posteriors]
    return tuple(q._replace(diagonal=tf.nest.map_structure(tf.add, q.diagonal, tau)) for q in every)
