"""Precisions of prior and noise at the maximum of the marginal likelihood, along the eigenvectors of a curvature."""

import math
from collections.abc import Callable

import tensorflow as tf

from tfp_bfl.tensors import Scalar

# Bounds of a fitted standard deviation.
SMALLEST_STDDEV, LARGEST_STDDEV = 1e-4, 1e4
_BOUNDS = -2 * math.log(LARGEST_STDDEV), -2 * math.log(SMALLEST_STDDEV)
_BISECTIONS = 60
_GRIDS, _POINTS = 5, 65


def fitted_precision(eigenvalues: tf.Tensor, square: Scalar | Callable[[tf.Tensor], Scalar]) -> tf.Tensor:
    """Return the prior precision a at which sum_d h_d / (h_d + a) = a ||w||^2, for eigenvalues h and a square ||w||^2.

    It is the maximum of Laplace's approximation of the marginal likelihood, (sum_d log(a / (h_d + a)) - a ||w||^2) / 2.

    Args:
      square: ||w||^2, or a function of a: the mode of a quadratic log likelihood moves with the prior.
    """
    low, high = (tf.constant(x, tf.float64) for x in _BOUNDS)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        a = tf.exp(middle)
        above = tf.reduce_sum(eigenvalues / (eigenvalues + a)) > a * (square(a) if callable(square) else square)
        low, high = tf.where(above, middle, low), tf.where(above, high, middle)
    return tf.exp((low + high) / 2)


def fit_regression(
    eigenvalues: tf.Tensor,
    explained: tf.Tensor,
    squares: tf.Tensor,
    number: tf.Tensor,
    stddevs: tuple[float | None, float | None],
    num_outputs: int = 1,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the precisions a of the prior and b of the noise of a linear regression, as given or at the maximum of the
    marginal likelihood, and its logarithm.

    log Z = (C sum_d log(a / (a + b h_d)) + sum_d b^2 e_d / (a + b h_d) - b c - N log(2 pi / b)) / 2

    It is found by a grid that is refined. Without t and s, s^2 = (c - sum_d e_d / (h_d + l)) / N maximises for each
    ratio l = a / b.

    Args:
      eigenvalues: h of X^T X, along its eigenvectors V [D].
      explained: e, sums over the outputs of the squares of V^T X^T Y [D].
      squares: c, the sum of squared labels.
      number: N, of the labels of all outputs.
      stddevs: t of the prior and s of the noise; None for the maximum.
      num_outputs: C.

    Source: MacKay 1992; Bishop 2006, section 3.5.
    """
    t, s = (None if x is None else tf.constant(x**-2.0, tf.float64) for x in stddevs)

    def evidence(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        """Compute log Z for each pair of a [M] and b [M]."""
        ratio = (a / b)[:, tf.newaxis]
        complexity = num_outputs * tf.reduce_sum(tf.math.log(ratio / (ratio + eigenvalues)), 1)
        left = squares - tf.reduce_sum(explained / (ratio + eigenvalues), 1)
        return 0.5 * (complexity - b * left - number * (math.log(2 * math.pi) - tf.math.log(b)))

    def pairs(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        if s is not None:
            return x, s * tf.ones_like(x)
        if t is not None:
            return t * tf.ones_like(x), x
        left = squares - tf.reduce_sum(explained / (eigenvalues + x[:, tf.newaxis]), 1)
        b = number / tf.maximum(left, 1e-12 * squares + 1e-300)
        return x * b, b

    low, high = (tf.constant(x, tf.float64) for x in _BOUNDS)
    if t is None and s is None:  # The ratio has the scale of the features.
        middle = tf.math.log(tf.maximum(tf.reduce_mean(eigenvalues), 1e-12))
        low, high = middle - 25.0, middle + 12.0
    given = t is not None and s is not None
    best = tf.math.log(t) if given else low
    for _ in range(0 if given else _GRIDS):
        grid = tf.linspace(low, high, _POINTS)
        place = tf.argmax(evidence(*pairs(tf.exp(grid))), output_type=tf.int32)
        best, low, high = grid[place], grid[tf.maximum(place - 1, 0)], grid[tf.minimum(place + 1, _POINTS - 1)]
    a, b = pairs(tf.exp(best)[tf.newaxis])
    return a[0], b[0], evidence(a, b)[0]
