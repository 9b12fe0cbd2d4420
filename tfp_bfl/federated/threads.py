"""Threads: how many operations take, and those that a program may leave behind when it ends."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import tensorflow as tf

from tfp_bfl.errors import check_count

T = TypeVar("T")


def start(function: Callable[[], T], name: str = "tfp_bfl-call") -> Future[T]:
    """Run a function on a separate daemon thread, so that a program can exit in the middle of it."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def share_cores(num_clients: int) -> None:
    """Split the cores among the clients that are worked through at once: operations of small models are faster so.

    Without effect once TensorFlow has computed anything in this process, or where TF_NUM_INTRAOP_THREADS is set.
    """
    check_count(num_clients, "num_clients")
    cores = len(os.sched_getaffinity(0))
    if "TF_NUM_INTRAOP_THREADS" not in os.environ:
        with contextlib.suppress(RuntimeError):  # It has started.
            tf.config.threading.set_intra_op_parallelism_threads(max(1, cores // min(cores, num_clients)))
