"""Predictive uncertainty, split into what more data would remove (epistemic) and the rest (aleatoric)."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.evaluation.metrics import check_probabilities


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
    """`Uncertainty` with one number per example for either kind: the trace of its matrix.

    Fields:
      mean: [B, C].
      entropy, aleatoric, epistemic: [B].
    """

    mean: tf.Tensor
    entropy: tf.Tensor
    aleatoric: tf.Tensor
    epistemic: tf.Tensor


class Traces(NamedTuple):
    """One number per example for either kind of uncertainty: aleatoric_trace [B], epistemic_trace [B]."""

    aleatoric_trace: tf.Tensor
    epistemic_trace: tf.Tensor


def decompose(probabilities: Any) -> Uncertainty:
    """Split the uncertainty of S sampled predictions into aleatoric and epistemic parts.

        mean_b      = 1/S sum_s p_sb
        entropy_b   = -sum_c mean_bc log(mean_bc) / log C                  (0 log 0 = 0)
        aleatoric_b = 1/S sum_s (diag(p_sb) - p_sb p_sb^T)
        epistemic_b = 1/S sum_s (p_sb - mean_b)(p_sb - mean_b)^T

    The two parts add up to the covariance of the one-hot label under the predictive distribution:
    aleatoric + epistemic = diag(mean) - mean mean^T. Works eagerly and in graphs, with S and B unknown.

    Sources: entropy, Fischer et al. 2024 (arXiv:2403.15263), equation 8; the two parts, Kwon et al. 2020
    (Computational Statistics & Data Analysis 142), and equation 9 of Fischer et al.

    Args:
      probabilities: [S, B, C], float32 or float64; for each weight sample and example a distribution over
        classes.

    Returns:
      An `Uncertainty` of the same dtype. A single sample (S = 1) has no epistemic part.

    Raises:
      InvalidArgument: the probabilities don't fit the description above, C < 2 or S < 1. In a graph only what
        is known of the shape is checked.

    Example:
      >>> samples = np.array([[[0.9, 0.1]], [[0.1, 0.9]]], np.float32)  # two samples that disagree
      >>> parts = bfl.evaluation.decompose(samples)
      >>> print(np.round(parts.aleatoric[0], 2))
      [[ 0.09 -0.09]
       [-0.09  0.09]]
      >>> print(np.round(parts.epistemic[0], 2))
      [[ 0.16 -0.16]
       [-0.16  0.16]]
    """
    probabilities = check_probabilities(probabilities, "[S, B, C]")
    num_samples = tf.cast(tf.shape(probabilities)[0], probabilities.dtype)
    mean = tf.reduce_mean(probabilities, axis=0)
    # p (1 - p) on the diagonal: p - p^2 would lose the digits that matter where p is near one.
    variance = tf.reduce_mean(probabilities * (1.0 - probabilities), axis=0)
    aleatoric = tf.linalg.set_diag(-_outer(probabilities) / num_samples, variance)
    # Centred first: the raw second moment less the squared mean may come out negative.
    epistemic = _outer(probabilities - mean) / num_samples
    return Uncertainty(mean, _entropy(mean), aleatoric, epistemic)


def summarise(probabilities: Any) -> Summary:
    """Compute `scalars(decompose(probabilities))` without the matrices: S B C steps instead of S B C^2.

        aleatoric_b = 1/S sum_s sum_c p_sbc (1 - p_sbc)
        epistemic_b = 1/S sum_s sum_c (p_sbc - mean_bc)^2

    Args and errors as `decompose`.

    Returns:
      A `Summary`, all of it at least zero.
    """
    probabilities = check_probabilities(probabilities, "[S, B, C]")
    mean = tf.reduce_mean(probabilities, axis=0)
    aleatoric = tf.reduce_sum(tf.reduce_mean(probabilities * (1.0 - probabilities), axis=0), axis=-1)
    epistemic = tf.reduce_sum(tf.reduce_mean(tf.square(probabilities - mean), axis=0), axis=-1)
    return Summary(mean, _entropy(mean), aleatoric, epistemic)


def _entropy(mean: tf.Tensor) -> tf.Tensor:
    """Return [B], normalised to [0, 1]."""
    log_classes = tf.math.log(tf.cast(tf.shape(mean)[-1], mean.dtype))
    # 0 log 0 = 0, in operations that TensorFlow Lite has as well.
    nats = -tf.reduce_sum(mean * tf.math.log(tf.maximum(mean, np.finfo(mean.dtype.as_numpy_dtype).tiny)), axis=-1)
    # Rounding, or rows that don't quite sum to one, would otherwise step over the ends of the interval.
    return tf.clip_by_value(nats / log_classes, 0.0, 1.0)


def _outer(values: tf.Tensor) -> tf.Tensor:
    """Return [B, C, C], the sum over s of v_sb v_sb^T, for values [S, B, C]."""
    rows = tf.transpose(values, [1, 0, 2])
    return tf.matmul(rows, rows, transpose_a=True)


def scalars(uncertainty: Uncertainty) -> Traces:
    """Return one number per example for either kind of uncertainty: the trace of its matrix.

        aleatoric_trace_b = sum_c aleatoric_bcc
        epistemic_trace_b = sum_c epistemic_bcc

    The sum of *all* entries of either matrix is always zero, since probabilities sum to one, so it says
    nothing; the trace is the total variance over the classes. The two traces add up to 1 - sum_c mean_bc^2,
    at most 1 - 1/C. The epistemic share of an example is epistemic_trace / (aleatoric_trace +
    epistemic_trace).

    Args:
      uncertainty: what `decompose` returned.

    Returns:
      `Traces` with two tensors [B], both at least zero.
    """
    return Traces(tf.linalg.trace(uncertainty.aleatoric), tf.linalg.trace(uncertainty.epistemic))
