"""Differential privacy: its settings by client, and what rounds reveal of a client, or steps of an example."""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from tfp_bfl.errors import InvalidArgument, MissingDependency, check_count, check_number, shown


class Privacy(NamedTuple):
    """That the model after any number of rounds says little of any one client, by clipping and noise (`rules.private`).

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
    variance_clip_norm: Optional[float] = None

    def epsilon(self, num_clients: int, rounds: int) -> Optional[float]:
        """`epsilon` of so many rounds among so many clients."""
        return epsilon(self.noise_multiplier, num_clients, self.cohort_size, rounds, self.delta)

    def checked(self) -> Privacy:
        """Itself.

        Raises:
          InvalidArgument: a number outside its range.
        """
        check_number(self.clip_norm, "clip_norm")
        if self.variance_clip_norm is not None:
            check_number(self.variance_clip_norm, "variance_clip_norm")
        check_number(self.noise_multiplier, "noise_multiplier", zero=True)
        check_count(self.cohort_size, "cohort_size")
        if not 0 < check_number(self.delta, "delta") < 1:
            raise InvalidArgument(f"delta is {shown(self.delta)}, but must be above 0 and below 1.")
        return self


def epsilon(
    noise_multiplier: float, num_clients: int, cohort_size: int, rounds: int, delta: float = 1e-5
) -> Optional[float]:
    """The epsilon of rounds of `rules.private`: what they tell of whether any one client is among all of them.

    P(model | with the client) <= exp(epsilon) P(model | without) + delta, and the reverse, of any set of models

    Args:
      noise_multiplier: s.
      num_clients: N, of whom each is in a round with probability cohort_size / N, for itself.
      cohort_size: clients a round in expectation; N for all of them always, who are not hidden by being drawn.
      rounds: how many in all.
      delta: as above.

    Returns:
      Its upper bound by Renyi divergences; None without noise, where there is none.

    Raises:
      InvalidArgument: numbers outside their ranges.
      MissingDependency: the package dp-accounting is not installed.

    Source: Mironov et al. 2019 (arXiv:1908.10530), as dp_accounting computes it.
    """
    settings = Privacy(1.0, noise_multiplier, cohort_size, delta).checked()
    check_count(rounds, "rounds", least=0)
    if cohort_size > check_count(num_clients, "num_clients"):
        raise InvalidArgument(f"cohort_size is {cohort_size}, but must be at most num_clients, {num_clients}.")
    if not noise_multiplier:
        return None
    return _divergences((Steps(settings.noise_multiplier, cohort_size / num_clients, rounds),), delta)


class Steps(NamedTuple):
    """Sums of clipped terms that were told, with noise.

    Fields:
      noise_multiplier: s, the noise's standard deviation over the clip.
      share: the probability that a term is in a sum.
      number: of sums.
    """

    noise_multiplier: float
    share: float
    number: int


def example_steps(noise_multiplier: float, num_examples: int, batch_size: int, epochs: int) -> Steps:
    """What a client tells by training with `clients.ExamplePrivacy`: ceil(N / B) sums in each pass over N examples.

    Args:
      noise_multiplier: s.
      num_examples: N.
      batch_size: B, expected; more than N count as N.
      epochs: passes in all rounds together.
    """
    share = min(1.0, batch_size / num_examples)
    return Steps(noise_multiplier, share, epochs * -(-num_examples // batch_size))


def composed_epsilon(told: Sequence[Steps], delta: float = 1e-5) -> Optional[float]:
    """The epsilon of all these sums together, as `epsilon` has it; None where some have no noise.

    Raises:
      MissingDependency: the package dp-accounting is not installed.
    """
    if any(not steps.noise_multiplier for steps in told):
        return None
    return _divergences(tuple(told), delta)


@functools.lru_cache(maxsize=1024)
def _divergences(told: tuple[Steps, ...], delta: float) -> float:
    accounting = _accountant()
    accountant, some = accounting.rdp.RdpAccountant(), False
    for noise_multiplier, share, number in told:
        one = accounting.GaussianDpEvent(noise_multiplier)
        if number:
            some = True
            accountant.compose(one if share == 1 else accounting.PoissonSampledDpEvent(share, one), number)
    return float(accountant.get_epsilon(delta)) if some else 0.0


def _accountant() -> types.ModuleType:
    """The package dp_accounting.

    Raises:
      MissingDependency: it is not installed.
    """
    try:
        import dp_accounting
    except ImportError:
        raise MissingDependency(
            "Differential privacy is accounted for by the package dp-accounting, which is not installed: install with: "
            "pip install 'tfp_bfl[privacy]'"
        ) from None
    return dp_accounting


def everyone_clipped_warning(privacy: Privacy, rows: Sequence[Mapping[str, Any]]) -> Optional[str]:
    """What to tell whose clip_norm cuts every client of every round; None where it does not."""
    if not all(row["clipped_clients"] == row["num_clients"] for row in rows):
        return None
    return (
        f"Every client of every round was clipped to clip_norm {privacy.clip_norm:g}: a larger one loses less of what "
        "clients learn, but its noise is larger by as much."
    )


def taking_part_warning(privacy: Privacy, num_clients: int) -> Optional[str]:
    """What to tell who would hide clients that always take part; None where they are drawn."""
    if privacy.cohort_size < num_clients:
        return None
    return (
        f"All {num_clients} clients take part in every round, so that being drawn hides none of them: differential "
        "privacy by client is for many clients of whom few take part at a time."
    )
