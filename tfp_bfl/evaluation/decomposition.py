"""Predictive uncertainty, split into what more data would remove (epistemic) and the rest (aleatoric).

Samples are [S, B, C], float32 or float64, a distribution over at least two classes for each of S >= 1 weight samples;
results have their dtype. In a graph only what is known of the shape is checked. A single sample has no epistemic part.
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.evaluation.metrics import of_samples


class Uncertainty(NamedTuple):
    """The mean and the uncertainty of S sampled predictions.

    Fields:
      mean: [B, C], the predictive distribution.
      entropy: [B], its entropy divided by log C: 0 is certain, 1 is uniform.
      aleatoric: [B, C, C], covariance of the one-hot label within one weight sample, averaged over the samples.
      epistemic: [B, C, C], covariance of the predicted probabilities between weight samples.
    """

    mean: tf.Tensor
    entropy: tf.Tensor
    aleatoric: tf.Tensor
    epistemic: tf.Tensor


class Summary(NamedTuple):
    """`Uncertainty` with the trace of the matrices instead: mean [B, C]; entropy, aleatoric, epistemic [B]."""

    mean: tf.Tensor
    entropy: tf.Tensor
    aleatoric: tf.Tensor
    epistemic: tf.Tensor


class Traces(NamedTuple):
    """One number per example for either kind of uncertainty: aleatoric_trace [B], epistemic_trace [B]."""

    aleatoric_trace: tf.Tensor
    epistemic_trace: tf.Tensor


class EntropyParts(NamedTuple):
    """The entropy of S sampled predictions and its two parts, [B] each, divided by log C and in [0, 1]."""

    entropy: tf.Tensor  # Of the predictive distribution, as in `Uncertainty`.
    expected_entropy: tf.Tensor  # The mean entropy of the samples: the aleatoric part.
    mutual_information: tf.Tensor  # Between label and weights: the epistemic part.


@of_samples
def decompose(probabilities: Any) -> Uncertainty:
    """Split the uncertainty of S sampled predictions into aleatoric and epistemic parts.

        mean_b      = 1/S sum_s p_sb
        entropy_b   = -sum_c mean_bc log(mean_bc) / log C                  (0 log 0 = 0)
        aleatoric_b = 1/S sum_s (diag(p_sb) - p_sb p_sb^T)
        epistemic_b = 1/S sum_s (p_sb - mean_b)(p_sb - mean_b)^T

    The two parts add up to the covariance of the one-hot label under the predictive distribution,
    diag(mean) - mean mean^T.

    Sources: entropy, Fischer et al. 2024 (arXiv:2403.15263), equation 8; the two parts, Kwon et al. 2020
    (Computational Statistics & Data Analysis 142), and equation 9 of Fischer et al.

    Example:
      >>> samples = np.array([[[0.9, 0.1]], [[0.1, 0.9]]], np.float32)  # two samples that disagree
      >>> parts = bfl.evaluation.decompose(samples)
      >>> print(np.round(parts.aleatoric[0, 0], 2), np.round(parts.epistemic[0, 0], 2))
      [ 0.09 -0.09] [ 0.16 -0.16]
    """
    num_samples = tf.cast(tf.shape(probabilities)[0], probabilities.dtype)
    mean = tf.reduce_mean(probabilities, axis=0)
    # p (1 - p) on the diagonal: p - p^2 would lose the digits that matter where p is near one.
    variance = tf.reduce_mean(probabilities * (1.0 - probabilities), axis=0)
    aleatoric = tf.linalg.set_diag(-_outer(probabilities) / num_samples, variance)
    # Centred first: the raw second moment less the squared mean may come out negative.
    epistemic = _outer(probabilities - mean) / num_samples
    return Uncertainty(mean, _entropy(mean), aleatoric, epistemic)


@of_samples
def summarise(probabilities: Any) -> Summary:
    """Compute `scalars(decompose(probabilities))` without the matrices: S B C steps instead of S B C^2.

    aleatoric_b = 1/S sum_s sum_c p_sbc (1 - p_sbc)
    epistemic_b = 1/S sum_s sum_c (p_sbc - mean_bc)^2

    Example:
      >>> probabilities = np.array([[[1.0, 0.0]], [[0.0, 1.0]]], np.float32)  # two samples that contradict each other
      >>> found = bfl.evaluation.summarise(probabilities)
      >>> float(found.epistemic[0]), float(found.aleatoric[0])
      (0.5, 0.0)
    """
    mean = tf.reduce_mean(probabilities, axis=0)
    aleatoric = tf.reduce_sum(tf.reduce_mean(probabilities * (1.0 - probabilities), axis=0), axis=-1)
    epistemic = tf.reduce_sum(tf.reduce_mean(tf.square(probabilities - mean), axis=0), axis=-1)
    return Summary(mean, _entropy(mean), aleatoric, epistemic)


@of_samples
def decompose_entropy(probabilities: object) -> EntropyParts:
    """Split the entropy of S sampled predictions into expected entropy and mutual information (BALD).

        H(p)                 = -sum_c p_c log(p_c) / log C                              (0 log 0 = 0)
        entropy_b            = H(mean_b),   mean_b = 1/S sum_s p_sb
        expected_entropy_b   = 1/S sum_s H(p_sb)
        mutual_information_b = entropy_b - expected_entropy_b = 1/S sum_s KL(p_sb || mean_b) / log C

    The mutual information is between the label and the weights: the reduction of the label's entropy that knowledge of
    the weights would bring. It is zero where all samples agree, and log min(S, C) / log C at most. Multiply by log C
    for nats. It is computed as the mean divergence, because the difference of two entropies loses small values in
    float32. Source: Houlsby et al. 2011 (arXiv:1112.5745), equation 2.

    Example:
      >>> samples = np.array([[[0.9, 0.1]], [[0.1, 0.9]]], np.float32)  # two samples that disagree
      >>> entropy, expected, information = bfl.evaluation.decompose_entropy(samples)
      >>> print(np.round([entropy[0], expected[0], information[0]], 3))
      [1.    0.469 0.531]
    """
    mean = tf.reduce_mean(probabilities, axis=0)
    # p log(p / m) - p + m has the same sum over the classes as p log(p / m): no term is negative, nothing cancels.
    ratio = probabilities / tf.maximum(mean, _tiny(mean))
    divergence = mean * (ratio * tf.math.log(tf.maximum(ratio, _tiny(mean))) - (ratio - 1.0))
    information = tf.reduce_mean(tf.reduce_sum(divergence, axis=-1), axis=0) / _log_classes(mean)
    expected = tf.reduce_mean(_entropy(probabilities), axis=0)
    return EntropyParts(_entropy(mean), expected, tf.clip_by_value(information, 0.0, 1.0))


def _entropy(probabilities: tf.Tensor) -> tf.Tensor:
    """Return the entropy over the last axis, [...], normalised to [0, 1]."""
    # 0 log 0 = 0, in operations that TensorFlow Lite has as well.
    logs = tf.math.log(tf.maximum(probabilities, _tiny(probabilities)))
    nats = 0.0 - tf.reduce_sum(probabilities * logs, axis=-1)  # Not -sum, which is -0.0 for a certain prediction.
    # Rounding, or rows that don't quite sum to one, would otherwise step over the ends of the interval.
    return tf.clip_by_value(nats / _log_classes(probabilities), 0.0, 1.0)


def _log_classes(probabilities: tf.Tensor) -> tf.Tensor:
    return tf.math.log(tf.cast(tf.shape(probabilities)[-1], probabilities.dtype))


def _tiny(values: tf.Tensor) -> Any:
    """Return the smallest normal number of the dtype."""
    return np.finfo(values.dtype.as_numpy_dtype).tiny


def _outer(values: tf.Tensor) -> tf.Tensor:
    """Return [B, C, C], the sum over s of v_sb v_sb^T, for values [S, B, C]."""
    rows = tf.transpose(values, [1, 0, 2])
    return tf.matmul(rows, rows, transpose_a=True)


def scalars(uncertainty: Uncertainty) -> Traces:
    """Compute the traces of both matrices of `decompose`: [B] each, the total variance over the classes.

    The sum of *all* entries of either matrix is always zero, since probabilities sum to one, so it says nothing. The
    two traces add up to 1 - sum_c mean_bc^2, at most 1 - 1/C.
    """
    return Traces(tf.linalg.trace(uncertainty.aleatoric), tf.linalg.trace(uncertainty.epistemic))
