"""Demonstration: three hospitals and a server as separate processes on one machine."""

import contextlib
import csv
import json
import pathlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import psutil

from tfp_bfl.errors import Error, InvalidArgument
from tfp_bfl.files import name as path_name
from tfp_bfl.sites.deployment.kits import SERVER, make_kits
from tfp_bfl.sites.deployment.party_file import FILE
from tfp_bfl.sites.deployment.submit import submit

HOSPITALS = ("north", "south", "west")
_SECONDS_TO_START, _SECONDS_TO_END = 120.0, 30.0


def run_demo(output: str | pathlib.Path, rounds: int, port: int, progress: Callable[[str], None]) -> pathlib.Path:
    """Make the folders, start all processes, run, end all processes, and return the folder of the run."""
    folder = pathlib.Path(output)
    if folder.exists():
        raise InvalidArgument(f"{path_name(folder)} exists already: give --output a new folder.")
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            free.bind(("127.0.0.1", port))
        except OSError:
            raise InvalidArgument(f"The port {port} is taken: give --port another.") from None
    kits = folder / "kits"
    make_kits(kits, "localhost", port, HOSPITALS)
    write_hospitals(kits)
    progress(f"{', '.join(HOSPITALS)} and the server are folders in {kits}")
    with running([kits / name for name in (SERVER, *HOSPITALS)], port):
        progress("all processes are started; each imports TensorFlow, which takes a while")
        how: dict[str, Any] = {"quorum": len(HOSPITALS), "deadline": 120.0, "timeout": _SECONDS_TO_START}
        options = {"model": "mlp", "rounds": rounds}
        done = submit(kits / "admin", "demo", options, folder / "run", progress=progress, **how)
    summary = json.loads((done / "summary.json").read_text(encoding="utf-8"))
    words = lambda scores: f"accuracy {scores['accuracy']:.4f}, NLL {scores['test_nll']:.4f}"
    for site, scores in summary["parties"].items():
        progress(f"{site}: {words(scores)} on its own test data")
    progress(f"together: {words(summary)}; {done}/saved_model predicts")
    progress(
        f"{done}/report.html shows the run; kits/{HOSPITALS[0]}/readme.txt describes the steps of a site on its host"
    )
    return done


def write_hospitals(kits: pathlib.Path) -> None:
    """Write a third of the breast cancer data to the folder of each hospital, as a table."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    owners = np.random.default_rng(0).integers(0, len(HOSPITALS), len(data.target))
    for number, name in enumerate(HOSPITALS):
        local = kits / name / "local"
        with open(local / "patients.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([*data.feature_names, "diagnosis"])
            for row, label in zip(data.data[owners == number], data.target[owners == number]):
                writer.writerow([*row.tolist(), data.target_names[label]])
        (local / FILE).write_text("data: patients.csv\nlabel: diagnosis\n", encoding="utf-8")


@contextlib.contextmanager
def running(kits: Sequence[pathlib.Path], port: int) -> Iterator[list[subprocess.Popen]]:
    """Start the processes of a server (the first folder) and of sites; all end with the context."""
    processes: list[subprocess.Popen] = []
    try:
        for kit in kits:
            processes.append(start_process(kit))
            if len(processes) == 1:
                _wait_for(port, processes[0], kit)
        yield processes
    finally:
        # The processes of a job are children of these, in other sessions.
        every = [psutil.Process(process.pid) for process in processes if process.poll() is None]
        every += [child for process in every for child in process.children(recursive=True)]
        for process in every:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        for process in psutil.wait_procs(every, _SECONDS_TO_END)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(every, _SECONDS_TO_END)


def start_process(kit: pathlib.Path) -> subprocess.Popen:
    """Start the server or site of a folder in a new session; its output goes to `process.log` in the folder."""
    command = [sys.executable, "-m", "tfp_bfl", "deploy", "start", str(kit)]
    with open(kit / "process.log", "ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def _wait_for(port: int, process: subprocess.Popen, kit: pathlib.Path) -> None:
    end = time.monotonic() + _SECONDS_TO_START
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.5)
    raise Error(f"The server of {path_name(kit)} did not start: see its process.log.")
