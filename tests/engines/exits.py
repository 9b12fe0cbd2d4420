"""A program that runs a computation on a worker and then ends in the way that its argument names.

Prints "worker <pid>" once the worker runs, and "ready" when it may be killed. test_workers.py runs it.
"""

import os
import signal
import sys
import threading
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

from tfp_bfl.engines.tff.context import local_workers
from tfp_bfl.engines.tff.installation import require_tff

# A shell's background jobs, and what they start, ignore Ctrl-C from the outset.
signal.signal(signal.SIGINT, signal.default_int_handler)

tff = require_tff()


@tff.tensorflow.computation(np.int64)
def count(n):
    return tf.while_loop(lambda i: i < n, lambda i: (i + 1,), (tf.constant(0, tf.int64),))[0]


def run(how):
    with local_workers() as runtime:
        assert count(3) == 3
        print("worker", runtime.workers[0].pid, flush=True)
        if how == "exception":
            raise ValueError("this is expected")
        if how == "sys.exit":
            sys.exit(3)
        if how == "busy":  # To be killed from outside, in the middle of a computation.
            threading.Timer(0.5, lambda: print("ready", flush=True)).start()
            count(10**12)


def run_unclosed():
    """As in a notebook: entered by hand, in a thread that ends while the worker must go on."""
    manager = local_workers()
    runtimes = []
    thread = threading.Thread(target=lambda: runtimes.append(manager.__enter__()))
    thread.start()
    thread.join()
    time.sleep(0.5)
    with tff.framework.get_context_stack().install(runtimes[0].context):
        assert count(3) == 3
    print("worker", runtimes[0].workers[0].pid, flush=True)
    return manager  # Keeps the generator from being closed here: only the interpreter's exit is left.


if __name__ == "__main__":
    keep = run_unclosed() if sys.argv[1] == "unclosed" else run(sys.argv[1])
