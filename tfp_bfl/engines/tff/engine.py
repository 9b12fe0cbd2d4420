"""The engine on TFF's workers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfp_bfl.contracts import ServerState
from tfp_bfl.engines.tff.context import Runtime, local_workers
from tfp_bfl.engines.tff.installation import require_tff
from tfp_bfl.errors import InvalidArgument, shown
from tfp_bfl.federated.local import Accepts
from tfp_bfl.federated.process import BayesianProcess


class TffEngine:
    """Runs a process's computations in a runtime's context.

    Attributes:
      concurrent_calls: of the runtime.
      accepts: datasets.
    """

    accepts: Accepts = "datasets"

    def __init__(self, process: BayesianProcess, runtime: Runtime):
        self._process = process.learning_process
        self._runtime = runtime
        self.concurrent_calls = runtime.concurrent_calls

    def initialize(self) -> ServerState:
        """Implement `Engine.initialize`."""
        return self._process.initialize()

    def next(self, state: ServerState, datasets: Sequence[tf.data.Dataset]) -> Any:
        """Implement `Engine.next`."""
        return self._process.next(state, datasets)

    def replace_dead_workers(self) -> int:
        """Implement `Engine.replace_dead_workers`; return 0 for workers that this process did not start."""
        return self._runtime.replace_dead_workers()


@contextlib.contextmanager
def installed(runtime: Runtime | None) -> Iterator[Runtime]:
    """Yield a runtime with its context installed for this thread; a worker of our own if there is none."""
    if runtime is None:
        with local_workers() as own:
            yield own
        return
    if not isinstance(runtime, Runtime):
        raise InvalidArgument(
            f"runtime is {shown(runtime)}, but the engine tff needs workers of "
            "engines.tff.local_workers or engines.tff.remote_workers."
        )
    with require_tff().framework.get_context_stack().install(runtime.context):
        yield runtime


@contextlib.contextmanager
def running(process: BayesianProcess, runtime: Runtime | None) -> Iterator[TffEngine]:
    """Yield the engine over a runtime, or over a worker of our own if there is none."""
    with installed(runtime) as workers:
        yield TffEngine(process, workers)
