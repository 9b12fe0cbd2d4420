"""The page of a run in progress: what it shows, to whom, and what it leaves alone."""

import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import urllib.request

import pytest

import tfp_bfl as bfl
from tests.kit import refusal
from tfp_bfl.app.one_run import watch

OPTIONS = {"dataset": "breast_cancer", "model": "mlp", "clients": 3, "local_epochs": 1, "algorithm": "fed_opt"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that was interrupted after round 2 of 4."""
    folder = tmp_path_factory.mktemp("watched") / "mine"

    def stop(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bfl.run(folder, rounds=4, on_round=stop, **OPTIONS)
    return folder


@pytest.fixture
def address(run):
    begun, found = threading.Event(), []
    thread = threading.Thread(target=watch.watch, args=(run, 0, lambda x: (found.append(x), begun.set())), daemon=True)
    thread.start()
    assert begun.wait(60)
    return found[0]


def answer(address, path="/", method="GET", **headers):
    """Return the status, headers and body of an answer."""
    host = address.removeprefix("http://").rstrip("/")
    connection = http.client.HTTPConnection(host, timeout=60)
    connection.request(method, path, headers={"Host": host, **headers})
    found = connection.getresponse()
    return found.status, found.headers, found.read().decode()


def test_the_page_shows_state_scores_and_the_time_left(run, address):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    status, headers, page = answer(address)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert (status, headers["Refresh"], headers["Cache-Control"]) == (200, "5", "no-store")
    assert "interrupted after round 2/4" in page
    assert f"{rows[-1]['accuracy']:.3f}" in page and f"{rows[-1]['test_nll']:.4g}" in page
    assert "data:image/svg+xml" in page and "Time left" in page
    # Read only.
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_a_half_written_line_does_not_count_and_a_new_one_does(run, address):
    path = run / "metrics.jsonl"
    text = path.read_text()
    try:
        path.write_text(text + '{"round": 3, "test_nll": 0.')
        assert len(watch.rows_of(run)) == 2 and "round 3/4" not in answer(address)[2]
        path.write_text(text + json.dumps({**json.loads(text.splitlines()[-1]), "round": 3, "accuracy": 0.123}) + "\n")
        assert "0.123" in answer(address)[2]
    finally:
        path.write_text(text)


@pytest.mark.parametrize("path", ["/config.yaml", "/../config.yaml", "/?x"])
def test_nothing_else_is_served(path, address):
    assert answer(address, path)[0] == 404


def test_pages_of_other_sites_and_other_requests_are_refused(address):
    assert answer(address, Host="evil.example")[0] == 403
    assert answer(address, Host="evil.example:8000")[0] == 403
    assert answer(address, method="POST")[0] == 501
    assert answer(address, method="DELETE")[0] == 501


@pytest.mark.deep(after="tests/app/test_watch.py")
def test_the_command_shows_the_report_at_the_end_and_ctrl_c_ends_it(run, tmp_path):
    bfl.run(tmp_path / "done", rounds=1, **OPTIONS)
    command = [sys.executable, "-m", "tfp_bfl", "watch", str(tmp_path / "done")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    line = process.stdout.readline()
    with urllib.request.urlopen(line.split()[0]) as found:
        assert found.read() == (tmp_path / "done" / "report.html").read_bytes()
        assert "Refresh" not in found.headers
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0


def test_what_cannot_be_watched_is_refused(tmp_path, capsys, address):
    assert refusal(capsys, "watch", tmp_path).endswith("is not the folder of a run: it has no config.yaml.")
    port = address.rstrip("/").rpartition(":")[2]
    (tmp_path / "config.yaml").write_text("rounds: 2\n")
    words = refusal(capsys, "watch", tmp_path, "--port", port)
    assert words.startswith(f"tfp-bfl: Port {port} is not free (") and words.endswith("give --port another, or none.")
    assert pathlib.Path(tmp_path / "config.yaml").read_text() == "rounds: 2\n"
