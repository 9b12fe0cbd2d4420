"""Attendance of a run: its sites, the example counts that weight them, and the reasons for absences."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import pathlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.app.one_run.run_folder import Reporter
from tfp_bfl.errors import Error, InvalidArgument
from tfp_bfl.files import write_whole
from tfp_bfl.sites.deployment import keys
from tfp_bfl.sites.deployment.channel import BEGIN, DESCRIBE, Channel, Counted, collect, read_json
from tfp_bfl.sites.schema import TABLE, outstanding, pool_rare

T = TypeVar("T")
PARTIES = "parties.json"
_REFUSED, _SIZE = "refused", "num_examples"
# Sets of sites that are tried as those that do not fit the others.
_MOST_SETS = 2000


class Submission(NamedTuple):
    """A run as the server receives it, of a network or of a linear model.

    Fields:
      name, folder: of the run; one with the same name and folder is resumed.
      channel, progress: to the sites, which counts their messages, and the reporter.
      quorum: smallest number of sites, and of valid answers in each round.
      secure_sums: whether sites mask their messages, so that the server reads only the sum over the answering sites.
      max_examples: bound on the number of examples that weights a site; None for no bound.
      without: names of sites that are not asked.
      command: that submitted the run, for its report.
      again: whether this repeats an interrupted job: a complete run is then returned unchanged.
    """

    name: str
    folder: pathlib.Path
    channel: Counted
    quorum: int
    progress: Reporter
    secure_sums: bool = False
    max_examples: int | None = None
    without: Sequence[str] = ()
    again: bool = False
    command: str = ""

    @property
    def expelled(self) -> dict[str, str]:
        """The sites that are not asked, with the reason."""
        return dict.fromkeys(self.without, "the run was submitted without it")

    def leave(self, reasons: Mapping[str, str]) -> None:
        """Report sites that take no part."""
        for site, reason in reasons.items():
            self.progress.phase(f"Without {site}: {reason}")


class SitesLeft(Exception):
    """Some sites take no further part, and the others begin again: name -> reason."""

    def __init__(self, reasons: Mapping[str, str]):
        super().__init__("; ".join(f"{site}: {reason}" for site, reason in sorted(reasons.items())))
        self.reasons = dict(reasons)


class Attendance:
    """The sites of a run, as the file `parties.json` in its folder records them.

    `reported` has the descriptions of numbered sites, and `refused` the reasons of absent ones, by name.
    """

    def __init__(self, reported: Mapping[str, Any], refused: Mapping[str, str]):
        self.reported = {site: reported[site] for site in sorted(reported)}
        self.refused = dict(refused)

    @classmethod
    def resumed(cls, folder: pathlib.Path, without: Mapping[str, str]) -> Attendance | None:
        """Return the sites of the beginning of an interrupted run, none of them in `without`; None for a new run."""
        if not (folder / PARTIES).exists():
            return None
        record = json.loads((folder / PARTIES).read_text(encoding="utf-8"))
        without_reason = lambda own: {key: x for key, x in own.items() if key != _REFUSED}
        reported = {site: without_reason(own) for site, own in record.items() if _SIZE in own}
        if gone := sorted(set(without) & set(reported)):
            raise InvalidArgument(
                f"{', '.join(gone)} took part when the run began and can't be left out of it now: give a new run "
                "another name."
            )
        return cls(reported, {site: x[_REFUSED] for site, x in record.items() if site not in reported})

    @classmethod
    def gather(
        cls,
        channel: Channel,
        without: Mapping[str, str],
        request: Mapping[str, Any],
        check: Callable[[str, Any], None] | None = None,
        task: str = DESCRIBE,
        asked: Sequence[str] | None = None,
    ) -> Attendance:
        """Ask the sites for descriptions of their data; a site with one that can't be used is recorded as absent.

        Sites of `without` are not asked, for the reasons there; `asked` are names of others, None for all that are
        reachable. The `request` of the `task` states whether the run has masks, `secure_sums`, which require key
        offers. `check` is that of a site's name and description, None for that of networks.
        """

        def read(site: str, reply: bytes) -> Any:
            summary = read_json(reply, f"The description of {site}'s data is not JSON.")
            (check or bfl.sites.check_description)(site, summary)
            return summary

        names = [site for site in (channel.names if asked is None else asked) if site not in without]
        reported, refused = collect(channel, task, dict.fromkeys(names, json.dumps(request).encode()), read)
        attendance = cls(reported, {**without, **refused})
        if request["secure_sums"]:
            attendance.leave_out(keys.unusable(attendance.offers))
        return attendance

    @property
    def names(self) -> tuple[str, ...]:
        """The names of numbered sites, in the order of their numbers."""
        return tuple(self.reported)

    @property
    def offers(self) -> dict[str, Any]:
        """The key offers of the sites, for masks."""
        return {site: summary.get(keys.OFFER) for site, summary in self.reported.items()}

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
        sentences = bfl.sites.doubts(self.reported)
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
            reasons = f" ({SitesLeft(self.refused)})" if self.refused else ""
            raise Error(f"{number} sites take part, but the quorum is {quorum}{reasons}.")

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

        Where most sites refuse the keys of some, these are raised as `SitesLeft`, unless the run `resumes` after
        rounds, so that its sites are fixed.
        """
        _, away = collect(channel, BEGIN, jobs, lambda site, reply: None)
        if not resumes and (false := keys.false_keys(away, self.reported)):
            raise SitesLeft(false)
        self.refused = {site: why for site, why in self.refused.items() if site not in self.reported} | away
        self.check(quorum, away)


def without_misfits(
    described: Mapping[str, Any], agree: Callable[[Mapping[str, Any]], T], least: int
) -> tuple[T, dict[str, str]]:
    """Return what the sites agree on, and the reasons of the sites that are left out since they do not fit.

    The smallest set of sites without which the others fit is left out, if there is one such set, it has fewer than half
    of the sites, and `least` remain. `agree` raises `InvalidArgument` where descriptions do not fit.
    """
    try:
        return agree(described), {}
    except InvalidArgument as error:
        first = error
    for number in range(1, min((len(described) - 1) // 2, len(described) - least) + 1):
        if math.comb(len(described), number) > _MOST_SETS:
            break
        found: list[tuple[tuple[str, ...], T]] = []
        for left in itertools.combinations(described, number):
            with contextlib.suppress(InvalidArgument):
                found.append((left, agree({site: x for site, x in described.items() if site not in left})))
        if len(found) > 1:
            break
        if found:
            left, result = found[0]
            return result, dict.fromkeys(left, f"Its data do not fit those of the other sites. {first}")
    raise first
