"""Rules of a site for each run, of networks and of linear models alike."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any, TypeVar

import pydantic

import tfp_bfl as bfl  # its packages are imported when they are first used
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.sites.deployment import keys, masked
from tfp_bfl.sites.deployment.answered import MEMORY, check_runs
from tfp_bfl.sites.deployment.job import check_name
from tfp_bfl.sites.deployment.party_file import PartyFile, secret_of

ONLY_SECURE = "Its file allows only runs with secure sums: submit with --secure-sums."
Message = TypeVar("Message", bound=pydantic.BaseModel)


def parsed(form: type[Message], content: object) -> Message:
    """Return a message of the server; the sender need not be trusted.

    Args:
      form: of the message.
      content: as JSON, or what JSON gave.

    Raises:
      InvalidArgument: the content has another form.
    """
    try:
        if isinstance(content, (str, bytes)):
            content = json.loads(content)
        return form.model_validate(content)
    except (RecursionError, ValueError):
        raise InvalidArgument("The message of the server does not have the required form.") from None


class Member:
    """A site, which refuses what its file forbids.

    Args:
      folder: folder `local` of the site's kit.

    Attributes:
      seen: a sentence on what the server sees of this site's answers.
    """

    seen = "The server sees nothing."

    def __init__(self, folder: str | os.PathLike[str]):
        self._folder = pathlib.Path(folder)
        # The folder of the certificates in a kit.
        self._startup = self._folder.parent / "startup"
        self._open = contextlib.ExitStack()

    def _with_offer(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        """Return a description with the site's key offer for masks, if it has a certificate."""
        offer = keys.offer(self._startup, secret_of(self._folder))
        return dict(summary) if offer is None else {**summary, keys.OFFER: offer}

    def _check_run(self, file: PartyFile, run: str, version: str, sites: int) -> pathlib.Path:
        """Check what the site's file says of all runs, and return the folder of this one's memory.

        Args:
          file: of the site.
          run: name of the run.
          version: of the server.
          sites: number of sites of which the server reads sums.

        Raises:
          InvalidArgument: the file forbids the run, or the server has another version.
        """
        if version != bfl.__version__:
            raise InvalidArgument(
                f"The server has tfp_bfl {version}, the site {bfl.__version__}: install the same version."
            )
        if sites < file.min_parties:
            raise InvalidArgument(f"Its file allows no run of fewer than {file.min_parties} sites.")
        check_runs(self._folder, check_name(run), file.max_runs)
        return self._folder / MEMORY / run

    def _keys(
        self, memory: pathlib.Path, number: int, sites: int, offers: Mapping[str, Any] | None
    ) -> dict[int, bytes]:
        """Return the keys of this site with the others, by their numbers; none, of a run without masks (None)."""
        if offers is None:
            masked.check_unbound(memory)
            return {}
        return masked.shared_keys(self._startup, secret_of(self._folder), number, sites, offers)


def digest_of_job(job: Mapping[str, Any]) -> str:
    """Return the digest of a job without the number of the site: the same at all sites.

    Raises:
      InvalidArgument: the key offers do not have the required form.
    """
    content = {name: x for name, x in job.items() if name not in ("number", "offers")}
    try:
        content["halves"] = {site: offer["public"] for site, offer in sorted(dict(job.get("offers", {})).items())}
    except (KeyError, TypeError, ValueError):
        raise InvalidArgument("The key offers from the server do not have the required form.") from None
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
