"""Low-rank Gaussians by dense formulas, in float64 and in 60 decimal digits."""

import decimal

import numpy as np

from tfp_bfl.posterior import LowRank, MeanField

decimal.getcontext().prec = 60


def draw(num_weights, rank, seed, scale=1.0, dtype=np.float64):
    """A posterior whose diagonal is about `scale` times the square of its deviations."""
    rng = np.random.default_rng(seed)
    parts = rng.normal(size=num_weights), scale * rng.uniform(0.5, 2, num_weights), rng.normal(size=(rank, num_weights))
    return LowRank(*(x.astype(dtype) for x in parts))


def dense(q):
    if isinstance(q, MeanField):
        return np.diag(_double(q.variance))
    deviations = _double(q.deviations)
    return np.diag(_double(q.diagonal)) + deviations.T @ deviations


def product(posteriors, prior=None):
    """Mean [D] and covariance [D, D] of the product, by inverses in float64."""
    return _product(posteriors, prior, dense, np.linalg.inv, _double)


def exact_product(posteriors, prior=None):
    """`product` in 60 digits."""
    mean, covariance = _product(posteriors, prior, _exact_dense, lambda m: _inverse(m)[0], _exact)
    return mean.astype(np.float64), covariance.astype(np.float64)


def exact_log_prob(q, weights):
    """log q(weights [D]) in 60 digits."""
    inverse, log_det = _inverse(_exact_dense(q))
    x = _exact(weights) - _exact(q.mean)
    constant = len(x) * np.log(2 * np.pi)
    return -0.5 * (constant + float(log_det) + float(x @ inverse @ x))


def _product(posteriors, prior, dense, inverse, number):
    copies = len(posteriors) - 1
    terms = [(inverse(dense(q)), number(q.mean), 1) for q in posteriors]
    terms += [] if prior is None else [(inverse(dense(prior)), number(prior.mean), -copies)]
    precision = sum(count * p for p, _, count in terms)
    covariance = inverse(precision)
    return covariance @ sum(count * (p @ m) for p, m, count in terms), covariance


def _double(x):
    return np.asarray(x, np.float64)


def _exact(x):
    return np.vectorize(decimal.Decimal, otypes=[object])(_double(x))


def _exact_dense(q):
    diagonal = _exact(q.variance if isinstance(q, MeanField) else q.diagonal)
    covariance = _exact(np.zeros([len(diagonal)] * 2))
    np.fill_diagonal(covariance, diagonal)
    if isinstance(q, LowRank) and len(q.deviations):
        deviations = _exact(q.deviations)
        covariance = covariance + deviations.T @ deviations
    return covariance


def _inverse(matrix):
    """Gauss-Jordan of a symmetric positive definite matrix, and the logarithm of its determinant."""
    size, log_det = len(matrix), decimal.Decimal(0)
    both = np.concatenate([matrix, _exact(np.eye(size))], 1)
    for i in range(size):
        log_det += both[i, i].ln()
        both[i] = both[i] / both[i, i]
        others = [j for j in range(size) if j != i]
        both[others] = both[others] - both[others, i][:, None] * both[i]
    return both[:, size:], log_det
