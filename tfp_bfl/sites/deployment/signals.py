"""Cleanup at SIGTERM and SIGHUP, which service managers and closed terminals send."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def ends_with_cleanup() -> Iterator[None]:
    """Raise SystemExit at SIGTERM and SIGHUP within the context, so that cleanup runs; the exit status is 128 + number.

    A further signal during the cleanup is ignored. Outside the main thread the context does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [x for x in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(x) is signal.SIG_DFL]

    def end(number: int, frame: FrameType | None) -> None:
        for other in numbers:
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
