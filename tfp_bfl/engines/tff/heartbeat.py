"""Checks that workers still answer: a stopped, swapped out or disconnected worker would block its callers forever."""

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

from tfp_bfl.engines.tff.workers import is_ready
from tfp_bfl.errors import check_number

logger = logging.getLogger(__name__)

_ONCE_MORE_SECONDS = 5.0


@contextlib.contextmanager
def heartbeat(workers: list[Any], seconds: float) -> Iterator[None]:
    """Watch workers, also those that come into their list later: who does not answer for `seconds` is given up.

    A worker answers from threads that do not compute, so that a busy one answers at once however long its clients take;
    the question has a connection of its own, so that no large message is before it. After `seconds` without an answer
    it is asked once more: it may be this process that was stopped.
    """
    seconds = check_number(seconds, "heartbeat_seconds")
    ended = threading.Event()
    watched: dict[int, Any] = {}

    def watch(i: int, worker: Any) -> None:
        channel = worker.open_channel()
        try:
            while worker.is_alive and not ended.wait(seconds / 4) and workers[i] is worker:
                # Not whole: whoever ends the watch waits for the answer.
                answers = (is_ready(channel, seconds / 4) for _ in range(4) if worker.is_alive and not ended.is_set())
                if any(answers) or ended.is_set() or not worker.is_alive:
                    continue
                if not is_ready(channel, min(seconds, _ONCE_MORE_SECONDS)) and worker.is_alive:
                    logger.warning("The worker %s has not answered for %g s and is given up.", worker.address, seconds)
                    worker.give_up(seconds)
        finally:
            channel.close()

    def look() -> None:
        """Begin to watch new workers."""
        while True:
            for i, worker in enumerate(workers):
                if watched.get(i) is not worker:
                    watched[i] = worker
                    threading.Thread(target=watch, args=(i, worker), daemon=True).start()
            if ended.wait(min(1.0, seconds / 4)):
                return

    threading.Thread(target=look, name="tfp_bfl-heartbeat", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
