"""The plane of the leading principal components of weight samples, and the loss on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_bfl.clients import Potential

# Of each posterior: principal components cost the square of the draws.
MOST_DRAWS = 1000


class Plane(NamedTuple):
    """The points origin + a axes_0 + b axes_1 for coordinates (a, b).

    Fields:
      origin: [D].
      axes: [2, D], orthonormal.
      explained: [2], the share of the samples' variance along each axis; None where no samples chose the axes.
    """

    origin: np.ndarray
    axes: np.ndarray
    explained: np.ndarray | None


class Surface(NamedTuple):
    """A loss on a grid of a plane.

    Fields:
      x, y: [G], coordinates along the axes.
      nll, penalty: [G, G], y before x, in nats, summed over the examples: -log p(data | w), and ||w||^2 / (2 t^2), what
        the prior N(0, t^2) adds up to a constant.
    """

    x: np.ndarray
    y: np.ndarray
    nll: np.ndarray
    penalty: np.ndarray


def principal_plane(posteriors: Sequence[np.ndarray]) -> Plane:
    """Return the plane through the mean of the draws of all posteriors that holds most of their variance.

    Every posterior counts as much as another: each gives the same number of draws, evenly spaced. What a chain repeats
    because it rejected a step counts once: in a space of more dimensions than draws, every draw is a direction by
    itself, and the leading one would be the draw that was repeated most. The first axis points from the first posterior
    to the last.

    Args:
      posteriors: draws [S, D] of each.
    """
    distinct = [draws[np.append(True, (draws[1:] != draws[:-1]).any(1))] for draws in posteriors]
    number = min(MOST_DRAWS, *map(len, distinct))
    rows = np.concatenate([draws[np.linspace(0, len(draws) - 1, number).astype(int)] for draws in distinct])
    origin = rows.mean(0, dtype=np.float64).astype(rows.dtype)
    rows = rows - origin
    # The leading eigenvectors of the S x S matrix of inner products: D x D would not fit.
    values, vectors = np.linalg.eigh((rows @ rows.T).astype(np.float64))
    leading = slice(-1, -3, -1)
    axes = vectors[:, leading].T @ rows / np.sqrt(values[leading])[:, np.newaxis]
    way = posteriors[-1].mean(0) - posteriors[0].mean(0)
    axes[0] *= 1 if axes[0] @ way >= 0 else -1
    return Plane(origin, axes.astype(rows.dtype), values[leading] / np.clip(values, 0, None).sum())


def plane_through(points: np.ndarray) -> Plane:
    """Return the plane on which three points [3, D] lie, the first its origin, the second on the first axis."""
    ways = (points[1:] - points[0]).astype(np.float64)
    first = ways[0] / np.linalg.norm(ways[0])
    second = ways[1] - (ways[1] @ first) * first
    return Plane(points[0], np.stack([first, second / np.linalg.norm(second)]).astype(points.dtype), None)


def project(plane: Plane, draws: np.ndarray) -> np.ndarray:
    """Return coordinates on the plane of the points of it that are nearest to the draws [S, D]: [S, 2]."""
    return (draws - plane.origin) @ plane.axes.T


def around(points: np.ndarray, num_points: int, margin: float = 0.15) -> tuple[np.ndarray, np.ndarray]:
    """Return the axes of a grid around points [S, 2]: two arrays [G]."""
    low, high = points.min(0), points.max(0)
    low, high = low - margin * (high - low), high + margin * (high - low)
    return np.linspace(low[0], high[0], num_points), np.linspace(low[1], high[1], num_points)


def loss_surface(
    weights: Potential, plane: Plane, x: np.ndarray, y: np.ndarray, features: Any, labels: Any, prior_stddev: float
) -> Surface:
    """Return the negative log posterior in its two parts, at every point of a grid [G] x [G] of the plane."""
    points = np.stack(np.meshgrid(x, y), -1).reshape(-1, 2).astype(np.float32)
    features, labels = tf.convert_to_tensor(features, tf.float32), tf.convert_to_tensor(labels)
    origin, axes = tf.constant(plane.origin), tf.constant(plane.axes)

    @tf.function
    def losses(points: tf.Tensor) -> tf.Tensor:
        return tf.map_fn(lambda c: loss(weights, origin + tf.linalg.matvec(axes, c, True), features, labels), points)

    found = losses(tf.constant(points)).numpy().reshape(len(y), len(x), 2)
    return Surface(x, y, found[..., 0], found[..., 1] / (2 * prior_stddev**2))


def loss(weights: Potential, flat: tf.Tensor, features: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return -log p(labels | w) in nats, and ||w||^2, of weights [D]: [2]."""
    nll = tf.reduce_sum(weights.each(flat, features, labels))
    return tf.stack([nll, tf.reduce_sum(tf.square(flat))])


@tf.function
def losses_of(weights: Potential, rows: tf.Tensor, features: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return `loss` of each of the weights [S, D]: [S, 2]."""
    return tf.map_fn(lambda flat: loss(weights, flat, features, labels), rows)


@tf.function
def probabilities_of(weights: Potential, rows: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
    """Return the predictions [S, N, C] of each of the weights [S, D]."""
    return tf.map_fn(lambda flat: tf.nn.softmax(weights.outputs(flat, features)), rows)
