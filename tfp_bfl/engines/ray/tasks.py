"""Tasks on a Ray cluster, repeated where a machine is lost."""

from __future__ import annotations

import functools
import importlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tfp_bfl.engines.ray.runtime import RayRuntime, first_line
from tfp_bfl.errors import Error, InvalidArgument, WorkerError

logger = logging.getLogger(__name__)

# How often Ray begins a task again after its process or machine is lost: a client may end each process.
RETRIES = 20
_LOOK_SECONDS = 5.0
# In which it begins what a lost machine did elsewhere, if it notices.
_RAYS_OWN_SECONDS = 20.0


class Tasks(NamedTuple):
    """Calls of functions of this library on the machines of a cluster."""

    runtime: RayRuntime

    def remote(self, function: Callable[..., Any], **options: object) -> Any:
        """Return a function as Ray's remote function, with these options of Ray."""
        surroundings = {"env_vars": {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_NUM_INTRAOP_THREADS": str(self.runtime.threads)}}
        return self.runtime.ray.remote(function).options(runtime_env=surroundings, **options)

    def work(self, function: Callable[..., Any]) -> Any:
        """Return a function that computes as Ray's remote function, on the runtime's cores of one machine."""
        return self.remote(function, num_cpus=self.runtime.threads, max_retries=RETRIES)

    def check_machines(self, examine: Callable[..., tuple[str, str]], versions: str, *given: object) -> None:
        """Check that all machines have the versions of this program, and nothing that stops them.

        `examine` returns of its arguments the versions of a machine, and why it can't take part, or "".
        """
        affinity = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        nodes = self._machines()
        on = [affinity(node_id=node["NodeID"], soft=False) for node in nodes]
        looks = [self.remote(examine, num_cpus=0, scheduling_strategy=node) for node in on]
        replies = self.results([functools.partial(look.remote, *given) for look in looks])
        for node, (found, trouble) in zip(nodes, replies):
            where = f"The machine {node['NodeManagerAddress']} of the cluster"
            if found != versions:
                raise InvalidArgument(f"{where} has {found}, but this program {versions}: install the same.")
            if trouble:
                raise InvalidArgument(f"{where} {trouble}")

    def _machines(self) -> list[Any]:
        """Return the machines that run tasks."""
        return [n for n in self.runtime.ray.nodes() if n["Alive"] and n["Resources"].get("CPU", 0) > 0]

    def results(self, asked: Sequence[Callable[[], Any]]) -> list[Any]:
        """Return the results of tasks, each started by a call; repeat tasks of a lost machine on another.

        Ray itself does not notice when the machine of a task that runs is cut off: it would wait for ever.

        Raises:
          ComputationError: an operation of a client's work raised.
          WorkerError: there is no machine left, or a task's process ended each time.
        """
        ray, results = self.runtime.ray, dict[int, Any]()
        tries = {ask(): i for i, ask in enumerate(asked)}
        machines = self._machine_ids()
        there = lost = time.monotonic()
        while len(results) < len(asked):
            waiting = [ref for ref, i in tries.items() if i not in results]
            for ref in ray.wait(waiting, num_returns=1, timeout=_LOOK_SECONDS)[0]:
                result = self._result(ref, last=list(tries.values()).count(tries[ref]) == 1)
                if result is None:
                    del tries[ref]
                else:
                    results[tries[ref]] = result
            now, left = time.monotonic(), self._machine_ids()
            there = now if left else there
            if now - there > self.runtime.patience:
                raise WorkerError(
                    f"The cluster has had no machine for {self.runtime.patience:g} s: start one with ray start, and "
                    "begin again; the rounds that were saved are kept."
                )
            lost = now if machines <= left else lost
            if now - lost > _RAYS_OWN_SECONDS and left:
                logger.warning("A machine of the cluster is lost: what it had to do is done again.")
                tries.update({ask(): i for i, ask in enumerate(asked) if i not in results})
                machines, lost = left, now
        return [results[i] for i in range(len(asked))]

    def _machine_ids(self) -> set[str]:
        return {node["NodeID"] for node in self._machines()}

    def _result(self, ref: object, last: bool) -> Any:
        """Return a task's result; None for one that is lost and not the last of its kind."""
        ray = self.runtime.ray
        try:
            return ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, Error):
                raise error.cause from None
            raise WorkerError(f"A task of the cluster failed: {first_line(error.cause)}") from None
        except ray.exceptions.RayError as error:
            if not last:
                return None
            raise WorkerError(
                f"A task of the cluster was lost {RETRIES} times ({type(error).__name__}): {first_line(error)}"
            ) from None
