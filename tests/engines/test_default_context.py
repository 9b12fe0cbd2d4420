"""The worker of TFF's default context, for processes that end without the functions of atexit."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.plugin import pytest_sessionfinish

PROGRAM = """
import os, sys
from tests.engines.test_default_context import worker_after
print(*worker_after(sys.argv[1] == "ended"), flush=True)
os._exit(0)
"""


def worker_after(ended):
    """Return whether a worker runs after a computation in the default context, and whether one is left at the end."""
    import tensorflow_federated as tff

    tff.tensorflow.computation(lambda: 1)()
    workers = psutil.Process().children(recursive=True)
    if ended:
        for worker in workers:
            # A worker that does not answer an interrupt, as now and then at a busy machine.
            worker.send_signal(signal.SIGSTOP)
        pytest_sessionfinish()
    _, alive = psutil.wait_procs(workers, timeout=5)
    for worker in alive:
        worker.kill()
    return bool(workers), bool(alive)


@pytest.mark.tff
@pytest.mark.deep(after="tests/engines/test_door.py")
@pytest.mark.parametrize("ended", [True, False])
def test_the_end_of_a_session_ends_the_worker(ended):
    """Without it a process of pytest-xdist that is ended leaves the worker behind."""
    words = [sys.executable, "-c", PROGRAM, "ended" if ended else "not"]
    out = subprocess.run(
        words, capture_output=True, text=True, check=True, timeout=300, env={**os.environ, "PYTHONPATH": os.getcwd()}
    )
    assert out.stdout.split() == ["True", str(not ended)]
