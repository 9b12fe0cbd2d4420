"""The requests of a server to its sites, and the channel that carries them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, Union

DESCRIBE, BEGIN, ROUND, SCORE = TASKS = ("describe", "begin", "round", "score")
# A party's refusal that is of no file: it was started anew since the run began, or did not hear of it in time.
NO_RUN = "It takes part in no run."
MOST_BYTES = 2**32


class Refusal(str):
    """The reason why a site refuses a request."""


Reply = Union[bytes, Refusal]


class Channel(Protocol):
    """Reaches sites by name."""

    @property
    def names(self) -> Sequence[str]:
        """The names of reachable sites."""

    def ask(self, task: str, what: Mapping[str, bytes]) -> Iterator[tuple[str, Reply]]:
        """Return the replies of sites, each by its authenticated name, as they come, until all have or time is up."""
