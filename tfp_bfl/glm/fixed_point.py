"""Sums in fixed point, as secure aggregation adds them: integers of 144 bits, in three parts for the masks of int64.

    q = round(x 2^60),   q = q_0 + q_1 2^48 + q_2 2^96  modulo 2^144,   0 <= q_i < 2^48

The parts of up to 2^15 clients add up modulo 2^64 without overflow, and masks modulo 2^64 cancel in their sum. The
error of a sum is at most 2^-61 (4e-19) for each client, whatever the units of the columns: no scale is agreed on.
Sums of squares must then be at least K 2^-61 / 1e-6, for K clients, to be right to 1e-6 (`checks.check_resolution`).
"""

from __future__ import annotations

import numpy as np

RESOLUTION = 2.0**-60
MOST_CLIENTS = 2**15
PARTS = 3
POINT, PART_BITS = 60, 48
_MODULUS = 1 << (PART_BITS * PARTS)
# Of one client: the sum of all clients then stays within half of the modulus.
BOUND = 2.0 ** (PART_BITS * PARTS - 1 - POINT) / (2 * MOST_CLIENTS)


def encode(values: np.ndarray) -> np.ndarray:
    """Return numbers in fixed point, with the count of those that are too large as the last one [n + 1, 3], int64.

    Args:
      values: [n]. Numbers beyond 2^67 in size, or not finite, count as 0.
    """
    fits = np.abs(values) < BOUND
    every = np.append(np.where(fits, values, 0.0), np.sum(~fits))
    whole = [int(x) % _MODULUS for x in np.rint(np.ldexp(every, POINT))]
    mask = (1 << PART_BITS) - 1
    return np.array([[(q >> (PART_BITS * i)) & mask for i in range(PARTS)] for q in whole], np.int64)


def decode(total: np.ndarray) -> np.ndarray:
    """Return the numbers of a sum of encoded ones [n]; NaN in all of them where a client had one that was too large.

    Args:
      total: [n + 1, 3], int64, modulo 2^64.
    """
    numbers = []
    for parts in total.astype(np.uint64).tolist():
        q = sum(part << (PART_BITS * i) for i, part in enumerate(parts)) % _MODULUS
        numbers.append((q - _MODULUS if q >= _MODULUS // 2 else q) / (1 << POINT))
    *values, too_large = numbers
    return np.full(len(values), np.nan) if too_large else np.array(values, np.float64)
