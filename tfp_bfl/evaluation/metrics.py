"""Accuracy and proper scores of predicted class probabilities.

Scores of classes take `probabilities` [B, C], float32 or float64, each row a distribution, and `labels` [B], class
numbers in [0, C); B is at least 1. Others raise InvalidArgument (`of_classes`). Scores are scalars of the dtype of the
probabilities. They run in graphs too and keep this dtype, which scikit-learn's do not. Tests compare them with it.
"""

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import tensorflow as tf

from tfp_bfl.errors import InvalidArgument

Options = ParamSpec("Options")
Result = TypeVar("Result")
# A softmax in float16 or a mean over many samples is off by this much at most.
_SUM_TOLERANCE = 1e-3


def check_probabilities(probabilities: object, shape: str = "[B, C]") -> tf.Tensor:
    """Return `probabilities` as a float32 or float64 tensor with a distribution along its last axis, within 1e-3.

    The shape, "[B, C]" or "[S, B, C]", is checked as far as it is known; the values only if they are known, in eager
    mode.
    """
    tensor = to_tensor(probabilities, "probabilities")
    if tensor.dtype not in (tf.float32, tf.float64):
        raise InvalidArgument(f"The probabilities must be float32 or float64, not {tensor.dtype.name}: cast them.")
    if tensor.shape.rank is None:
        return tensor
    if tensor.shape.rank != shape.count(",") + 1:
        raise InvalidArgument(f"The probabilities must have the shape {shape}, not {tensor.shape}.")
    if tensor.shape[-1] is not None and tensor.shape[-1] < 2:
        raise InvalidArgument("The probabilities must be of two classes at least: of a binary model give (1 - p, p).")
    if tensor.shape[0] == 0:
        raise InvalidArgument(f"The probabilities {shape} must have at least one entry on the axis {shape[1]}.")
    values = tf.get_static_value(tensor)
    if values is None or not values.size:
        return tensor
    if not np.all(np.isfinite(values)):
        raise InvalidArgument("The probabilities must be finite, but they hold NaN or infinity.")
    low, high = values.min(), values.max()
    if low < 0.0 or high > 1.0 + _SUM_TOLERANCE:
        raise InvalidArgument(f"The probabilities lie in [{low:.4g}, {high:.4g}], not [0, 1]: logits need a softmax.")
    error = np.abs(values.sum(axis=-1) - 1.0).max()
    if error > _SUM_TOLERANCE:
        raise InvalidArgument(f"The probabilities of each example must sum to 1, but one sum is off by {error:.4g}.")
    return tensor


def check_labels(labels: object, probabilities: tf.Tensor) -> tf.Tensor:
    """Return `labels` as an int64 tensor [B] of class numbers that fits `probabilities` [B, C]."""
    tensor = to_tensor(labels, "labels")
    if not tensor.dtype.is_integer:
        raise InvalidArgument(f"The labels must be integers, not {tensor.dtype.name}: give the argmax of one-hot.")
    check_batch(tensor, probabilities, "labels")
    values = tf.get_static_value(tensor)
    num_classes = probabilities.shape[-1] if probabilities.shape.rank is not None else None
    if values is not None and num_classes is not None and values.size:
        low, high = values.min(), values.max()
        if low < 0 or high >= num_classes:
            raise InvalidArgument(f"The labels must lie in [0, {num_classes}), but they span [{low}, {high}].")
    return tf.cast(tensor, tf.int64)


def check_batch(tensor: tf.Tensor, probabilities: tf.Tensor, what: str) -> None:
    """Raise InvalidArgument unless `tensor` [B] has one entry for each row of `probabilities` [B, C]."""
    if tensor.shape.rank is None:
        return
    if tensor.shape.rank != 1:
        raise InvalidArgument(f"The {what} must have the shape [B], not {tensor.shape}.")
    if probabilities.shape.rank is not None and not tensor.shape.is_compatible_with(probabilities.shape[:1]):
        rows = probabilities.shape[0]
        raise InvalidArgument(f"The {what} must be as many as the probabilities, {rows}, but are {tensor.shape[0]}.")


def to_tensor(value: object, what: str) -> tf.Tensor:
    """Return `value` as a tensor."""
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        kind = type(value).__name__
        raise InvalidArgument(f"The {what} must be a tensor or an array of numbers, not this {kind}.") from error


def of_classes(
    score: Callable[Concatenate[Any, Any, Options], Result],
) -> Callable[Concatenate[Any, Any, Options], Result]:
    """Return a score of probabilities [B, C] and labels [B] that checks both and gets them as tensors."""

    @functools.wraps(score)
    def checked(probabilities: object, labels: object, *args: Options.args, **kwargs: Options.kwargs) -> Result:
        tensor = check_probabilities(probabilities)
        return score(tensor, check_labels(labels, tensor), *args, **kwargs)

    return checked


def of_samples(parts: Callable[[Any], Result]) -> Callable[[Any], Result]:
    """Return a function of sampled probabilities [S, B, C] that checks them and gets them as a tensor."""

    @functools.wraps(parts)
    def checked(probabilities: object) -> Result:
        return parts(check_probabilities(probabilities, "[S, B, C]"))

    return checked


def correct(probabilities: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return [B]: 1 where the most probable class (the first of equal ones) is the label, else 0."""
    return tf.cast(tf.equal(tf.argmax(probabilities, axis=-1), labels), probabilities.dtype)


@of_classes
def accuracy(probabilities: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Compute mean_b [argmax_c p_bc = y_b]; of equally probable classes the first is the prediction.

    Example:
      >>> p, y = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]], np.float32), [0, 1, 1, 0]
      >>> round(float(bfl.evaluation.accuracy(p, y)), 3)
      0.75
    """
    return tf.reduce_mean(correct(probabilities, labels))


@of_classes
def macro_recall(probabilities: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Compute the mean over the classes with examples of the fraction of a class's examples that are predicted as it.

        macro_recall = mean_c |{b: y_b = c, argmax_j p_bj = c}| / |{b: y_b = c}|

    Example:
      >>> p, y = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]], np.float32), [0, 1, 1, 0]
      >>> round(float(bfl.evaluation.macro_recall(p, y)), 3)
      0.75
    """
    return _macro(probabilities, labels, axis=1)


@of_classes
def macro_precision(probabilities: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Compute the mean over the classes with examples of the fraction of right predictions among those of a class.

        macro_precision = mean_c |{b: y_b = c, argmax_j p_bj = c}| / |{b: argmax_j p_bj = c}|

    A class that is never predicted has a precision of 0 (as in scikit-learn).

    Example:
      >>> p, y = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]], np.float32), [0, 1, 1, 0]
      >>> round(float(bfl.evaluation.macro_precision(p, y)), 3)
      0.833
    """
    return _macro(probabilities, labels, axis=0)


def _macro(probabilities: tf.Tensor, labels: tf.Tensor, axis: int) -> tf.Tensor:
    """Return the mean share of right ones of each class: of its labels along axis 1, of its predictions along 0."""
    predicted, num_classes = tf.argmax(probabilities, -1), tf.shape(probabilities)[-1]
    counts = tf.math.confusion_matrix(labels, predicted, num_classes, dtype=tf.float64)
    shares = tf.math.divide_no_nan(tf.linalg.diag_part(counts), tf.reduce_sum(counts, axis))
    present = tf.reduce_sum(counts, 1) > 0
    return tf.cast(tf.reduce_mean(tf.boolean_mask(shares, present)), probabilities.dtype)


@of_classes
def negative_log_likelihood(probabilities: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Compute -mean_b log max(p_b[y_b], tiny), the log score in nats per example.

    `tiny` is the smallest normal number of the dtype: a label with probability zero costs 87.3 nats in float32, 708.4
    in float64. For a Bayesian model, give the probabilities averaged over the weight samples.

    Example:
      >>> p, y = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]], np.float32), [0, 1, 1, 0]
      >>> round(float(bfl.evaluation.negative_log_likelihood(p, y)), 3)
      0.4
    """
    likelihood = tf.gather(probabilities, labels, axis=1, batch_dims=1)
    tiny = np.finfo(probabilities.dtype.as_numpy_dtype).tiny
    return -tf.reduce_mean(tf.math.log(tf.clip_by_value(likelihood, tiny, 1.0)))


@of_classes
def brier_score(probabilities: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Compute mean_b sum_c (p_bc - [c = y_b])^2, in [0, 2] (Brier 1950, equation 2).

    For two classes it is twice the score of libraries that look at one class only.

    Example:
      >>> p, y = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]], np.float32), [0, 1, 1, 0]
      >>> round(float(bfl.evaluation.brier_score(p, y)), 3)
      0.25
    """
    one_hot = tf.one_hot(labels, tf.shape(probabilities)[-1], dtype=probabilities.dtype)
    return tf.reduce_mean(tf.reduce_sum(tf.math.squared_difference(probabilities, one_hot), axis=-1))


def agreement(probabilities: Any, reference: Any) -> tf.Tensor:
    """Compute the fraction of the examples with one most probable class in two predictions [B, C].

    Source: Izmailov et al. 2021 (arXiv:2104.14421).

    Example:
      >>> p = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]], np.float32)
      >>> round(float(bfl.evaluation.agreement(p, [[0.8, 0.2], [0.3, 0.7], [0.1, 0.9], [0.6, 0.4]])), 3)
      0.75
    """
    probabilities, reference = _pair(probabilities, reference)
    same = tf.equal(tf.argmax(probabilities, -1), tf.argmax(reference, -1))
    return tf.reduce_mean(tf.cast(same, probabilities.dtype))


def total_variation(probabilities: Any, reference: Any) -> tf.Tensor:
    """Compute mean_b sum_c abs(p_bc - r_bc) / 2 of two predictions [B, C], in [0, 1]; source as of `agreement`.

    Example:
      >>> p = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]], np.float32)
      >>> round(float(bfl.evaluation.total_variation(p, [[0.8, 0.2], [0.3, 0.7], [0.1, 0.9], [0.6, 0.4]])), 3)
      0.15
    """
    probabilities, reference = _pair(probabilities, reference)
    return tf.reduce_mean(tf.reduce_sum(tf.abs(probabilities - reference), -1)) / 2


def _pair(probabilities: Any, reference: Any) -> tuple[tf.Tensor, tf.Tensor]:
    probabilities, reference = check_probabilities(probabilities), check_probabilities(reference)
    if probabilities.shape != reference.shape:
        shapes = f"{probabilities.shape} and {reference.shape}"
        raise InvalidArgument(f"The predictions have the shapes {shapes}, but must be of the same examples.")
    return probabilities, reference
