"""Requests of a server to its sites, the channel that carries them, and the count of messages and bytes."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from tfp_bfl.data.columns import BadColumns
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.sites.arrays import in_order

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
# Folder of the runs in the server's folder; file in the folder of a result with the error of a failed run; key of the
# server's lines about a run in FLARE's statistics.
RUNS, FAILURE, PROGRESS = "runs", "failure.txt", "progress"
TRAFFIC = "traffic"  # Key of the messages of each site in summary.json.


class Withheld(InvalidArgument):
    """A refusal of a site whose reason quotes its data: the server gets the message, the site's log `at_site`."""

    def __init__(self, message: str, at_site: str):
        super().__init__(message)
        self.at_site = at_site


@contextlib.contextmanager
def withholding(what: str) -> Iterator[None]:
    """Raise `Withheld` for an error in the data of a site; `what` names the data for the server."""
    try:
        yield
    except Withheld:
        raise
    except InvalidArgument as error:
        why = error.without_cells if isinstance(error, BadColumns) else "The log of the site states why."
        raise Withheld(f"Its {what} can't be used as it is. {why}", str(error)) from None


class Answer(bytes):
    """The answer of a site, with the seconds that the site computed, as it reports."""

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


class Counted:
    """A channel that counts the messages of each site since the server began or resumed the run, in `traffic`.

    site -> number of answers, bytes to and from the site, and its own seconds of computation, as it reports.
    """

    def __init__(self, channel: Channel):
        self._channel = channel
        self.traffic: dict[str, dict[str, Any]] = {}

    @property
    def names(self) -> Sequence[str]:
        """The names of the reachable sites."""
        return self._channel.names

    def ask(self, task: str, what: Mapping[str, bytes]) -> Iterator[tuple[str, Reply]]:
        """Implement `Channel.ask`."""
        for site, content in what.items():
            nothing = {"answers": 0, "sent_bytes": 0, "received_bytes": 0, "seconds": 0.0}
            self.traffic.setdefault(site, nothing)["sent_bytes"] += len(content)
        for site, reply in self._channel.ask(task, what):
            own = self.traffic[site]
            if isinstance(reply, bytes):
                own["answers"] += 1
                own["received_bytes"] += len(reply)
                own["seconds"] = round(own["seconds"] + getattr(reply, "seconds", 0.0), 3)
            yield site, reply

    def lines(self) -> list[str]:
        """Describe the messages of each site in a sentence."""
        return [
            f"{site}: {own['answers']} answers, {own['sent_bytes'] / 1e3:,.0f} kB to it and "
            f"{own['received_bytes'] / 1e3:,.0f} kB from it, {own['seconds']:.1f} s of computation there"
            for site, own in sorted(self.traffic.items())
        ]


def collect(
    channel: Channel, task: str, what: Mapping[str, bytes], read: Callable[[str, bytes], T]
) -> tuple[dict[str, T], dict[str, str]]:
    """Ask sites, and return their answers, by name in order, and the reasons of those without (`arrays.in_order`)."""
    reasons: dict[str, str] = {}
    return dict(in_order(channel.ask(task, what), what, read, reasons)), reasons


def read_json(reply: bytes, reason: str = "its answer is not JSON") -> Any:
    """Parse an answer in JSON; `reason` is the refusal of other content."""
    try:
        return json.loads(reply)
    except (ValueError, RecursionError):
        raise InvalidArgument(reason) from None
