"""The sums that a client sends, which add up to those of all rows in one place."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfp_bfl.glm.families import Family, Terms
from tfp_bfl.glm.rows import Rows

# Of outcomes whose variance is not tested, and of a row whose mean is next to 0.
NO_PEARSON = np.zeros(2)
_MOST_PEARSON = 1e12


class Sums(NamedTuple):
    """Sums over rows at coefficients b. They add up, leaf by leaf, over clients.

        log_likelihood = sum_i log p(y_i | x_i' b),   gradient = its first, -information its second derivative by b

    Fields:
      num_rows: the number of rows.
      num_events: the number of events, such as deaths.
      log_likelihood: a number.
      gradient: [p].
      information: [p, p].
      pearson: of counts, Pearson's statistic sum_i (y_i - mu_i)^2 / mu_i and sum_i 1 / mu_i, which its variance needs;
        0 of other outcomes [2].
    """

    num_rows: float
    num_events: float
    log_likelihood: float
    gradient: np.ndarray
    information: np.ndarray
    pearson: np.ndarray = NO_PEARSON

    def add(self, other: Sums, sign: float = 1.0) -> Sums:
        """Return the sums of both clients, or without the other client for sign = -1."""
        return Sums(
            self.num_rows + sign * other.num_rows,
            self.num_events + sign * other.num_events,
            self.log_likelihood + sign * other.log_likelihood,
            self.gradient + sign * other.gradient,
            self.information + sign * other.information,
            self.pearson + sign * other.pearson,
        )

    @staticmethod
    def length(size: int) -> int:
        """Return the number of sums for `size` coefficients."""
        return 5 + size + size**2

    @classmethod
    def unpack(cls, numbers: np.ndarray, size: int) -> Sums:
        """Return the sums for `size` coefficients of an array of `pack`."""
        shapes = [(), (), (), (size,), (size, size), (2,)]
        rows, events, value, gradient, information, pearson = unpack(numbers, shapes)
        return cls(float(rows), float(events), float(value), gradient, information, pearson)


def pack(*leaves: float | np.ndarray) -> np.ndarray:
    """Return all numbers of some arrays in one array [n]."""
    return np.concatenate([np.ravel(leaf) for leaf in leaves])


def unpack(numbers: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """Return arrays of these shapes of the array that `pack` returned for them."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(np.split(numbers, ends[:-1]), shapes)]


def total(parts: Sequence[Sums]) -> Sums:
    """Return the sums of all clients."""
    return functools.reduce(Sums.add, parts)


def client_sums(rows: Rows, coefficients: np.ndarray, family: Family) -> Sums:
    """Return the sums of one client at coefficients b [p], with a dispersion of 1."""
    terms = family.terms(rows.design @ coefficients + rows.offset, rows.outcome)
    return Sums(
        float(len(rows.outcome)),
        float(family.events(rows.outcome)),
        float(np.sum(terms.log_likelihood)),
        rows.design.T @ terms.score,
        (rows.design.T * terms.weight) @ rows.design,
        _pearson(terms) if family.is_count else NO_PEARSON,
    )


def _pearson(terms: Terms) -> np.ndarray:
    """Return the sums of a client for Pearson's statistic: the variance of a count is its mean, the weight [2]."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        of_rows = np.stack([terms.score**2 / terms.weight, 1 / terms.weight])
    total: np.ndarray = np.sum(np.minimum(np.nan_to_num(of_rows, nan=_MOST_PEARSON), _MOST_PEARSON), 1)
    return total


def first_sums(rows: Rows, family: Family) -> Sums:
    """Return the sums of the first step: those of least squares of working outcomes, as if b were 0.

    With eta the link of each outcome (drawn a little towards the middle), z = eta - offset + score / weight:
    information = sum w x x',   gradient = sum w z x. Their solution is near the maximum whatever the units are.
    """
    eta = family.start(rows.outcome)
    terms = family.terms(eta, rows.outcome)
    working = eta - rows.offset + terms.score / terms.weight
    return Sums(
        float(len(rows.outcome)),
        float(family.events(rows.outcome)),
        float(np.sum(terms.log_likelihood)),
        rows.design.T @ (terms.weight * working),
        (rows.design.T * terms.weight) @ rows.design,
    )
