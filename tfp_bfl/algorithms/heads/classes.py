"""Gaussian classes with a shared covariance: the normal-inverse-Wishart posterior and its Student-t predictive."""

import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.algorithms.heads.sums import ClassSums, varying
from tfp_bfl.posterior import Samples
from tfp_bfl.posterior.kronecker import symmetric

_KAPPAS = (0.01, 0.1, 1.0, 10.0)
# Degrees of freedom beyond F + 1, and factors of the mean variance within classes, of which the evidence chooses.
_DEGREES = np.exp(np.linspace(0.0, math.log(1e5), 24))
_FACTORS = np.exp(np.linspace(-5.0, 5.0, 21))
NUM_DRAWS = 100


class GaussianClasses(NamedTuple):
    """The posterior of class means mu_c and their shared covariance Sigma, in float64.

    Sigma ~ InverseWishart(degrees, S),   mu_c | Sigma ~ N(means_c, Sigma / kappas_c)

    Fields:
      means: [C, F].
      kappas: [C].
      degrees: nu, a scalar.
      factor: the lower Cholesky factor of S [F, F].
      known: 1 for features that vary, 0 for constant ones, which have no weight [F]; F counts the others below.
      log_priors: log((N_c + 1) / (N + C)) [C], of the classes under a uniform prior.
      hyperparameters: kappa0, nu0 and the prior's scale P (S0 = P I) [3].
      log_marginal_likelihood: of the features, given the labels, in nats.
    """

    means: Any
    kappas: Any
    degrees: Any
    factor: Any
    known: Any
    log_priors: Any
    hyperparameters: Any
    log_marginal_likelihood: Any


class ClassPrior(NamedTuple):
    """mu_c | Sigma ~ N(mean, Sigma / kappa),   Sigma ~ InverseWishart(degrees, scale I)."""

    mean: Any
    kappa: Any
    degrees: Any
    scale: Any


def fit_gaussian(sums: ClassSums, prior: ClassPrior | None = None) -> GaussianClasses:
    """Compute the posterior of Gaussian classes from the sums over all examples.

    The prior is S0 = P I, mu_c | Sigma ~ N(m, Sigma / kappa0) around the mean m of all examples. kappa0, nu0 and P
    maximise, on grids, nu0 and P with kappa0 = 1 and then kappa0, the marginal likelihood of the features

    log p(X | y) = -N F / 2 log pi + log G_F(nu / 2) - log G_F(nu0 / 2) + nu0 F / 2 log P - nu / 2 log det S
                   + F / 2 sum_c log(kappa0 / kappa_c)

    with nu = nu0 + N, kappa_c = kappa0 + N_c, G_F the multivariate gamma function, and
    S = P I + sum_i (x_i - mean_{y_i})(x_i - mean_{y_i})^T + sum_c kappa0 N_c / kappa_c (mean_c - m)(mean_c - m)^T.
    A class without examples has the prior's mean, and a probability of 1 / (N + C). Constant features are left out: at
    P = 0 they would have an infinite likelihood.

    Args:
      prior: instead, m [F], kappa0, nu0 and P.

    Source: Gelman et al. 2013, section 3.6; Murphy 2007, "Conjugate Bayesian analysis of the Gaussian distribution".
    """
    counts, size = sums.counts, sums.totals.shape[1]
    number = tf.reduce_sum(counts)
    centre = tf.reduce_sum(sums.totals, 0) / number if prior is None else tf.cast(prior.mean, tf.float64)
    apart = tf.math.divide_no_nan(sums.totals, counts[:, tf.newaxis]) - centre
    apart = tf.where(counts[:, tf.newaxis] > 0, apart, 0.0)
    means = centre + apart
    within = symmetric(sums.gram) - tf.matmul(means * counts[:, tf.newaxis], means, transpose_a=True)
    between = lambda kappa: tf.matmul(apart * (kappa * counts / (kappa + counts))[:, tf.newaxis], apart, True)
    if prior is None:
        scatter = within + between(1.0)
        known = tf.cast(varying(tf.linalg.diag_part(scatter) / number, centre), tf.float64)
        degrees, scale = _degrees_and_scale(scatter, counts, known)
    else:
        known, degrees, scale = tf.ones_like(centre), prior.degrees, prior.scale
    best: Any = None
    for kappa in _KAPPAS if prior is None else (prior.kappa,):
        factor = tf.linalg.cholesky(within + between(kappa) + scale * tf.eye(size, dtype=tf.float64))
        log_det = 2 * tf.reduce_sum(known * tf.math.log(tf.linalg.diag_part(factor)))
        nu0, p = (tf.cast(x, tf.float64) for x in (degrees, scale))
        found = _evidence(nu0, p, log_det, kappa, counts, known), tf.constant(kappa, tf.float64), factor
        best = found if best is None else tuple(tf.where(found[0] > best[0], x, y) for x, y in zip(found, best))
    evidence, kappa, factor = best
    kappas = kappa + counts
    log_priors = tf.math.log((counts + 1) / (number + counts.shape[0]))
    hyperparameters = tf.stack([kappa, nu0, p])
    means = centre + apart * (counts / kappas)[:, tf.newaxis]
    return GaussianClasses(means, kappas, nu0 + number, factor, known, log_priors, hyperparameters, evidence)


def _degrees_and_scale(scatter: tf.Tensor, counts: tf.Tensor, known: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return nu0 and P with the largest marginal likelihood for kappa0 = 1 and the scatter S - P I [F, F]."""
    size, number = tf.reduce_sum(known), tf.reduce_sum(counts)
    values = tf.maximum(tf.linalg.eigvalsh(scatter), 0.0)
    degrees = (size + 1 + _DEGREES)[:, tf.newaxis]
    mean = tf.maximum(tf.math.divide_no_nan(tf.linalg.trace(scatter), size * number), 1e-12)
    scales = mean * (_DEGREES[:, np.newaxis] * _FACTORS)
    log_det = tf.map_fn(lambda p: tf.reduce_sum(tf.math.log(values + p[:, tf.newaxis]), 1), scales)
    log_det -= (known.shape[0] - size) * tf.math.log(scales)
    evidence = _evidence(degrees, scales, log_det, 1.0, counts, known)
    place = tf.argmax(tf.reshape(evidence, [-1]))
    pick = lambda x: tf.reshape(tf.broadcast_to(x, evidence.shape), [-1])[place]
    return pick(degrees), pick(scales)


def _evidence(
    degrees: tf.Tensor, prior: tf.Tensor, log_det: tf.Tensor, kappa: float, counts: tf.Tensor, known: tf.Tensor
) -> tf.Tensor:
    """Return the log marginal likelihood for nu0, P and log det S, of one shape."""
    number, size, places = tf.reduce_sum(counts), tf.reduce_sum(known), (tf.cumsum(known) - known) / 2
    multivariate = lambda nu: tf.reduce_sum(known * tf.math.lgamma(nu[..., tf.newaxis] / 2 - places), -1)
    return (
        multivariate(degrees + number)
        - multivariate(degrees)
        + degrees * size / 2 * tf.math.log(prior)
        - (degrees + number) / 2 * log_det
        + size / 2 * tf.reduce_sum(tf.math.log(kappa / (kappa + counts)))
        - number * size / 2 * math.log(math.pi)
    )


def plug_in(fit: GaussianClasses) -> tf.Tensor:
    """Return the weights [F + 1, C] of the linear classifier with the expectations of its natural parameters.

    E[Sigma^-1 mu_c],   log pi_c - E[mu_c^T Sigma^-1 mu_c] / 2

    less their mean over the classes, which no probability depends on: in float32 it may hide all differences.
    """
    means = tf.transpose(fit.means * fit.known)
    kernel = fit.degrees * tf.linalg.cholesky_solve(fit.factor, _apart(means))
    squares = fit.degrees * tf.reduce_sum(tf.square(tf.linalg.triangular_solve(fit.factor, means)), 0)
    squares += tf.reduce_sum(fit.known) / fit.kappas
    return tf.concat([kernel, _apart(fit.log_priors - squares / 2)[tf.newaxis]], 0)


def _apart(x: tf.Tensor) -> tf.Tensor:
    """Return numbers [..., C] less their mean over the classes."""
    return x - tf.reduce_mean(x, -1, keepdims=True)


def log_predictive(fit: GaussianClasses, features: tf.Tensor) -> tf.Tensor:
    """Return log pi_c + log p(x | c, D) for features [B, F]: [B, C], the exact predictive of the posterior.

    p(x | c, D) = t(x; df, means_c, S (kappa_c + 1) / (kappa_c df)),   df = nu - F + 1

    Source: Gelman et al. 2013, "Bayesian data analysis", section 3.6.
    """
    size = tf.reduce_sum(fit.known)
    df = fit.degrees - size + 1
    x = tf.linalg.triangular_solve(fit.factor, tf.transpose(tf.cast(features, tf.float64) * fit.known))
    centres = tf.linalg.triangular_solve(fit.factor, tf.transpose(fit.means * fit.known))
    squares = tf.reduce_sum(tf.square(x), 0)[:, tf.newaxis] - 2 * tf.matmul(x, centres, transpose_a=True)
    squares = tf.maximum(squares + tf.reduce_sum(tf.square(centres), 0), 0.0)
    ratio = fit.kappas / (fit.kappas + 1)
    constant = tf.math.lgamma((df + size) / 2) - tf.math.lgamma(df / 2) - size / 2 * math.log(math.pi)
    constant -= tf.reduce_sum(fit.known * tf.math.log(tf.linalg.diag_part(fit.factor)))
    return fit.log_priors + constant + size / 2 * tf.math.log(ratio) - (df + size) / 2 * tf.math.log1p(squares * ratio)


def draws(fit: GaussianClasses, seed: tf.Tensor, num_draws: int = NUM_DRAWS) -> Samples:
    """Draw linear classifiers from the posterior: kernel [L, F, C] and bias [L, C].

    Sigma^-1 = R A A^T R^T,   R R^T = S^-1,   A Bartlett's lower triangle of nu degrees of freedom
    a_c = A^T R^T means_c + z_c / sqrt(kappa_c),   w_c = Sigma^-1 mu_c = R A a_c,   b_c = log pi_c - a_c^T a_c / 2

    less the means of w and of b over the classes, as of `plug_in`.

    Source: Bartlett 1933; Smith and Hocking 1972 (AS 53).
    """
    size, num_classes = fit.means.shape[1], fit.means.shape[0]
    known = fit.known[:, tf.newaxis]
    centres = tf.linalg.triangular_solve(fit.factor, tf.transpose(fit.means) * known)
    # Diagonal entries of A have one degree of freedom less for each feature before theirs.
    shapes = (fit.degrees - tf.cumsum(fit.known) + fit.known) / 2

    def one(key: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        seeds = tf.random.experimental.stateless_split(key, 3)
        normal = tf.random.stateless_normal([size, size], seeds[0])
        squares = 2 * tf.random.stateless_gamma([size], seeds[1], shapes, dtype=tf.float64)
        lower = tf.linalg.set_diag(tf.linalg.band_part(tf.cast(normal, tf.float64), -1, 0), tf.sqrt(squares))
        lower *= known * fit.known
        z = tf.random.stateless_normal([size, num_classes], seeds[2], dtype=tf.float64)
        a = tf.matmul(lower, centres, transpose_a=True) + known * z / tf.sqrt(fit.kappas)
        kernel = tf.linalg.triangular_solve(fit.factor, lower @ _apart(a), adjoint=True)
        bias = _apart(fit.log_priors - tf.reduce_sum(tf.square(a), 0) / 2)
        return tf.cast(kernel, tf.float32), tf.cast(bias, tf.float32)

    keys = tf.random.experimental.stateless_split(seed, num_draws)
    return Samples(tf.map_fn(one, keys, fn_output_signature=(tf.float32, tf.float32), parallel_iterations=1))
