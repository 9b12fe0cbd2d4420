"""The sums of linear models on a Ray cluster: a task for each share of the clients, with their rows."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from importlib import metadata
from typing import Any, Optional

import numpy as np

from tfp_bfl.engines.ray.runtime import RayRuntime, joined
from tfp_bfl.engines.ray.tasks import Tasks
from tfp_bfl.glm.federation import OfTable, Question, added, event_times_of
from tfp_bfl.glm.rows import Table


class RayFederation(OfTable):
    """Clients whose answers tasks of a cluster compute and add up.

    The clients are shared out into `num_workers` sums of the runtime, on which the last bits of a result depend. The
    rows of a share are sent once to each machine that computes it.

    Args:
      table, family, secure_sums: as of `OfTable`.
      runtime: the cluster.

    Raises:
      InvalidArgument: a machine has other versions of the packages.
    """

    def __init__(self, table: Table, family: str, secure_sums: bool, runtime: RayRuntime):
        super().__init__(table, family, secure_sums)
        self._tasks = Tasks(runtime)
        self._tasks.check_machines(examine, _versions())
        count = min(runtime.num_workers, self.num_clients)
        ends = [self.num_clients * i // count for i in range(count + 1)]
        self._add, self._find_times = self._tasks.work(added), self._tasks.work(event_times_of)
        self._shares = [runtime.ray.put(table.clients[a:b]) for a, b in zip(ends, ends[1:])]

    def _added(self, question: Question) -> np.ndarray:
        return functools.reduce(np.add, self._of_shares(self._add, self._family, question, self.is_secure))

    def _event_times(self) -> np.ndarray:
        return functools.reduce(np.union1d, self._of_shares(self._find_times))

    def _of_shares(self, work: Any, *given: Any) -> list[np.ndarray]:
        return self._tasks.results([functools.partial(work.remote, share, *given) for share in self._shares])


def examine() -> tuple[str, str]:
    """Return, in a task, a machine's versions, and "", since tasks bring their rows."""
    return _versions(), ""


def _versions() -> str:
    return f"tfp_bfl {metadata.version('tfp_bfl')}, numpy {np.__version__}"


@contextlib.contextmanager
def linear_model(
    table: Table, family: str, secure_sums: bool, runtime: Optional[RayRuntime]
) -> Iterator[RayFederation]:
    """Yield the clients of a table on a cluster: that of the runtime, or one that is started here and stopped."""
    with joined(runtime) as cluster:
        yield RayFederation(table, family, secure_sums, cluster)
