"""The engine that runs clients on a Ray cluster. Ray is imported when something here is first used."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tfp_bfl.faces import export_later

if TYPE_CHECKING:
    from tfp_bfl.engines.ray.cluster import RayEngine
    from tfp_bfl.engines.ray.runtime import RayRuntime, ray_runtime
    from tfp_bfl.federated import BayesianProcess

export_later(__name__, dict.fromkeys(("RayRuntime", "ray_runtime"), "tfp_bfl.engines.ray.runtime"))

__all__ = ["RayRuntime", "ray_runtime"]


def check_installed() -> None:
    """Raise MissingDependency where Ray is not installed."""
    from tfp_bfl.engines.ray.runtime import require_ray

    require_ray()


@contextlib.contextmanager
def running(process: BayesianProcess, runtime: RayRuntime | None) -> Iterator[RayEngine]:
    """Yield the engine of a process on a cluster: that of the runtime, or one that is started here and stopped."""
    from tfp_bfl.engines.ray.cluster import RayEngine
    from tfp_bfl.engines.ray.runtime import joined

    with joined(runtime) as cluster:
        yield RayEngine(process.round, cluster)
