"""The weights that a head predicts with, from sums over the clients: settings, posterior and temperature."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl import posterior
from tfp_bfl.algorithms.heads import classes, ridge, softmax
from tfp_bfl.algorithms.heads.sums import NUM_SENT, TEMPERATURES, ClassSums
from tfp_bfl.posterior import Samples
from tfp_bfl.posterior.kronecker import Kronecker

HEADS = ("gaussian", "ridge", "softmax")
# Numbers of a head's samples, 256 MB in float32.
_MOST_SAMPLED = 2**26


class HeadSettings(NamedTuple):
    """Settings of a head.

    Fields:
      head: one of `HEADS`.
      stddev: of the prior of the weights of "ridge" and, on standardised features, of "softmax"; None for the maximum
        of the marginal likelihood.
      temperature: by which logits are divided; None for that of the held-back rows.
      is_noisy: the sums are rounded or have noise, and are repaired (`sums.repaired`).
      clip_norm: of the rows, under differential privacy.
    """

    head: str = "gaussian"
    stddev: float | None = None
    temperature: float | None = None
    is_noisy: bool = False
    clip_norm: float | None = None


class Fitted(NamedTuple):
    """A head at temperature 1.

    Fields:
      mean: weights [F + 1, C], the bias last, at the expectation of the posterior's natural parameters.
      posterior: over kernel and bias, float32.
      found: name -> scalar, as a record states it.
    """

    mean: Any
    posterior: Any
    found: dict[str, Any]


def fit(sums: ClassSums, settings: HeadSettings, num_draws: int = NUM_SENT) -> Fitted:
    """Compute "gaussian" or "ridge" from the sums over all examples.

    Logits of "ridge" are f / s^2: log p(c | x) up to a constant if one-hot labels are N(f, s^2 I).

    Args:
      num_draws: of "gaussian", of which the posterior is `Samples`.
    """
    if settings.head == "gaussian":
        of_classes = classes.fit_gaussian(sums)
        number = max(NUM_SENT, min(num_draws, _MOST_SAMPLED // of_classes.means.shape.num_elements()))
        found = dict(zip(("kappa0", "nu0", "prior_scale"), tf.unstack(of_classes.hyperparameters)))
        found["log_marginal_likelihood"] = of_classes.log_marginal_likelihood
        return Fitted(classes.plug_in(of_classes), classes.draws(of_classes, tf.constant([0, 0]), number), found)
    of_ridge = ridge.fit_ridge(sums, settings.stddev)
    rows, stddev = ridge.row_factors(of_ridge)
    mean = of_ridge.mean / of_ridge.noise
    columns = tf.eye(mean.shape[1], dtype=tf.float64)
    stddevs = tf.repeat(stddev[:, tf.newaxis], mean.shape[1], 1) / of_ridge.noise
    found = {"prior_stddev": tf.sqrt(of_ridge.noise / of_ridge.penalty), "noise_stddev": tf.sqrt(of_ridge.noise)}
    found["log_marginal_likelihood"] = of_ridge.log_marginal_likelihood
    return Fitted(mean, _kronecker(mean, rows, columns, stddevs), found)


def fit_softmax(basis: softmax.Basis, mode: Any, fisher: Any, precision: Any) -> Fitted:
    """Compute Laplace's approximation of "softmax" at V of its `softmax.Basis`, with the shared curvature there.

    Args:
      fisher: sum of the Fisher information over all examples [C, C].
      precision: 1 / t^2 of the prior.
    """
    columns, curvatures = softmax.shared_curvature(basis, tf.convert_to_tensor(fisher))
    mean, stddevs = basis.vectors @ mode, tf.math.rsqrt(curvatures + precision)
    found = {"prior_stddev": precision**-0.5, "effective_parameters": tf.reduce_sum(curvatures * tf.square(stddevs))}
    return Fitted(mean, _kronecker(mean, basis.vectors, columns, stddevs), found)


def _kronecker(mean: tf.Tensor, rows: tf.Tensor, columns: tf.Tensor, stddev: tf.Tensor) -> Kronecker:
    short = lambda x: tf.cast(x, tf.float32)
    return Kronecker((short(mean[:-1]), short(mean[-1])), short(rows), short(columns), short(stddev))


def sent(q: Kronecker | Samples, seed: tf.Tensor) -> tf.Tensor:
    """Return the samples of the weights that the server sends [`NUM_SENT`, F + 1, C]."""
    drawn = tuple(x[:NUM_SENT] for x in q.values) if isinstance(q, Samples) else posterior.sample(q, seed, NUM_SENT)
    return tf.concat([drawn[0], drawn[1][:, tf.newaxis]], 1)


def at_temperature(q: Kronecker | Samples, temperature: float) -> Kronecker | Samples:
    """Return the posterior over weights that are divided by a temperature, in NumPy."""
    cool = lambda part: tf.nest.map_structure(lambda x: np.asarray(x) / np.float32(temperature), part)
    if isinstance(q, Samples):
        return Samples(cool(q.values))
    return Kronecker(cool(q.mean), np.asarray(q.rows), np.asarray(q.columns), cool(q.stddev))


def fitted_temperature(losses: np.ndarray) -> float:
    """Return the mode of log T under the prior N(0, 1) and the losses [62] of the held-back rows, of `sums.HeadSums`.

    Between the points of the grid it is the minimum of a parabola. 1 without rows: few rows that are all predicted
    right would otherwise have the smallest T.
    """
    logs = np.log(TEMPERATURES)
    total = np.asarray(losses)[:-1] + logs**2 / 2
    k = int(np.clip(np.argmin(total), 1, len(total) - 2))
    before, at, after = total[k - 1 : k + 2]
    shift = 0.5 * (before - after) / (before - 2 * at + after)
    return float(np.exp(logs[k] + (logs[1] - logs[0]) * np.clip(shift, -0.5, 0.5)))
