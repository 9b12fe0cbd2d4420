"""A run as an administrator submits it: JSON without code, followed to its end, its folder fetched."""

from __future__ import annotations

import contextlib
import json
import pathlib
import shutil
import socket
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Callable, Optional, Union

from tfp_bfl.errors import Error, InvalidArgument
from tfp_bfl.files import name as path_name
from tfp_bfl.files.writing import begun
from tfp_bfl.parties.deployment.job import check_name, make_job
from tfp_bfl.parties.deployment.kits import ADMIN, CLASSES, check_installed, role_of
from tfp_bfl.parties.deployment.server import FAILURE, TOLD
from tfp_bfl.parties.deployment.strangers import strangers

# How many parties there are is known at the server.
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
    max_examples: Optional[int] = None,
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
            "workflows": [{"id": "federation", "path": f"{CLASSES}Server", "args": server}],
            "components": [],
        },
        config / "config_fed_client.json": {
            "format_version": 2,
            "executors": [{"tasks": ["*"], "executor": {"path": f"{CLASSES}Site", "args": {}}}],
            "components": [],
        },
    }
    for path, content in files.items():
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return folder / name


def submit(
    kit: Union[str, pathlib.Path],
    name: str,
    options: Mapping[str, Any],
    output: Union[str, pathlib.Path],
    *,
    quorum: int,
    deadline: float,
    tell: Callable[[str], None],
    timeout: float = 120.0,
    restarts: int = 3,
    secure_sums: bool = False,
    max_examples: Optional[int] = None,
    without: Sequence[str] = (),
) -> pathlib.Path:
    """Submit a run, follows it, and fetches its folder: config.yaml, metrics.jsonl, summary.json, report.html and
    saved_model/.

    The same name resumes an interrupted run, as this does where a process of the server or of a site died:
    FLARE then ends the job, and in the next one that site is there again. Who interrupts this leaves the run to go on.

    Args:
      kit: the administrator's folder.
      name: of the run.
      options: of `tfp-bfl run`, but those of data.
      output: a new folder.
      quorum: the fewest sites that must answer.
      deadline: seconds that a site has for an answer.
      tell: is given lines of progress.
      timeout: seconds in which the server must be reached, at first and again.
      restarts: how often a run resumes after a process died.
      secure_sums: sites mask what they send, and the server reads the sum over those who answer alone.
      max_examples: that a site counts as having, whatever it says.
      without: sites that are not asked.

    Raises:
      InvalidArgument: the options are no run's, or the folder is there. Then nothing was submitted.
      Error: the server can't be reached, or the run failed.
      MissingDependency: NVIDIA FLARE is not installed.
    """
    if role_of(kit)["role"] != ADMIN:
        raise InvalidArgument(f"{path_name(kit)} is not the administrator's folder: give that one.")
    check_name(name)
    make_job(options, _MANY)
    output = pathlib.Path(output)
    if output.exists():
        raise InvalidArgument(f"{path_name(output)} exists already: give --output a new folder.")
    check_installed()
    server = _Server(kit, timeout, tell)
    try:
        with tempfile.TemporaryDirectory() as draft:
            how = options, quorum, deadline, secure_sums, max_examples, without
            parties: set[str] = set()
            for attempt in range(restarts + 1):
                job = write_job(pathlib.Path(draft) / f"job {attempt}", name, *how, again=attempt > 0)
                parties |= server.wait_for(parties, deadline)
                number = server.call("submit_job", str(job))
                tell(f"run {name} is submitted")
                status = _follow(server, number, tell)
                if status == _LOST:
                    tell("the server has lost the job: the run resumes from its last checkpoint")
                    continue
                there = server.call("download_job_result", number, str(pathlib.Path(draft) / f"{attempt}"))
                failure, done = (next(pathlib.Path(there).rglob(file), None) for file in (FAILURE, "summary.json"))
                if failure:
                    raise Error(failure.read_text(encoding="utf-8"))
                if done:  # Written last: what FLARE makes of a party that was gone at the end changes nothing.
                    with begun(output):
                        shutil.copytree(done.parent, output)
                    return output
                if status == _ABORTED:
                    break
                tell("a process died: the run goes on from its last checkpoint")
            raise Error(f"The run {name} ended as {status}: the server's log says why; submit it again to go on.")
    finally:
        server.close()


class _Server:
    """The server, as an administrator reaches it: again, where it was gone for a while."""

    def __init__(self, kit: Union[str, pathlib.Path], timeout: float, tell: Callable[[str], None]):
        self._kit, self._timeout, self._tell = pathlib.Path(kit).resolve(), timeout, tell
        self._session: Any = None
        at = self._admin()
        if why := strangers(self._kit / "startup", at["host"], int(at["port"])):
            raise Error(why)
        self._connect()

    def call(self, name: str, *arguments: Any) -> Any:
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
                self._tell("the server does not answer; trying again")
                self.close()
                self._connect()
        raise Error("The server answers and then does not: look at its log.")

    def wait_for(self, parties: Collection[str], seconds: float) -> set[str]:
        """Wait for the sites to connect and return the connected ones; a resumed run requires all of its sites."""
        end, waits = time.monotonic() + seconds, False
        while True:
            there = {client.name for client in self.call("get_system_info").client_info}
            missing = sorted(set(parties) - there)
            if not missing or time.monotonic() > end:
                return there
            if not waits:
                self._tell(f"waiting for {', '.join(missing)}")
            waits = True
            time.sleep(_POLL)

    def status(self, number: str) -> dict[str, Any]:
        """Return the server's last lines about a job that runs, if it answers."""
        with contextlib.suppress(Exception):
            for stats in dict(self._session.show_stats(number, "server")).values():
                if isinstance(stats, dict) and TOLD in stats:
                    return dict(stats[TOLD])
        return {}

    def close(self) -> None:
        """End the session."""
        with contextlib.suppress(Exception):
            self._session.close()

    def _admin(self) -> dict[str, Any]:
        found = json.loads((self._kit / "startup" / "fed_admin.json").read_text(encoding="utf-8"))
        return dict(found["admin"])

    def _connect(self) -> None:
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        admin = self._admin()
        at, waits, end = (admin["host"], int(admin["port"])), False, time.monotonic() + self._timeout
        while True:
            try:
                with socket.create_connection(at, timeout=10):
                    pass  # Where nobody listens FLARE tells of each attempt at length.
                self._session = new_secure_session(admin["username"], str(self._kit), timeout=10)
                return
            except Exception as error:
                if time.monotonic() > end:
                    raise Error(
                        f"The server at {at[0]}:{at[1]} can't be reached ({type(error).__name__}): is it started, and "
                        "the port open?"
                    ) from None
                if not waits:
                    self._tell(f"nobody answers at {at[0]}:{at[1]}; trying for {self._timeout:.0f} s")
                waits = True
                time.sleep(_POLL)


def _follow(server: _Server, number: str, tell: Callable[[str], None]) -> str:
    last, missed, lines, asked = "", 0, 0, time.monotonic()
    while True:
        status = str(server.call("get_job_meta", number).get("status", ""))
        if status != last:
            tell(status.lower().replace(":", ": ").replace("_", " "))
            last = status
        if status.startswith("FINISHED"):
            return status
        # A job that is not quite there yet makes FLARE's server log each question as an error.
        if status == "RUNNING" and (lines or time.monotonic() > asked + _STARTS):
            asked = time.monotonic()
            lines = tell_new(server.status(number), lines, tell)
        # A server that was started anew calls the jobs running that ran before, and runs none.
        there = status != "RUNNING" or any(job.job_id == number for job in server.call("get_system_info").job_info)
        missed = 0 if there else missed + 1
        if missed == _MISSED:
            return _LOST
        time.sleep(_POLL)


def tell_new(status: Mapping[str, Any], known: int, tell: Callable[[str], None]) -> int:
    """Report what a server has told since so many lines of its were known, and return how many are now.

    Args:
      status: `lines`, and how many there were `before` them; empty if the server did not answer.
      known: number of lines that were reported before.
      tell: is given each line.
    """
    before, lines = int(status.get("before", 0)), [str(line)[:500] for line in status.get("lines", ())]
    for line in lines[max(0, known - before) :]:
        tell(line if line.isprintable() else ascii(line))
    return max(known, before + len(lines))
