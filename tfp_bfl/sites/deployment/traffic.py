"""Messages, bytes and seconds of computation of each site of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfp_bfl.sites.deployment.channel import Answer, Channel, Reply

TRAFFIC = "traffic"


class Counted:
    """A channel that counts the messages of each site since the server began or resumed the run.

    Args:
      channel: to the sites.

    Attributes:
      traffic: site -> number of answers, bytes to and from the site, and its own seconds of computation, as it reports.
    """

    def __init__(self, channel: Channel):
        self._channel = channel
        self.traffic: dict[str, dict[str, Any]] = {}

    @property
    def names(self) -> Sequence[str]:
        """The names of the reachable sites."""
        return self._channel.names

    def ask(self, task: str, what: Mapping[str, bytes]) -> Iterator[tuple[str, Reply]]:
        """Implement `channel.Channel.ask`."""
        for site, content in what.items():
            self._of(site)["sent_bytes"] += len(content)
        for site, reply in self._channel.ask(task, what):
            own = self._of(site)
            if isinstance(reply, bytes):
                own["answers"] += 1
                own["received_bytes"] += len(reply)
                own["seconds"] = round(own["seconds"] + (reply.seconds if isinstance(reply, Answer) else 0.0), 3)
            yield site, reply

    def _of(self, site: str) -> dict[str, Any]:
        nothing = {"answers": 0, "sent_bytes": 0, "received_bytes": 0, "seconds": 0.0}
        return self.traffic.setdefault(site, nothing)

    def lines(self) -> list[str]:
        """Return a sentence for each site."""
        return [
            f"{site}: {own['answers']} answers, {own['sent_bytes'] / 1e3:,.0f} kB to it and "
            f"{own['received_bytes'] / 1e3:,.0f} kB from it, {own['seconds']:.1f} s of computation there"
            for site, own in sorted(self.traffic.items())
        ]
