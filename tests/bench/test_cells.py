"""Cells: what is done once, what is tried again, and what is left when the program ends."""

import json
import logging
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests.kit import fails, refuses
from tfp_bfl.bench import cells


def write(folder, options):
    if options.get("fails"):
        raise ValueError("it is odd")
    folder.mkdir(parents=True)
    (folder / "pid").write_text(str(os.getpid()))
    (folder / "level").write_text(str(logging.getLogger("tensorflow").getEffectiveLevel()))
    (folder / "summary.json").write_text(json.dumps({"options": dict(options), "score": options["number"]}))


def hang(folder, options):
    folder.mkdir(parents=True)
    (folder / "pid").write_text(str(os.getpid()))
    time.sleep(600)


def told(summary):
    return f"score {summary['score']}"


def every(number=4, **more):
    return {f"cell {i}": {"number": i, **more} for i in range(number)}


@pytest.mark.parametrize("jobs", [1, 2])
def test_each_is_run_once_and_reported(tmp_path, capsys, jobs):
    cells.run_cells(every(2), tmp_path, write, told)
    capsys.readouterr()
    cells.run_cells(every(4), tmp_path, write, told, jobs=jobs)
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "2 of 4 are done."
    assert {line[4:] for line in lines} == {"cell 2: score 2", "cell 3: score 3"}
    pids = {(tmp_path / f"cell {i}" / "pid").read_text() for i in (2, 3)}
    assert (str(os.getpid()) in pids) == (jobs == 1)
    if jobs > 1:  # As the command line does in its own process: TensorFlow's advice on tracing is not for its users.
        assert {(tmp_path / f"cell {i}" / "level").read_text() for i in (2, 3)} == {str(logging.ERROR)}


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.deep(after="tests/bench/test_cells.py"))])
def test_one_that_fails_does_not_stop_the_others_and_is_tried_again(tmp_path, capsys, jobs):
    wanted = {**every(3), "cell 1": {"number": 1, "fails": True}}
    fails(r"1 of 3 failed, .* cell 1 \(it is odd\)", cells.run_cells, wanted, tmp_path, write, told, jobs=jobs)
    assert "cell 1: failed: it is odd" in capsys.readouterr().out
    assert [cells.is_done(tmp_path / name) for name in wanted] == [True, False, True]
    cells.run_cells(every(3), tmp_path, write, told)
    assert all(cells.is_done(tmp_path / name) for name in wanted)


def test_of_two_at_a_cell_one_works_and_the_other_waits(tmp_path):
    begun, go_on, worked = threading.Event(), threading.Event(), []

    def slowly():
        worked.append(1)
        begun.set()
        assert go_on.wait(60)
        write(tmp_path / "one", {"number": 1})

    first, second = (threading.Thread(target=cells.run_once, args=(tmp_path / "one", slowly)) for _ in range(2))
    first.start()
    assert begun.wait(60)
    second.start()
    second.join(0.3)
    assert second.is_alive()
    go_on.set()
    first.join(60)
    second.join(60)
    assert worked == [1] and not second.is_alive()


@pytest.mark.parametrize("goes_on", [True, False])
def test_half_of_a_cell_is_taken_up_or_deleted(tmp_path, goes_on):
    half = tmp_path / "one" / "half"
    half.parent.mkdir()
    half.touch()
    seen = []
    cells.run_once(half.parent, lambda: seen.append(half.exists()), goes_on)
    assert seen == [goes_on]


def test_cells_of_other_options_are_refused(tmp_path):
    cells.run_cells(every(2, rate=0.1), tmp_path, write, told)
    cells.check_cells(every(3, rate=0.1), tmp_path)
    refuses(r"cell 0 is of other options \(rate 0.1, now 0.2\)", cells.check_cells, every(3, rate=0.2), tmp_path)


@pytest.mark.deep(after="tests/bench/test_cells.py")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_the_program_ends_nothing_is_left_running(tmp_path, number):
    program = (
        # Who starts the tests in the background may have them ignore Ctrl-C.
        "import pathlib, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from tests.bench.test_cells import every, hang, told\n"
        "from tfp_bfl.bench import cells\n"
        "if __name__ == '__main__':\n"
        "    cells.run_cells(every(4), pathlib.Path(sys.argv[1]), hang, told, jobs=2)\n"
    )
    script = tmp_path / "program.py"
    script.write_text(program)
    root = str(pathlib.Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "TF_CPP_MIN_LOG_LEVEL": "3"}
    with subprocess.Popen([sys.executable, script, tmp_path / "out"], env=environment, cwd=root) as process:
        at_work = lambda: [int(path.read_text() or 0) for path in (tmp_path / "out").glob("*/pid")]
        end = time.monotonic() + 120
        while len(at_work()) < 2 and time.monotonic() < end:
            time.sleep(0.1)
        assert len(at_work()) == 2
        process.send_signal(number)
        process.wait(60)
    end = time.monotonic() + 30
    while any(map(_runs, at_work())) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(map(_runs, at_work()))


def _runs(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
