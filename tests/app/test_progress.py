"""What a run says while it runs: lines where there is no terminal, and never nothing for long."""

import io
import json
import threading

import pytest
from rich.console import Console

from tests.kit import call, refusal
from tfp_bfl.app.one_run import run_folder
from tfp_bfl.errors import InvalidArgument


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(run_folder.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def made(form, rounds=5):
    file = io.StringIO()
    told = run_folder.Reporter(Console(file=file, width=20), form, rounds)
    return told, lambda: file.getvalue().splitlines()


def row(number, **scores):
    return {"round": number, "nll": 0.5, "seconds": 2.0, "faulty_clients": {}, **scores}


def test_a_line_for_each_phase_and_round_with_the_time_left(clock):
    tell, lines = made("lines")
    tell.phase("training a model whose name is longer than the terminal is wide")
    for number in (1, 2, 3):
        clock.now += 30
        tell.round(row(number, accuracy=0.25, test_nll=1.5) if number == 2 else row(number))
    tell.phase("predicting")
    assert lines() == [
        "training a model whose name is longer than the terminal is wide",
        "round 1/5  training NLL 0.500  2 s",
        "round 2/5  accuracy 0.250  NLL 1.500  training NLL 0.500  2 s  1 min 30 s left",
        "round 3/5  training NLL 0.500  2 s  1 min left",
        "predicting",
    ]


def test_what_begins_is_announced_before_what_is_said_next_and_not_alone(clock):
    tell, lines = made("lines")
    tell.announce("a run of five rounds")
    tell.phase("tracing", lazily=True)
    assert lines() == []
    clock.now += 5
    tell.round(row(1))
    tell.phase("predicting")
    assert [line.split("  ")[0] for line in lines()] == ["a run of five rounds", "round 1/5", "predicting"]


def test_fast_rounds_share_a_line_but_the_last_is_reported(clock):
    tell, lines = made("lines", rounds=100)
    for number in range(1, 101):
        clock.now += 0.3
        tell.round(row(number))
    numbers = [int(line.split()[1].split("/")[0]) for line in lines()]
    assert numbers[-1] == 100 and 20 < len(numbers) < 35


def test_json_lines_and_phases_alone(clock):
    tell, lines = made("json")
    tell.phase("reading")
    clock.now += 5
    tell.round(row(1))
    first, second = map(json.loads, lines())
    assert first == {"phase": "reading"}
    assert second == {"round": 1, "rounds": 5, "metrics": {"round": 1, "nll": 0.5, "seconds": 2.0}}
    tell, lines = made("phases")
    tell.phase("reading")
    clock.now += 5
    tell.round(row(1))
    assert lines() == ["reading"]


def watched(tell, clock, seconds):
    ended = threading.Event()
    left = iter([*[1.0] * seconds, None])

    def wait(timeout):
        step = next(left)
        clock.now += step or 0
        return step is None

    ended.wait = wait
    tell.watch(ended)


def test_nothing_is_silent_for_ten_seconds(clock):
    tell, lines = made("lines")
    tell.phase("tracing", lazily=True)
    watched(tell, clock, 1)
    assert lines() == []
    watched(tell, clock, 40)
    assert lines()[0] == "tracing" and len(lines()) == 1 + 38 // 10
    assert lines()[-1].startswith("tracing: 3") and lines()[-1].endswith(" s so far")
    tell.round(row(1))
    watched(tell, clock, 12)
    assert lines()[-1] == "round 2/5: 10 s so far"
    tell.round(row(5))
    watched(tell, clock, 12)
    assert lines()[-1] == "saving the model: 10 s so far"


def test_a_quiet_console_and_a_form_that_is_none():
    with run_folder.reporter(Console(quiet=True), None, 3) as tell:
        tell.phase("reading")
        tell.round(row(1))
    wrong = pytest.raises(InvalidArgument, match="no form of progress 'lins': did you mean 'lines'")
    with wrong, run_folder.reporter(Console(quiet=True), "lins", 3):
        pass
    assert not [t for t in threading.enumerate() if t.name == "tfp_bfl-progress"]


def test_a_bad_form_is_one_sentence_before_work(capsys, tmp_path):
    assert "no form of progress 'loud'" in refusal(capsys, "run", "--progress", "loud", "--output", tmp_path / "run")


def test_a_run_without_a_terminal_tells_its_phases(capsys, tmp_path):
    options = ["--model", "mlp", "--dataset", "breast_cancer", "--clients", "3", "--rounds", "2", "--local-epochs", "1"]
    assert call("run", *options, "--engine", "local", "--output", tmp_path / "run") == 0
    # A busy machine adds lines: a first phase that took long, and the seconds so far.
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.endswith(" so far")]
    lines = lines[lines[0].startswith("reading ") :]
    assert lines[0].startswith("flipout mlp on breast_cancer, 3 clients") and lines[0].endswith("engine local")
    assert [line for line in lines if line.startswith("round 2/2  accuracy 0.")]
    assert lines[-1] == "SavedModel, figures and report"
