"""What a server asks its parties, and by what it reaches them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, Union

DESCRIBE, BEGIN, ROUND, SCORE = TASKS = ("describe", "begin", "round", "score")
# A party's refusal that is of no file: it was started anew since the run began, or did not hear of it in time.
NO_RUN = "It takes part in no run."
MOST_BYTES = 2**32


class Refusal(str):
    """Why a party does not do what it is asked."""


Reply = Union[bytes, Refusal]


class Channel(Protocol):
    """Reaches parties by name."""

    @property
    def names(self) -> Sequence[str]:
        """Of those who can be reached."""

    def ask(self, task: str, what: Mapping[str, bytes]) -> Iterator[tuple[str, Reply]]:
        """The replies of parties, each by its authenticated name, as they come, until all have or time is up."""
