"""Runs that are listed, followed and stopped, and the messages of each site, without NVIDIA FLARE."""

import json

import pytest

from tests.sites.test_deployment import OPTIONS, Channel, hospitals, run  # noqa: F401  (a fixture)
from tfp_bfl.app.cli import run_command_line
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.sites.deployment import control
from tfp_bfl.sites.deployment.channel import Answer, Refusal
from tfp_bfl.sites.deployment.traffic import Counted

pytestmark = pytest.mark.cpu_seconds(60)

FIELDS = ("job_id", "job_name", "status", "submit_time", "duration")
JOBS = [
    dict(zip(FIELDS, job))
    for job in (
        ("1", "first", "FINISHED:ABORTED", "2026-01-01T10:00:00.5", "0:01:00"),
        ("2", "first", "RUNNING", "2026-01-02T10:00:00.5", "N/A"),
        ("3", "old\x1b[2J", "FINISHED:COMPLETED", "2025-01-01T10:00:00.5"),
    )
]


class Server:
    """A server with jobs; `calls` are the requests that it received."""

    def __init__(self, *arguments):
        self.calls = []
        servers.append(self)

    def call(self, name, *arguments):
        self.calls.append((name, *arguments))
        if name == "get_job_meta":
            return {"status": "FINISHED:COMPLETED"}
        return JOBS if name == "list_jobs" else None

    def close(self):
        self.calls.append(("close",))


servers = []


@pytest.fixture
def kit(tmp_path, monkeypatch):
    (tmp_path / "tfp_bfl.json").write_text('{"role": "admin", "name": "admin", "host": "localhost"}')
    monkeypatch.setattr(control, "ServerSession", Server)
    monkeypatch.setattr(control, "check_installed", lambda: None)
    servers.clear()
    return tmp_path


def test_runs_are_listed_the_newest_first(kit, capsys):
    assert run_command_line(["deploy", "runs", str(kit)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["run", "status", "submitted", "duration"]
    assert [line.split()[:2] for line in lines[1:3]] == [["first", "running"], ["first", "finished:"]]
    assert "\x1b" not in lines[3] and servers[0].calls[-1] == ("close",)


def test_the_last_run_of_a_name_is_followed_and_stopped(kit, capsys):
    assert run_command_line(["deploy", "follow", str(kit), "first"]) == 0
    assert capsys.readouterr().out.splitlines() == ["finished: completed"]
    assert ("get_job_meta", "2") in servers[0].calls
    assert run_command_line(["deploy", "stop", str(kit), "first"]) == 0
    assert ("abort_job", "2") in servers[1].calls and "first is stopped." in capsys.readouterr().out
    assert run_command_line(["deploy", "stop", str(kit), "frist"]) == 2
    assert "no run 'frist' at the server: did you mean 'first'" in capsys.readouterr().err


def test_a_job_that_runs_is_stopped_whatever_was_submitted_later(kit, monkeypatch):
    later = dict(zip(FIELDS, ("4", "first", "FINISHED:EXECUTION_EXCEPTION", "2026-01-03T10:00:00.5", "0:00:01")))
    monkeypatch.setattr("tests.sites.test_control.JOBS", [*JOBS, later])
    assert run_command_line(["deploy", "stop", str(kit), "first"]) == 0
    assert ("abort_job", "2") in servers[0].calls


def test_a_run_that_has_ended_and_another_folder_are_one_sentence(kit, monkeypatch):
    monkeypatch.setitem(JOBS[1], "status", "FINISHED:COMPLETED")
    with pytest.raises(InvalidArgument, match=r"The run first has ended \(finished: completed\): there is nothing"):
        control.stop_run(kit, "first", print)
    (kit / "tfp_bfl.json").write_text('{"role": "party", "name": "north", "host": "localhost"}')
    with pytest.raises(InvalidArgument, match="is not the folder of the administrator"):
        control.list_runs(kit, print)


def test_messages_and_seconds_of_each_site_are_counted():
    class Two:
        names = ("north", "south")

        def ask(self, task, what):
            answer = Answer(b"12345")
            answer.seconds = 1.5
            yield "north", answer
            yield "south", Refusal("no")

    counted = Counted(Two())
    for _ in range(2):
        assert len(list(counted.ask("round", {"north": b"123", "south": b"1"}))) == 2
    assert counted.traffic == {
        "north": {"answers": 2, "sent_bytes": 6, "received_bytes": 10, "seconds": 3.0},
        "south": {"answers": 0, "sent_bytes": 2, "received_bytes": 0, "seconds": 0.0},
    }
    assert counted.lines()[0] == "north: 2 answers, 0 kB to it and 0 kB from it, 3.0 s of computation there"


def test_the_report_of_a_run_has_the_messages_of_each_site(hospitals):  # noqa: F811
    done = run(hospitals, Channel(hospitals), options={**OPTIONS, "rounds": 1})
    traffic = json.loads((done / "summary.json").read_text())["traffic"]
    # A description, the beginning, a round and scores.
    assert {own["answers"] for own in traffic.values()} == {4} and len(traffic) == 3
    assert all(own["received_bytes"] > 10_000 for own in traffic.values())
    assert "kB from the site" in (done / "report.html").read_text()
