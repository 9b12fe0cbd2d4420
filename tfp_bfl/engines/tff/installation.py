"""Imports TensorFlow Federated when it is first needed, and says what to do where it can't be imported."""

import atexit
import contextlib
import functools
import importlib
from types import ModuleType
from typing import Any

import psutil

from tfp_bfl.errors import INSTALL_TFF_COMMAND, MissingDependency, WorkerError, missing_package

_WORKER = "worker_binary"


@functools.cache
def require_tff() -> ModuleType:
    """Return the module `tensorflow_federated`, imported at the first call (about 5 s); else MissingDependency."""
    try:
        tff = importlib.import_module("tensorflow_federated")
    except ModuleNotFoundError as error:
        raise missing_package(error.name) from error
    except Exception as error:  # Mismatched versions surface as any kind of exception.
        raise MissingDependency(
            f"TensorFlow Federated is installed but can't be imported ({type(error).__name__}: {error}); "
            f"install the versions that fit together with: {INSTALL_TFF_COMMAND}"
        ) from error
    atexit.register(drop_default_context, tff)
    return tff


def drop_default_context(tff: ModuleType) -> None:
    """Let go of TFF's default context while its destructor still works, at the end of the program.

    TFF installs a default context when it is imported. Left to the interpreter's teardown, its destructor
    prints an exception and, if a computation ran in it, leaves that computation's worker process behind.
    """

    class Closed(tff.framework.SyncContext):  # type: ignore[name-defined,misc]
        def invoke(self, comp: object, arg: object) -> Any:
            raise WorkerError("The interpreter is exiting; run computations before that.")

    # The destructor interrupts the worker and waits for it, for ever if the interrupt is lost.
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if child.name().startswith(_WORKER):
                child.kill()
    with contextlib.suppress(Exception):
        tff.framework.set_default_context(Closed())
