"""Ctrl-C in each phase of a run: one sentence, the status 130, within seconds, and nothing left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.kit import lines_of

# A shell's background jobs, and what they start, ignore Ctrl-C from the outset.
LISTENS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
INTERRUPTS = LISTENS + "from tfp_bfl.app.interrupts import prompt_interrupts\n"


def start(program, **options):
    return subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def wait_for(condition, seconds=500):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)


def is_alive(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def interrupted(program, **options):
    """(status, what it wrote to stderr, seconds) of a program that is interrupted once it has said a line."""
    with start(program, **options) as process:
        process.stdout.readline()
        time.sleep(0.5)  # Until it is in what it said that it begins.
        process.send_signal(signal.SIGINT)
        sent = time.monotonic()
        _, error = process.communicate(timeout=100)
        return process.returncode, error, time.monotonic() - sent


def test_a_call_that_holds_it_back_is_ended():
    """As a compiler does: no bytecode is run until it returns."""
    call = "import hashlib\nwith prompt_interrupts(0.3):\n  print(flush=True)\n"
    call += "  hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)\n"
    status, error, seconds = interrupted(INTERRUPTS + call)
    assert (status, error) == (130, "tfp-bfl: interrupted.\n") and seconds < 20


def test_what_ends_with_the_interpreter_does_not_change_the_status():
    """Threads of TensorFlow that still work abort the process there."""
    program = (
        "import atexit, os\nfrom tfp_bfl import __main__\nfrom tfp_bfl.app import cli\natexit.register(os.abort)\n"
    )
    program += "cli.run_command_line = lambda arguments: 130\n__main__.main()\n"
    with start(program) as process:
        process.communicate(timeout=100)
    assert process.returncode == 130


def test_an_import_that_swallows_it_is_ended(tmp_path):
    swallows = (
        "import time\nprint(flush=True)\ntry:\n  time.sleep(60)\nexcept KeyboardInterrupt:\n  raise ImportError\n"
    )
    (tmp_path / "swallows.py").write_text(swallows)
    program = f"import sys\nsys.path.append({str(tmp_path)!r})\nwith prompt_interrupts():\n  import swallows\n"
    assert interrupted(INTERRUPTS + program)[:2] == (130, "tfp-bfl: interrupted.\n")


def test_elsewhere_it_is_the_interrupt_that_it_always_was():
    program = "import time\ntry:\n  with prompt_interrupts(0.3):\n    print(flush=True)\n    time.sleep(60)\n"
    program += "except KeyboardInterrupt:\n  time.sleep(1)\n  raise SystemExit(7)\n"
    assert interrupted(INTERRUPTS + program)[:2] == (7, "")


@pytest.mark.parametrize("swallower", ["__del__", "collector"])
def test_where_it_would_be_swallowed_it_comes_again(swallower):
    program = "import gc, time\nclass Slow:\n  def __del__(self):\n    print(flush=True)\n    time.sleep(5)\n"
    program += "def slow(phase, info):\n  if phase == 'start':\n    print(flush=True)\n    time.sleep(5)\n"
    swallow = "Slow()" if swallower == "__del__" else "gc.callbacks.append(slow)\n    gc.collect()"
    program += f"try:\n  with prompt_interrupts():\n    {swallow}\n    time.sleep(60)\n"
    program += "except KeyboardInterrupt:\n  raise SystemExit(7)\n"
    assert interrupted(INTERRUPTS + program)[:2] == (7, "")


def test_afterwards_all_is_as_it_was():
    program = "for _ in range(50):\n  with prompt_interrupts():\n    pass\n"
    program += "import os, threading\nassert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
    program += "assert threading.active_count() == 1 and len(os.listdir('/proc/self/fd')) < 10\n"
    done = subprocess.run([sys.executable, "-c", INTERRUPTS + program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_who_ignores_it_goes_on_ignoring_it():
    program = "signal.signal(signal.SIGINT, signal.SIG_IGN)\nimport time\n"
    program += "with prompt_interrupts():\n  print(flush=True)\n  time.sleep(1)\nraise SystemExit(8)\n"
    assert interrupted(INTERRUPTS + program)[0] == 8


PHASES = {
    "import": lambda folder: True,
    "tracing": lambda folder: (folder / "config.yaml").exists(),
    "rounds": lambda folder: rows(folder) > 1,
    "evaluation": lambda folder: rows(folder) == 3,
    "export": lambda folder: (folder / "predictions.npz").exists(),
    "report": lambda folder: (folder / "figures").exists(),
}


def rows(folder):
    path = folder / "metrics.jsonl"
    return len(lines_of(path)) if path.exists() else 0


@pytest.mark.parametrize(
    "phase", [pytest.param(x, marks=[pytest.mark.long] if x in ("evaluation", "report") else []) for x in PHASES]
)
@pytest.mark.deep(after="test_interrupts.py")
def test_a_run_in_each_phase(tmp_path, phase):
    folder, number = tmp_path / "run", "100000" if phase in ("import", "tracing", "rounds") else "3"
    run_until(folder, PHASES[phase], number, signal.SIGINT, 130, delay=phase == "import")


@pytest.mark.deep(after="test_interrupts.py")
def test_a_run_that_is_terminated(tmp_path):
    run_until(tmp_path / "run", PHASES["rounds"], "100000", signal.SIGTERM, -signal.SIGTERM)


def run_until(folder, condition, number, sign, status, delay=0.0):
    """A run that gets a signal: its status, one sentence for Ctrl-C, and no process, socket or broken file after it."""
    program = f"import sys\nsys.argv = ['tfp-bfl', 'run', '--rounds', '{number}', '--output', {str(folder)!r}]\n"
    temporary = folder.parent / "tmp"
    temporary.mkdir()
    environment = {"TMPDIR": str(temporary), "TF_CPP_MIN_LOG_LEVEL": "3"}
    process = start(
        LISTENS + program + "from tfp_bfl.__main__ import main\nmain()\n",
        env={**os.environ, **environment},
        start_new_session=True,
    )
    try:
        wait_for(lambda: condition(folder) or process.poll() is not None)
        time.sleep(delay)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(sign)
        sent = time.monotonic()
        _, error = process.communicate(timeout=100)
        seconds = time.monotonic() - sent
    finally:
        process.kill()
    assert process.returncode == status, error
    assert seconds < 15 and "Traceback" not in error
    if sign == signal.SIGINT:
        assert error.endswith("tfp-bfl: interrupted.\n") and error.count("interrupted") == 1
    wait_for(lambda: not [child for child in children if is_alive(child)])
    wait_for(lambda: not list(temporary.glob("tfp_bfl-*")))
    assert not (folder / "summary.json").exists() and not list(Path(folder).glob("*.draft"))
