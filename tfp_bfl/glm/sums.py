"""The sums that a client sends, which add up to those of all rows in one place, and their form in fixed point.

Secure aggregation adds integers of 144 bits, in three parts for the masks of int64:

    q = round(x 2^60),   q = q_0 + q_1 2^48 + q_2 2^96  modulo 2^144,   0 <= q_i < 2^48

The parts of up to 2^15 clients add up modulo 2^64 without overflow, and masks modulo 2^64 cancel in their sum. The
error of a sum is at most 2^-61 (4e-19) for each client, whatever the units of the columns: no scale is agreed on.
Sums of squares must then be at least K 2^-61 / 1e-6, for K clients, to be right to 1e-6 (`checks.check_resolution`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfp_bfl.glm.families import Family, Terms
from tfp_bfl.glm.rows import Rows

# Of outcomes whose variance is not tested, and of a row whose mean is next to 0.
NO_PEARSON = np.zeros(2)
_MOST_PEARSON = 1e12

RESOLUTION = 2.0**-60
MOST_CLIENTS = 2**15
PARTS = 3
POINT, PART_BITS = 60, 48
_MODULUS = 1 << (PART_BITS * PARTS)
# Of one client: the sum of all clients then stays within half of the modulus.
BOUND = 2.0 ** (PART_BITS * PARTS - 1 - POINT) / (2 * MOST_CLIENTS)


class Sums(NamedTuple):
    """Sums over rows at coefficients b. They add up, leaf by leaf, over clients.

        log_likelihood = sum_i log p(y_i | x_i' b),   gradient = its first, -information its second derivative by b

    Fields:
      num_rows, num_events: the number of rows, and of events, such as deaths.
      log_likelihood, gradient, information: a number, [p] and [p, p].
      pearson: of counts, Pearson's statistic sum_i (y_i - mu_i)^2 / mu_i and sum_i 1 / mu_i, which its variance needs;
        of gamma outcomes, with the expected information, sum_i (y_i - mu_i)^2 / mu_i^2 and sum_i log y_i; 0 of other
        outcomes [2].
    """

    num_rows: float
    num_events: float
    log_likelihood: float
    gradient: np.ndarray
    information: np.ndarray
    pearson: np.ndarray = NO_PEARSON

    def add(self, other: Sums, sign: float = 1.0) -> Sums:
        """Add the sums of another client, or subtract them for sign = -1."""
        leaves: Iterable[tuple[Any, Any]] = zip(self, other)
        return Sums(*(mine + sign * theirs for mine, theirs in leaves))

    @staticmethod
    def length(size: int) -> int:
        """Return the number of sums for `size` coefficients."""
        return 5 + size + size**2

    @classmethod
    def unpack(cls, numbers: np.ndarray, size: int) -> Sums:
        """Return the sums for `size` coefficients of an array of `pack`."""
        counts, arrays = numbers[:3].tolist(), unpack(numbers[3:], [(size,), (size, size), (2,)])
        return cls(*counts, *arrays)


def pack(*leaves: float | np.ndarray) -> np.ndarray:
    """Return all numbers of some arrays in one array [n]."""
    return np.concatenate([np.ravel(leaf) for leaf in leaves])


def unpack(numbers: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """Return arrays of these shapes of the array that `pack` returned for them."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(np.split(numbers, ends[:-1]), shapes)]


def client_sums(rows: Rows, coefficients: np.ndarray, family: Family, expected: bool = False) -> Sums:
    """Compute the sums of one client at coefficients b [p], with a dispersion of 1, or with the expected information.

    With q predictors of a row, b has q coefficients of the first column, q of the second, and so on; further
    parameters come last.
    """
    terms = family.terms(predictors(rows, coefficients, family), rows.outcome)
    if expected and terms.expected is not None:
        terms = terms._replace(weight=terms.expected)
    pearson = _pearson(terms, rows.outcome, family.pearson) if family.pearson else NO_PEARSON
    return _sums(rows, family, terms, terms.score, pearson)


def row_scores(rows: Rows, coefficients: np.ndarray, family: Family) -> np.ndarray:
    """Compute the gradient of each row's log likelihood by the parameters [n, p], with a dispersion of 1."""
    terms = family.terms(predictors(rows, coefficients, family), rows.outcome)
    if family.further:
        return np.column_stack([rows.design * terms.score[:, :1], terms.score[:, 1:]])
    scores: np.ndarray = np.einsum("ij,ia->ija", rows.design, terms.score).reshape(len(rows.design), -1)
    return scores


def first_sums(rows: Rows, family: Family, size: int) -> Sums:
    """Compute the sums of the first step: those of least squares of working outcomes, as if b were 0.

    With eta the link of each outcome (drawn a little towards the middle), w z = w (eta - offset) + score:
    information = sum w x x',   gradient = sum w z x. Their solution is near the maximum whatever the units are. `size`
    is the number of parameters.
    """
    without = predictors(rows, np.zeros(size), family)
    eta = family.start(rows.outcome, without.shape[1])
    terms = (family.first or family.terms)(eta, rows.outcome)
    working = (terms.weight @ (eta - without)[..., np.newaxis])[..., 0] + terms.score
    return _sums(rows, family, terms, working, NO_PEARSON)


def predictors(rows: Rows, coefficients: np.ndarray, family: Family) -> np.ndarray:
    """Compute the linear predictors of the rows [n, q], with further parameters as the last ones."""
    if family.further:
        coefficients, further = np.split(coefficients, [rows.design.shape[1]])
        eta = rows.design @ coefficients + rows.offset
        return np.column_stack([eta, np.broadcast_to(further, (len(eta), len(further)))])
    return rows.design @ coefficients.reshape(rows.design.shape[1], -1) + rows.offset[:, np.newaxis]


def quadratic(left: np.ndarray, weight: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Compute sum_i left_i weight_i right_i' for each pair of predictors [p q, r q].

    `left` is [n, p], `weight` [n, q, q] and `right` [n, r].
    """
    q = weight.shape[-1]
    found = np.empty((left.shape[1], q, right.shape[1], q))
    for a, b in np.ndindex(q, q):
        found[:, a, :, b] = (left.T * weight[:, a, b]) @ right
    return found.reshape(left.shape[1] * q, right.shape[1] * q)


def _sums(rows: Rows, family: Family, terms: Terms, score: np.ndarray, pearson: np.ndarray) -> Sums:
    x, weight, count = rows.design, terms.weight, 1 if family.further else score.shape[1]
    gradient, information = np.ravel(x.T @ score[:, :count]), quadratic(x, weight[:, :count, :count], x)
    if family.further:
        across = x.T @ weight[:, 0, 1:]
        gradient = np.append(gradient, np.sum(score[:, 1:], 0))
        information = np.block([[information, across], [across.T, np.sum(weight[:, 1:, 1:], 0)]])
    return Sums(
        float(len(rows.outcome)),
        float(family.events(rows.outcome)),
        float(np.sum(terms.log_likelihood)),
        gradient,
        information,
        pearson,
    )


def _pearson(terms: Terms, outcome: np.ndarray, second: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """Compute Pearson's sums of a client: the variance of a count is its mean, the weight [2].

    Of gamma outcomes score and expected weight are those of log mu, by which the first sum has the same form.
    """
    weight = terms.weight[:, 0, 0]
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        of_rows = np.stack([terms.score[:, 0] ** 2 / weight, second(outcome, weight)])
    total: np.ndarray = np.sum(np.minimum(np.nan_to_num(of_rows, nan=_MOST_PEARSON), _MOST_PEARSON), 1)
    return total


def encode(values: np.ndarray) -> np.ndarray:
    """Return numbers [n] in fixed point, with the count of those that are too large as the last one [n + 1, 3], int64.

    Numbers beyond 2^67 in size, or not finite, count as 0.
    """
    fits = np.abs(values) < BOUND
    every = np.append(np.where(fits, values, 0.0), np.sum(~fits))
    whole = [int(x) % _MODULUS for x in np.rint(np.ldexp(every, POINT))]
    mask = (1 << PART_BITS) - 1
    return np.array([[(q >> (PART_BITS * i)) & mask for i in range(PARTS)] for q in whole], np.int64)


def decode(total: np.ndarray) -> np.ndarray:
    """Return the numbers [n] of a sum of encoded ones [n + 1, 3]; all are NaN where a client had one too large."""
    numbers = []
    for parts in total.astype(np.uint64).tolist():
        q = sum(part << (PART_BITS * i) for i, part in enumerate(parts)) % _MODULUS
        numbers.append((q - _MODULUS if q >= _MODULUS // 2 else q) / (1 << POINT))
    *values, too_large = numbers
    return np.full(len(values), np.nan) if too_large else np.array(values, np.float64)
