"""The sites of a run, the example counts that weight them, and the reasons of those that are left out."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Optional

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.errors import Error, InvalidArgument
from tfp_bfl.parties.deployment.channel import BEGIN, DESCRIBE, Channel, Refusal
from tfp_bfl.parties.party import NO_ANSWER

PARTIES = "parties.json"
_REFUSED, _SIZE = "refused", "num_examples"
# What one party tells that is so many times the others' median is told of.
_OUTSTANDING = 10


class Attendance:
    """The parties of a run, as its folder's `parties.json` keeps them.

    Attributes:
      told: name -> what that party's data look like, by its word; of those who have a number in the run.
      refused: name -> why that party takes no part.
    """

    def __init__(self, told: Mapping[str, Any], refused: Mapping[str, str]):
        self.told = {party: told[party] for party in sorted(told)}
        self.refused = dict(refused)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of numbered sites, in the order of their numbers."""
        return tuple(self.told)

    def counted(self, max_examples: Optional[int]) -> dict[str, Any]:
        """Return the message with its number of examples capped."""
        most = max_examples or np.inf
        return {party: {**own, _SIZE: min(own[_SIZE], most)} for party, own in self.told.items()}

    def doubts(self, max_examples: Optional[int]) -> list[str]:
        """Return sentences about statistics and numbers of examples that stand out: a site's word is all there is."""
        found = bfl.data.doubts(self.told)
        for party, own in self.told.items():
            size, others = own[_SIZE], [other[_SIZE] for name, other in self.told.items() if name != party]
            if max_examples and size > max_examples:
                found.append(f"{party} tells of {size:,} examples and counts as {max_examples:,}.")
            elif others and size > _OUTSTANDING * (median := float(np.median(others))):
                found.append(
                    f"{party} tells of {size:,} examples, more than {_OUTSTANDING} times the others' median "
                    f"{median:,.0f}: by its word alone, which --max-examples bounds."
                )
        return found

    def absences(self) -> list[str]:
        """Return a sentence for each party that takes no part."""
        return [f"Without {party}: {reason}" for party, reason in sorted(self.refused.items())]

    def check(self, quorum: int, without: Collection[str] = ()) -> None:
        """Raise Error where fewer than the quorum are there, `without` those who are not."""
        number = len(self.told) - len(without)
        if number < quorum:
            reasons = "; ".join(f"{party}: {reason}" for party, reason in sorted(self.refused.items()))
            raise Error(f"{number} parties take part, but the quorum is {quorum}{f' ({reasons})' if reasons else ''}.")

    def write(self, folder: pathlib.Path) -> None:
        """Write `parties.json`: each site's description, or `refused` and why, or both where it has a
        number nonetheless.
        """
        every = sorted({*self.told, *self.refused})
        why = {party: {_REFUSED: reason} for party, reason in self.refused.items()}
        content = {party: {**self.told.get(party, {}), **why.get(party, {})} for party in every}
        (folder / PARTIES).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    def begin(self, channel: Channel, jobs: Mapping[str, bytes], quorum: int) -> None:
        """Report all of the run, and notes who refuses or does not answer.

        Raises:
          Error: fewer than the quorum take part.
        """
        replies = dict(channel.ask(BEGIN, jobs))
        away = {party: str(replies.get(party, NO_ANSWER)) for party in self.told}
        away = {party: why for party, why in away.items() if not isinstance(replies.get(party), bytes)}
        self.refused = {party: why for party, why in self.refused.items() if party not in self.told} | away
        self.check(quorum, away)


def gather(folder: pathlib.Path, channel: Channel, quorum: int, without: Sequence[str] = ()) -> Attendance:
    """Ask all what data they have, each of whom is refused by itself; of a run that broke off it is who was there.

    Args:
      folder: of the run.
      channel: that reaches them.
      quorum: the fewest that must take part.
      without: names of some who are not asked.

    Raises:
      Error: fewer than the quorum take part.
      InvalidArgument: a run that broke off has one of `without` in it.
    """
    if (folder / PARTIES).exists():
        kept = json.loads((folder / PARTIES).read_text(encoding="utf-8"))
        told = {party: {**own} for party, own in kept.items() if _SIZE in own}
        for own in told.values():
            own.pop(_REFUSED, None)
        if gone := sorted(set(without) & set(told)):
            raise InvalidArgument(
                f"{', '.join(gone)} took part when the run began, and can't be left out of it now: give a new one "
                "another name."
            )
        return Attendance(told, {party: own[_REFUSED] for party, own in kept.items() if party not in told})
    told, refused = {}, dict.fromkeys(without, "the run was submitted without it")
    asked = [party for party in channel.names if party not in refused]
    replies = dict(channel.ask(DESCRIBE, dict.fromkeys(asked, b"")))
    for party in asked:
        reply = replies.get(party, Refusal(NO_ANSWER))
        try:
            if isinstance(reply, Refusal):
                raise InvalidArgument(reply)
            own = json.loads(reply)
            bfl.data.check_description(party, own)
            told[party] = own
        except InvalidArgument as error:
            refused[party] = str(error)
        except (ValueError, RecursionError):
            refused[party] = f"What {party} tells of its data is no JSON."
    found = Attendance(told, refused)
    found.check(quorum)
    return found
