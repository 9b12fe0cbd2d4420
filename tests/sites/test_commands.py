"""The commands of `tfp-bfl deploy` without NVIDIA FLARE: what they refuse, runs that are followed, ends by signals."""

import concurrent.futures
import contextlib
import json
import os
import signal
import socket
import ssl
import sys
import threading
import types
from typing import ClassVar

import pytest

from tests.certificates import certify
from tests.kit import call, refusal, refuses
from tfp_bfl.errors import Error
from tfp_bfl.sites.deployment import kits, submit
from tfp_bfl.sites.deployment.commands import ends_with_cleanup


def job(*of):
    return dict(zip(("job_id", "job_name", "status", "submit_time", "duration"), of))


JOBS = [
    job("1", "first", "FINISHED:ABORTED", "2026-01-01T10:00:00.5", "0:01:00"),
    job("2", "first", "RUNNING", "2026-01-02T10:00:00.5", "N/A"),
    job("3", "old\x1b[2J", "FINISHED:COMPLETED", "2025-01-01T10:00:00.5"),
]
ROLE = '{"role": "admin", "name": "admin", "host": "localhost"}'


@pytest.fixture(autouse=True)
def installed(request, monkeypatch):
    """FLARE as if it were installed, except where a test asks for it."""
    if "flare" not in request.node.name:
        for module in (kits, submit):
            monkeypatch.setattr(module, "check_installed", lambda: None)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("init kits --host a@b --site north", "no host"),
        ("init kits --host h --site North!", "no name of a site"),
        ("init kits --host h --site a --site a", "each site once"),
        ("init kits --host h", "at least one site"),
        ("start kits", "no folder that tfp-bfl deploy init wrote"),
        ("check kits", "no folder that tfp-bfl deploy init wrote"),
        ("run kits --name a --output o", "no folder that tfp-bfl deploy init wrote"),
    ],
)
def test_bad_commands_are_one_sentence_and_write_nothing(tmp_path, monkeypatch, capsys, command, message):
    monkeypatch.chdir(tmp_path)
    assert message in refusal(capsys, "deploy", *command.split()) and not os.listdir(tmp_path)


def test_without_flare_it_says_how_to_install_it(tmp_path, capsys):
    pytest.importorskip("tensorflow_federated")  # beside which FLARE can't be
    assert call("deploy", "demo", "--output", tmp_path / "demo") == 2
    assert "make deployment" in capsys.readouterr().err


class Server:
    """A server with jobs; `calls` are the requests that it received."""

    every: ClassVar = []

    def __init__(self, *arguments):
        self.calls, self.jobs = [], JOBS
        self.every.append(self)

    def call(self, name, *arguments):
        self.calls.append((name, *arguments))
        if name == "get_job_meta":
            return {"status": "FINISHED:COMPLETED"}
        return self.jobs if name == "list_jobs" else None

    def close(self):
        self.calls.append(("close",))


@pytest.fixture
def kit(tmp_path, monkeypatch):
    (tmp_path / "tfp_bfl.json").write_text(ROLE)
    monkeypatch.setattr(submit, "ServerSession", Server)
    monkeypatch.setattr(Server, "every", [])
    return tmp_path


def test_runs_are_listed_the_newest_first(kit, capsys):
    assert call("deploy", "runs", kit) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["run", "status", "submitted", "duration"]
    assert [line.split()[:2] for line in lines[1:3]] == [["first", "running"], ["first", "finished:"]]
    assert "\x1b" not in lines[3] and Server.every[0].calls[-1] == ("close",)


def test_the_last_run_of_a_name_is_followed_and_stopped(kit, capsys):
    assert call("deploy", "follow", kit, "first") == 0
    assert capsys.readouterr().out.splitlines() == ["finished: completed"]
    assert ("get_job_meta", "2") in Server.every[0].calls
    assert call("deploy", "stop", kit, "first") == 0
    assert ("abort_job", "2") in Server.every[1].calls and "first is stopped." in capsys.readouterr().out
    assert "no run 'frist' at the server: did you mean 'first'" in refusal(capsys, "deploy", "stop", kit, "frist")


def test_a_job_that_runs_is_stopped_whatever_was_submitted_later(kit, monkeypatch):
    later = job("4", "first", "FINISHED:EXECUTION_EXCEPTION", "2026-01-03T10:00:00.5", "0:00:01")
    monkeypatch.setattr(sys.modules[__name__], "JOBS", [*JOBS, later])
    assert call("deploy", "stop", kit, "first") == 0
    assert ("abort_job", "2") in Server.every[0].calls


def test_a_run_that_has_ended_and_another_folder_are_one_sentence(kit, monkeypatch):
    monkeypatch.setitem(JOBS[1], "status", "FINISHED:COMPLETED")
    refuses(r"The run first has ended \(finished: completed\): there is nothing", submit.stop_run, kit, "first", print)
    (kit / "tfp_bfl.json").write_text(ROLE.replace("admin", "party"))
    refuses("is not the folder of the administrator", submit.list_runs, kit, print)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def test_a_server_that_is_not_there_is_waited_for_and_named(tmp_path, monkeypatch):
    certify(tmp_path, ["admin"])
    kit, port = tmp_path / "admin", free_port()
    (kit / "tfp_bfl.json").write_text(ROLE)
    told = {"admin": {"username": "admin", "host": "127.0.0.1", "port": port}}
    (kit / "startup" / "fed_admin.json").write_text(json.dumps(told))
    api = types.ModuleType("flare_api")
    api.new_secure_session = lambda *args, **kwargs: pytest.fail("nobody listens")
    monkeypatch.setitem(sys.modules, "nvflare.fuel.flare_api.flare_api", api)
    lines, how = [], {"quorum": 2, "deadline": 5, "timeout": 2}
    with pytest.raises(Error, match=rf"at 127.0.0.1:{port} can't be reached \(ConnectionRefusedError\): is it running"):
        submit.submit(kit, "first", {"model": "mlp"}, tmp_path / "first", progress=lines.append, **how)
    assert lines == [f"no server answers at 127.0.0.1:{port}; retrying for 2 s"]


def test_each_line_of_the_server_is_reported_once():
    lines, known = [], 0
    for before, new in ((0, ["one", "two"]), (None, None), (1, ["two", "three"]), (4, ["five", "\x1b[2Jsix"])):
        status = {} if new is None else {"before": before, "lines": new}
        known = submit.report_new(status, known, lines.append)
    assert lines == ["one", "two", "three", "five", r"'\x1b[2Jsix'"] and known == 6


@pytest.fixture
def nobody_handles_signals():
    """A program that starts the tests by nohup has them ignore SIGHUP."""
    former = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("nobody_handles_signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_with_cleanup_and_a_second_one_does_not_cut_that_short(number):
    ended = []
    with pytest.raises(SystemExit) as raised, ends_with_cleanup():
        try:
            os.kill(os.getpid(), number)
            pytest.fail("nothing was raised")
        except Exception:  # FLARE's errors are caught so, which must not catch this.
            pytest.fail("it was caught")
        finally:
            for again in (signal.SIGTERM, signal.SIGHUP):
                os.kill(os.getpid(), again)
            ended.append(True)
    assert raised.value.code == 128 + number and ended == [True]
    assert signal.getsignal(number) is signal.SIG_DFL


@pytest.mark.usefixtures("nobody_handles_signals")
def test_signals_that_someone_handles_stay_theirs_and_a_thread_changes_none():
    noted = []
    signal.signal(signal.SIGHUP, lambda number, frame: noted.append(number))
    with ends_with_cleanup():
        os.kill(os.getpid(), signal.SIGHUP)
    assert noted == [signal.SIGHUP]

    def work():
        with ends_with_cleanup():
            return signal.getsignal(signal.SIGTERM)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        assert pool.submit(work).result() is signal.SIG_DFL


@pytest.fixture(scope="module")
def federations(tmp_path_factory):
    """Folders of two authorities with a server and a site, and one with a root and a certificate of different ones."""
    folder = tmp_path_factory.mktemp("kits")
    for federation in ("ours", "theirs"):
        certify(folder / federation, ["127.0.0.1", "north"])
    mixed = folder / "mixed" / "startup"
    mixed.mkdir(parents=True)
    for owner, name in (("theirs", "client.crt"), ("theirs", "client.key"), ("ours", "rootCA.pem")):
        (mixed / name).write_bytes((folder / owner / "north" / "startup" / name).read_bytes())
    return folder


@contextlib.contextmanager
def listening(answer):
    """Listen on a port, and give its connections to `answer`."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with contextlib.suppress(OSError), connection:
                        answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def test_the_error_names_a_server_or_folder_of_another_federation(federations):
    startup = federations / "ours" / "127.0.0.1" / "startup"
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(startup / "rootCA.pem"))
    context.load_cert_chain(startup / "client.crt", startup / "client.key")
    context.verify_mode = ssl.CERT_REQUIRED  # As FLARE's server.

    def answer(connection):
        with context.wrap_socket(connection, server_side=True) as secure:
            secure.sendall(secure.recv(9))

    with listening(answer) as port:
        asked = lambda kit: kits.trust_failure(federations / kit / "startup", "127.0.0.1", port)
        assert asked("ours/north") == ""
        assert f"The server at 127.0.0.1:{port} belongs to another federation than this folder" in asked("theirs/north")
        assert "rejects this folder's certificate, which is from another authority" in asked("mixed")
        assert asked("ours/north") == ""


def test_an_absent_server_is_no_fault_of_trust_and_another_service_at_the_port_is_named(federations):
    failure = lambda host, port: kits.trust_failure(federations / "ours" / "north" / "startup", host, port)
    port = free_port()
    assert failure("127.0.0.1", port) == failure("no.such.host.invalid", port) == ""
    with listening(lambda connection: connection.sendall(b"220 mail.example.org ESMTP\r\n")) as port:
        assert "does not speak TLS" in failure("127.0.0.1", port)
