"""Submission of a run by the administrator: a job as JSON without code, its progress, and its result."""

from __future__ import annotations

import contextlib
import json
import pathlib
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from tfp_bfl.errors import Error, InvalidArgument
from tfp_bfl.files import name as path_name
from tfp_bfl.files.writing import begun
from tfp_bfl.sites.deployment.channel import SHORTEST_WAIT
from tfp_bfl.sites.deployment.glm_job import GLM, make_glm_job
from tfp_bfl.sites.deployment.job import check_name, make_job
from tfp_bfl.sites.deployment.kits import CLASSES, check_admin, check_installed
from tfp_bfl.sites.deployment.server import FAILURE, PROGRESS
from tfp_bfl.sites.deployment.trust import trust_failure

# A number of sites for the check of the options; only the server knows the real one.
_MANY = 10_000
_POLL, _MISSED, _STARTS = 1.0, 5, 6.0
_ABORTED, _LOST = "FINISHED:ABORTED", "LOST"


def write_job(
    folder: pathlib.Path,
    name: str,
    options: Mapping[str, Any],
    quorum: int,
    deadline: float,
    secure_sums: bool = False,
    max_examples: int | None = None,
    without: Sequence[str] = (),
    again: bool = False,
) -> pathlib.Path:
    """Write a job's folder: two files that name one class each, and one that names the job."""
    config = folder / name / "app" / "config"
    config.mkdir(parents=True)
    server = {"name": name, "options": dict(options), "quorum": quorum, "deadline": deadline}
    server |= {"secure_sums": secure_sums, "max_examples": max_examples, "without": list(without), "again": again}
    files = {
        config.parent.parent / "meta.json": {
            "name": name,
            "resource_spec": {},
            "min_clients": quorum,
            "deploy_map": {"app": ["@ALL"]},
        },
        config / "config_fed_server.json": {
            "format_version": 2,
            "server": {"task_request_interval": SHORTEST_WAIT},
            "workflows": [{"id": "federation", "path": f"{CLASSES}Server", "args": server}],
            "components": [],
        },
        config / "config_fed_client.json": {
            "format_version": 2,
            "default_task_fetch_interval": SHORTEST_WAIT,
            "executors": [{"tasks": ["*"], "executor": {"path": f"{CLASSES}Site", "args": {}}}],
            "components": [],
        },
    }
    for path, content in files.items():
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return folder / name


def submit(
    kit: str | pathlib.Path,
    name: str,
    options: Mapping[str, Any],
    output: str | pathlib.Path,
    *,
    quorum: int,
    deadline: float,
    progress: Callable[[str], None],
    timeout: float = 120.0,
    restarts: int = 3,
    secure_sums: bool = False,
    max_examples: int | None = None,
    without: Sequence[str] = (),
) -> pathlib.Path:
    """Submit a run, report its progress, and download its folder.

    The folder has config.yaml, metrics.jsonl, summary.json, report.html and saved_model/. A run with the same name is
    resumed. If a process of the server or of a site dies, FLARE ends the job, and this function submits the run again,
    up to `restarts` times. An interruption of this function does not stop the run.

    Args:
      kit: the administrator's folder.
      name: name of the run.
      options: options of `tfp-bfl run`, except those that describe data; or {"glm": options of `GlmJob`}.
      output: a new folder.
      quorum: smallest number of sites in a round.
      deadline: time limit for the answer of a site, in seconds.
      progress: called with each line of progress.
      timeout: time limit for a connection to the server, in seconds.
      restarts: largest number of restarts after the end of a process.
      secure_sums: whether sites mask their messages, so that the server reads only the sum over the answering sites.
      max_examples: bound on the number of examples that weights a site; None for no bound.
      without: names of sites that are not asked.

    Returns:
      The output folder.

    Raises:
      InvalidArgument: the options are not valid, or the output folder exists. Nothing is submitted.
      Error: the server can't be reached, or the run failed.
      MissingDependency: NVIDIA FLARE is not installed.
    """
    check_admin(kit)
    check_name(name)
    if GLM in options:
        make_glm_job(options[GLM], secure_sums, without)
    else:
        make_job(options, _number(options))
    output = pathlib.Path(output)
    if output.exists():
        raise InvalidArgument(f"{path_name(output)} exists already: give --output a new folder.")
    check_installed()
    server = ServerSession(kit, timeout, progress)
    try:
        with tempfile.TemporaryDirectory() as draft:
            how = options, quorum, deadline, secure_sums, max_examples, without
            sites: set[str] = set()
            for attempt in range(restarts + 1):
                job = write_job(pathlib.Path(draft) / f"job {attempt}", name, *how, again=attempt > 0)
                sites |= server.wait_for(sites, deadline)
                number = server.call("submit_job", str(job))
                progress(f"run {name} is submitted")
                status = follow_job(server, number, progress)
                if status == _LOST:
                    progress("the server has lost the job; the run resumes from its last checkpoint")
                    continue
                there = server.call("download_job_result", number, str(pathlib.Path(draft) / f"{attempt}"))
                failure, done = (next(pathlib.Path(there).rglob(file), None) for file in (FAILURE, "summary.json"))
                if failure:
                    raise Error(failure.read_text(encoding="utf-8"))
                if done:  # Written last: the run is complete, even if FLARE reports a site that left at the end.
                    with begun(output):
                        shutil.copytree(done.parent, output)
                    return output
                if status == _ABORTED:
                    raise Error(f"The run {name} was stopped: submit it again to resume it from its last checkpoint.")
                progress("a process died; the run resumes from its last checkpoint")
            raise Error(
                f"The run {name} ended as {status}: see the server's log, and submit the run again to resume it."
            )
    finally:
        server.close()


def _number(options: Mapping[str, Any]) -> int:
    """Return the number of sites with which options are checked: that of a list by client, or any large one."""
    lists = (str(options.get(name) or "").count(",") + 1 for name in ("participation", "compressor"))
    most = max(lists)
    return most if most > 1 else _MANY


class ServerSession:
    """The administrator's connection to the server, with reconnection."""

    def __init__(self, kit: str | pathlib.Path, timeout: float, progress: Callable[[str], None]):
        self._kit, self._timeout, self._progress = pathlib.Path(kit).resolve(), timeout, progress
        self._session: Any = None
        at = self._admin()
        if why := trust_failure(self._kit / "startup", at["host"], int(at["port"])):
            raise Error(why)
        self._connect()

    def call(self, name: str, *arguments: object) -> Any:
        """Return the result of a method of FLARE's session.

        Raises:
          Error: the server can't be reached, or refuses.
        """
        from nvflare.fuel.flare_api.flare_api import InvalidJobDefinition, JobNotFound

        for _ in range(2):
            try:
                return getattr(self._session, name)(*arguments)
            except (InvalidJobDefinition, JobNotFound) as error:
                raise Error(f"The server refuses: {error}.") from None
            except Exception:
                self._progress("the server does not answer; trying again")
                self.close()
                self._connect()
        raise Error("The connection to the server was lost twice: see the server's log.")

    def wait_for(self, sites: Collection[str], seconds: float) -> set[str]:
        """Wait until the sites are connected or the time is over, and return the names of all connected sites."""
        end, waits = time.monotonic() + seconds, False
        while True:
            there = {client.name for client in self.call("get_system_info").client_info}
            missing = sorted(set(sites) - there)
            if not missing or time.monotonic() > end:
                return there
            if not waits:
                self._progress(f"waiting for {', '.join(missing)}")
            waits = True
            time.sleep(_POLL)

    def status(self, number: str) -> dict[str, Any]:
        """Return the server's last lines about a running job; nothing if it does not answer."""
        with contextlib.suppress(Exception):
            for stats in dict(self._session.show_stats(number, "server")).values():
                if isinstance(stats, dict) and PROGRESS in stats:
                    return dict(stats[PROGRESS])
        return {}

    def close(self) -> None:
        """End the session."""
        with contextlib.suppress(Exception):
            self._session.close()

    def _admin(self) -> dict[str, Any]:
        content = json.loads((self._kit / "startup" / "fed_admin.json").read_text(encoding="utf-8"))
        return dict(content["admin"])

    def _connect(self) -> None:
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        admin = self._admin()
        at, waits, end = (admin["host"], int(admin["port"])), False, time.monotonic() + self._timeout
        while True:
            try:
                with socket.create_connection(at, timeout=10):
                    pass  # Checked first: FLARE logs each failed attempt at length.
                self._session = new_secure_session(admin["username"], str(self._kit), timeout=10)
                return
            except Exception as error:
                if time.monotonic() > end:
                    raise Error(
                        f"The server at {at[0]}:{at[1]} can't be reached ({type(error).__name__}): is it running, and "
                        "is the port open?"
                    ) from None
                if not waits:
                    self._progress(f"no server answers at {at[0]}:{at[1]}; retrying for {self._timeout:.0f} s")
                waits = True
                time.sleep(_POLL)


def follow_job(server: ServerSession, number: str, progress: Callable[[str], None]) -> str:
    """Report the new lines of a job until it ends, and return its status.

    Args:
      server: connection to the server.
      number: identifier of the job.
      progress: called with each line.
    """
    last, missed, lines, asked = "", 0, 0, time.monotonic()
    while True:
        status = str(server.call("get_job_meta", number).get("status", ""))
        if status != last:
            progress(status.lower().replace(":", ": ").replace("_", " "))
            last = status
        if status.startswith("FINISHED"):
            return status
        # FLARE's server logs requests about a job that has not started as errors.
        if status == "RUNNING" and (lines or time.monotonic() > asked + _STARTS):
            asked = time.monotonic()
            lines = report_new(server.status(number), lines, progress)
        # A restarted server reports earlier jobs as running, but runs none of them.
        there = status != "RUNNING" or any(job.job_id == number for job in server.call("get_system_info").job_info)
        missed = 0 if there else missed + 1
        if missed == _MISSED:
            return _LOST
        time.sleep(_POLL)


def report_new(status: Mapping[str, Any], known: int, progress: Callable[[str], None]) -> int:
    """Report the new lines of a server, and return the number of lines that are reported now.

    Args:
      status: the last `lines` and the number of lines `before` them; empty if the server did not answer.
      known: number of lines that were reported before.
      progress: called with each new line.
    """
    before, lines = int(status.get("before", 0)), [str(line)[:500] for line in status.get("lines", ())]
    for line in lines[max(0, known - before) :]:
        progress(line if line.isprintable() else ascii(line))
    return max(known, before + len(lines))
