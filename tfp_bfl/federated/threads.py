"""Work on threads that a program may leave behind when it ends."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Callable, TypeVar

T = TypeVar("T")


def start(function: Callable[[], T], name: str = "tfp_bfl-call") -> Future[T]:
    """Runs a function on a thread of its own: a daemon, so that a program can exit in the middle of it."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
