"""Which clients take part in a round."""

from __future__ import annotations

import numpy as np

from tfp_bfl.data._random import generator
from tfp_bfl.errors import InvalidArgument, check_count


def cohort(num_clients: int, cohort_size: int | None, round_number: int, seed: int) -> np.ndarray:
    """Draws the clients of one round uniformly, without replacement (McMahan et al. 2017, algorithm 1).

        S_t ~ Uniform({S subset of {0..K-1} : |S| = cohort_size}),  a function of (seed, t) alone

    so that a resumed run sees the same clients in the same rounds as one that was never stopped.

    Args:
      num_clients: K.
      cohort_size: clients per round; None or K takes all of them.
      round_number: t; `tfp_bfl.simulate` counts from 1.
      seed: of the run.

    Returns:
      Sorted client indices, int64 [cohort_size].

    Raises:
      InvalidArgument: `cohort_size` is below 1 or above `num_clients`, or another argument is negative.
    """
    cohort_size = check_cohort_size(num_clients, cohort_size)
    round_number = check_count(round_number, "round_number", least=0)
    rng = generator(seed, "cohort", round_number)
    if cohort_size == num_clients:
        return np.arange(num_clients, dtype=np.int64)
    return np.sort(rng.choice(num_clients, size=cohort_size, replace=False)).astype(np.int64)


def check_cohort_size(num_clients: int, cohort_size: int | None) -> int:
    """Returns the number of clients a round, which is K for None, and draws none.

    Raises:
      InvalidArgument: one is below 1, or `cohort_size` is above `num_clients`.
    """
    num_clients = check_count(num_clients, "num_clients")
    if cohort_size is None:
        return num_clients
    cohort_size = check_count(cohort_size, "cohort_size")
    if cohort_size > num_clients:
        raise InvalidArgument(
            f"cohort_size is {cohort_size}, but must be at most the number of clients, {num_clients}."
        )
    return cohort_size
