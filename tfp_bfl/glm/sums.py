"""The sums that a client sends, which add up to those of all rows in one place."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple, Union

import numpy as np

from tfp_bfl.glm.families import Family
from tfp_bfl.glm.rows import Rows


class Sums(NamedTuple):
    """Sums over rows at coefficients b. They add up, leaf by leaf, over clients.

        log_likelihood = sum_i log p(y_i | x_i' b),   gradient = its first, -information its second derivative by b

    Fields:
      num_rows: the number of rows.
      num_events: the number of events, such as deaths.
      log_likelihood: a number.
      gradient: [p].
      information: [p, p].
    """

    num_rows: float
    num_events: float
    log_likelihood: float
    gradient: np.ndarray
    information: np.ndarray

    def add(self, other: Sums, sign: float = 1.0) -> Sums:
        """Return the sums of both clients, or without the other client for sign = -1."""
        return Sums(
            self.num_rows + sign * other.num_rows,
            self.num_events + sign * other.num_events,
            self.log_likelihood + sign * other.log_likelihood,
            self.gradient + sign * other.gradient,
            self.information + sign * other.information,
        )

    @classmethod
    def unpack(cls, numbers: np.ndarray, size: int) -> Sums:
        """Return the sums for `size` coefficients of an array of `pack`."""
        rows, events, value, gradient, information = unpack(numbers, [(), (), (), (size,), (size, size)])
        return cls(float(rows), float(events), float(value), gradient, information)


def pack(*leaves: Union[float, np.ndarray]) -> np.ndarray:
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
    )


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
