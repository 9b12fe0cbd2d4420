"""Differential privacy: its settings by client, and what rounds reveal of a client, or steps of an example."""

from __future__ import annotations

import collections
import functools
import math
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tfp_bfl.errors import (
    InvalidArgument,
    MissingDependency,
    check_count,
    check_delta,
    check_noise,
    check_number,
    shown,
)

# Privacy loss distributions are computed up to this size of the loss and this number of sums; beyond them Renyi
# divergences are.
_MOST_STDDEVS, _MOST_SUMS = 50.0, 10**6


class Privacy(NamedTuple):
    """Client-level differential privacy of the model, by clipping and noise (`rules.private`).

    Fields:
      clip_norm: C, the furthest that a client moves the sum of means, in the anchor's standard deviations.
      noise_multiplier: s, the noise's standard deviation over C.
      cohort_size: how many clients a round has in expectation: each is drawn for itself.
      delta: of (epsilon, delta); clearly below one over the number of clients.
      variance_clip_norm: V, the same of variances; None for a twentieth of C.
    """

    clip_norm: float
    noise_multiplier: float
    cohort_size: int
    delta: float = 1e-5
    variance_clip_norm: float | None = None

    def epsilon(self, num_clients: int, rounds: int) -> float | None:
        """Return `epsilon` of so many rounds among so many clients."""
        return epsilon(self.noise_multiplier, num_clients, self.cohort_size, rounds, self.delta)

    def checked(self) -> Privacy:
        """Check the values and return this object.

        Raises:
          InvalidArgument: a number outside its range.
        """
        check_number(self.clip_norm, "clip_norm")
        if self.variance_clip_norm is not None:
            check_number(self.variance_clip_norm, "variance_clip_norm")
        check_noise(self.noise_multiplier)
        check_count(self.cohort_size, "cohort_size")
        check_delta(self.delta)
        return self


def epsilon(
    noise_multiplier: float, num_clients: int, cohort_size: int, rounds: int, delta: float = 1e-5
) -> float | None:
    """Return the epsilon of rounds of `rules.private`: the bound on what they reveal of one client's participation.

    P(model | with the client) <= exp(epsilon) P(model | without) + delta, and the reverse, of any set of models

    Args:
      noise_multiplier: s.
      num_clients: N, of whom each is in a round with probability cohort_size / N, for itself.
      cohort_size: clients a round in expectation; N for all clients in every round, without amplification by sampling.
      rounds: how many in all.
      delta: as above.

    Returns:
      Its upper bound by privacy loss distributions; None without noise, where there is none.

    Raises:
      InvalidArgument: numbers outside their ranges.
      MissingDependency: the package dp-accounting is not installed.

    Source: Koskela et al. 2020 (arXiv:1906.03049) and Doroshenko et al. 2022 (arXiv:2207.04380), as dp_accounting
    computes it.
    """
    settings = Privacy(1.0, noise_multiplier, cohort_size, delta).checked()
    check_count(rounds, "rounds", least=0)
    if cohort_size > check_count(num_clients, "num_clients"):
        raise InvalidArgument(f"cohort_size is {cohort_size}, but must be at most num_clients, {num_clients}.")
    if not noise_multiplier:
        return None
    return _account((Steps(settings.noise_multiplier, cohort_size / num_clients, int(rounds)),), float(delta))


class Steps(NamedTuple):
    """Released sums of clipped terms, with noise.

    Fields:
      noise_multiplier: s, the noise's standard deviation over the clip.
      share: the probability that a term is in a sum.
      number: of sums.
    """

    noise_multiplier: float
    share: float
    number: int


def example_steps(noise_multiplier: float, num_examples: int, batch_size: int, epochs: int) -> Steps:
    """Return the sums of a client that trains with `training.ExamplePrivacy`: ceil(N / B) in each pass over N examples.

    Args:
      noise_multiplier: s.
      num_examples: N.
      batch_size: B, expected; more than N count as N.
      epochs: passes in all rounds together.

    Raises:
      InvalidArgument: a number outside its range.
    """
    num_examples, batch_size = check_count(num_examples, "num_examples"), check_count(batch_size, "batch_size")
    share = min(1.0, batch_size / num_examples)
    return Steps(noise_multiplier, share, check_count(epochs, "epochs", least=0) * -(-num_examples // batch_size))


def largest_example_epsilon(
    noise_multiplier: float, sizes: Iterable[int], batch_size: int, epochs: int, delta: float = 1e-5
) -> float | None:
    """Return the largest `composed_epsilon` of `example_steps` over clients with these numbers of examples.

    The largest is not that of the smallest client: one with B + 1 examples takes twice as many steps as one with B.

    Args:
      noise_multiplier, batch_size, epochs: of `example_steps`.
      sizes: of the clients.
      delta: as of `epsilon`.

    Returns:
      Epsilon; None without noise.
    """
    steps = {example_steps(noise_multiplier, int(size), batch_size, epochs) for size in sizes}
    # Of as many sums, those with the largest share reveal most.
    worst = {one.number: one for one in sorted(steps, key=lambda one: one.share)}
    found = [composed_epsilon([one], delta) for one in worst.values()]
    return None if None in found else max((x for x in found if x is not None), default=0.0)


def composed_epsilon(mechanisms: Sequence[Steps], delta: float = 1e-5) -> float | None:
    """Return the epsilon of all these sums together, as `epsilon` has it; None where some have no noise.

    Raises:
      InvalidArgument: a number outside its range.
      MissingDependency: the package dp-accounting is not installed.
    """
    numbers: collections.Counter[tuple[float, float]] = collections.Counter()
    for noise_multiplier, share, number in mechanisms:
        if not 0 < check_number(share, "share") <= 1:
            raise InvalidArgument(f"share is {shown(share)}, but must be above 0 and at most 1.")
        numbers[check_noise(noise_multiplier), float(share)] += check_count(number, "number", least=0)
    if not all(noise for noise, _ in numbers):
        return None
    return _account(tuple(Steps(*key, number) for key, number in sorted(numbers.items())), check_delta(delta))


@functools.lru_cache(maxsize=1024)
def _account(mechanisms: tuple[Steps, ...], delta: float) -> float:
    _accountant()
    mechanisms = tuple(steps for steps in mechanisms if steps.number)
    if not mechanisms:
        return 0.0
    try:
        return _bound(mechanisms, delta)
    except ValueError:  # Rounding makes tiny losses negative, or out of order; those of larger shares bound them.
        return _bound(tuple(steps._replace(share=max(steps.share, 1e-3)) for steps in mechanisms), delta)


def _bound(mechanisms: tuple[Steps, ...], delta: float) -> float:
    accounting = _accountant()
    stddevs = math.sqrt(sum(number * _squared_shift(noise, share) for noise, share, number in mechanisms))
    if stddevs <= _MOST_STDDEVS and sum(steps.number for steps in mechanisms) <= _MOST_SUMS:
        # A grid of 10^4 to 10^5 points: any grid gives an upper bound.
        one = max(_largest_loss(noise, share) for noise, share, _ in mechanisms)
        grid = max(5e-4 * (stddevs**2 / 2 + 5 * stddevs), 5e-5 * one)
        return _composed(accounting.pld.PLDAccountant(value_discretization_interval=grid), mechanisms, delta)
    return _composed(accounting.rdp.RdpAccountant(), mechanisms, delta)


def _composed(accountant: Any, mechanisms: Sequence[Steps], delta: float) -> float:
    accounting = _accountant()
    for noise_multiplier, share, number in mechanisms:
        one = accounting.GaussianDpEvent(noise_multiplier)
        accountant.compose(one if share == 1 else accounting.PoissonSampledDpEvent(share, one), number)
    return float(accountant.get_epsilon(delta))


def _squared_shift(noise_multiplier: float, share: float) -> float:
    """Return about the squared shift of the mean, in standard deviations, of a Gaussian that reveals as much."""
    whole = noise_multiplier**-2
    return whole if share == 1 or whole > 50 else min(whole, share**2 * math.expm1(whole))


def _largest_loss(noise_multiplier: float, share: float) -> float:
    """Return the privacy loss of one sum at ten standard deviations of its noise."""
    exponent = (1 + 20 * noise_multiplier) / (2 * noise_multiplier**2)
    return math.log1p(share * math.expm1(min(exponent, 700.0)))


def _accountant() -> types.ModuleType:
    """Return the package dp_accounting.

    Raises:
      MissingDependency: it is not installed.
    """
    try:
        import dp_accounting
    except ImportError:
        raise MissingDependency(
            "Differential privacy is accounted for by the package dp-accounting, which is not installed; install with: "
            "pip install dp-accounting"
        ) from None
    return dp_accounting


def everyone_clipped_warning(privacy: Privacy, rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a warning if clipping was active for every client in every round, else None."""
    if not all(row["clipped_clients"] == row["num_clients"] for row in rows):
        return None
    return (
        f"Every client of every round was clipped to clip_norm {privacy.clip_norm:g}: a larger one loses less of what "
        "clients learn, but its noise is larger by as much."
    )


def taking_part_warning(privacy: Privacy, num_clients: int) -> str | None:
    """Return a warning if private clients take part in every round, else None."""
    if privacy.cohort_size < num_clients:
        return None
    return (
        f"All {num_clients} clients take part in every round, so that being drawn hides none of them: differential "
        "privacy by client is for many clients of whom few take part at a time."
    )
