"""The engine on TFF's workers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Optional

import tensorflow as tf

from tfp_bfl.contracts import ServerState
from tfp_bfl.engines.tff.context import Runtime, local_workers
from tfp_bfl.engines.tff.installation import require_tff
from tfp_bfl.federated.process import BayesianProcess


class TffEngine:
    """Runs a process's computations in a runtime's context.

    Attributes:
      concurrent_calls: of the runtime.
    """

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
def running(process: BayesianProcess, runtime: Optional[Runtime]) -> Iterator[TffEngine]:
    """Return the engine over a runtime, its context installed for this thread; over a worker of our own if
    there is none.
    """
    if runtime is None:
        with local_workers() as own:
            yield TffEngine(process, own)
    else:
        with require_tff().framework.get_context_stack().install(runtime.context):
            yield TffEngine(process, runtime)
