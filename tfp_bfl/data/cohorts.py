"""The clients that take part in a round, as sorted indices, int64."""

import functools

import numpy as np

from tfp_bfl.data.partitions import check_alpha, generator
from tfp_bfl.errors import InvalidArgument, check_count, check_share


def cohort(
    num_clients: int,
    cohort_size: int | None,
    round_number: int,
    seed: int,
    attempt: int = 0,
    popularity: float | None = None,
) -> np.ndarray:
    """Draw one round's clients without replacement, uniformly (McMahan et al. 2017, algorithm 1) or by popularity.

        S_t ~ Uniform({S subset of {0..K-1} : |S| = cohort_size}),  a function of (seed, t, attempt) alone

    With `popularity` clients are drawn one after another with probabilities p ~ Dir(popularity 1_K), a function of the
    seed alone, renormalised over the remaining clients (Johansson & Gullbrandson 2022). In both cases, a
    resumed run has the same clients in the same rounds as an uninterrupted one.

    Args:
      num_clients: K.
      cohort_size: clients per round; None or K takes all of them.
      round_number: t; `tfp_bfl.simulate` counts from 1.
      seed: of the run.
      attempt: of the round, from 0: a round that failed is tried again with other clients.
      popularity: concentration of the clients' probabilities, the smaller the more uneven; None for equal ones.

    Example:
      >>> bfl.data.cohort(num_clients=100, cohort_size=5, round_number=0, seed=0)
      array([ 2,  5, 37, 61, 71])
    """
    cohort_size = check_cohort_size(num_clients, cohort_size)
    if popularity is not None:
        check_alpha(popularity, "popularity")
    round_number = check_count(round_number, "round_number", least=0)
    if cohort_size == num_clients:
        return np.arange(num_clients, dtype=np.int64)
    rng = generator(seed, "cohort", round_number, *([attempt] if attempt else []))
    shares = None if popularity is None else _popularity(num_clients, float(popularity), seed)
    return np.sort(rng.choice(num_clients, size=cohort_size, replace=False, p=shares)).astype(np.int64)


@functools.lru_cache(maxsize=2)
def _popularity(num_clients: int, popularity: float, seed: int) -> np.ndarray:
    """Draw the probabilities of the clients, float64 [K], the same in every round."""
    # No share is zero, so that there are always enough to draw.
    shares = generator(seed, "popularity").dirichlet(np.full(num_clients, popularity)) + 1e-12
    return shares / shares.sum()


def each_drawn(num_clients: int, expected: int, round_number: int, seed: int) -> np.ndarray:
    """Return the clients of a round, each drawn for itself with probability expected / K.

    A function of (seed, round_number, client) alone; `expected` is their mean number, K for all of them.
    """
    share = check_cohort_size(num_clients, expected) / num_clients
    return np.flatnonzero(generator(seed, "each", round_number).random(num_clients) < share)


def check_cohort_size(num_clients: int, cohort_size: int | None) -> int:
    """Return the number of clients a round, which is K for None, without a draw."""
    num_clients = check_count(num_clients, "num_clients")
    if cohort_size is None:
        return num_clients
    cohort_size = check_count(cohort_size, "cohort_size")
    if cohort_size > num_clients:
        raise InvalidArgument(
            f"cohort_size is {cohort_size}, but must be at most the number of clients, {num_clients}."
        )
    return cohort_size


def answering(chosen: np.ndarray, dropout: float, round_number: int, seed: int, attempt: int = 0) -> np.ndarray:
    """Return the clients of a cohort that answer: each stays away with probability `dropout`, for itself.

    A function of (seed, round_number, attempt, client) alone.

    Example:
      >>> bfl.data.answering(np.arange(10), dropout=0.3, round_number=0, seed=0)
      array([2, 7, 8])
    """
    check_share(dropout, "dropout", zero=True)
    rng = generator(seed, "dropout", round_number, *([attempt] if attempt else []))
    return chosen[rng.random(1 + max(chosen, default=0))[chosen] >= dropout]  # The k-th draw is client k's.
