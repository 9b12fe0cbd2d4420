"""Requests of a server to its sites, and the channel that carries them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from tfp_bfl.data.columns import BadColumns
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.sites.arrays import NO_ANSWER

T = TypeVar("T")

DESCRIBE, BEGIN, ROUND, SCORE = ("describe", "begin", "round", "score")
# Of linear models: messages in JSON, and questions for sums.
TALK, SUMS = ("linear model", "sums")
TASKS = (DESCRIBE, BEGIN, ROUND, SCORE, TALK, SUMS)
# The refusal of a site that does not know the run: it was restarted, or its job did not arrive in time.
NO_RUN = "It takes part in no run."
MOST_BYTES = 2**32
# Seconds between two questions of an idle site for work: a share of the time since the last message, within bounds.
SHORTEST_WAIT, LONGEST_WAIT, SHARE_WAITED = 0.1, 2.0, 0.02


class Withheld(InvalidArgument):
    """A refusal of a site whose reason quotes its data: the server gets the message without them.

    Attributes:
      at_site: the whole reason, for the site's log alone.
    """

    def __init__(self, message: str, at_site: str):
        super().__init__(message)
        self.at_site = at_site


@contextlib.contextmanager
def withholding(what: str) -> Iterator[None]:
    """Raise `Withheld` for what is wrong with the data of a site within the context.

    Args:
      what: the data, for the server.
    """
    try:
        yield
    except Withheld:
        raise
    except InvalidArgument as error:
        why = error.without_cells if isinstance(error, BadColumns) else "The log of the site states why."
        raise Withheld(f"Its {what} can't be used as it is. {why}", str(error)) from None


class Answer(bytes):
    """The answer of a site.

    Attributes:
      seconds: that the site computed, as it reports.
    """

    seconds: float = 0.0


class Refusal(str):
    """The reason why a site refuses a request."""


Reply = bytes | Refusal


class Channel(Protocol):
    """Channel to the sites, by their names."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the reachable sites."""

    def ask(self, task: str, what: Mapping[str, bytes]) -> Iterator[tuple[str, Reply]]:
        """Yield (authenticated name, reply) of each site in order of arrival, until the last reply or the deadline."""


def collect(
    channel: Channel, task: str, what: Mapping[str, bytes], read: Callable[[str, bytes], T]
) -> tuple[dict[str, T], dict[str, str]]:
    """Ask sites, and return what their answers hold, by their names in order, and the reasons of sites without one.

    Args:
      channel: to the sites.
      task: one of `TASKS`.
      what: site -> its message.
      read: (site, answer) -> its content; raises `InvalidArgument` for an answer that can't be used.
    """
    found, reasons = {}, dict.fromkeys(what, NO_ANSWER)
    for site, reply in channel.ask(task, what):
        try:
            if isinstance(reply, Refusal):
                raise InvalidArgument(reply)
            found[site] = read(site, reply)
            reasons.pop(site, None)
        except InvalidArgument as error:
            reasons[site] = str(error)
    return {site: found[site] for site in sorted(found)}, reasons


def read_json(reply: bytes, reason: str = "its answer is not JSON") -> Any:
    """Return an answer in JSON.

    Raises:
      InvalidArgument: it is not JSON.
    """
    try:
        return json.loads(reply)
    except (ValueError, RecursionError):
        raise InvalidArgument(reason) from None
