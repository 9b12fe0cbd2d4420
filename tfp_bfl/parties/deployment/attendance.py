"""The sites of a run, the example counts that weight them, and the reasons of those that are left out."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Optional

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.errors import Error, InvalidArgument
from tfp_bfl.parties.arrays import NO_ANSWER
from tfp_bfl.parties.deployment.channel import BEGIN, DESCRIBE, Channel, Refusal

PARTIES = "parties.json"
_REFUSED, _SIZE = "refused", "num_examples"
# What one party tells that is so many times the others' median is told of.
_OUTSTANDING = 10


class Attendance:
    """The sites of a run, as its folder's `parties.json` keeps them.

    Attributes:
      reported: name of each numbered site -> the description of its data that it reported.
      refused: name -> why that site takes no part.
    """

    def __init__(self, reported: Mapping[str, Any], refused: Mapping[str, str]):
        self.reported = {party: reported[party] for party in sorted(reported)}
        self.refused = dict(refused)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of numbered sites, in the order of their numbers."""
        return tuple(self.reported)

    def counted(self, max_examples: Optional[int]) -> dict[str, Any]:
        """Return the message with its number of examples capped."""
        most = max_examples or np.inf
        return {party: {**summary, _SIZE: min(summary[_SIZE], most)} for party, summary in self.reported.items()}

    def doubts(self, max_examples: Optional[int]) -> list[str]:
        """Return sentences about statistics and numbers of examples that stand out: a site's word is all there is."""
        sentences = bfl.data.doubts(self.reported)
        for party, summary in self.reported.items():
            size, others = summary[_SIZE], [other[_SIZE] for name, other in self.reported.items() if name != party]
            if max_examples and size > max_examples:
                sentences.append(f"{party} tells of {size:,} examples and counts as {max_examples:,}.")
            elif others and size > _OUTSTANDING * (median := float(np.median(others))):
                sentences.append(
                    f"{party} tells of {size:,} examples, more than {_OUTSTANDING} times the others' median "
                    f"{median:,.0f}: by its word alone, which --max-examples bounds."
                )
        return sentences

    def absences(self) -> list[str]:
        """Return a sentence for each site that takes no part."""
        return [f"Without {party}: {reason}" for party, reason in sorted(self.refused.items())]

    def check(self, quorum: int, without: Collection[str] = ()) -> None:
        """Raise Error where fewer than the quorum are there, `without` those who are not."""
        number = len(self.reported) - len(without)
        if number < quorum:
            reasons = "; ".join(f"{party}: {reason}" for party, reason in sorted(self.refused.items()))
            raise Error(f"{number} sites take part, but the quorum is {quorum}{f' ({reasons})' if reasons else ''}.")

    def write(self, folder: pathlib.Path) -> None:
        """Write `parties.json`: each site's description, or `refused` and why, or both where it has a
        number nonetheless.
        """
        every = sorted({*self.reported, *self.refused})
        why = {party: {_REFUSED: reason} for party, reason in self.refused.items()}
        content = {party: {**self.reported.get(party, {}), **why.get(party, {})} for party in every}
        (folder / PARTIES).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    def begin(self, channel: Channel, jobs: Mapping[str, bytes], quorum: int) -> None:
        """Report all of the run, and notes who refuses or does not answer.

        Raises:
          Error: fewer than the quorum take part.
        """
        replies = dict(channel.ask(BEGIN, jobs))
        away = {party: str(replies.get(party, NO_ANSWER)) for party in self.reported}
        away = {party: why for party, why in away.items() if not isinstance(replies.get(party), bytes)}
        self.refused = {party: why for party, why in self.refused.items() if party not in self.reported} | away
        self.check(quorum, away)


def gather(folder: pathlib.Path, channel: Channel, quorum: int, without: Sequence[str] = ()) -> Attendance:
    """Ask all what data they have, and refuse each by itself; an interrupted run has the sites that were there.

    Args:
      folder: of the run.
      channel: that reaches them.
      quorum: the fewest that must take part.
      without: names of some who are not asked.

    Raises:
      Error: fewer than the quorum take part.
      InvalidArgument: an interrupted run includes one of `without`.
    """
    if (folder / PARTIES).exists():
        record = json.loads((folder / PARTIES).read_text(encoding="utf-8"))
        reported = {party: {**summary} for party, summary in record.items() if _SIZE in summary}
        for summary in reported.values():
            summary.pop(_REFUSED, None)
        if gone := sorted(set(without) & set(reported)):
            raise InvalidArgument(
                f"{', '.join(gone)} took part when the run began, and can't be left out of it now: give a new one "
                "another name."
            )
        return Attendance(
            reported, {party: summary[_REFUSED] for party, summary in record.items() if party not in reported}
        )
    reported, refused = {}, dict.fromkeys(without, "the run was submitted without it")
    asked = [party for party in channel.names if party not in refused]
    replies = dict(channel.ask(DESCRIBE, dict.fromkeys(asked, b"")))
    for party in asked:
        reply = replies.get(party, Refusal(NO_ANSWER))
        try:
            if isinstance(reply, Refusal):
                raise InvalidArgument(reply)
            summary = json.loads(reply)
            bfl.data.check_description(party, summary)
            reported[party] = summary
        except InvalidArgument as error:
            refused[party] = str(error)
        except (ValueError, RecursionError):
            refused[party] = f"What {party} tells of its data is no JSON."
    attendance = Attendance(reported, refused)
    attendance.check(quorum)
    return attendance
