"""Runs of the administrator: submitted as JSON without code, listed, followed from any shell, and stopped.

A folder that is not the administrator's raises `InvalidArgument`, a server that can't be reached `Error`, and a machine
without NVIDIA FLARE `MissingDependency`.
"""

import contextlib
import json
import pathlib
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from tfp_bfl.app.one_run.records import in_columns
from tfp_bfl.errors import Error, InvalidArgument, lookup
from tfp_bfl.files import name as path_name
from tfp_bfl.files.writing import begun
from tfp_bfl.output import command_line
from tfp_bfl.sites.deployment.channel import FAILURE, PROGRESS, SHORTEST_WAIT
from tfp_bfl.sites.deployment.jobs import GLM, check_name, make_glm_job, make_job
from tfp_bfl.sites.deployment.kits import CLASSES, check_admin, check_installed, trust_failure

Kit = str | pathlib.Path
Progress = Callable[[str], None]
_MANY = 10_000
_POLL, _MISSED, _STARTS, _RESTARTS = 1.0, 5, 6.0, 3
_FINISHED, _ABORTED, _LOST = "FINISHED", "FINISHED:ABORTED", "LOST"
# Seconds until a server that does not answer is given up, by what only looks at runs.
_TIMEOUT = 20.0


def write_job(
    folder: pathlib.Path, name: str, options: Mapping[str, Any], quorum: int, deadline: float, **how: object
) -> pathlib.Path:
    """Write a job's folder: two files that name one class each (`flare.Server`, `flare.Site`), and one with its name.

    `how` are other fields of `attendance.Submission`.
    """
    config = folder / name / "app" / "config"
    config.mkdir(parents=True)
    server = {"name": name, "options": dict(options), "quorum": quorum, "deadline": deadline, **how}
    shared = {"format_version": 2, "components": []}
    files: dict[str, dict[str, object]] = {
        "../../meta.json": {"resource_spec": {}, "min_clients": quorum, "deploy_map": {"app": ["@ALL"]}, "name": name},
        "config_fed_server.json": {
            **shared,
            "server": {"task_request_interval": SHORTEST_WAIT},
            "workflows": [{"id": "federation", "path": f"{CLASSES}Server", "args": server}],
        },
        "config_fed_client.json": {
            **shared,
            "default_task_fetch_interval": SHORTEST_WAIT,
            "executors": [{"tasks": ["*"], "executor": {"path": f"{CLASSES}Site", "args": {}}}],
        },
    }
    for file, content in files.items():
        (config / file).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return folder / name


def submit(
    kit: Kit,
    name: str,
    options: Mapping[str, Any],
    output: str | pathlib.Path,
    *,
    quorum: int,
    deadline: float,
    progress: Progress,
    timeout: float = 120.0,
    **how: Any,
) -> pathlib.Path:
    """Submit a run, report its progress, and download its folder.

    The folder has config.yaml, metrics.jsonl, summary.json, report.html and saved_model/. A run with the same name is
    resumed. If a process of the server or of a site dies, FLARE ends the job, and this function submits the run again,
    up to three times. An interruption of this function does not stop the run. Options that are not valid, and an
    output folder that exists, are refused before anything is submitted.

    Args:
      kit, output: the administrator's folder, and a new one, which is returned.
      name, options: of the run (`server.serve`).
      quorum: smallest number of sites in a round.
      deadline, timeout: time limits for the answer of a site and for a connection to the server, in seconds.
      progress: called with each line of progress.
      **how: `secure_sums`, `max_examples` and `without` of `attendance.Submission`.
    """
    check_admin(kit)
    check_name(name)
    if GLM in options:
        make_glm_job(options[GLM], how.get("secure_sums", False), how.get("without", ()))
    else:
        # Only the server knows the number of sites: here it is that of a list by client, or any large one.
        commas = max(str(options.get(option) or "").count(",") for option in ("participation", "compressor"))
        make_job(options, commas + 1 if commas else _MANY)
    output = pathlib.Path(output)
    if output.exists():
        raise InvalidArgument(f"{path_name(output)} exists already: give --output a new folder.")
    with _connected(kit, progress, timeout) as server, tempfile.TemporaryDirectory() as draft:
        sites: set[str] = set()
        for attempt in range(_RESTARTS + 1):
            folder = pathlib.Path(draft) / f"job {attempt}"
            job = write_job(
                *(folder, name, options, quorum, deadline), again=attempt > 0, command=command_line(), **how
            )
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
        raise Error(f"The run {name} ended as {status}: see the server's log, and submit the run again to resume it.")


class ServerSession:
    """The administrator's connection to the server, with reconnection."""

    def __init__(self, kit: Kit, timeout: float, progress: Progress):
        self._kit, self._timeout, self._progress = pathlib.Path(kit).resolve(), timeout, progress
        self._session: Any = None
        admin = json.loads((self._kit / "startup" / "fed_admin.json").read_text(encoding="utf-8"))["admin"]
        self._user, self._at = admin["username"], (admin["host"], int(admin["port"]))
        if why := trust_failure(self._kit / "startup", *self._at):
            raise Error(why)
        self._connect()

    def call(self, name: str, *arguments: object) -> Any:
        """Call a method of FLARE's session, and return its result."""
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

    def _connect(self) -> None:
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        at, waits, end = self._at, False, time.monotonic() + self._timeout
        while True:
            try:
                with socket.create_connection(at, timeout=10):
                    pass  # Checked first: FLARE logs each failed attempt at length.
                self._session = new_secure_session(self._user, str(self._kit), timeout=10)
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


def follow_job(server: ServerSession, number: str, progress: Progress) -> str:
    """Report the new lines of the job with an identifier until it ends, and return its status."""
    last, missed, lines, asked = "", 0, 0, time.monotonic()
    while True:
        status = str(server.call("get_job_meta", number).get("status", ""))
        if status != last:
            progress(_words(status))
            last = status
        if status.startswith(_FINISHED):
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


def report_new(status: Mapping[str, Any], known: int, progress: Progress) -> int:
    """Report the lines after the first `known` ones, and return the number of lines that are reported now.

    `status` has the last `lines` and the number of lines `before` them; it is empty if the server did not answer.
    """
    before, lines = int(status.get("before", 0)), [str(line)[:500] for line in status.get("lines", ())]
    for line in lines[max(0, known - before) :]:
        progress(line if line.isprintable() else ascii(line))
    return max(known, before + len(lines))


def list_runs(kit: Kit, progress: Progress) -> list[str]:
    """Return a line for each job of the server, the newest first: name, status, submission and duration."""
    with _connected(kit, progress) as server:
        jobs = _jobs(server)
    parts = ("job_name", "status", "submit_time", "duration")
    rows = [("run", "status", "submitted", "duration")]
    for name, status, submitted, duration in ([_text(job, part) for part in parts] for job in jobs):
        rows.append((name, _words(status), submitted[:19], duration[:14]))
    return in_columns(rows).split("\n")


def follow_run(kit: Kit, name: str, progress: Progress) -> str:
    """Report the lines of a run until it ends, and return its last status; the run is not changed."""
    with _connected(kit, progress) as server:
        return follow_job(server, str(_current(_jobs(server), name)["job_id"]), progress)


def stop_run(kit: Kit, name: str, progress: Progress) -> None:
    """Stop a run at the server and all sites; its checkpoints stay, and submitting it again resumes it."""
    with _connected(kit, progress) as server:
        job = _current(_jobs(server), name)
        if _text(job, "status").startswith(_FINISHED):
            status = _words(_text(job, "status"))
            raise InvalidArgument(f"The run {name} has ended ({status}): there is nothing to stop.")
        server.call("abort_job", str(job["job_id"]))


@contextlib.contextmanager
def _connected(kit: Kit, progress: Progress, timeout: float = _TIMEOUT) -> Iterator[ServerSession]:
    check_admin(kit)
    check_installed()
    server = ServerSession(kit, timeout, progress)
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


def _words(status: str) -> str:
    return status.lower().replace(":", ": ").replace("_", " ")
