"""Runs of a federation, listed, followed and stopped from any shell with the administrator's folder."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

from tfp_bfl.errors import InvalidArgument, lookup
from tfp_bfl.sites.deployment.kits import check_admin, check_installed
from tfp_bfl.sites.deployment.submit import ServerSession, follow_job

Kit = str | pathlib.Path
_TIMEOUT = 20.0
_FINISHED = "FINISHED"


def list_runs(kit: Kit, progress: Callable[[str], None]) -> list[str]:
    """Return a line for each job of the server, the newest first: name, status, submission and duration.

    Args:
      kit: the administrator's folder.
      progress: called with each line on the connection.

    Raises:
      InvalidArgument: the folder is not the administrator's.
      Error: the server can't be reached.
      MissingDependency: NVIDIA FLARE is not installed.
    """
    with _connected(kit, progress) as server:
        jobs = _jobs(server)
    rows = [("run", "status", "submitted", "duration")]
    rows += [(_text(x, "job_name"), _words(x), _text(x, "submit_time")[:19], _text(x, "duration")[:14]) for x in jobs]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def follow_run(kit: Kit, name: str, progress: Callable[[str], None]) -> str:
    """Report the lines of a run until it ends, and return its last status; the run is not changed.

    Args:
      kit: the administrator's folder.
      name: of the run.
      progress: called with each line.

    Raises:
      InvalidArgument: there is no such run; and as of `list_runs`.
    """
    with _connected(kit, progress) as server:
        job = _current(_jobs(server), name)
        return follow_job(server, str(job["job_id"]), progress)


def stop_run(kit: Kit, name: str, progress: Callable[[str], None]) -> None:
    """Stop a run at the server and all sites; its checkpoints stay, and submitting it again resumes it.

    Args:
      kit: the administrator's folder.
      name: of the run.
      progress: called with each line on the connection.

    Raises:
      InvalidArgument: there is no such run, or it has ended; and as of `list_runs`.
    """
    with _connected(kit, progress) as server:
        job = _current(_jobs(server), name)
        if _text(job, "status").startswith(_FINISHED):
            raise InvalidArgument(f"The run {name} has ended ({_words(job)}): there is nothing to stop.")
        server.call("abort_job", str(job["job_id"]))


@contextlib.contextmanager
def _connected(kit: Kit, progress: Callable[[str], None]) -> Iterator[ServerSession]:
    check_admin(kit)
    check_installed()
    server = ServerSession(kit, _TIMEOUT, progress)
    try:
        yield server
    finally:
        server.close()


def _jobs(server: ServerSession) -> list[dict[str, Any]]:
    """Return the jobs of the server, the newest first."""
    jobs = [dict(job) for job in server.call("list_jobs") or ()]
    return sorted(jobs, key=lambda job: _text(job, "submit_time"), reverse=True)


def _current(jobs: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return the last job of a run that has not ended, or else the last: a run can be submitted several times."""
    by_name: dict[str, dict[str, Any]] = {}
    for job in sorted(jobs, key=lambda job: _text(job, "status").startswith(_FINISHED)):
        by_name.setdefault(_text(job, "job_name"), job)
    found: dict[str, Any] = lookup(by_name, name, "run", "at the server")
    return found


def _text(job: dict[str, Any], key: str) -> str:
    text = str(job.get(key) or "")
    return text if text.isprintable() else ascii(text)


def _words(job: dict[str, Any]) -> str:
    return _text(job, "status").lower().replace(":", ": ").replace("_", " ")
