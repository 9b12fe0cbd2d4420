"""Predictions of numbers: a mixture of Gaussians, one a weight sample, its intervals, and its uncertainty in parts.

The mixture is 1/S sum_s N(y; m_s, v_s) of means and variances [S, B], variances above 0; labels are [B].
"""

import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from scipy import special

from tfp_bfl import keras
from tfp_bfl.errors import InvalidArgument, check_number, check_share
from tfp_bfl.evaluation.predictive import draw_outputs, sampled_batches
from tfp_bfl.weights import mean_and_log_variance

# Of the interval that is told of.
COVERAGE = 0.9
# Halvings of an interval of as many standard deviations: to 1e-5 of one.
_STEPS = 24
# Of a target, so that its square is finite and above 0.
_SCALES = (1e-150, 1e150)


class GaussianSummary(NamedTuple):
    """The mean [B] of the mixture, and its variance in two parts [B]: of the samples' variances, and of their means."""

    mean: tf.Tensor
    aleatoric: tf.Tensor
    epistemic: tf.Tensor


class RegressionEvaluation(NamedTuple):
    """A model's predictions and scores for N examples, in the units of the target; arrays are float64 [N].

    Fields:
      metrics: rmse, mae, test_nll (nats), crps, coverage and interval_width (of the central interval of `COVERAGE`),
        and means over the examples of aleatoric and epistemic, variances.
      mean, stddev: of the predictive distribution.
      aleatoric, epistemic: the parts of its variance.
      low, high: the ends of the central interval of `COVERAGE`.
      nll: the negative log density of each label (`mixture_nll`), in nats.
    """

    metrics: dict[str, float]
    mean: np.ndarray
    stddev: np.ndarray
    aleatoric: np.ndarray
    epistemic: np.ndarray
    low: np.ndarray
    high: np.ndarray
    nll: np.ndarray


def gaussians(outputs: tf.Tensor, scale: float = 1.0, shift: float = 0.0) -> tuple[tf.Tensor, tf.Tensor]:
    """Return mean and variance [...] of y from outputs [..., 2], mean and log variance of (y - shift) / scale."""
    mean, log_variance = mean_and_log_variance(tf.convert_to_tensor(outputs))
    return shift + scale * mean, scale**2 * tf.exp(log_variance)


def summarise_gaussians(means: tf.Tensor, variances: tf.Tensor) -> GaussianSummary:
    """Split the variance of the mixture into parts that add up to it, by the law of total variance.

        mean      = 1/S sum_s m_s
        aleatoric = 1/S sum_s v_s
        epistemic = 1/S sum_s (m_s - mean)^2

    Source: Depeweg et al. 2018 (arXiv:1710.07283), in variances; Kendall and Gal 2017.
    """
    mean = tf.reduce_mean(means, 0)
    return GaussianSummary(mean, tf.reduce_mean(variances, 0), tf.reduce_mean(tf.square(means - mean), 0))


def central_interval(means: tf.Tensor, variances: tf.Tensor, coverage: float = COVERAGE) -> tuple[tf.Tensor, tf.Tensor]:
    """Compute the interval with (1 - coverage) / 2 of the mixture's probability on either side: low [B], high [B].

    By bisection of its distribution function, 1/S sum_s Phi((y - m_s) / sqrt(v_s)), in operations that TensorFlow Lite
    has as well.

    Example:
      >>> low, high = bfl.evaluation.central_interval(np.zeros((1, 1), np.float32), np.ones((1, 1), np.float32))
      >>> print(np.round(low, 2), np.round(high, 2))
      [-1.64] [1.64]
    """
    check_share(coverage, "coverage")
    stddevs = tf.sqrt(variances)
    reach = stddevs * float(-special.ndtri((1 - coverage) / 2))
    # Each quantile of a mixture lies between those of its parts.
    ends = []
    for probability, sign in (((1 - coverage) / 2, -1.0), ((1 + coverage) / 2, 1.0)):
        parts = means + sign * reach
        low, high = tf.reduce_min(parts, 0), tf.reduce_max(parts, 0)
        for _ in range(_STEPS):
            middle = 0.5 * (low + high)
            below = tf.reduce_mean(_normal_cdf((middle - means) / stddevs), 0)
            low, high = tf.where(below < probability, middle, low), tf.where(below < probability, high, middle)
        ends.append(0.5 * (low + high))
    return ends[0], ends[1]


def _normal_cdf(z: tf.Tensor) -> tf.Tensor:
    """Return Phi(z) to 7.5e-8: TensorFlow Lite has no error function. Source: Abramowitz and Stegun 1964, 26.2.17."""
    t = 1.0 / (1.0 + 0.2316419 * tf.abs(z))
    powers = (0.319381530, -0.356563782, 1.781477937, -1.821255978, 1.330274429)
    tail = tf.zeros_like(z)
    for coefficient in reversed(powers):
        tail = t * (coefficient + tail)
    tail *= tf.exp(-0.5 * tf.square(z)) / math.sqrt(2 * math.pi)
    return tf.where(z < 0, tail, 1.0 - tail)


def mixture_nll(means: object, variances: object, labels: object) -> tf.Tensor:
    """Compute -log 1/S sum_s N(y; m_s, v_s) for each example, in nats: [B]. In a graph nothing is checked.

    Example:
      >>> means, variances = np.array([[0.0], [2.0]], np.float32), np.ones((2, 1), np.float32)
      >>> print(np.round(bfl.evaluation.mixture_nll(means, variances, np.array([1.0], np.float32)), 3))
      [1.419]
    """
    if tf.executing_eagerly():
        _check_mixture(means, variances, labels)
    return _nll(tf.convert_to_tensor(means), tf.convert_to_tensor(variances), labels)


def _nll(means: tf.Tensor, variances: tf.Tensor, labels: object) -> tf.Tensor:
    square = tf.square(labels - means) / variances
    logs = -0.5 * (square + tf.math.log(2 * math.pi * variances))
    return math.log(means.shape[0]) - tf.reduce_logsumexp(logs, 0)


def mixture_crps(means: object, variances: object, labels: object) -> np.ndarray:
    """Compute the continuous ranked probability score of the mixture for each example: float64 [B].

        crps = 1/S sum_s A(y - m_s, v_s) - 1/(2 S^2) sum_s sum_r A(m_s - m_r, v_s + v_r)
        A(d, v) = E|N(d, v)| = d (2 Phi(d / sqrt(v)) - 1) + 2 sqrt(v) phi(d / sqrt(v)),    A(d, 0) = |d|

    It is the integral of (F(t) - [t >= y])^2 over t, in the unit of the label: the absolute error of a point
    prediction, lower is better. Variances of 0 are a sample of S numbers.

    Sources: Gneiting & Raftery 2007, equation 21; Grimit et al. 2006, for the mixture.

    Example:
      >>> print(np.round(bfl.evaluation.mixture_crps([[0.0], [2.0]], [[1.0], [1.0]], [1.0]), 3))
      [0.359]
    """
    return _crps(*_check_mixture(means, variances, labels, zero=True))


def _check_mixture(means: object, variances: object, labels: object, zero: bool = False) -> tuple[np.ndarray, ...]:
    """Return means and variances [S, B] and labels [B] in float64; variances may be 0 with `zero`."""
    means, variances, labels = (np.asarray(x, np.float64) for x in (means, variances, labels))
    if means.ndim != 2 or means.shape != variances.shape or labels.shape != means.shape[1:] or not len(means):
        shapes = f"{list(means.shape)}, {list(variances.shape)} and {list(labels.shape)}"
        raise InvalidArgument(f"means and variances must be of shape [S, B] and labels [B], but they are {shapes}.")
    if not all(np.isfinite(x).all() for x in (means, variances, labels)):
        raise InvalidArgument("means, variances and labels must be finite, but hold NaN or infinity.")
    if np.any(variances < 0) or (not zero and not np.all(variances)):
        raise InvalidArgument(f"The variances must be {'at least' if zero else 'above'} 0.")
    return means, variances, labels


def _crps(means: np.ndarray, variances: np.ndarray, labels: np.ndarray) -> np.ndarray:
    between = sum(_mean_distance(mean - means, variance + variances) for mean, variance in zip(means, variances))
    return _mean_distance(labels - means, variances) - between / (2 * len(means))


def _mean_distance(distance: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Return the mean over s of E|N(d_s, v_s)|: [B]."""
    stddev = np.sqrt(variance)
    z = np.divide(distance, stddev, out=np.zeros_like(distance), where=stddev > 0)
    gaussian = distance * (2 * special.ndtr(z) - 1) + 2 * stddev * np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    return np.where(stddev > 0, gaussian, np.abs(distance)).mean(0)


def evaluate_regression(
    model: keras.Model,
    features: Any,
    labels: Any,
    num_samples: int = 20,
    seed: int = 0,
    batch_size: int = 500,
    precision: str = "float32",
    scale: float = 1.0,
    shift: float = 0.0,
) -> RegressionEvaluation:
    """Score a model's predictive distribution, the mixture of S sampled Gaussians, on N examples.

        rmse = sqrt(mean (y - mean)^2)
        test_nll = mean -log 1/S sum_s N(y; m_s, v_s)
        crps = mean `mixture_crps`
        coverage = fraction of y within the central interval; `COVERAGE` where the model is calibrated

    The model gives mean and log variance [B, 2] of the standardised label; y = shift + scale label, by stddev and mean
    of `Source.target`, and the results are in the units of y. Other arguments are as of `evaluate`.
    """
    if model.output_shape[-1] != 2:
        raise InvalidArgument(f"The model gives {model.output_shape[-1]} outputs, but must give mean and log variance.")
    check_number(scale, "scale", within=_SCALES)
    if not math.isfinite(shift):
        raise InvalidArgument(f"shift is {shift}, but must be finite.")
    truth = np.asarray(labels, np.float32)
    if truth.shape != (len(features),):
        raise InvalidArgument(
            f"labels have shape {list(truth.shape)}, but must be one for each of the {len(features)}."
        )
    # In standardised units: float32 has no digits left for a number far from zero.
    parts: list[tuple[Any, ...]] = []
    for outputs in sampled_batches(draw_outputs, model, features, num_samples, seed, batch_size, precision):
        means, variances = gaussians(outputs)
        start = sum(len(part[0]) for part in parts)
        targets = truth[start : start + means.shape[1]]
        summary, ends = summarise_gaussians(means, variances), central_interval(means, variances)
        # Unchecked: a model that diverged has scores that are not finite.
        exact = [np.asarray(x, np.float64) for x in (means, variances, targets)]
        scores = _nll(means, variances, targets), _crps(exact[0], exact[1], exact[2])
        parts.append((*summary, *ends, *scores))
    mean, aleatoric, epistemic, low, high, nll, crps = (
        np.concatenate(part).astype(np.float64, copy=False) for part in zip(*parts)
    )
    nll += math.log(scale)
    metrics = {
        "rmse": scale * math.sqrt(np.mean(np.square(truth - mean))),
        "mae": scale * np.mean(np.abs(truth - mean)),
        "test_nll": np.mean(nll),
        "crps": scale * np.mean(crps),
        "coverage": np.mean((low <= truth) & (truth <= high)),
        "interval_width": scale * np.mean(high - low),
        "aleatoric": scale**2 * np.mean(aleatoric),
        "epistemic": scale**2 * np.mean(epistemic),
    }
    numbers = {name: float(x) for name, x in metrics.items()}
    mean, low, high = (shift + scale * x for x in (mean, low, high))
    aleatoric, epistemic = scale**2 * aleatoric, scale**2 * epistemic
    return RegressionEvaluation(numbers, mean, np.sqrt(aleatoric + epistemic), aleatoric, epistemic, low, high, nll)
