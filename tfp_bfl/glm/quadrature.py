"""Nodes and weights of sums that replace expectations over normal variables."""

import functools
import itertools
from typing import Any, TypeVar

import numpy as np
from scipy import special

MOST_DIMENSIONS = 27
_MOST_OF_PRODUCT = 3
# Along each dimension of linear predictors; with more dimensions there is one rule alone.
_NODES = {1: 40, 2: 20, 3: 11}
# Of Cholesky's factor: relative, and of a variance of 0.
_JITTER, _LEAST = 1e-13, 1e-200
Array = TypeVar("Array", np.ndarray, Any)


@functools.cache
def grid(dimensions: int, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes [Q, D] of N(0, I), and logarithms of their weights [Q].

    The product of Gauss-Hermite rules with `nodes` in each of up to three dimensions; `composite` for more.
    """
    if dimensions > _MOST_OF_PRODUCT:
        return composite(dimensions)
    points, weights = special.roots_hermitenorm(nodes)
    logs = np.log(weights / np.sum(weights))
    places = list(itertools.product(range(nodes), repeat=dimensions))
    return points[np.array(places)], np.array([np.sum(logs[list(place)]) for place in places])


def predictive_grid(dimensions: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes of N(0, I) and their weights, for predictions, [Q, D] and [Q]."""
    points, logs = grid(dimensions, _NODES.get(dimensions, 0))
    return points, np.exp(logs)


def regular(covariance: Array) -> Array:
    """Return covariances [n, q, q] of NumPy or TensorFlow that have Cholesky's factor: given ones may be singular."""
    return covariance * (1 + _JITTER * np.eye(covariance.shape[-1])) + _LEAST * np.eye(covariance.shape[-1])


def composite(dimensions: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and logarithms of positive weights, exact for polynomials of degree 5 in D >= 4 dimensions.

    A central composite design: N corners of the cube, a fraction of resolution V, and two points on each axis. With
    t = (D - 2) / (D + 2) the corners are at 1 / sqrt(t) with weights t^2 / N, the others at sqrt(2 / (1 - t)) with
    weights (1 - t)^2 / 4.

    Source: Rue, Martino & Chopin 2009, section 6.5; Sanchez & Sanchez 2005 for the fractions.
    """
    chosen: list[int] = []
    number = 0
    while len(chosen) < dimensions:  # The product of no four columns or fewer is 1.
        number += 1
        sums = {0, *chosen, *(a ^ b ^ c for a, b, c in itertools.combinations([0, *chosen], 3))}
        chosen += [] if number in sums else [number]
    rows = np.arange(1 << number.bit_length())
    bits = (rows[:, np.newaxis, np.newaxis] & np.array(chosen)[:, np.newaxis]) >> np.arange(number.bit_length()) & 1
    corners = 1.0 - 2 * (np.sum(bits, 2) % 2)
    t = (dimensions - 2) / (dimensions + 2)
    axes = np.sqrt(2 / (1 - t)) * np.eye(dimensions)
    weights = np.repeat([t**2 / len(rows), (1 - t) ** 2 / 4], [len(rows), 2 * dimensions])
    return np.concatenate([corners / np.sqrt(t), axes, -axes]), np.log(weights)
