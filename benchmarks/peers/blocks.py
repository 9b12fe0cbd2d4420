"""A side of the step's benchmark: a process that computes a block of steps on each request."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

BATCH, LEARNING_RATE, PRIOR_STDDEV, INITIAL_STDDEV = 32, 1e-3, 10.0, 0.003


def serve(block: Callable[[], float], steps: int) -> None:
    """Answer each line of standard input by a block of `steps` steps and a line of JSON; `block` returns its NLL."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What libraries print is no answer.
    block(), block()
    print(json.dumps("ready"), file=answers, flush=True)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        nll = block()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        line = {"ms": 1000 * wall / steps, "cpu_ms": 1000 * cpu / steps, "nll": nll}
        print(json.dumps(line), file=answers, flush=True)
