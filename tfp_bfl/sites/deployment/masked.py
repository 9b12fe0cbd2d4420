"""Requirements of a site for a run with masks: keys of pairs, one job for a name, sets of sites, and promises."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files import write_whole
from tfp_bfl.sites.deployment import keys

# Files with the digest of the job, and with the sites of a linear model, in the memory of a run with masks.
JOB, MEMBERS = "job", "members.json"
_OTHER_JOB = "It has sent masked messages in another run of the name {}: give this one another name."


def check_unbound(folder: pathlib.Path) -> None:
    """Check that no run with masks has the name of a run without.

    Args:
      folder: of the site's memory of the run.

    Raises:
      InvalidArgument: the site has sent masked messages in a run of this name.
    """
    if (folder / JOB).exists():
        raise InvalidArgument(_OTHER_JOB.format(folder.name))


def bind(folder: pathlib.Path, digest: str) -> contextlib.ExitStack:
    """Bind a run with masks to the digest of its job; the result holds the file open, and locked, until it is closed.

    Args:
      folder: of the site's memory of the run.
      digest: of the job.

    Raises:
      InvalidArgument: the site has sent masked messages in another run of this name, or another process runs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as opened:
        file = opened.enter_context(open(folder / JOB, "a+", encoding="utf-8"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidArgument("Another process of this site takes part in this run: end that one.") from None
        file.seek(0)
        recorded = file.read()
        if recorded not in ("", digest):
            raise InvalidArgument(_OTHER_JOB.format(folder.name))
        if not recorded:
            file.write(digest)
            file.flush()
            os.fsync(file.fileno())
        return opened.pop_all()


def check_members(folder: pathlib.Path, signs: Mapping[str, int]) -> None:
    """Check that the sum of a linear model and those of earlier ones with masks do not reveal the sums of one site.

    They do if a combination of them is the sum of one site, such as the difference of two sets that differ by one.

    Args:
      folder: of the site's memory of the run.
      signs: site -> 1, or -1 where its sums are subtracted.

    Raises:
      InvalidArgument: they do.
    """
    files = [path for path in sorted(folder.parent.glob(f"*/{MEMBERS}")) if path.parent != folder]
    sets = [*(json.loads(path.read_text(encoding="utf-8")) for path in files), signs]
    names = sorted({site for one in sets for site in one})
    matrix = np.array([[one.get(site, 0) for site in names] for one in sets], np.float64)
    # A site is within the span of the sets if the projection leaves it as it is.
    within = np.diag(np.linalg.pinv(matrix) @ matrix) > 1 - 1e-9
    if np.any(within):
        site = names[int(np.argmax(within))]
        raise InvalidArgument(
            f"With the sums of earlier runs with masks, of other sites, this one would reveal those of {site}: submit "
            "with the same sites as before."
        )


def shared_keys(
    startup: pathlib.Path, secret: bytes, number: int, parties: int, offers: Mapping[str, Any]
) -> dict[int, bytes]:
    """Return the key of this site with each other one, by their numbers.

    Args:
      startup: folder of the certificates.
      secret: of the site.
      number: of the site.
      parties: the number of sites.
      offers: site -> its key offer.

    Raises:
      InvalidArgument: an offer is missing, or not signed by its site.
    """
    names = sorted(offers)
    if not 0 <= number < len(names) == parties:
        raise InvalidArgument(f"Masks require the keys of all {parties} sites, and the server forwards {len(names)}.")
    shared = keys.agree(startup, secret, names[number], offers)
    return {names.index(other): key for other, key in shared.items()}


class PromiseFiles:
    """The promises of a site in a run, in a file for each round, written before the answer is sent."""

    def __init__(self, folder: pathlib.Path):
        self._folder = folder

    def _path(self, number: int) -> pathlib.Path:
        return self._folder / f"{number:06d}.json"

    def get(self, number: int) -> dict[str, Any] | None:
        """Return the promise of a round, or None."""
        path = self._path(number)
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def __setitem__(self, number: int, promise: dict[str, Any]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        write_whole(self._path(number), json.dumps(promise))
