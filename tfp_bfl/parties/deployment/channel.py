"""Requests of a server to its sites, and the channel that carries them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, Union

DESCRIBE, BEGIN, ROUND, SCORE = ("describe", "begin", "round", "score")
# Of linear models: messages in JSON, and questions for sums.
TALK, SUMS = ("linear model", "sums")
TASKS = (DESCRIBE, BEGIN, ROUND, SCORE, TALK, SUMS)
# The refusal of a site that does not know the run: it was restarted, or its job did not arrive in time.
NO_RUN = "It takes part in no run."
MOST_BYTES = 2**32


class Refusal(str):
    """The reason why a site refuses a request."""


Reply = Union[bytes, Refusal]


class Channel(Protocol):
    """Channel to the sites, by their names."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the reachable sites."""

    def ask(self, task: str, what: Mapping[str, bytes]) -> Iterator[tuple[str, Reply]]:
        """Yield (authenticated name, reply) of each site in order of arrival, until the last reply or the deadline."""
