"""Theoretical bounds of the mean size of a quantised vector, in bits."""

from __future__ import annotations

import math

from tfp_bfl.errors import check_count

NORM_BITS = 32


def elias_bound(num_values: int, levels: int) -> float:
    """Return the expected bits of a quantised vector in Elias' codes, with 32 bits of its norm.

    Of d values and s levels, t = s (s + sqrt(d)), logarithms to base 2, terms o(1) left out:

    sparse, s^2 + sqrt(d) <= d / 2:  (3 + 3 / 2 log(2 (s^2 + d) / t)) t + 32
    dense:                           (1 / 2 (log(1 + (s^2 + min(d, s sqrt(d))) / d) + 1) + 2) d + 32

    It is no bound on what a coder makes of one message: coordinate by coordinate Elias' own codes are above it for few
    levels and for many.

    Source: Alistarh et al. 2017 (arXiv:1610.02132), theorem 3.2 and lemma A.2.

    Raises:
      InvalidArgument: a count below 1.
    """
    d, s = check_count(num_values, "num_values"), check_count(levels, "levels")
    root = math.sqrt(d)
    if s * s + root <= d / 2:
        t = s * (s + root)
        return (3 + 1.5 * math.log2(2 * (s * s + d) / t)) * t + NORM_BITS
    return (0.5 * (math.log2(1 + (s * s + min(d, s * root)) / d) + 1) + 2) * d + NORM_BITS
