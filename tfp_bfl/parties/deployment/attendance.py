"""Attendance of a run: its sites, the example counts that weight them, and the reasons for absences."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.errors import Error, InvalidArgument
from tfp_bfl.files import write_whole
from tfp_bfl.parties.arrays import NO_ANSWER
from tfp_bfl.parties.comparison import outstanding
from tfp_bfl.parties.deployment import keys
from tfp_bfl.parties.deployment.channel import BEGIN, DESCRIBE, Channel, Refusal
from tfp_bfl.parties.schema import TABLE
from tfp_bfl.parties.tables import pool_rare

PARTIES = "parties.json"
_REFUSED, _SIZE = "refused", "num_examples"


class FalseKeys(Exception):
    """Most sites refuse the keys of some others: name -> reason."""

    def __init__(self, reasons: Mapping[str, str]):
        super().__init__()
        self.reasons = dict(reasons)


class Attendance:
    """The sites of a run, as the file `parties.json` in its folder records them.

    Attributes:
      reported: name of each numbered site -> the description of its data.
      refused: name of each absent site -> the reason.
    """

    def __init__(self, reported: Mapping[str, Any], refused: Mapping[str, str]):
        self.reported = {site: reported[site] for site in sorted(reported)}
        self.refused = dict(refused)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of numbered sites, in the order of their numbers."""
        return tuple(self.reported)

    def pool_rare(self, schema: bfl.data.Schema) -> None:
        """Remove the names of categories that the model does not distinguish from the descriptions."""
        for site, summary in self.reported.items():
            if TABLE in summary:
                self.reported[site] = {**summary, TABLE: pool_rare(summary[TABLE], schema.encoding)}

    def counted(self, max_examples: int | None) -> dict[str, Any]:
        """Return the descriptions with the numbers of examples bounded by `max_examples`."""
        most = max_examples or np.inf
        return {site: {**summary, _SIZE: min(summary[_SIZE], most)} for site, summary in self.reported.items()}

    def doubts(self, max_examples: int | None) -> list[str]:
        """Return a warning for each site with outlying statistics or an outlying number of examples."""
        sentences = bfl.parties.doubts(self.reported)
        sizes = {site: summary[_SIZE] for site, summary in self.reported.items()}
        large = outstanding(sizes)
        for site, size in sizes.items():
            if max_examples and size > max_examples:
                sentences.append(f"{site} reports {size:,} examples and is weighted as {max_examples:,}.")
            elif site in large:
                sentences.append(f"{large[site]} Nobody can verify this number; --max-examples bounds it.")
        return sentences

    def absences(self) -> list[str]:
        """Return a sentence for each absent site."""
        return [f"Without {site}: {reason}" for site, reason in sorted(self.refused.items())]

    def check(self, quorum: int, without: Collection[str] = ()) -> None:
        """Raise Error if the sites, except those in `without`, are fewer than the quorum."""
        number = len(self.reported) - len(without)
        if number < quorum:
            reasons = "; ".join(f"{site}: {reason}" for site, reason in sorted(self.refused.items()))
            raise Error(f"{number} sites take part, but the quorum is {quorum}{f' ({reasons})' if reasons else ''}.")

    def write(self, folder: pathlib.Path) -> None:
        """Write `parties.json`: the description of each site, its reason of absence under `refused`, or both."""
        every = sorted({*self.reported, *self.refused})
        why = {site: {_REFUSED: reason} for site, reason in self.refused.items()}
        content = {site: {**self.reported.get(site, {}), **why.get(site, {})} for site in every}
        write_whole(folder / PARTIES, json.dumps(content, indent=1) + "\n")

    def leave_out(self, reasons: Mapping[str, str]) -> None:
        """Record sites that do not take part."""
        self.reported = {site: summary for site, summary in self.reported.items() if site not in reasons}
        self.refused |= reasons

    def begin(self, channel: Channel, jobs: Mapping[str, bytes], quorum: int, resumes: bool = False) -> None:
        """Send its job to each site, and record the sites that refuse or do not answer.

        Args:
          channel: channel to the sites.
          jobs: site -> its job.
          quorum: smallest number of sites.
          resumes: whether rounds of the run are done, so that its sites are fixed.

        Raises:
          FalseKeys: most sites refuse the key of another one.
          Error: the sites are fewer than the quorum.
        """
        replies = dict(channel.ask(BEGIN, jobs))
        away = {site: str(replies.get(site, NO_ANSWER)) for site in self.reported}
        away = {site: why for site, why in away.items() if not isinstance(replies.get(site), bytes)}
        if (false := keys.false_keys(away, self.reported)) and not resumes:
            raise FalseKeys(false)
        self.refused = {site: why for site, why in self.refused.items() if site not in self.reported} | away
        self.check(quorum, away)


def gather(
    folder: pathlib.Path, channel: Channel, quorum: int, without: Mapping[str, str], request: Any | None = None
) -> Attendance:
    """Ask the sites for descriptions of their data; a resumed run has the sites of its beginning.

    A site with an invalid description is recorded as absent, and the others take part.

    Args:
      folder: folder of the run.
      channel: channel to the sites.
      quorum: smallest number of sites.
      without: name of each site that is not asked -> the reason.
      request: of the server, as JSON: options of tables, and whether the run has masks; None for none.

    Raises:
      Error: the sites are fewer than the quorum.
      InvalidArgument: an interrupted run includes one of `without`.
    """
    if (folder / PARTIES).exists():
        record = json.loads((folder / PARTIES).read_text(encoding="utf-8"))
        reported = {site: {**summary} for site, summary in record.items() if _SIZE in summary}
        for summary in reported.values():
            summary.pop(_REFUSED, None)
        if gone := sorted(set(without) & set(reported)):
            raise InvalidArgument(
                f"{', '.join(gone)} took part when the run began and can't be left out of it now: give a new run "
                "another name."
            )
        return Attendance(
            reported, {site: summary[_REFUSED] for site, summary in record.items() if site not in reported}
        )
    reported, refused = {}, dict(without)
    asked = [site for site in channel.names if site not in refused]
    content = b"" if request is None else json.dumps(request).encode()
    replies = dict(channel.ask(DESCRIBE, dict.fromkeys(asked, content)))
    for site in asked:
        reply = replies.get(site, Refusal(NO_ANSWER))
        try:
            if isinstance(reply, Refusal):
                raise InvalidArgument(reply)
            summary = json.loads(reply)
            bfl.parties.check_description(site, summary)
            reported[site] = summary
        except InvalidArgument as error:
            refused[site] = str(error)
        except (ValueError, RecursionError):
            refused[site] = f"The description of {site}'s data is not JSON."
    attendance = Attendance(reported, refused)
    attendance.check(quorum)
    return attendance
