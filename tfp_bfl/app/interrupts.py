"""Ctrl-C ends the command line in the same way in every phase, and within seconds."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

STATUS = 130
MESSAGE = "tfp-bfl: interrupted."
SECONDS = 10.0
PAUSE = 0.05


@contextlib.contextmanager
def prompt_interrupts(seconds: float = SECONDS) -> Iterator[None]:
    """Raise `KeyboardInterrupt` on Ctrl-C inside the block; end the process where the exception would be lost.

    Imports make other errors of it, or swallow it: there the process ends at once. Finalizers and the callbacks of the
    garbage collector swallow it too: it comes again after them. Compilers and other long calls hold it back: the
    process ends `seconds` after it came, if it still runs. What is saved is whole at any time, and workers die with
    this process.
    """
    # Background jobs of a shell ignore it, and so do we.
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    ended = threading.Event()
    read, write = os.pipe()
    os.set_blocking(write, False)

    def handle(number: int, frame: FrameType | None) -> None:
        if _is_importing(frame):
            _end()
        signal.default_int_handler(number, frame)

    def watch() -> None:
        while (number := os.read(read, 1)) and number[0] != signal.SIGINT:
            pass
        if number and not ended.wait(seconds):
            _end()

    def raise_again(unraisable: "sys.UnraisableHookArgs") -> None:  # For type checkers alone.
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            hook(unraisable)
        else:
            threading.Timer(PAUSE, again, [threading.get_ident()]).start()

    def again(thread: int) -> None:
        if not ended.is_set():
            signal.pthread_kill(thread, signal.SIGINT)

    hook, sys.unraisablehook = sys.unraisablehook, raise_again
    former = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, handle)
    watcher = threading.Thread(target=watch, name="tfp_bfl-interrupts", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        sys.unraisablehook = hook
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.set_wakeup_fd(former)
        os.close(write)  # Which ends the watcher, if it waits.
        watcher.join()
        os.close(read)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _end() -> None:
    os.write(sys.stderr.fileno(), f"{MESSAGE}\n".encode())  # Descriptor 2 is a file while TensorFlow is imported.
    os._exit(STATUS)
